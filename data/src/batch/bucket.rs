//! Length buckets under a token budget: few fixed shapes, little padding, every row exactly once an epoch.
//!
//! 1. Rows fall into cells by their source and target length, both rounded up ([`round_up`]).
//! 2. Neighbouring cells merge, cheapest in padding first, until at most `max_buckets` are left and each can fill a
//!    batch. A bucket's shape is then fixed: its longest lengths, and as many rows as the budget allows.
//! 3. An epoch distributes the rows, in the sampler's order, to their buckets and cuts full batches. The rows left in a
//!    bucket move to the next wider one instead of making a batch of an odd shape; only the widest buckets keep a
//!    partial batch.
//!
//! Bucket sizes do not depend on the epoch. So every epoch has the same number of batches of the same shapes, and a
//! position in the data is plain arithmetic.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::plan::EpochPlan;
use crate::error::{Error, Result};
use crate::host_batch::Shape;
use crate::loader_config::{LoaderConfig, round_up};
use crate::sampler::{Order, ShuffleOf};

/// The buckets of a data set. They distribute the rows of each epoch into batches.
#[derive(Debug, Clone)]
pub struct Buckets {
    /// From narrow to wide.
    buckets: Vec<Bucket>,
    /// Bucket of each row.
    of_row: Arc<[u16]>,
    /// Non-padding tokens of both sides.
    tokens: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Bucket {
    /// Shape of a full batch.
    pub(super) shape: Shape,
    rows: usize,
    /// The bucket that takes the rows left at the end of an epoch.
    pub(super) wider: Option<usize>,
}

/// Rows that will share a shape.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) source_len: usize,
    pub(super) target_len: usize,
    pub(super) rows: usize,
    /// Indices into the cells before merging.
    pub(super) members: Vec<usize>,
}

impl Cell {
    fn padded(&self, source_len: usize, target_len: usize) -> usize {
        self.rows * (source_len + target_len)
    }

    /// Returns the padding tokens that merging two cells would add.
    fn merge_cost(&self, other: &Self) -> usize {
        let (s, t) = (self.source_len.max(other.source_len), self.target_len.max(other.target_len));
        self.padded(s, t) + other.padded(s, t)
            - self.padded(self.source_len, self.target_len)
            - other.padded(other.source_len, other.target_len)
    }
}

/// Large batches have a multiple of this many rows: the sides of matrix products over all positions are then multiples
/// of 8 at any length, as tensor cores need.
const ROW_MULTIPLE: usize = 8;

/// Returns the rows of a full batch: as many as the budget allows, rounded down to a multiple of 8 from 8 on.
fn full_batch(source_len: usize, target_len: usize, config: &LoaderConfig) -> usize {
    let rows = config.rows_of(source_len.max(target_len));
    if rows >= ROW_MULTIPLE && config.batch_rows == 0 { rows - rows % ROW_MULTIPLE } else { rows }
}

impl Bucket {
    /// The bucket of cell `i` of the merged cells.
    pub(super) fn new(i: usize, merged: &[Cell], config: &LoaderConfig) -> Self {
        let cell = &merged[i];
        let batch_size = full_batch(cell.source_len, cell.target_len, config);
        let shape = Shape { batch_size, source_len: cell.source_len, target_len: cell.target_len };
        // Sorted by area: the first that takes both lengths is the tightest.
        let wider = (i + 1..merged.len())
            .find(|j| merged[*j].source_len >= cell.source_len && merged[*j].target_len >= cell.target_len);
        Self { shape, rows: cell.rows, wider }
    }
}

/// How lengths are padded that are counted, and may be rounded up already.
#[derive(Debug, Clone, Copy)]
pub(super) struct Padding {
    pub(super) multiple: usize,
    /// Longest source and target rows; 0: no limit.
    pub(super) max_lens: (usize, usize),
}

impl Padding {
    /// Pads the lengths of a row.
    pub(super) fn pad(self, (source_len, target_len): (usize, usize)) -> (usize, usize) {
        let pad = |len: usize, max: usize| {
            let padded = round_up(len, self.multiple);
            if max == 0 { padded } else { padded.min(max) }
        };
        (pad(source_len, self.max_lens.0), pad(target_len, self.max_lens.1))
    }

