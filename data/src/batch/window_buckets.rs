//! Length buckets of pairs in shards, whose rows are at hand window by window.
//!
//! The shards of a window are the same in every epoch, so that every epoch has the same number of batches of the same shapes. The
//! buckets come from the counts of lengths in the index. Within a window:
//!
//! 1. Each bucket cuts full batches. The rows left in it move to the next wider bucket, as at the end of an epoch without windows.
//! 2. The widest bucket takes rows of any length. The rows left in it wait for the next window of the epoch, whose first batch they
//!    begin. Only the last batch of the epoch can be partial.
//! 3. A window gives the widest bucket at least a full batch of rows, if it has that many. So a batch has rows of two windows at most.

use std::collections::BTreeMap;

use super::bucket::{Bucket, Padding, merged};
use super::plan::EpochPlan;
use crate::error::Result;
use crate::host_batch::Shape;
use crate::loader_config::LoaderConfig;
use crate::sampler::{Order, ShuffleOf};

/// The buckets of pairs in shards.
#[derive(Debug)]
pub(crate) struct WindowBuckets {
    /// From narrow to wide. The last one takes rows of any length.
    buckets: Vec<Bucket>,
    /// Bucket of each pair of padded lengths.
    of_cell: BTreeMap<(usize, usize), usize>,
    padding: Padding,
}

/// How the rows of a window form batches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Rows of each bucket, before any of them moves.
    rows: Vec<usize>,
    /// Full batches of each bucket but the widest.
    n_full: Vec<usize>,
    /// Full batches of each bucket whose rows move to the widest bucket.
    n_moved: Vec<usize>,
    /// Rows of the widest bucket, with those that move to it.
    n_widest: usize,
}

impl Layout {
    /// Returns the rows of the window.
    pub(crate) fn n_rows(&self) -> usize {
        self.rows.iter().sum()
    }

    /// Returns the rows of the widest bucket, with those that move to it. They are the last ones of the window.
    pub(crate) fn n_widest(&self) -> usize {
        self.n_widest
    }
}

impl WindowBuckets {
    /// Makes buckets of rows that are counted by source and target length, both rounded up. `max_lens` limits padded lengths (0: no
    /// limit).
    ///
    /// # Errors
    ///
    /// If the configuration is invalid, or if a row is longer than the token budget.
    pub(crate) fn new(
        counts: &BTreeMap<(usize, usize), usize>,
        max_lens: (usize, usize),
        loader: &LoaderConfig,
    ) -> Result<Self> {
        let padding = Padding { multiple: loader.bucket_multiple, max_lens };
        let cells = padding.cells(counts, loader)?;
        let (mut merged, of_cell) = merged(cells, loader);
        let longest = of_cell.keys().fold((0, 0), |(source, target), key| (key.0.max(source), key.1.max(target)));
        if let Some(widest) = merged.last_mut() {
            (widest.source_len, widest.target_len) = longest;
        }
        let buckets = (0..merged.len()).map(|i| Bucket::new(i, &merged, loader)).collect();
        Ok(Self { buckets, of_cell, padding })
    }

    /// Returns the bucket of a row by its lengths, rounded or not; `None` if no row with such lengths was counted.
    fn of(&self, lengths: (usize, usize)) -> Option<usize> {
        self.of_cell.get(&self.padding.pad(lengths)).copied()
    }

    /// Returns the shape of a full batch of the widest bucket.
    fn widest(&self) -> Shape {
        self.buckets.last().map_or(Shape { batch_size: 1, source_len: 0, target_len: 0 }, |bucket| bucket.shape)
    }

