//! The operators that a step calls: which, how often, and at which shapes.
//!
//! The list repeats by hand what the layers of `kiln-model` call. A test compares its floating-point operations with
//! `kiln_model::flops`.

use std::fmt;

use burn::tensor::{Device, Int, Tensor};
use kiln_kernels::Activation;
use kiln_model::{Architecture, Batch, TextBatch, TransformerConfig};

use super::super::workload::Workload;

/// Calls of a product that differ only in their place in the model.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ProductCalls {
    /// M, K, N.
    pub(super) shape: [usize; 3],
    pub(super) calls: usize,
    /// The weight is a tied table, `[N, K]`.
    pub(super) transposed: bool,
    pub(super) bias: bool,
    /// The product adds the residual to its result.
    pub(super) residual: bool,
    pub(super) activation: Option<Activation>,
}

/// The place of an attention in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttentionKind {
    /// Self-attention of a decoder.
    Causal,
    /// Self-attention of an encoder: of pairs, over padded rows.
    Padded,
    /// From a target to its source.
    Cross,
}

impl AttentionKind {
    pub(super) fn is_cross(self) -> bool {
        self == AttentionKind::Cross
    }
}

impl fmt::Display for AttentionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AttentionKind::Causal => " causal",
            AttentionKind::Padded => " padded",
            AttentionKind::Cross => " cross",
        })
    }
}

/// Calls of attention with the same shape and mask.
#[derive(Debug, Clone)]
pub(super) struct AttentionCalls {
    pub(super) kind: AttentionKind,
    pub(super) calls: usize,
    pub(super) batch_size: usize,
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    /// Positions of queries and of keys.
    pub(super) lens: [usize; 2],
    pub(super) head_dim: usize,
    pub(super) causal: bool,
    pub(super) dropout: f64,
    pub(super) lengths: Option<Tensor<1, Int>>,
}

/// The calls of a step. The first norm of a stack is left out: it has no residual sum, and belongs to the difference between
/// the sum of the operators and the step.
pub(super) struct Calls {
    pub(super) products: Vec<ProductCalls>,
    pub(super) attention: Vec<AttentionCalls>,
    /// Rows and calls of norms with their residual sum.
    pub(super) norms: Vec<(usize, usize)>,
    /// Ids and the rows of their table.
    pub(super) embeddings: Vec<(Tensor<1, Int>, usize)>,
    /// Positions per row.
    pub(super) length: usize,
    /// Labels, and the label that marks a position without a loss.
    pub(super) labels: (Tensor<1, Int>, i32),
    /// Calls of the output projection and the cross-entropy over all rows at once: 0 or 1.
    pub(super) whole_head: usize,
    pub(super) dropout: f64,
    pub(super) activation_dropout: f64,
}

impl Calls {
    pub(super) fn of(workload: &Workload, device: &Device) -> Self {
        let model = &workload.model;
        let rows = workload.batch_size * workload.seq_len;
        let batch = workload.batches(device).remove(0);
        let is_pairs = matches!(batch, Batch::Pairs(_));
        let layers = Layers {
            encoder: if model.architecture == Architecture::DecoderOnly { 0 } else { model.n_encoder_layers },
            decoder: if model.architecture == Architecture::EncoderOnly { 0 } else { model.n_decoder_layers },
            cross: if is_pairs { model.n_decoder_layers } else { 0 },
        };

        let (attention, embeddings, labels) = match batch {
            Batch::Pairs(batch) => {
                let ids = vec![(batch.source, model.vocab_size()), (batch.target_input, model.vocab_size())];
                let attention = attention(workload, layers, Some(batch.source_lengths));
                (attention, ids, (batch.labels, model.pad_id as i32))
            }
            Batch::Text(batch) => {
                let ids = vec![(batch.input, model.vocab_size())];
                (attention(workload, layers, None), ids, (batch.labels, TextBatch::NOT_COUNTED))
            }
        };

        Self {
            products: products(model, rows, layers),
            attention,
            // Two per layer, three with cross-attention. The first of a stack has no branch yet, but one more ends the stack.
            norms: vec![(rows, 2 * layers.all() + layers.cross)],
            embeddings,
            length: workload.seq_len,
            labels,
            whole_head: whole_head(model),
            dropout: model.dropout,
            activation_dropout: model.activation_dropout.unwrap_or(model.dropout),
        }
    }
}

/// Numbers of layers.
#[derive(Debug, Clone, Copy)]
struct Layers {
    encoder: usize,
    decoder: usize,
    /// Decoder layers with a cross-attention.
    cross: usize,
}

impl Layers {
    fn all(self) -> usize {
        self.encoder + self.decoder
    }
}

