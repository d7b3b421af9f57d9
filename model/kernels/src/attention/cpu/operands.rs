//! What attention reads, tile by tile.

use std::ops::Range;

use burn_flex::Flex;

use crate::attention::ops::FlashSpec;
use crate::attention::visible::Visible;
use crate::host::matrix::{Matrix, MatrixMut, product_into};
use crate::host::softcap::bound;
use crate::host::vector::vectorized;
use crate::maybe::MaybeInts;

/// Queries of a tile.
const TILE: usize = 64;

/// The operands as their projections wrote them.
pub(super) struct Operands<'a> {
    pub(super) spec: FlashSpec,
    pub(super) query: Heads<'a>,
    pub(super) key: Heads<'a>,
    pub(super) value: Heads<'a>,
    /// What is added to the scores of each distance, `[H, T + S - 1]`.
    relative: Option<&'a [f32]>,
}

/// Heads side by side, among other columns.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a> {
    values: &'a [f32],
    /// Columns of a row, and the first of the first head.
    columns: usize,
    first: usize,
    /// Rows of a batch row.
    pub(super) len: usize,
    head_dim: usize,
}

impl<'a> Heads<'a> {
    /// Reads the columns from head `first` on; a row has `n` heads.
    pub(super) fn new(values: &'a [f32], spec: FlashSpec, n: usize, first: usize) -> Self {
        let (k, columns) = (spec.head_dim, n * spec.head_dim);
        Self { values, columns, first: first * k, len: values.len() / columns / spec.batch_size, head_dim: k }
    }

    /// Returns a head of a batch row, `[len, K]`.
    pub(super) fn head(&self, batch_row: usize, head: usize) -> Matrix<'a> {
        let start = batch_row * self.len * self.columns + self.first + head * self.head_dim;
        Matrix::new(&self.values[start..], [self.len, self.head_dim], self.columns)
    }

    /// Returns a row of a head.
    pub(super) fn row(&self, batch_row: usize, head: usize, row: usize) -> &'a [f32] {
        let start = (batch_row * self.len + row) * self.columns + self.first + head * self.head_dim;
        &self.values[start..start + self.head_dim]
    }
}

impl<'a> Operands<'a> {
    pub(super) fn packed(qkv: &'a [f32], relative: Option<&'a [f32]>, spec: FlashSpec) -> Self {
        let (h, g) = (spec.n_heads, spec.n_kv_heads);
        let from = |first| Heads::new(qkv, spec, h + 2 * g, first);
        Self { spec, query: from(0), key: from(h), value: from(h + g), relative }
    }

    pub(super) fn cross([query, key_value]: [&'a [f32]; 2], spec: FlashSpec) -> Self {
        let (h, g) = (spec.n_heads, spec.n_kv_heads);
        let from = |first| Heads::new(key_value, spec, 2 * g, first);
        Self { spec, query: Heads::new(query, spec, h, 0), key: from(0), value: from(g), relative: None }
    }

    pub(super) fn visible(
        &self,
        lengths: MaybeInts<Flex>,
        documents: MaybeInts<Flex>,
        random: MaybeInts<Flex>,
    ) -> Visible {
        Visible::new(&self.spec, [self.query.len, self.key.len], [lengths, documents, random])
    }

    /// Computes the scores of a tile of queries with `keys`, row by row.
    pub(super) fn scores(&self, scores: &mut Vec<f32>, batch_row: usize, head: usize, tile: &Tile) {
        let group = head * self.spec.n_kv_heads / self.spec.n_heads;
        let (query, key) = (self.query.head(batch_row, head), self.key.head(batch_row, group));
        let (query, key) = (query.rows(tile.queries.clone()), key.rows(tile.keys.clone()).transposed());
        product_into(&mut tile.matrix(scores), query, key);
        vectorized(|| scores.iter_mut().for_each(|score| *score *= self.spec.scale));
        bound(scores, self.spec.softcap);

        if let Some(numbers) = self.relative {
            let numbers = &numbers[head * self.distances()..];
            for (row, query) in scores.chunks_mut(tile.keys.len()).zip(tile.queries.clone()) {
                row.iter_mut()
                    .zip(&numbers[self.distance(query, tile.keys.start)..])
                    .for_each(|(score, x)| *score += x);
            }
        }
    }

    /// Returns the number of distances between a key and a query, or 0 if nothing is added to their scores.
    pub(super) fn distances(&self) -> usize {
        if self.relative.is_some() { self.query.len + self.key.len - 1 } else { 0 }
    }

    /// Returns the place of a distance among a head's.
    pub(super) fn distance(&self, query: usize, key: usize) -> usize {
        key + self.query.len - 1 - query
    }
}

/// Some queries of a head, and the keys that they see.
pub(super) struct Tile {
    pub(super) queries: Range<usize>,
    /// From the first that a query sees to the last.
    pub(super) keys: Range<usize>,
    /// The keys that each query sees, counted from the tile's first.
    pub(super) seen: Vec<Range<usize>>,
}

impl Tile {
    /// Cuts the queries of a batch row. Those that see no key are left out.
    pub(super) fn all(visible: &Visible, batch_row: usize, n_queries: usize) -> Vec<Self> {
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
    pub(super) fn matrix<'a>(&self, values: &'a mut Vec<f32>) -> MatrixMut<'a> {
        let shape = [self.queries.len(), self.keys.len()];
        values.resize(shape[0] * shape[1], 0.0);
        MatrixMut::new(values, shape, shape[1])
    }

    pub(super) fn read<'a>(&self, values: &'a [f32]) -> Matrix<'a> {
        Matrix::new(values, [self.queries.len(), self.keys.len()], self.keys.len())
    }
}

/// Copies a matrix of `k` columns into a wider one, from column `first` on.
pub(super) fn place(into: &mut [f32], columns: usize, first: usize, values: &[f32], k: usize) {
    for (row, values) in into.chunks_mut(columns).zip(values.chunks(k)) {
        row[first..first + k].copy_from_slice(values);
    }
}
