//! Length buckets of rows in shards, in the order of the files: the batches that [`Buckets`](super::Buckets) make of the whole.
//!
//! Buckets come from narrow to wide, each with its rows in the order of the files. The rows left in a bucket move to the end of the next
//! wider one. So the counts of the index say which rows of which shards a batch has.

use std::collections::BTreeMap;
use std::ops::Range;

use super::bucket::{Bucket, Padding, merged};
use super::plan::EpochPlan;
use crate::error::Result;
use crate::host_batch::Shape;
use crate::loader_config::LoaderConfig;

/// The batches of an epoch in the order of the files.
#[derive(Debug)]
pub(crate) struct BucketOrder {
    /// Bucket of each pair of padded lengths.
    of_cell: BTreeMap<(usize, usize), usize>,
    padding: Padding,
    /// Of each shard the rows of each bucket.
    counts: Vec<Vec<usize>>,
    /// All rows, batch after batch.
    runs: Vec<Run>,
    /// The rows before each run.
    starts: Vec<usize>,
    batches: Vec<(Range<usize>, Shape)>,
}

/// Some rows that follow one another in a bucket of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) shard: u32,
    pub(crate) bucket: usize,
    /// Their numbers among the rows of that bucket in the shard.
    pub(crate) rows: Range<usize>,
}

impl BucketOrder {
    /// Sorts the rows of shards, which are counted by source and target length, both rounded up or not. `max_lens` limits padded lengths
    /// (0: no limit).
    ///
    /// # Errors
    ///
    /// If the configuration is invalid, or if a row is longer than the token budget.
    pub(crate) fn new(
        shards: &[Vec<(u32, u32, u64)>],
        max_lens: (usize, usize),
        loader: &LoaderConfig,
    ) -> Result<Self> {
        let mut counts = BTreeMap::new();
        for (source, target, rows) in shards.iter().flatten() {
            *counts.entry((*source as usize, *target as usize)).or_default() += *rows as usize;
        }
        let padding = Padding { multiple: loader.bucket_multiple, max_lens };
        let (merged, of_cell) = merged(padding.cells(&counts, loader)?, loader);
        let buckets: Vec<Bucket> = (0..merged.len()).map(|i| Bucket::new(i, &merged, loader)).collect();

        let of_shard = |cells: &Vec<(u32, u32, u64)>| {
            let mut rows = vec![0; buckets.len()];
            for (source, target, n) in cells {
                rows[of_cell[&padding.pad((*source as usize, *target as usize))]] += *n as usize;
            }
            rows
        };
        let counts: Vec<Vec<usize>> = shards.iter().map(of_shard).collect();
        let (runs, batches) = distribute(&buckets, &counts);
        let mut end = 0;
        let start_of = |run: &Run| {
            end += run.rows.len();
            end - run.rows.len()
        };
        Ok(Self { of_cell, padding, starts: runs.iter().map(start_of).collect(), counts, runs, batches })
    }

    /// Returns the plan of an epoch. The rows of a batch are numbered in the order of all batches.
    pub(crate) fn plan(&self) -> EpochPlan {
        EpochPlan::of_ranges(self.batches.clone())
    }

    /// Returns where rows are, by their numbers in the order of all batches.
    pub(crate) fn runs(&self, rows: Range<usize>) -> impl Iterator<Item = Run> + '_ {
        let first = self.starts.partition_point(|start| *start <= rows.start).saturating_sub(1);
        let all = self.runs[first..].iter().zip(&self.starts[first..]).take_while(move |(_, start)| **start < rows.end);
        all.map(move |(run, start)| {
            let within = |number: usize| run.rows.start + number.clamp(*start, start + run.rows.len()) - start;
            Run { rows: within(rows.start)..within(rows.end), ..run.clone() }
        })
    }

    /// Sorts the rows of a shard by their lengths into buckets. Returns `None` if the rows have other lengths than those that were counted.
    pub(crate) fn sort(
        &self,
        shard: u32,
        lengths: impl Iterator<Item = Result<(usize, usize)>>,
    ) -> Result<Option<Vec<Vec<u32>>>> {
        let counts = &self.counts[shard as usize];
        let mut rows: Vec<Vec<u32>> = counts.iter().map(|n| Vec::with_capacity(*n)).collect();
        for (row, lengths) in (0..).zip(lengths) {
            let Some(bucket) = self.of_cell.get(&self.padding.pad(lengths?)) else { return Ok(None) };
            rows[*bucket].push(row);
        }
        let are_counted = rows.iter().map(Vec::len).eq(counts.iter().copied());
        Ok(are_counted.then_some(rows))
    }
}

