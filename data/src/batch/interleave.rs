//! The order in which an epoch of a mixture takes units of its sources: rows, or whole batches.
//!
//! The units of an epoch are cut into chunks of about [`CHUNK`], and each chunk has its part of the units of each source: chunk m of M
//! has the units `floor(m n / M) .. floor((m + 1) n / M)` of a source of n units. Within a chunk, the sources are shuffled. So shares
//! hold everywhere in an epoch, and each source is read in its own order. A unit is found by arithmetic and the shuffle of one chunk.

use crate::sampler::{Order, ShuffleOf};

/// Units that are shuffled together.
const CHUNK: u64 = 1024;

/// The units of an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interleave {
    /// Units of each source.
    totals: Vec<u64>,
    n_chunks: u64,
    order: Order,
}

impl Interleave {
    /// Takes so many units of each source, in this order.
    pub(crate) fn new(totals: Vec<u64>, order: Order) -> Self {
        let n_chunks = totals.iter().sum::<u64>().div_ceil(CHUNK).max(1);
        Self { totals, n_chunks, order }
    }

    /// Returns the number of units.
    pub(crate) fn n_units(&self) -> u64 {
        self.totals.iter().sum()
    }

    /// Returns the units of a source before a chunk.
    fn before(&self, source: usize, chunk: u64) -> u64 {
        (u128::from(chunk) * u128::from(self.totals[source]) / u128::from(self.n_chunks)) as u64
    }

    /// Returns the units of all sources before a chunk.
    fn first(&self, chunk: u64) -> u64 {
        (0..self.totals.len()).map(|source| self.before(source, chunk)).sum()
    }

    /// Returns the chunk of a unit.
    fn chunk_of(&self, unit: u64) -> u64 {
        let (mut low, mut high) = (0, self.n_chunks);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.first(middle) <= unit { low = middle } else { high = middle }
        }
        low
    }

    /// Returns the source of each of `n` units from unit `unit` on, and the unit's number in its source.
    pub(crate) fn units(&self, mut unit: u64, n: usize) -> Vec<(usize, u64)> {
        let end = (unit + n as u64).min(self.n_units());
        let mut found = Vec::with_capacity(n);
        let mut chunk = self.chunk_of(unit);
        while unit < end {
            let first = self.first(chunk);
            let mut next: Vec<u64> = (0..self.totals.len()).map(|source| self.before(source, chunk)).collect();
            let of_source = |(source, before): (usize, &u64)| {
                let n = self.before(source, chunk + 1) - before;
                std::iter::repeat_n(source, n as usize)
            };
            let mut sources: Vec<usize> = next.iter().enumerate().flat_map(of_source).collect();
            self.order.of_pass(chunk, self.order.epoch()).apply(&mut sources, ShuffleOf::Rows);
            for (at, source) in (first..).zip(sources) {
                if (unit..end).contains(&at) {
                    found.push((source, next[source]));
                }
                next[source] += 1;
            }
            unit = unit.max(self.first(chunk + 1));
            chunk += 1;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: Order = Order::Shuffled { seed: 5, epoch: 3 };

    #[test]
    fn every_unit_comes_once_in_the_order_of_its_source_from_any_position() {
        for totals in [vec![5000, 1, 0, 700, 3], vec![1], vec![0, 7], vec![1024, 1024], vec![1, 999_999]] {
            let all = Interleave::new(totals.clone(), ORDER);
            let units = all.units(0, all.n_units() as usize);
            for (source, n) in totals.iter().enumerate() {
                let numbers: Vec<u64> = units.iter().filter(|unit| unit.0 == source).map(|unit| unit.1).collect();
                assert_eq!(numbers, (0..*n).collect::<Vec<_>>(), "source {source} of {totals:?}");
            }
            let n = units.len();
            for start in (0..n).step_by(1 + n / 97) {
                let end = n.min(start + 1500);
                assert_eq!(all.units(start as u64, 1500), units[start..end], "{totals:?} from {start}");
            }
        }
    }

    #[test]
    fn shares_hold_in_every_part_of_an_epoch_and_epochs_differ() {
        let all = Interleave::new(vec![60_000, 30_000, 10_000], ORDER);
        for start in (0..98_000).step_by(9_973) {
            let units = all.units(start, 2000);
            for (source, share) in [(0, 1200.0), (1, 600.0), (2, 200.0)] {
                let n = units.iter().filter(|unit| unit.0 == source).count() as f64;
                assert!((n - share).abs() < 60.0, "{n} units of source {source} from {start}");
            }
        }
        let later = Interleave::new(vec![60_000, 30_000, 10_000], ORDER.at_epoch(4));
        assert_ne!(later.units(0, 100), all.units(0, 100));
    }

    #[test]
    fn the_order_never_changes_between_versions() {
        // A resumed run must see the same rows: these numbers may only change with a new checkpoint format.
        let all = Interleave::new(vec![2000, 1000], ORDER);
        let found: Vec<usize> = all.units(1500, 12).into_iter().map(|unit| unit.0).collect();
        assert_eq!(found, [1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1]);
    }
}