    /// Counts rows by their padded lengths.
    ///
    /// # Errors
    ///
    /// If the configuration is invalid, or if a row is longer than the token budget.
    pub(super) fn cells(
        self,
        counts: &BTreeMap<(usize, usize), usize>,
        config: &LoaderConfig,
    ) -> Result<BTreeMap<(usize, usize), usize>> {
        let problems = config.validate();
        if !problems.is_empty() {
            return Err(Error::Invalid(problems.join("\n")));
        }
        let mut cells = BTreeMap::new();
        for (lengths, rows) in counts {
            let key = self.pad(*lengths);
            if key.0.max(key.1) > config.batch_tokens {
                return Err(too_long(key, key, config));
            }
            *cells.entry(key).or_default() += rows;
        }
        Ok(cells)
    }
}

fn too_long((source, target): (usize, usize), padded: (usize, usize), config: &LoaderConfig) -> Error {
    Error::Invalid(format!(
        "loader.batch_tokens = {} cannot hold the longest row ({source} source and {target} target tokens): set it to at \
         least {}, or lower data.corpus.max_source_len and data.corpus.max_target_len",
        config.batch_tokens,
        padded.0.max(padded.1)
    ))
}

impl Buckets {
    /// Sorts rows into buckets by their source and target lengths, eos included. `max_lens` limits the padded lengths
    /// (0: no limit), so that a batch fits a model with fewer positions than the next multiple.
    ///
    /// # Errors
    ///
    /// If the configuration is invalid or a row is longer than the token budget.
    pub fn new(
        lengths: impl ExactSizeIterator<Item = (usize, usize)>,
        max_lens: (usize, usize),
        config: &LoaderConfig,
    ) -> Result<Self> {
        let problems = config.validate();
        if !problems.is_empty() {
            return Err(Error::Invalid(problems.join("\n")));
        }
        // Rows into cells.
        let pad = |len: usize, max: usize| {
            let padded = round_up(len, config.bucket_multiple);
            if max == 0 { padded } else { padded.min(max.max(len)) }
        };
        let mut cells = BTreeMap::<(usize, usize), usize>::new();
        let mut cell_of_row = Vec::with_capacity(lengths.len());
        let mut tokens = 0;
        for (source, target) in lengths {
            tokens += (source + target) as u64;
            let key = (pad(source, max_lens.0), pad(target, max_lens.1));
            if key.0.max(key.1) > config.batch_tokens {
                return Err(too_long((source, target), key, config));
            }
            *cells.entry(key).or_default() += 1;
            cell_of_row.push(key);
        }

        let (merged, of_cell) = merged(cells, config);
        let buckets = (0..merged.len()).map(|i| Bucket::new(i, &merged, config)).collect();
        let of_row = cell_of_row.iter().map(|key| of_cell[key] as u16).collect();
        Ok(Self { buckets, of_row, tokens })
    }

    /// Returns the number of rows in all buckets.
    pub fn n_rows(&self) -> usize {
        self.of_row.len()
    }

    /// Makes one bucket of `n_rows` rows, all of which have the lengths of `shape`, the shape of a full batch.
    pub(crate) fn of_one_shape(shape: Shape, n_rows: usize) -> Self {
        Self { buckets: vec![Bucket { shape, rows: n_rows, wider: None }], of_row: vec![0; n_rows].into(), tokens: 0 }
    }

    /// Lets an epoch have so many rows of each bucket, with so many non-padding tokens, instead of every row once.
    pub(crate) fn with_rows(mut self, of_bucket: &[usize], tokens: u64) -> Self {
        for (bucket, rows) in self.buckets.iter_mut().zip(of_bucket) {
            bucket.rows = *rows;
        }
        Self { tokens, ..self }
    }

    /// Returns the number of buckets.
    pub(crate) fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Returns the bucket of a row.
    pub(crate) fn of(&self, row: usize) -> usize {
        self.of_row[row].into()
    }

    /// Distributes the rows of an epoch into batches.
    pub fn plan(&self, order: Order) -> EpochPlan {
        self.plan_rows(&order.indices(self.of_row.len() as u32, ShuffleOf::Rows), order)
    }

    /// Distributes `rows`, in their order, into batches. Each bucket must get as many of them as it has.
    pub(crate) fn plan_rows(&self, rows: &[u32], order: Order) -> EpochPlan {
        let mut queues: Vec<Vec<u32>> =
            self.buckets.iter().map(|b| Vec::with_capacity(b.rows + b.shape.batch_size)).collect();
        for row in rows {
            queues[self.of(*row as usize)].push(*row);
        }

        let mut plan = EpochPlan::with_capacity(rows.len());
        for (i, bucket) in self.buckets.iter().enumerate() {
            let queue = std::mem::take(&mut queues[i]);
            let full = queue.chunks_exact(bucket.shape.batch_size);
            let left = full.remainder();

            let partial = match bucket.wider {
                Some(wider) => {
                    queues[wider].extend_from_slice(left);
                    None
                }
                None => Some(left).filter(|rows| !rows.is_empty()),
            };
            for rows in full.chain(partial) {
                plan.push(rows, Shape { batch_size: rows.len(), ..bucket.shape });
            }
        }
        plan.shuffle_batches(order);
        plan
    }

