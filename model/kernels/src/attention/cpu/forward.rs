//! The result, and the logarithm of each query's sum of exponentials.

use std::ops::Range;

use burn::tensor::DType;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::operands::{Operands, Tile, place};
use crate::attention::ops::FlashSpec;
use crate::attention::visible::Visible;
use crate::host::matrix::{MatrixMut, product_into};
use crate::host::tensor;
use crate::host::vector::{exponentials, max, vectorized_fn};

/// Returns the result `[B * T, H * K]` in `dtype`, and the logarithm of each query's sum of exponentials, `[B * H * T]`.
pub(super) fn forward(operands: &Operands<'_>, visible: &Visible, dtype: DType) -> (FlexTensor, FlexTensor) {
    let FlashSpec { batch_size, n_heads, head_dim: k, .. } = operands.spec;
    let t = operands.query.len;
    let tasks: Vec<(Vec<f32>, Vec<f32>)> = (0..batch_size * n_heads)
        .into_par_iter()
        .map(|task| forward_head(operands, visible, task / n_heads, task % n_heads))
        .collect();

    let mut out = vec![0.0; batch_size * t * n_heads * k];
    out.par_chunks_mut((t * n_heads * k).max(1)).zip(tasks.par_chunks(n_heads)).for_each(|(out, heads)| {
        heads.iter().enumerate().for_each(|(head, (values, _))| place(out, n_heads * k, head * k, values, k));
    });
    let lse = tasks.into_iter().flat_map(|(_, lse)| lse).collect();
    (tensor(out, [batch_size * t, n_heads * k], dtype), tensor(lse, [batch_size * n_heads * t], DType::F32))
}

fn forward_head(operands: &Operands<'_>, visible: &Visible, batch_row: usize, head: usize) -> (Vec<f32>, Vec<f32>) {
    let (t, k) = (operands.query.len, operands.spec.head_dim);
    let group = head * operands.spec.n_kv_heads / operands.spec.n_heads;
    let value = operands.value.head(batch_row, group);
    let (mut out, mut lse, mut scores) = (vec![0.0; t * k], vec![0.0; t], Vec::new());

    for tile in Tile::all(visible, batch_row, t) {
        operands.scores(&mut scores, batch_row, head, &tile);

        let rows = scores.chunks_mut(tile.keys.len()).zip(&tile.seen);
        for ((row, seen), lse) in rows.zip(&mut lse[tile.queries.clone()]) {
            *lse = softmax(row, seen.clone());
        }
        for (row, query) in scores.chunks_mut(tile.keys.len()).zip(tile.queries.clone()) {
            visible.each_kept(batch_row, head, query, &tile.keys, |key, factor| row[key] *= factor);
        }

        let mut rows = MatrixMut::new(&mut out[tile.queries.start * k..], [tile.queries.len(), k], k);
        product_into(&mut rows, tile.read(&scores), value.rows(tile.keys.clone()));
    }
    (out, lse)
}

vectorized_fn! {
    /// Replaces scores by their softmax over `seen`, 0 elsewhere. Returns the logarithm of the sum of exponentials.
    fn softmax(scores: &mut [f32], seen: Range<usize>) -> f32 {
        scores[..seen.start].fill(0.0);
        scores[seen.end..].fill(0.0);
        let scores = &mut scores[seen];
        if scores.is_empty() {
            return 0.0;
        }

        let max = max(scores);
        let total = exponentials(scores, max);
        let inverse = total.recip();
        scores.iter_mut().for_each(|x| *x *= inverse);
        max + total.ln()
    }
}
