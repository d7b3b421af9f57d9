//! Matrix products, activations and the output projection with its loss.

use anyhow::Result;
use burn::tensor::Tensor;
use kiln_kernels::{
    Projection, geglu, linear, linear_activated, linear_cross_entropy, linear_residual, linear_transposed,
    linear_weight_gradient, swiglu,
};
use kiln_model::Batch;

use super::alone::Alone;
use super::bench::Pass;
use super::calls::Calls;
use super::timing::Timed;

/// K of a product in front of what is timed: a small part of the time.
const NARROW: usize = 8;

impl Alone<'_> {
    /// Times a product `[M, K] · [K, N]`, with its residual sum or activation if it computes one.
    pub(super) fn product(&self, calls: &Calls, [m, k, n]: [usize; 3]) -> Result<Timed> {
        let bench = self.bench;
        let kept = bench.bytes(m * n) as f64;

        match calls.operator {
            "linear NN" if self.adds_residual(calls, [m, k, n]) => {
                let (x, w, added) = (bench.random([m, k]), bench.random([k, n]), bench.random([m, n]));
                bench.watch.time(kept, || linear_residual(x.clone(), w.clone(), None, added.clone()))
            }
            "linear NN" if self.activates([m, n]) => {
                let (x, w, b) = (bench.constant([m, k]), bench.constant([k, n]), bench.leaf([n]));
                bench.watch.time(2.0 * kept, || self.activated(&x, &w, &b))
            }
            "linear NN" => {
                let (x, w) = (bench.random([m, k]), bench.random([k, n]));
                bench.watch.time(kept, || linear(x.clone(), w.clone(), None))
            }
            "linear NT" => {
                let (x, w) = (bench.random([m, k]), bench.random([n, k]));
                bench.watch.time(kept, || linear_transposed(x.clone(), w.clone(), None))
            }
            _ => {
                let (x, dy) = (bench.random([k, m]), bench.random([k, n]));
                bench.watch.time(kept, || linear_weight_gradient(x.clone(), dy.clone()))
            }
        }
    }

    /// Whether a product reads a residual, too.
    pub(super) fn adds_residual(&self, calls: &Calls, [m, k, n]: [usize; 3]) -> bool {
        calls.work.bytes > self.bench.bytes(m * k + k * n + m * n) as f64
    }

    /// The activation of a product, with its bias and dropout.
    fn activated(&self, x: &Tensor<2>, w: &Tensor<2>, b: &Tensor<1>) -> Tensor<2> {
        let drop = self.bench.dropout(self.shape.activation_dropout.unwrap_or(self.shape.dropout));
        linear_activated(x.clone(), w.clone(), Some(b.clone()), self.shape.activation.by(), drop)
    }

    /// Times an activation: a narrow product with it, less the product alone. Backward sums the gradient of the bias, too.
    pub(super) fn activation(&self, [m, n]: [usize; 2], pass: Pass) -> Result<Timed> {
        let bench = self.bench;
        // Only the bias has a gradient, so backward ends with the activation.
        let (x, w, b) = (bench.constant([m, NARROW]), bench.constant([NARROW, n]), bench.leaf([n]));
        let kept = 2.0 * bench.bytes(m * n) as f64;
        let forward = bench.watch.time(kept, || self.activated(&x, &w, &b))?;
        Ok(match pass {
            Pass::Forward => forward.without(bench.watch.time(kept, || linear(x.clone(), w.clone(), Some(b.clone())))?),
            Pass::Backward => bench.with_backward([m, n], || self.activated(&x, &w, &b))?.without(forward),
        })
    }

    /// Times a gated activation of `[M, 2 * F]`.
    pub(super) fn gated(&self, [m, n]: [usize; 2], is_swiglu: bool, pass: Pass) -> Result<Timed> {
        let x = self.bench.leaf([m, n]);
        let run = || if is_swiglu { swiglu(x.clone()) } else { geglu(x.clone()) };
        self.bench.pass(pass, [m, n / 2], run)
    }

    /// Times the sums of columns, as the gradient of the bias of a narrow product.
    pub(super) fn column_sum(&self, [m, n]: [usize; 2]) -> Result<Timed> {
        let bench = self.bench;
        let (x, w, b) = (bench.constant([m, NARROW]), bench.constant([NARROW, n]), bench.leaf([n]));
        bench.pass(Pass::Backward, [m, n], || linear(x.clone(), w.clone(), Some(b.clone())))
    }

    /// Times the output projection and its loss in chunks of rows, each with its gradients.
    pub(super) fn head(&self, [m, d, v]: [usize; 3]) -> Result<Timed> {
        let bench = self.bench;
        let chunk_rows = match self.shape.logits_chunk(m) {
            0 => m,
            rows => rows,
        };
        let (x, weight, labels) = (bench.leaf([m, d]), bench.leaf([v, d]), self.labels([m, v]));
        bench.watch.time(bench.bytes(2 * (m * d + v * d)) as f64, || {
            let softcap = self.shape.logit_softcap();
            let projection = Projection { weight: weight.clone(), transposed: true, bias: None, softcap };
            let sums = linear_cross_entropy(x.clone(), projection, labels.clone(), &self.loss, chunk_rows);
            let gradients = sums.loss_sum.backward();
            (sums, gradients)
        })
    }

    /// Returns labels of `m` rows.
    pub(super) fn labels(&self, [m, v]: [usize; 2]) -> Tensor<1, burn::tensor::Int> {
        let labels = match self.batch {
            Batch::Pairs(batch) => &batch.labels,
            Batch::Text(batch) => &batch.labels,
        };
        self.numbers(&[labels], m, v)
    }
}
