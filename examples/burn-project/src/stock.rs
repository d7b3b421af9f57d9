//! Before: stock Burn layers, and batches cut by hand.

use std::error::Error;

use burn::nn::activation::Gelu;
use burn::nn::attention::{MhaInput, generate_autoregressive_mask};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Device, Int, Tensor};

use crate::model::{Model, Shape};
use crate::text::{Batch, Text};

/// Cuts the documents into rows, one behind the other, each with a start and an end token.
pub fn batches(text: &Text) -> Result<impl FnMut() -> Result<Batch, Box<dyn Error>>, Box<dyn Error>> {
    let (mut inputs, mut labels) = (Vec::new(), Vec::new());
    for document in &text.documents {
        let ids: Vec<i32> = text.tokenizer.encode(document)?.into_iter().map(|id| id as i32).collect();
        inputs.extend([text.start].iter().chain(&ids));
        labels.extend(ids.iter().chain(&[text.end]));
    }

    let (mut next, n) = (0, text.shape.tokens());
    Ok(move || {
        let places = next..next + n;
        next = places.end;
        if next > inputs.len() {
            return Err(format!("the text has {} tokens, fewer than the steps need", inputs.len()).into());
        }
        Ok(Batch { inputs: inputs[places.clone()].to_vec(), labels: labels[places].to_vec() })
    })
}

/// Returns the mean loss of a batch, `[1]`.
pub fn mean_loss(model: &Model, batch: &Batch, device: &Device) -> Tensor<1> {
    let Shape { batch_size, seq_len, .. } = model.shape;
    let ids = Tensor::<1, Int>::from_data(batch.inputs.as_slice(), device).reshape([batch_size, seq_len]);
    let labels = Tensor::<1, Int>::from_data(batch.labels.as_slice(), device);
    let positions = Tensor::<1, Int>::arange(0..seq_len as i64, device).reshape([1, seq_len]);
    let mask = generate_autoregressive_mask(batch_size, seq_len, device);

    let mut x = model.tokens.forward(ids) + model.positions.forward(positions);
    for layer in &model.layers {
        let normed = layer.attention_norm.forward(x.clone());
        x = x + layer.attention.forward(MhaInput::self_attn(normed).mask_attn(mask.clone())).context;
        let normed = layer.feed_forward_norm.forward(x.clone());
        x = x + layer.down.forward(Gelu::new().forward(layer.up.forward(normed)));
    }

    let logits = model.norm.forward(x).flatten::<2>(0, 1).matmul(model.tokens.weight.val().transpose());
    CrossEntropyLossConfig::new().init(device).forward(logits, labels)
}
