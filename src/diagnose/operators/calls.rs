//! Which operators a step calls, how often, and at which shapes.

use std::fmt;

use burn::tensor::{Device, Int, Tensor};
use kiln_kernels::Activation;
use kiln_model::{Batch, FeedForwardActivation as Configured, TextBatch};

use super::super::workload::Workload;

/// Products that differ in nothing but where they stand.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Product {
    /// M, K, N.
    pub(super) shape: [usize; 3],
    pub(super) calls: usize,
    /// By a tied table, `[N, K]`.
    pub(super) transposed: bool,
    pub(super) bias: bool,
    /// Another matrix is added to the result.
    pub(super) residual: bool,
    pub(super) activation: Option<Activation>,
}

/// Which attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Causal,
    /// Of a source to itself.
    Padded,
    /// Of a target to its source.
    Cross,
}

impl Kind {
    pub(super) fn is_cross(self) -> bool {
        self == Kind::Cross
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Causal => " causal",
            Kind::Padded => " padded",
            Kind::Cross => " cross",
        })
    }
}

#[derive(Debug, Clone)]
pub(super) struct Attended {
    pub(super) kind: Kind,
    pub(super) calls: usize,
    pub(super) batch_size: usize,
    pub(super) heads: usize,
    /// Of queries and of keys.
    pub(super) lens: [usize; 2],
    pub(super) head_dim: usize,
    pub(super) causal: bool,
    pub(super) dropout: f64,
    pub(super) lengths: Option<Tensor<1, Int>>,
}

/// A step of a workload. The first norm of a stack is left out: it is the difference between the sum of the operators and the step,
/// together with what starts and ends it.
pub(super) struct Calls {
    pub(super) products: Vec<Product>,
    pub(super) attention: Vec<Attended>,
    /// Rows and calls of a norm with its residual sum.
    pub(super) norms: Vec<(usize, usize)>,
    /// Ids and rows of their table.
    pub(super) embeddings: Vec<(Tensor<1, Int>, usize)>,
    /// Positions of a row.
    pub(super) length: usize,
    /// And which of them count nothing.
    pub(super) labels: (Tensor<1, Int>, i32),
    /// Calls of the output projection and the cross-entropy of all rows at once.
    pub(super) whole_head: usize,
    pub(super) dropout: f64,
    pub(super) activation_dropout: f64,
}

impl Calls {
    pub(super) fn of(workload: &Workload, device: &Device) -> Self {
        let model = &workload.model;
        let (d, v, width) = (model.d_model, model.vocab_size(), model.n_heads * model.head_dim());
        let (b, t) = (workload.batch_size, workload.seq_len);
        let rows = b * t;
        let batch = workload.batches(device).remove(0);
        let is_pairs = matches!(batch, Batch::Pairs(_));
        let (encoders, decoders) = (if is_pairs { model.n_encoder_layers } else { 0 }, model.n_decoder_layers);
        let layers = encoders + decoders;
        let crosses = if is_pairs { decoders } else { 0 };
        let product = |n_in: usize, n_out: usize, calls: usize| Product {
            shape: [rows, n_in, n_out],
            calls,
            transposed: false,
            bias: model.bias,
            residual: false,
            activation: None,
        };
        // Where a branch ends, the product adds the stream and the bias. If something is dropped first, the norm adds them.
        let dropped = model.dropout > 0.0;
        let end = |n_in: usize, calls: usize| Product {
            bias: model.bias && !dropped,
            residual: !dropped,
            ..product(n_in, d, calls)
        };
        let whole_head = usize::from(model.logits_chunk_rows == Some(0));
        let activation = match model.activation {
            Configured::Relu => Some(Activation::Relu),
            Configured::Gelu => Some(Activation::Gelu),
            Configured::GeluTanh => Some(Activation::GeluTanh),
            Configured::Silu => Some(Activation::Silu),
            // An operator of its own; no workload has it.
            Configured::Swiglu => None,
        };
        let mut products = vec![
            product(d, 3 * width, layers),
            product(d, width, crosses),
            product(d, 2 * width, crosses),
            end(width, layers + crosses),
            Product { activation, ..product(d, model.d_ff, layers) },
            end(model.d_ff, layers),
            // In chunks it is a part of the loss: no call then, but it is timed for comparison.
            Product { transposed: true, bias: false, ..product(d, v, whole_head) },
        ];
        products.retain(|product| product.calls > 0 || product.transposed);
        let attended = |kind: Kind, calls: usize, lengths: Option<Tensor<1, Int>>| Attended {
            kind,
            calls,
            batch_size: b,
            heads: model.n_heads,
            lens: [t, t],
            head_dim: model.head_dim(),
            causal: kind == Kind::Causal,
            dropout: model.attention_dropout,
            lengths,
        };
        let mut attention = vec![attended(Kind::Causal, decoders, None)];
        let (embeddings, labels) = match batch {
            Batch::Pairs(batch) => {
                let lengths = batch.source_lengths;
                attention.push(attended(Kind::Padded, encoders, Some(lengths.clone())));
                attention.push(attended(Kind::Cross, crosses, Some(lengths)));
                let ids = vec![(batch.source, v), (batch.target_input, v)];
                (ids, (batch.labels, model.pad_id as i32))
            }
            Batch::Text(batch) => (vec![(batch.input, v)], (batch.labels, TextBatch::NOT_COUNTED)),
        };
        Self {
            products,
            attention,
            // Two a layer and three with a cross-attention; a stack's first has no branch yet, and one more ends it.
            norms: vec![(rows, 2 * layers + crosses)],
            embeddings,
            length: t,
            labels,
            whole_head,
            dropout: model.dropout,
            activation_dropout: model.activation_dropout.unwrap_or(model.dropout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The products of a step are those that its number of operations counts.
    #[test]
    fn products_add_up_to_the_operations_of_a_step() {
        for name in ["tiny", "tiny-mt"] {
            let mut workload = Workload::named(name).expect("a listed name");
            workload.model.logits_chunk_rows = Some(0);
            let calls = Calls::of(&workload, &Device::flex());
            let flops = |product: &Product| product.calls as f64 * product.shape.iter().product::<usize>() as f64 * 6.0;
            let found: f64 = calls.products.iter().map(flops).sum();
            let (b, t) = (workload.batch_size, workload.seq_len);
            let counted = kiln_model::flops::train_flops_per_batch(&workload.model, workload.shape());
            assert_eq!(found, counted.weights, "{name}");
            let pairs = |a: &Attended| a.calls as f64 * if a.causal { 0.5 } else { 1.0 };
            let squares: f64 = calls.attention.iter().map(pairs).sum();
            let attention = 12.0 * squares * (b * t * t * workload.model.d_model) as f64;
            assert_eq!(attention, counted.attention, "{name}");
        }
    }
}
