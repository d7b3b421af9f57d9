//! Matrix products, activations and the output projection with its loss.

use anyhow::Result;
use burn::tensor::{Int, Tensor};
use kiln_kernels::{
    Activation, CrossEntropyConfig, Projection, linear, linear_activated, linear_cross_entropy, linear_residual,
    linear_transposed, linear_weight_gradient,
};
use kiln_model::TransformerConfig;

use super::bench::Bench;
use super::calls::ProductCalls;
use super::work::Work;

impl Bench {
    pub(super) fn product(&mut self, product: &ProductCalls) -> Result<()> {
        let ProductCalls { shape: [m, k, n], calls, transposed, bias, residual, activation } = *product;
        let (x, dy) = (self.random([m, k]), self.random([m, n]));
        let w = self.random(if transposed { [n, k] } else { [k, n] });
        let b = bias.then(|| self.random([n]));
        let added = residual.then(|| self.random([m, n]));
        let shape = format!("{m} x {k} x {n}");
        let work = Work::product([m, k, n], self.element);
        let kept = |n: usize| self.bytes(n) as f64;

        // The three products of a linear layer.
        let forward = self.watch.time(kept(m * n), || match &added {
            Some(added) => linear_residual(x.clone(), w.clone(), b.clone(), added.clone()),
            None if transposed => linear_transposed(x.clone(), w.clone(), None),
            None => linear(x.clone(), w.clone(), b.clone()),
        })?;
        let dx = self.watch.time(kept(m * k), || match transposed {
            true => linear(dy.clone(), w.clone(), None),
            false => linear_transposed(dy.clone(), w.clone(), None),
        })?;
        let dw = self.watch.time(kept(k * n), || match transposed {
            true => linear_weight_gradient(dy.clone(), x.clone()),
            false => linear_weight_gradient(x.clone(), dy.clone()),
        })?;

        let name = if residual { "linear + residual" } else { "linear forward" };
        let forward_work = Work { bytes: work.bytes + if residual { kept(m * n) } else { 0.0 }, ..work };
        self.row(name, shape.clone(), calls, forward, forward_work);
        self.row("linear dX", shape.clone(), calls, dx, work);
        self.row("linear dW", shape.clone(), calls, dw, work);

        // After an activation, its backward sums the bias's gradient; after a residual sum, the norm's backward does.
        if bias && !residual && activation.is_none() {
            let (x, w, b) = (Tensor::from_inner(x), Tensor::from_inner(w), self.leaf([n]));
            let both = self.with_backward([m, n], || linear(x.clone(), w.clone(), Some(b.clone())))?;
            let work = Work::moved(self.bytes(m * n + n));
            self.row("linear db", format!("{m} x {n}"), calls, both.without(forward), work);
        }
        Ok(())
    }

    /// Times an activation: a product with it, less the product alone.
    pub(super) fn activation(
        &mut self,
        [m, k, n]: [usize; 3],
        calls: usize,
        by: Activation,
        dropout: f64,
    ) -> Result<()> {
        let (x, w, b) = (self.constant([m, k]), self.constant([k, n]), self.leaf([n]));
        let kept = 2.0 * self.bytes(m * n) as f64;
        let product = self.watch.time(kept, || linear(x.clone(), w.clone(), Some(b.clone())))?;

        let drop = self.dropout(dropout);
        let activated = || linear_activated(x.clone(), w.clone(), Some(b.clone()), by, drop);
        let forward = self.watch.time(kept, activated)?;
        // Only the bias has a gradient, so backward ends with the activation.
        let both = self.with_backward([m, n], activated)?;

        let shape = format!("{m} x {n}");
        let (two, three) = (Work::moved(self.bytes(2 * m * n)), Work::moved(self.bytes(3 * m * n)));
        self.row(&format!("{by:?} forward"), shape.clone(), calls, forward.without(product), two);
        self.row(&format!("{by:?} backward, db"), shape, calls, both.without(forward), three);
        Ok(())
    }

    /// Times the output projection and its loss as the model computes them: in chunks of rows, each with its gradients. Such
    /// a step has neither the whole product nor the whole cross-entropy.
    pub(super) fn head(
        &mut self,
        labels: &Tensor<1, Int>,
        model: &TransformerConfig,
        config: &CrossEntropyConfig,
    ) -> Result<()> {
        let [m] = labels.dims();
        let (chunk_rows, d, v) = (model.logits_chunk(m), model.d_model, model.vocab_size());
        if chunk_rows == 0 {
            return Ok(());
        }

        let (x, weight, labels) = (self.leaf([m, d]), self.leaf([v, d]), Tensor::from_inner(labels.clone()));
        let bytes = self.bytes(2 * (m * d + v * d)) as f64;
        let time = self.watch.time(bytes, || {
            let projection = Projection { weight: weight.clone(), transposed: true, bias: None, softcap: None };
            let sums = linear_cross_entropy(x.clone(), projection, labels.clone(), config, chunk_rows);
            let gradients = sums.loss_sum.backward();
            (sums, gradients)
        })?;

        let work = Work { flops: 3.0 * Work::product([m, d, v], self.element).flops, bytes };
        self.row("projection + loss, both", format!("{m} x {d} x {v} by {chunk_rows}"), 1, time, work);
        Ok(())
    }
}
