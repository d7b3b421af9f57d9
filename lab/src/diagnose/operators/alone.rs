//! Makes a recorded call alone: by its name and sizes, and by what the shape of the model says of the rest.

use anyhow::Result;
use burn::tensor::{Int, Tensor};
use kiln_kernels::CrossEntropyConfig;
use kiln_model::{Batch, TextBatch, TransformerConfig};
use kiln_train::eval::Model;
use kiln_train::train::TrainState;

use super::bench::{Bench, Pass};
use super::calls::Calls;
use super::timing::Timed;

/// The calls of a step, and what they do not say themselves.
pub(super) struct Alone<'a> {
    pub(super) bench: &'a Bench,
    pub(super) shape: TransformerConfig,
    pub(super) batch: &'a Batch,
    pub(super) loss: CrossEntropyConfig,
    recorded: &'a [Calls],
}

impl<'a> Alone<'a> {
    pub(super) fn new<M: Model>(
        bench: &'a Bench,
        state: &TrainState<M>,
        batch: &'a Batch,
        recorded: &'a [Calls],
    ) -> Self {
        let shape = state.shape.clone();
        let ignored = match batch {
            Batch::Pairs(_) => shape.pad_id as i64,
            Batch::Text(_) => i64::from(TextBatch::NOT_COUNTED),
        };
        let loss = CrossEntropyConfig { label_smoothing: state.label_smoothing, ignore_index: ignored };
        Self { bench, shape, batch, loss, recorded }
    }

    /// Times one of `calls`; `None` if this module does not know how to make it.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn time(&self, calls: &Calls) -> Result<Option<Timed>> {
        let pass = if calls.operator.ends_with("backward") { Pass::Backward } else { Pass::Forward };
        let timed = match (calls.operator, calls.sizes.as_slice()) {
            ("linear NN" | "linear NT" | "linear TN", &[m, k, n]) => self.product(calls, [m, k, n]),
            ("column sum", &[m, n]) => self.column_sum([m, n]),
            ("activation forward" | "activation backward", &[m, n]) => self.activation([m, n], pass),
            ("swiglu forward" | "swiglu backward" | "geglu forward" | "geglu backward", &[m, n]) => {
                self.gated([m, n], calls.operator.starts_with("swiglu"), pass)
            }
            ("attention forward" | "attention backward", &[b, h, t, s, k]) => {
                self.attention(calls, [b, h, t, s, k], pass)
            }
            ("norm forward" | "norm backward", &[m, d]) => self.norm(calls, [m, d], pass),
            ("embedding forward" | "embedding backward", &[m, v, d]) => self.embedding([m, v, d], pass),
            ("cross-entropy forward" | "cross-entropy backward", &[m, v]) => self.cross_entropy([m, v], pass),
            ("output projection by chunks", &[m, d, v]) => self.head([m, d, v]),
            _ => return Ok(None),
        };
        timed.map(Some)
    }

    /// Returns the name of the row: the operator's, and what its work says of the call.
    pub(super) fn name(&self, calls: &Calls) -> String {
        let more = match (calls.operator, calls.sizes.as_slice()) {
            ("linear NN", &[m, k, n]) if self.adds_residual(calls, [m, k, n]) => " + residual".into(),
            ("linear NN", &[m, _, n]) if self.activates([m, n]) => format!(" + {:?}", self.shape.activation.by()),
            ("attention forward" | "attention backward", &[b, h, t, s, k]) => {
                self.mask_of(calls, [b, h, t, s, k]).in_words()
            }
            ("norm forward" | "norm backward", &[m, d]) if self.has_sum(calls, [m, d]) => " + residual".into(),
            _ => String::new(),
        };
        format!("{}{more}", calls.operator)
    }

    /// Returns how many tensors of `n` elements have the bytes of a call.
    pub(super) fn passes(&self, calls: &Calls, n: usize) -> usize {
        (calls.work.bytes / self.bench.bytes(n) as f64).round() as usize
    }

    /// Whether a product with a result of these sizes computes the activation, too: backward does, and nothing else did before.
    pub(super) fn activates(&self, sizes: [usize; 2]) -> bool {
        let is_called = |operator| self.recorded.iter().any(|calls| calls.operator == operator && calls.sizes == sizes);
        is_called("activation backward") && !is_called("activation forward")
    }

    /// Returns `n` numbers below `end`: the ids of the batch in `own`, if they are as many and `end` is the size of a vocabulary.
    pub(super) fn numbers(&self, own: &[&Tensor<1, Int>], n: usize, end: usize) -> Tensor<1, Int> {
        let is_vocabulary = [self.shape.source_vocab_size, self.shape.target_vocab_size].contains(&end);
        let own = own.iter().find(|own| is_vocabulary && own.dims() == [n]).map(|own| (*own).clone());
        Tensor::from_inner(own.unwrap_or_else(|| self.bench.numbers(n, end)))
    }
}
