//! Operators that work on rows: norms with their residual sum, embeddings, cross-entropy.

use anyhow::Result;
use burn::tensor::{Int, Tensor};
use kiln_kernels::{Branch, CrossEntropyConfig, NormWeights, add_norm, cross_entropy, embed};
use kiln_model::{NormKind, TransformerConfig};

use super::bench::Bench;
use super::work::Work;

/// Norms in a row, as in a model: the gradient of a residual sum is added to the gradient of a norm.
const CHAIN: usize = 4;

impl Bench {
    /// Times the residual sum, dropout and norm of `model`. Without dropout, the product before adds the residual, so the forward
    /// pass is a norm alone.
    pub(super) fn norm(&mut self, rows: usize, calls: usize, dropout: f64, model: &TransformerConfig) -> Result<()> {
        let [m, d] = [rows, model.d_model];
        let (gamma, beta, x) = (self.leaf([d]), self.leaf([d]), self.leaf([m, d]));
        let bias = model.bias.then(|| self.leaf([d]));
        let drop = self.dropout(dropout);
        let norm = || NormWeights {
            gamma: gamma.clone(),
            beta: (model.norm_kind == NormKind::LayerNorm).then(|| beta.clone()),
            eps: 1e-5,
        };
        let kept = 8.0 * CHAIN as f64 * self.bytes(m * d) as f64;

        let chain = || {
            let mut kept = vec![(x.clone(), x.clone())];
            for _ in 0..CHAIN {
                let (sum, normed) = kept[kept.len() - 1].clone();
                kept.push(add_norm(sum, Some(Branch { bias: bias.clone(), ..normed.into() }), drop, norm()));
            }
            kept
        };
        let summed = self.watch.time(kept, chain)?;
        let both = self.watch.time(kept, || {
            let kept = chain();
            let gradients = kept[CHAIN].1.backward();
            (kept, gradients)
        })?;

        let norms = || {
            let mut kept = vec![x.clone()];
            for _ in 0..CHAIN {
                kept.push(add_norm(kept[kept.len() - 1].clone(), None, None, norm()).1);
            }
            kept
        };
        let (name, forward, passes) = match drop {
            Some(_) => ("residual + norm forward", summed, 4),
            None => ("norm forward", self.watch.time(kept, norms)?, 2),
        };

        // With dropout, the gradients of the two addends differ.
        let back = self.bytes((if dropout > 0.0 { 5 } else { 4 }) * m * d);
        let shape = format!("{m} x {d}");
        self.row(name, shape.clone(), calls, forward.over(CHAIN), Work::moved(self.bytes(passes * m * d)));
        self.row("residual + norm backward", shape, calls, both.without(summed).over(CHAIN), Work::moved(back));
        Ok(())
    }

    /// Times a scaled lookup in a table `[V, D]` with `len` learned positions and dropout.
    pub(super) fn embedding(
        &mut self,
        ids: Tensor<1, Int>,
        [v, d]: [usize; 2],
        len: usize,
        dropout: f64,
    ) -> Result<()> {
        let ([m], table, positions) = (ids.dims(), self.leaf([v, d]), self.leaf([len, d]));
        let ids = Tensor::from_inner(ids);
        let drop = self.dropout(dropout);
        let run = || embed(ids.clone(), table.clone(), (d as f64).sqrt(), Some(positions.clone()), drop);
        let forward = self.watch.time(self.bytes(m * d) as f64, run)?;
        let both = self.with_backward([m, d], run)?;

        let shape = format!("{m} of {v} x {d}");
        // Backward reads the gradient twice: for the table and for the positions.
        let (two, back) = (Work::moved(self.bytes(2 * m * d)), Work::moved(self.bytes((2 * m + v + len) * d)));
        self.row("embedding forward", shape.clone(), 1, forward, two);
        self.row("embedding backward", shape, 1, both.without(forward), back);
        Ok(())
    }

    /// Times the cross-entropy of all rows at once.
    pub(super) fn cross_entropy(
        &mut self,
        labels: Tensor<1, Int>,
        v: usize,
        config: &CrossEntropyConfig,
        calls: usize,
    ) -> Result<()> {
        let [m] = labels.dims();
        let (logits, labels) = (self.leaf([m, v]), Tensor::from_inner(labels));
        let run = || cross_entropy(logits.clone(), labels.clone(), config);
        let kept = 2.0 * self.bytes(m * v) as f64;
        let forward = self.watch.time(kept, run)?;
        let both = self.watch.time(kept, || {
            let sums = run();
            let gradients = sums.loss_sum.backward();
            (sums, gradients)
        })?;

        let shape = format!("{m} x {v}");
        let back = Work::moved(self.bytes(2 * m * v));
        self.row("cross-entropy forward", shape.clone(), calls, forward, Work::moved(self.bytes(m * v)));
        self.row("cross-entropy backward", shape, calls, both.without(forward), back);
        Ok(())
    }
}
