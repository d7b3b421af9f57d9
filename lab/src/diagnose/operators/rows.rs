//! Operators that work on rows: norms with their residual sum, embeddings, cross-entropy.

use anyhow::Result;
use kiln_kernels::{Branch, NormWeights, add_norm, cross_entropy, embed};
use kiln_model::{Batch, NormKind, Positions};

use super::alone::Alone;
use super::bench::Pass;
use super::calls::Calls;
use super::timing::Timed;

/// Norms in a row, as in a model: the gradient of a residual sum is added to the gradient of a norm.
const CHAIN: usize = 4;

impl Alone<'_> {
    /// Whether a norm of `[M, D]` moves the tensors of a residual sum, too: a norm alone moves up to three, and backward one more of a
    /// branch that was dropped.
    pub(super) fn has_sum(&self, calls: &Calls, [m, d]: [usize; 2]) -> bool {
        let is_dropped = calls.operator == "norm backward" && self.shape.dropout > 0.0;
        self.passes(calls, m * d) > 3 + usize::from(is_dropped)
    }

    /// Times a norm of `[M, D]`, with the residual sum before it if the call has one.
    pub(super) fn norm(&self, calls: &Calls, [m, d]: [usize; 2], pass: Pass) -> Result<Timed> {
        let bench = self.bench;
        let (gamma, beta, x) = (bench.leaf([d]), bench.leaf([d]), bench.leaf([m, d]));
        let bias = self.shape.bias.then(|| bench.leaf([d]));
        let drop = bench.dropout(self.shape.dropout);
        let norm = || NormWeights {
            gamma: gamma.clone(),
            beta: (self.shape.norm_kind == NormKind::LayerNorm).then(|| beta.clone()),
            eps: 1e-5,
        };
        let has_sum = self.has_sum(calls, [m, d]);

        let chain = || {
            let mut kept = vec![(x.clone(), x.clone())];
            for _ in 0..CHAIN {
                let (sum, normed) = kept[kept.len() - 1].clone();
                kept.push(match has_sum {
                    true => add_norm(sum, Some(Branch { bias: bias.clone(), ..normed.into() }), drop, norm()),
                    false => add_norm(normed, None, None, norm()),
                });
            }
            kept
        };
        let kept_bytes = 8.0 * CHAIN as f64 * bench.bytes(m * d) as f64;
        let forward = bench.watch.time(kept_bytes, chain)?;
        if pass == Pass::Forward {
            return Ok(forward.over(CHAIN));
        }
        let both = bench.watch.time(kept_bytes, || {
            let kept = chain();
            let gradients = kept[CHAIN].1.backward();
            (kept, gradients)
        })?;
        Ok(both.without(forward).over(CHAIN))
    }

    /// Times a scaled lookup of M ids in a table `[V, D]`, with positions if the model adds them, and dropout.
    pub(super) fn embedding(&self, [m, v, d]: [usize; 3], pass: Pass) -> Result<Timed> {
        let (ids, len) = match self.batch {
            Batch::Pairs(batch) => (vec![&batch.source, &batch.target_input], m / batch.batch_size.max(1)),
            Batch::Text(batch) => (vec![&batch.input], batch.seq_len),
        };
        let (ids, table) = (self.numbers(&ids, m, v), self.bench.leaf([v, d]));
        let adds_positions = self.shape.positions == Positions::Learned || self.shape.positions.are_sines();
        // The gradient of positions is a call of its own.
        let positions = (adds_positions && m.is_multiple_of(len)).then(|| self.bench.constant([len, d]));
        let drop = self.bench.dropout(self.shape.dropout);
        self.bench.pass(pass, [m, d], || embed(ids.clone(), table.clone(), (d as f64).sqrt(), positions.clone(), drop))
    }

    /// Times the cross-entropy of all rows at once.
    pub(super) fn cross_entropy(&self, [m, v]: [usize; 2], pass: Pass) -> Result<Timed> {
        let bench = self.bench;
        let (logits, labels) = (bench.leaf([m, v]), self.labels([m, v]));
        let run = || cross_entropy(logits.clone(), labels.clone(), &self.loss);
        let kept = 2.0 * bench.bytes(m * v) as f64;
        let forward = bench.watch.time(kept, run)?;
        if pass == Pass::Forward {
            return Ok(forward);
        }
        let both = bench.watch.time(kept, || {
            let sums = run();
            let gradients = sums.loss_sum.backward();
            (sums, gradients)
        })?;
        Ok(both.without(forward))
    }
}
