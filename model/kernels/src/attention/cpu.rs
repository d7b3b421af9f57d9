//! Attention on the CPU: a tile of queries at a time, with only the keys that it sees, so that its scores stay in the cache.
//!
//! A task is a head of a batch row, or in backward the heads that share keys. It computes on one thread, so that sums do not
//! depend on the number of threads.

use std::ops::Range;

use burn::tensor::{DType, Shape};
use burn_flex::{Flex, FlexTensor};
use rayon::prelude::*;

use super::ops::{FlashOps, FlashSpec};
use super::softcap::{bound, slopes};
use super::visible::Visible;
use crate::host::matrix::{Matrix, MatrixMut, multiply};
use crate::host::vector::{dot, exp, exponentials, max, vectorized_fn};
use crate::host::{tensor, view};
use crate::maybe::MaybeInts;

/// Queries of a tile.
const TILE: usize = 64;

impl FlashOps for Flex {
    fn flash_self(
        qkv: FlexTensor,
        lengths: MaybeInts<Self>,
        documents: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (FlexTensor, FlexTensor) {
        let _call = spec.record_forward(&qkv, None);
        let values = view(&qkv);
        let operands = Operands::packed(&values, spec);
        forward(&operands, &operands.visible(lengths, documents, random), qkv.dtype())
    }

    fn flash_self_backward(
        qkv: FlexTensor,
        out: FlexTensor,
        lse: FlexTensor,
        d_out: FlexTensor,
        lengths: MaybeInts<Self>,
        documents: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> FlexTensor {
        let _call = spec.record_backward(&qkv, None);
        let values = view(&qkv);
        let operands = Operands::packed(&values, spec);
        let tasks = backward(&operands, &operands.visible(lengths, documents, random), &out, &lse, &d_out);
        let (h, g) = (spec.n_heads, spec.n_kv_heads);
        side_by_side(&tasks, spec, h + 2 * g, qkv.dtype(), |task, group| {
            let queries = task.query.iter().enumerate().map(move |(i, head)| (group * h / g + i, head));
            queries.chain([(h + group, &task.key), (h + g + group, &task.value)]).collect()
        })
    }

    fn flash_cross(
        query: FlexTensor,
        key_value: FlexTensor,
        lengths: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (FlexTensor, FlexTensor) {
        let _call = spec.record_forward(&query, Some(&key_value));
        let values = [view(&query), view(&key_value)];
        let operands = Operands::cross([&values[0], &values[1]], spec);
        forward(&operands, &operands.visible(lengths, MaybeInts::None, random), query.dtype())
    }

    fn flash_cross_backward(
        query: FlexTensor,
        key_value: FlexTensor,
        out: FlexTensor,
        lse: FlexTensor,
        d_out: FlexTensor,
        lengths: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (FlexTensor, FlexTensor) {
        let _call = spec.record_backward(&query, Some(&key_value));
        let values = [view(&query), view(&key_value)];
        let operands = Operands::cross([&values[0], &values[1]], spec);
        let visible = operands.visible(lengths, MaybeInts::None, random);
        let tasks = backward(&operands, &visible, &out, &lse, &d_out);

        let (h, g, dtype) = (spec.n_heads, spec.n_kv_heads, query.dtype());
        let d_query = side_by_side(&tasks, spec, h, dtype, |task, group| {
            task.query.iter().enumerate().map(|(i, head)| (group * h / g + i, head)).collect()
        });
        let d_key_value =
            side_by_side(&tasks, spec, 2 * g, dtype, |task, group| vec![(group, &task.key), (g + group, &task.value)]);
        (d_query, d_key_value)
    }
}

/// The operands as their projections wrote them.
struct Operands<'a> {
    spec: FlashSpec,
    query: Heads<'a>,
    key: Heads<'a>,
    value: Heads<'a>,
}

/// Heads side by side, among other columns.
#[derive(Clone, Copy)]
struct Heads<'a> {
    values: &'a [f32],
    /// Columns of a row, and the first of the first head.
    columns: usize,
    first: usize,
    /// Rows of a batch row.
    len: usize,
    head_dim: usize,
}

impl<'a> Heads<'a> {
    /// Reads the columns from head `first` on; a row has `n` heads.
    fn new(values: &'a [f32], spec: FlashSpec, n: usize, first: usize) -> Self {
        let (k, columns) = (spec.head_dim, n * spec.head_dim);
        Self { values, columns, first: first * k, len: values.len() / columns / spec.batch_size, head_dim: k }
    }

    /// Returns a head of a batch row, `[len, K]`.
    fn head(&self, batch_row: usize, head: usize) -> Matrix<'a> {
        let start = batch_row * self.len * self.columns + self.first + head * self.head_dim;
        Matrix::new(&self.values[start..], [self.len, self.head_dim], self.columns)
    }

    /// Returns a row of a head.
    fn row(&self, batch_row: usize, head: usize, row: usize) -> &'a [f32] {
        let start = (batch_row * self.len + row) * self.columns + self.first + head * self.head_dim;
        &self.values[start..start + self.head_dim]
    }
}

impl<'a> Operands<'a> {
    fn packed(qkv: &'a [f32], spec: FlashSpec) -> Self {
        let (h, g) = (spec.n_heads, spec.n_kv_heads);
        let from = |first| Heads::new(qkv, spec, h + 2 * g, first);
        Self { spec, query: from(0), key: from(h), value: from(h + g) }
    }

