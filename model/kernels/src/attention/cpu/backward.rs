//! The gradients of queries, keys and values, and of what is added to the scores.

use std::ops::Range;

use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::operands::{Heads, Operands, Tile};
use crate::attention::ops::FlashSpec;
use crate::attention::visible::Visible;
use crate::host::matrix::{MatrixMut, multiply};
use crate::host::softcap::{multiply_by_slopes, slopes};
use crate::host::vector::{dot, exp, vectorized_fn};
use crate::host::view;

/// The gradients of the heads that share keys, `[T, K]` each query head, `[S, K]` keys and values.
pub(super) struct Gradients {
    pub(super) query: Vec<Vec<f32>>,
    pub(super) key: Vec<f32>,
    pub(super) value: Vec<f32>,
    /// What this batch row contributes to the gradient of the numbers of distances, `[T + S - 1]` each query head.
    pub(super) relative: Vec<Vec<f32>>,
}

/// Returns the gradients of each group of each batch row.
pub(super) fn backward(
    operands: &Operands<'_>,
    visible: &Visible,
    out: &FlexTensor,
    lse: &FlexTensor,
    d_out: &FlexTensor,
) -> Vec<Gradients> {
    let spec = operands.spec;
    let (out, lse, d_out) = (view(out), view(lse), view(d_out));
    let [out, d_out] = [&out, &d_out].map(|x| Heads::new(x, spec, spec.n_heads, 0));
    let known = Known { out, lse: &lse, d_out };
    let tasks = (0..spec.batch_size * spec.n_kv_heads).into_par_iter();
    tasks
        .map(|task| backward_group(operands, visible, &known, task / spec.n_kv_heads, task % spec.n_kv_heads))
        .collect()
}

/// What forward has computed, and the gradient of its result.
struct Known<'a> {
    out: Heads<'a>,
    lse: &'a [f32],
    d_out: Heads<'a>,
}

fn backward_group(
    operands: &Operands<'_>,
    visible: &Visible,
    known: &Known<'_>,
    batch_row: usize,
    group: usize,
) -> Gradients {
    let FlashSpec { n_heads, n_kv_heads, head_dim: k, scale, softcap, .. } = operands.spec;
    let (t, s) = (operands.query.len, operands.key.len);
    let [key, value] = [operands.key, operands.value].map(|heads| heads.head(batch_row, group));
    let tiles = Tile::all(visible, batch_row, t);
    let (mut d_key, mut d_value) = (vec![0.0; s * k], vec![0.0; s * k]);
    let (mut weights, mut d_scores) = (Vec::new(), Vec::new());

    let heads = group * n_heads / n_kv_heads..(group + 1) * n_heads / n_kv_heads;
    let of_heads = heads.map(|head| {
        let [query, d_out] = [operands.query, known.d_out].map(|heads| heads.head(batch_row, head));
        let (mut d_query, mut d_relative) = (vec![0.0; t * k], vec![0.0; operands.distances()]);
        for tile in &tiles {
            let [queries, keys] = [&tile.queries, &tile.keys].map(Range::clone);
            operands.scores(&mut weights, batch_row, head, tile);
            let d_out = d_out.rows(queries.clone());
            multiply(&mut tile.matrix(&mut d_scores), false, 1.0, d_out, value.rows(keys.clone()).transposed());
            through_softmax([&mut weights, &mut d_scores], softcap, tile, visible, known, [batch_row, head]);

            if !d_relative.is_empty() {
                for (row, query) in d_scores.chunks(keys.len()).zip(queries.clone()) {
                    let of_row = &mut d_relative[operands.distance(query, keys.start)..];
                    of_row.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
                }
            }

            let (weights, d_scores) = (tile.read(&weights), tile.read(&d_scores));
            let rows = |values, rows: &Range<usize>| MatrixMut::new(values, [rows.len(), k], k);
            multiply(
                &mut rows(&mut d_query[queries.start * k..], &queries),
                false,
                scale,
                d_scores,
                key.rows(keys.clone()),
            );
            let query = query.rows(queries);
            multiply(&mut rows(&mut d_key[keys.start * k..], &keys), true, scale, d_scores.transposed(), query);
            multiply(&mut rows(&mut d_value[keys.start * k..], &keys), true, 1.0, weights.transposed(), d_out);
        }
        (d_query, d_relative)
    });
    let (query, relative) = of_heads.unzip();
    Gradients { query, key: d_key, value: d_value, relative }
}

/// Turns the scores of a tile into the weights of the values, and the gradient of those into the gradient of the scores.
///
/// With weights `p` of the softmax, kept by factors `c`, and their gradient `g`: `p * (c * g - sum(c * p * g))`. The sum is the
/// product of a query's result and its gradient.
fn through_softmax(
    [scores, gradients]: [&mut [f32]; 2],
    softcap: Option<f32>,
    tile: &Tile,
    visible: &Visible,
    known: &Known<'_>,
    [batch_row, head]: [usize; 2],
) {
    let first = (batch_row * visible.n_heads() + head) * known.out.len;
    let rows = scores.chunks_mut(tile.keys.len()).zip(gradients.chunks_mut(tile.keys.len()));
    for (((scores, gradients), seen), query) in rows.zip(&tile.seen).zip(tile.queries.clone()) {
        let [out, d_out] = [known.out, known.d_out].map(|heads| heads.row(batch_row, head, query));
        visible.each_kept(batch_row, head, query, &tile.keys, |key, factor| gradients[key] *= factor);
        for values in [&mut *scores, &mut *gradients] {
            values[..seen.start].fill(0.0);
            values[seen.end..].fill(0.0);
        }
        let [own, own_gradients] = [&mut scores[seen.clone()], &mut gradients[seen.clone()]];
        let slopes = slopes(own, softcap);
        row_through_softmax([own, &mut *own_gradients], known.lse[first + query], [out, d_out]);
        multiply_by_slopes(own_gradients, &slopes);
        visible.each_kept(batch_row, head, query, &tile.keys, |key, factor| scores[key] *= factor);
    }
}

vectorized_fn! {
    /// Turns the scores of the keys that a query sees into weights, and the weights' gradients into the scores'. `results` are the
    /// query's result and its gradient.
    fn row_through_softmax(row: [&mut [f32]; 2], lse: f32, results: [&[f32]; 2]) {
        let product = dot(results[0], results[1]);
        let [scores, gradients] = row;
        for (score, gradient) in scores.iter_mut().zip(gradients) {
            *score = exp(*score - lse);
            *gradient = *score * (*gradient - product);
        }
    }
}