fn products(model: &TransformerConfig, rows: usize, layers: Layers) -> Vec<ProductCalls> {
    let (d, v, width) = (model.d_model, model.vocab_size(), model.n_heads * model.head_dim());
    let keys = model.kv_heads() * model.head_dim();
    let gates = if model.activation.is_gated() { 2 } else { 1 };
    let masked = usize::from(model.architecture == Architecture::EncoderOnly);
    let product = |n_in: usize, n_out: usize, calls: usize| ProductCalls {
        shape: [rows, n_in, n_out],
        calls,
        transposed: false,
        bias: model.bias,
        residual: false,
        activation: None,
    };
    // The last product of a branch adds the bias and the residual. With dropout, the norm adds them.
    let dropped = model.dropout > 0.0;
    let end = |n_in: usize, calls: usize| ProductCalls {
        bias: model.bias && !dropped,
        residual: !dropped,
        ..product(n_in, d, calls)
    };

    let feed_forward_bias = model.has_feed_forward_bias();
    // A gated activation is an operator of its own, which is not listed.
    let mut products = vec![
        ProductCalls { bias: model.has_qkv_bias(), ..product(d, width + 2 * keys, layers.all()) },
        product(d, width, layers.cross),
        product(d, 2 * keys, layers.cross),
        end(width, layers.all() + layers.cross),
        ProductCalls {
            bias: feed_forward_bias,
            activation: (!model.activation.is_gated()).then_some(model.activation.by()),
            ..product(d, gates * model.d_ff, layers.all())
        },
        ProductCalls { bias: feed_forward_bias && !dropped, ..end(model.d_ff, layers.all()) },
        // The head of an encoder.
        ProductCalls { activation: Some(model.activation.by()), ..product(d, d, masked) },
        // In chunks it is part of the loss: 0 calls, but timed for comparison.
        ProductCalls { transposed: true, bias: false, ..product(d, v, whole_head(model)) },
    ];
    products.retain(|product| product.calls > 0 || product.transposed);
    products
}

fn whole_head(model: &TransformerConfig) -> usize {
    usize::from(model.logits_chunk_rows == Some(0))
}

/// Only pairs have `source_lengths`.
fn attention(workload: &Workload, layers: Layers, source_lengths: Option<Tensor<1, Int>>) -> Vec<AttentionCalls> {
    let model = &workload.model;
    let call = |kind: AttentionKind, calls: usize, lengths: Option<Tensor<1, Int>>| AttentionCalls {
        kind,
        calls,
        batch_size: workload.batch_size,
        n_heads: model.n_heads,
        n_kv_heads: model.kv_heads(),
        lens: [workload.seq_len; 2],
        head_dim: model.head_dim(),
        causal: kind == AttentionKind::Causal,
        dropout: model.attention_dropout,
        lengths,
    };

    let mut attention = vec![
        call(AttentionKind::Causal, layers.decoder, None),
        call(AttentionKind::Padded, layers.encoder, source_lengths.clone()),
        call(AttentionKind::Cross, layers.cross, source_lengths),
    ];
    attention.retain(|attention| attention.calls > 0);
    attention
}

#[cfg(test)]
mod tests {
    use kiln_model::FeedForwardActivation;
    use kiln_train::config::{Config, presets};

    use super::*;

    /// The listed products and attentions have the floating-point operations of a step.
    #[test]
    fn products_add_up_to_the_operations_of_a_step() {
        let small = |config: Config| {
            let model = TransformerConfig {
                n_heads: 4,
                n_kv_heads: 2,
                activation: FeedForwardActivation::SWIGLU,
                ..config.model
            };
            Workload::of("grouped", &Config { model, ..config }, Some(2), Some(16)).expect("a shape that fits")
        };
        let named = ["tiny", "tiny-mt"].map(|name| Workload::named(name).expect("a listed name"));
        let grouped = [presets::gpt2_tiny(), presets::bert_tiny(), presets::tiny()].map(small);
        for mut workload in named.into_iter().chain(grouped) {
            let name = workload.title.clone();
            workload.model.logits_chunk_rows = Some(0);
            let calls = Calls::of(&workload, &Device::flex());
            let flops =
                |product: &ProductCalls| product.calls as f64 * product.shape.iter().product::<usize>() as f64 * 6.0;
            let found: f64 = calls.products.iter().map(flops).sum();

            let (b, t) = (workload.batch_size, workload.seq_len);
            let counted =
                kiln_model::flops::train_flops_per_batch(&workload.model, workload.shape(), workload.masked_share());
            assert_eq!(found, counted.weights, "{name}");

            let pairs = |a: &AttentionCalls| a.calls as f64 * if a.causal { 0.5 } else { 1.0 };
            let squares: f64 = calls.attention.iter().map(pairs).sum();
            let attention = 12.0 * squares * (b * t * t * workload.model.d_model) as f64;
            assert_eq!(attention, counted.attention, "{name}");
        }
    }
}