    fn cross([query, key_value]: [&'a [f32]; 2], spec: FlashSpec) -> Self {
        let (h, g) = (spec.n_heads, spec.n_kv_heads);
        let from = |first| Heads::new(key_value, spec, 2 * g, first);
        Self { spec, query: Heads::new(query, spec, h, 0), key: from(0), value: from(g) }
    }

    fn visible(&self, lengths: MaybeInts<Flex>, documents: MaybeInts<Flex>, random: MaybeInts<Flex>) -> Visible {
        Visible::new(&self.spec, [self.query.len, self.key.len], [lengths, documents, random])
    }

    /// Computes the scores of a tile of queries with `keys`, row by row.
    fn scores(&self, scores: &mut Vec<f32>, batch_row: usize, head: usize, tile: &Tile) {
        let group = head * self.spec.n_kv_heads / self.spec.n_heads;
        let (query, key) = (self.query.head(batch_row, head), self.key.head(batch_row, group));
        let (query, key) = (query.rows(tile.queries.clone()), key.rows(tile.keys.clone()).transposed());
        multiply(&mut tile.matrix(scores), false, self.spec.scale, query, key);
        bound(scores, self.spec.softcap);
    }
}

/// Some queries of a head, and the keys that they see.
struct Tile {
    queries: Range<usize>,
    /// From the first that a query sees to the last.
    keys: Range<usize>,
    /// The keys that each query sees, counted from the tile's first.
    seen: Vec<Range<usize>>,
}

impl Tile {
    /// Cuts the queries of a batch row. Those that see no key are left out.
    fn all(visible: &Visible, batch_row: usize, n_queries: usize) -> Vec<Self> {
        let tile = |first: usize| {
            let queries = first..(first + TILE).min(n_queries);
            let seen: Vec<_> = queries.clone().map(|query| visible.keys(batch_row, query)).collect();
            let of_some = || seen.iter().filter(|seen| !seen.is_empty());
            let keys = of_some().map(|seen| seen.start).min()?..of_some().map(|seen| seen.end).max()?;
            let from_first = |seen: Range<usize>| {
                if seen.is_empty() { 0..0 } else { seen.start - keys.start..seen.end - keys.start }
            };
            Some(Self { seen: seen.into_iter().map(from_first).collect(), queries, keys })
        };
        (0..n_queries).step_by(TILE).filter_map(tile).collect()
    }

    /// Makes room for a number for each query and key.
    fn matrix<'a>(&self, values: &'a mut Vec<f32>) -> MatrixMut<'a> {
        let shape = [self.queries.len(), self.keys.len()];
        values.resize(shape[0] * shape[1], 0.0);
        MatrixMut::new(values, shape, shape[1])
    }

    fn read<'a>(&self, values: &'a [f32]) -> Matrix<'a> {
        Matrix::new(values, [self.queries.len(), self.keys.len()], self.keys.len())
    }
}

/// Returns the result `[B * T, H * K]` in `dtype`, and the logarithm of each query's sum of exponentials, `[B * H * T]`.
fn forward(operands: &Operands<'_>, visible: &Visible, dtype: DType) -> (FlexTensor, FlexTensor) {
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
        multiply(&mut rows, false, 1.0, tile.read(&scores), value.rows(tile.keys.clone()));
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

/// The gradients of the heads that share keys, `[T, K]` each query head, `[S, K]` keys and values.
struct Gradients {
    query: Vec<Vec<f32>>,
    key: Vec<f32>,
    value: Vec<f32>,
}

/// Returns the gradients of each group of each batch row.
fn backward(
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
    let d_queries = heads.map(|head| {
        let [query, d_out] = [operands.query, known.d_out].map(|heads| heads.head(batch_row, head));
        let mut d_query = vec![0.0; t * k];
        for tile in &tiles {
            let [queries, keys] = [&tile.queries, &tile.keys].map(Range::clone);
            operands.scores(&mut weights, batch_row, head, tile);
            let d_out = d_out.rows(queries.clone());
            multiply(&mut tile.matrix(&mut d_scores), false, 1.0, d_out, value.rows(keys.clone()).transposed());
            through_softmax([&mut weights, &mut d_scores], softcap, tile, visible, known, [batch_row, head]);

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
        d_query
    });
    Gradients { query: d_queries.collect(), key: d_key, value: d_value }
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
        own_gradients.iter_mut().zip(slopes).for_each(|(gradient, slope)| *gradient *= slope);
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

/// Writes gradients into one matrix, whose rows have `n` heads. `heads` gives the place of each matrix of a task.
fn side_by_side<'a>(
    tasks: &'a [Gradients],
    spec: FlashSpec,
    n: usize,
    dtype: DType,
    heads: impl Fn(&'a Gradients, usize) -> Vec<(usize, &'a Vec<f32>)> + Sync,
) -> FlexTensor {
    let (k, groups) = (spec.head_dim, spec.n_kv_heads);
    let len = heads(&tasks[0], 0)[0].1.len() / k;
    let mut all = vec![0.0; spec.batch_size * len * n * k];
    all.par_chunks_mut((len * n * k).max(1)).zip(tasks.par_chunks(groups)).for_each(|(rows, tasks)| {
        for (group, task) in tasks.iter().enumerate() {
            heads(task, group).into_iter().for_each(|(head, values)| place(rows, n * k, head * k, values, k));
        }
    });
    tensor(all, Shape::new([spec.batch_size * len, n * k]), dtype)
}

/// Copies a matrix of `k` columns into a wider one, from column `first` on.
fn place(into: &mut [f32], columns: usize, first: usize, values: &[f32], k: usize) {
    for (row, values) in into.chunks_mut(columns).zip(values.chunks(k)) {
        row[first..first + k].copy_from_slice(values);
    }
}