    /// Plans a window whose rows are counted by their lengths.
    pub(crate) fn layout<'a>(&self, counts: impl Iterator<Item = &'a (u32, u32, u64)>) -> Layout {
        let mut rows = vec![0; self.buckets.len()];
        for (source, target, n) in counts {
            let bucket =
                self.of((*source as usize, *target as usize)).expect("the counts of which the buckets are made");
            rows[bucket] += *n as usize;
        }
        let Some(last) = rows.len().checked_sub(1) else { return Layout::default() };

        let (mut with_moved, mut n_full) = (rows.clone(), vec![0; last]);
        for (i, bucket) in self.buckets[..last].iter().enumerate() {
            n_full[i] = with_moved[i] / bucket.shape.batch_size;
            with_moved[bucket.wider.expect("the widest takes any row")] += with_moved[i] % bucket.shape.batch_size;
        }

        let (mut n_widest, mut n_moved) = (with_moved[last], vec![0; last]);
        for i in (0..last).rev() {
            let batch_size = self.buckets[i].shape.batch_size;
            let n_lacking = self.widest().batch_size.saturating_sub(n_widest);
            n_moved[i] = n_lacking.div_ceil(batch_size).min(n_full[i]);
            n_full[i] -= n_moved[i];
            n_widest += n_moved[i] * batch_size;
        }
        Layout { rows, n_full, n_moved, n_widest }
    }

    /// Returns the shapes of the full batches of a window, without the widest bucket's, from narrow to wide. Their rows are the first of
    /// [`Self::sort`].
    fn narrow_batches<'a>(&'a self, layout: &'a Layout) -> impl Iterator<Item = Shape> + 'a {
        let of_bucket = |(bucket, n): (&'a Bucket, &usize)| std::iter::repeat_n(bucket.shape, *n);
        self.buckets.iter().zip(&layout.n_full).flat_map(of_bucket)
    }

    /// Plans an epoch of this order: its windows in sequence, each with the order of its batches.
    pub(crate) fn plan<'a>(
        &self,
        windows: impl ExactSizeIterator<Item = (&'a Layout, Order)>,
        order: Order,
    ) -> EpochPlan {
        let most_rows = self.buckets.iter().map(|bucket| bucket.shape.batch_size).max().unwrap_or(0);
        let (mut plan, n_windows, widest) =
            (EpochPlan::of_sorted_windows(order, most_rows), windows.len(), self.widest());
        // Rows of the widest bucket that have no batch yet.
        let mut n_waiting = 0;
        for (number, (layout, order)) in windows.enumerate() {
            let mut end = 0;
            let mut next = |shape: Shape, n_rows: usize| {
                end += n_rows;
                (end - n_rows..end, shape)
            };
            let mut batches: Vec<_> = self.narrow_batches(layout).map(|shape| next(shape, shape.batch_size)).collect();

            let n_rows = n_waiting + layout.n_widest;
            let (n_full, n_left) = (n_rows / widest.batch_size, n_rows % widest.batch_size);
            let is_partial = number + 1 == n_windows && n_left > 0;
            let sizes = std::iter::repeat_n(widest.batch_size, n_full).chain(is_partial.then_some(n_left));
            let mut continued = None;
            for batch_size in sizes {
                let batch = next(Shape { batch_size, ..widest }, batch_size - n_waiting);
                if n_waiting > 0 {
                    continued = Some(batch)
                } else {
                    batches.push(batch)
                }
                n_waiting = 0;
            }

            n_waiting = n_left;
            order.apply(&mut batches, ShuffleOf::Batches);
            plan.push_window(continued, batches);
        }
        plan
    }

    /// Returns the number of batches of each shape in an epoch of these windows.
    pub(crate) fn shapes(&self, layouts: &[Layout]) -> BTreeMap<Shape, usize> {
        let mut shapes = BTreeMap::new();
        for shape in layouts.iter().flat_map(|layout| self.narrow_batches(layout)) {
            *shapes.entry(shape).or_default() += 1;
        }
        let (n_rows, widest) = (layouts.iter().map(Layout::n_widest).sum::<usize>(), self.widest());
        for (shape, n) in widest.batches_of(n_rows) {
            *shapes.entry(shape).or_default() += n;
        }
        shapes
    }

    /// Sorts the rows of a window, in the order in which they come: the rows of each batch follow one another, and the widest bucket's
    /// rows come last. Returns `None` if the rows have other lengths than those that were counted.
    pub(crate) fn sort(
        &self,
        layout: &Layout,
        rows: &[u32],
        lengths: impl Fn(u32) -> (usize, usize),
    ) -> Option<Vec<u32>> {
        let mut queues: Vec<Vec<u32>> = layout.rows.iter().map(|n| Vec::with_capacity(*n)).collect();
        for row in rows {
            queues[self.of(lengths(*row))?].push(*row);
        }
        if queues.iter().map(Vec::len).ne(layout.rows.iter().copied()) {
            return None;
        }

        let Some(last) = queues.len().checked_sub(1) else { return Some(Vec::new()) };
        let mut sorted = Vec::with_capacity(rows.len());
        for (i, bucket) in self.buckets[..last].iter().enumerate() {
            let queue = std::mem::take(&mut queues[i]);
            let (n_full, n_moved) =
                (layout.n_full[i] * bucket.shape.batch_size, layout.n_moved[i] * bucket.shape.batch_size);
            sorted.extend_from_slice(&queue[..n_full]);
            queues[last].extend_from_slice(&queue[n_full..n_full + n_moved]);
            queues[bucket.wider.expect("the widest takes any row")].extend_from_slice(&queue[n_full + n_moved..]);
        }
        sorted.append(&mut queues[last]);
        Some(sorted)
    }
}

#[cfg(test)]
mod tests;