/// Distributes the rows of shards, counted by bucket, into batches, as [`Buckets::plan`](super::Buckets::plan) does.
fn distribute(buckets: &[Bucket], counts: &[Vec<usize>]) -> (Vec<Run>, Vec<(Range<usize>, Shape)>) {
    let of_bucket = |bucket: usize| -> Vec<Run> {
        let runs = (0..).zip(counts).map(|(shard, rows)| Run { shard, bucket, rows: 0..rows[bucket] });
        runs.filter(|run| !run.rows.is_empty()).collect()
    };
    let mut queues: Vec<Vec<Run>> = (0..buckets.len()).map(of_bucket).collect();
    let (mut runs, mut batches, mut end) = (Vec::new(), Vec::new(), 0);
    for (i, bucket) in buckets.iter().enumerate() {
        let queue = std::mem::take(&mut queues[i]);
        let (n_rows, size): (usize, _) = (queue.iter().map(|run| run.rows.len()).sum(), bucket.shape.batch_size);
        let n_taken = if bucket.wider.is_some() { n_rows - n_rows % size } else { n_rows };

        let mut n_left = n_taken;
        for run in queue {
            let middle = run.rows.start + n_left.min(run.rows.len());
            n_left -= middle - run.rows.start;
            let (taken, left) = (run.rows.start..middle, middle..run.rows.end);
            if !taken.is_empty() {
                runs.push(Run { rows: taken, ..run.clone() });
            }
            if let Some(wider) = bucket.wider.filter(|_| !left.is_empty()) {
                queues[wider].push(Run { rows: left, ..run });
            }
        }

        let batch = |start: usize| {
            let batch_size = size.min(n_taken - start);
            (end + start..end + start + batch_size, Shape { batch_size, ..bucket.shape })
        };
        batches.extend((0..n_taken).step_by(size).map(batch));
        end += n_taken;
    }
    (runs, batches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Buckets;
    use crate::sampler::Order;

    /// Lengths of rows, of which each shard has some.
    fn rows() -> Vec<Vec<(usize, usize)>> {
        let len = |row: usize| (1 + row * 7 % 40, if row.is_multiple_of(29) { 120 } else { 1 + row * 11 % 33 });
        let sizes = [40, 0, 3, 90, 1, 60, 200, 7];
        let mut row = 0;
        let shard = |n: usize| {
            row += n;
            (row - n..row).map(len).collect()
        };
        sizes.into_iter().map(shard).collect()
    }

    #[test]
    fn batches_of_shards_in_order_are_those_of_the_whole() {
        let shards = rows();
        let all: Vec<(usize, usize)> = shards.concat();
        for batch_rows in [0, 3, 500] {
            let config = LoaderConfig { batch_tokens: 600, batch_rows, max_buckets: 6, ..LoaderConfig::default() };
            let config = LoaderConfig { batch_tokens: if batch_rows > 3 { 60_000 } else { 600 }, ..config };
            let whole = Buckets::new(all.iter().copied(), (0, 120), &config).expect("fits").plan(Order::Sequential);
            let cells = |shard: &Vec<(usize, usize)>| shard.iter().map(|len| (len.0 as u32, len.1 as u32, 1)).collect();
            let counted: Vec<Vec<(u32, u32, u64)>> = shards.iter().map(cells).collect();
            let order = BucketOrder::new(&counted, (0, 120), &config).expect("fits");
            let plan = order.plan();
            assert_eq!(plan.len(), whole.len());

            let firsts: Vec<usize> = (0..shards.len()).map(|shard| shards[..shard].concat().len()).collect();
            let sorted = |shard: usize| order.sort(shard as u32, shards[shard].iter().map(|len| Ok(*len)));
            let sorted: Vec<_> =
                (0..shards.len()).map(|shard| sorted(shard).expect("read").expect("counted")).collect();
            for index in 0..plan.len() {
                let (_, _, places) = plan.places(index);
                let of_run = |run: Run| {
                    let first = firsts[run.shard as usize] as u32;
                    sorted[run.shard as usize][run.bucket][run.rows].iter().map(|row| first + row).collect::<Vec<_>>()
                };
                let found: Vec<u32> = order.runs(places).flat_map(of_run).collect();
                assert_eq!((&found[..], plan.batch(index).1), whole.batch(index), "batch {index}");
            }
            let other = order.sort(0, shards[3].iter().map(|len| Ok(*len)));
            assert!(other.expect("read").is_none(), "other lengths");
        }
    }
}
