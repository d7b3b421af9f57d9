//! Where the batches of a mixture come from whose sources are in shards.

use std::ops::Range;

use super::interleave::Interleave;
use crate::host_batch::Shape;

/// The batches of an epoch of a mixture in shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MixedShards {
    unit: MixedUnit,
    slices: Vec<Slice>,
    /// The number of batches.
    n_batches: usize,
}

/// What a mixture in shards takes of its sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MixedUnit {
    /// Rows of one length. A full batch has this shape.
    Rows(Shape),
    /// Whole batches. A pass over each source has so many.
    Batches(Vec<u64>),
}

/// Some batches of an epoch with the same shares.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Slice {
    /// The number of its first batch.
    first: usize,
    /// That batch in the order of its shares.
    offset: usize,
    interleave: Interleave,
    /// Units of each source before that order.
    before: Vec<u64>,
}

impl MixedShards {
    pub(crate) fn new(unit: MixedUnit) -> Self {
        Self { unit, slices: Vec::new(), n_batches: 0 }
    }

    /// Adds `batches` of an order, before which so many units of each source were read.
    pub(crate) fn push(&mut self, interleave: Interleave, before: Vec<u64>, batches: Range<usize>) {
        self.slices.push(Slice { first: self.n_batches, offset: batches.start, interleave, before });
        self.n_batches += batches.len();
    }

    /// Returns the number of batches.
    pub(crate) fn n_batches(&self) -> usize {
        self.n_batches
    }

    /// Returns the units of a full batch.
    fn size(&self) -> usize {
        match &self.unit {
            MixedUnit::Rows(shape) => shape.batch_size,
            MixedUnit::Batches(_) => 1,
        }
    }

    /// Returns the slice of a batch, and the batch's first unit in it.
    fn find(&self, batch: usize) -> (&Slice, u64) {
        let slice = &self.slices[self.slices.partition_point(|slice| slice.first <= batch) - 1];
        (slice, ((slice.offset + batch - slice.first) * self.size()) as u64)
    }

    /// Returns the source of each unit of a batch, and the unit's number among all units that are ever read of the source.
    pub(crate) fn units(&self, batch: usize) -> Vec<(usize, u64)> {
        let (slice, first) = self.find(batch);
        let units = slice.interleave.units(first, self.size()).into_iter();
        units.map(|(source, unit)| (source, slice.before[source] + unit)).collect()
    }

    /// Returns the source of a batch that it has whole, the number of the pass, and the batch's number in it; `None` if a batch has rows
    /// of several sources.
    pub(crate) fn whole_batch(&self, batch: usize) -> Option<(usize, u64, usize)> {
        let MixedUnit::Batches(per_pass) = &self.unit else { return None };
        let (source, number) = self.units(batch)[0];
        Some((source, number / per_pass[source], (number % per_pass[source]) as usize))
    }

    /// Returns the shape of a batch that has rows of several sources.
    pub(crate) fn shape_of_rows(&self, batch: usize) -> Option<Shape> {
        let MixedUnit::Rows(shape) = &self.unit else { return None };
        let (slice, first) = self.find(batch);
        let left = slice.interleave.n_units() - first;
        Some(Shape { batch_size: left.min(shape.batch_size as u64) as usize, ..*shape })
    }
}
