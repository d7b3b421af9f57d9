//! After: the operators of `kiln-kernels`, and the batches of `kiln-data`'s loader.

use std::error::Error;
use std::sync::Arc;

use burn::nn::{LayerNorm, Linear};
use burn::tensor::{Device, Int, Tensor};
use kiln_data::{Loader, LoaderConfig, Position, Task, TextSource, prepare_text};
use kiln_kernels::{
    Activation, AttentionConfig, AttentionMask, Branch, CrossEntropyConfig, NormWeights, Projected, Projection,
    add_norm, attention, embed, linear, linear_activated, linear_cross_entropy,
};

use crate::model::{EPS, Layer, Model, Shape};
use crate::text::{Batch, Text, config};

/// Rows whose logits exist at a time.
const CHUNK_ROWS: usize = 256;

/// Starts a loader over a token cache. It keeps the order of the text, so that both runs see the same batches.
pub fn batches(text: &Text) -> Result<impl FnMut() -> Result<Batch, Box<dyn Error>>, Box<dyn Error>> {
    let cache = prepare_text(&text.folder.path().join("text.tokens"), &text.corpus, &text.tokenizer, 2, &mut |_| ())?;
    let loading = LoaderConfig { batch_tokens: text.shape.tokens(), shuffle: false, ..Default::default() };
    let source = TextSource::new(cache.cache, &text.tokenizer, Task::Lm, &config(&text.shape), &loading)?;
    let mut loader = Loader::new(Arc::new(source), &loading, 1, Position::default())?;

    Ok(move || {
        let batch = loader.next_batch()?;
        let copy = Batch { inputs: batch.target_input().to_vec(), labels: batch.labels().to_vec() };
        loader.recycle(batch);
        Ok(copy)
    })
}

/// Returns the mean loss of a batch, `[1]`.
pub fn mean_loss(model: &Model, batch: &Batch, device: &Device) -> Tensor<1> {
    let ids = Tensor::<1, Int>::from_data(batch.inputs.as_slice(), device);
    let labels = Tensor::<1, Int>::from_data(batch.labels.as_slice(), device);

    // A part of a layer is a branch: the next norm adds it to the residual stream.
    let mut sum = embed(ids, model.tokens.weight.val(), 1.0, Some(model.positions.weight.val()), None);
    let mut branch = None;
    for layer in &model.layers {
        let (next, normed) = add_norm(sum, branch, None, norm(&layer.attention_norm));
        branch = Some(attended(layer, &model.shape, normed));
        let (next, normed) = add_norm(next, branch, None, norm(&layer.feed_forward_norm));
        let hidden = linear_activated(normed, weight(&layer.up), bias(&layer.up), Activation::Gelu, None);
        branch = Some(Branch { x: hidden, weight: Some(weight(&layer.down)), bias: bias(&layer.down) });
        sum = next;
    }
    let (_, normed) = add_norm(sum, branch, None, norm(&model.norm));

    let head = Projection { weight: model.tokens.weight.val(), transposed: true, bias: None, softcap: None };
    let config = CrossEntropyConfig { label_smoothing: 0.0, ignore_index: -1 };
    linear_cross_entropy(normed, head, labels, &config, CHUNK_ROWS).loss_sum / model.shape.tokens() as f32
}

/// Returns attention up to its output projection. One product gives queries, keys and values.
fn attended(layer: &Layer, shape: &Shape, x: Tensor<2>) -> Branch {
    let [query, key, value] = [&layer.attention.query, &layer.attention.key, &layer.attention.value];
    let parts = [query, key, value];
    let biases = Tensor::cat(parts.iter().filter_map(|part| bias(part)).collect(), 0);
    let qkv = linear(x, Tensor::cat(parts.map(weight).into(), 1), Some(biases));

    let config = AttentionConfig {
        batch_size: shape.batch_size,
        n_heads: shape.n_heads,
        n_kv_heads: shape.n_heads,
        causal: true,
        window: None,
        scale: None,
        softcap: None,
    };
    let output = &layer.attention.output;
    Branch {
        x: attention(Projected::SelfAttention { qkv }, &AttentionMask::default(), None, &config),
        weight: Some(weight(output)),
        bias: bias(output),
    }
}

fn weight(layer: &Linear) -> Tensor<2> {
    layer.weight.val()
}

fn bias(layer: &Linear) -> Option<Tensor<1>> {
    layer.bias.as_ref().map(|bias| bias.val())
}

fn norm(layer: &LayerNorm) -> NormWeights {
    NormWeights { gamma: layer.gamma.val(), beta: layer.beta.as_ref().map(|beta| beta.val()), eps: EPS }
}