    /// Returns the number of batches of an epoch.
    pub fn batches_per_epoch(&self) -> u64 {
        self.shapes().values().map(|batches| *batches as u64).sum()
    }

    /// Returns the number of batches of each shape in an epoch; the same in every epoch.
    pub fn shapes(&self) -> BTreeMap<Shape, usize> {
        let mut shapes = BTreeMap::new();
        let mut carried = vec![0; self.buckets.len()];
        for (i, bucket) in self.buckets.iter().enumerate() {
            let rows = bucket.rows + carried[i];
            let (full, left) = (rows / bucket.shape.batch_size, rows % bucket.shape.batch_size);
            if full > 0 {
                *shapes.entry(bucket.shape).or_default() += full;
            }
            match bucket.wider {
                Some(wider) => carried[wider] += left,
                None if left > 0 => *shapes.entry(Shape { batch_size: left, ..bucket.shape }).or_default() += 1,
                None => {}
            }
        }
        shapes
    }

    /// Returns the share of padding among the source and target tokens of an epoch, in [0, 1).
    pub fn padding_ratio(&self) -> f64 {
        let padded: usize = self.shapes().iter().map(|(shape, batches)| shape.padded_tokens() * batches).sum();
        if padded == 0 { 0.0 } else { 1.0 - self.tokens as f64 / padded as f64 }
    }
}

/// Merges the cells of padded lengths, which are counted. Returns the merged cells, sorted by area, and which of them has each cell.
pub(super) fn merged(
    counts: BTreeMap<(usize, usize), usize>,
    config: &LoaderConfig,
) -> (Vec<Cell>, BTreeMap<(usize, usize), usize>) {
    let keys: Vec<_> = counts.keys().copied().collect();
    let cell = |(i, ((source_len, target_len), rows))| Cell { source_len, target_len, rows, members: vec![i] };
    let merged = merge(counts.into_iter().enumerate().map(cell).collect(), config);
    let of_bucket =
        |(bucket, cell): (usize, &Cell)| cell.members.iter().map(|i| (keys[*i], bucket)).collect::<Vec<_>>();
    let of_cell = merged.iter().enumerate().flat_map(of_bucket).collect();
    (merged, of_cell)
}

/// Merges cells until there are few enough and each fills a batch. Returns them sorted by area.
fn merge(mut cells: Vec<Cell>, config: &LoaderConfig) -> Vec<Cell> {
    // The cheapest partner of each cell. Keeping it up to date makes merging n cells take about n^2 steps, not n^3.
    let partner_of = |cells: &[Cell], i: usize| {
        let others = (0..cells.len()).filter(|j| *j != i);
        others.map(|j| (cells[i].merge_cost(&cells[j]), j)).min()
    };
    let mut partners: Vec<_> = (0..cells.len()).map(|i| partner_of(&cells, i)).collect();

    while cells.len() > 1 {
        let small = |cell: &Cell| cell.rows < full_batch(cell.source_len, cell.target_len, config);
        let too_many = cells.len() > config.max_buckets;
        let candidates = (0..cells.len()).filter(|i| too_many || small(&cells[*i]));
        let Some((_, a)) = candidates.map(|i| (partners[i].expect("there are two cells").0, i)).min() else { break };

        // Cell b merges into cell a; the last cell moves to place b.
        let (_, b) = partners[a].expect("there are two cells");
        let gone = cells.swap_remove(b);
        partners.swap_remove(b);
        let (moved, a) = (cells.len(), if a == cells.len() { b } else { a });
        let cell = &mut cells[a];
        cell.source_len = cell.source_len.max(gone.source_len);
        cell.target_len = cell.target_len.max(gone.target_len);
        cell.rows += gone.rows;
        cell.members.extend(gone.members);

        for i in 0..cells.len() {
            let stale = partners[i].is_none_or(|(_, j)| j == a || j == b || j == moved);
            if i == a || stale {
                partners[i] = partner_of(&cells, i);
            } else {
                let with_merged = (cells[i].merge_cost(&cells[a]), a);
                partners[i] = partners[i].min(Some(with_merged));
            }
        }
    }
    cells.sort_by_key(|cell| (cell.source_len + cell.target_len, cell.source_len));
    cells
}

#[cfg(test)]
mod tests;
