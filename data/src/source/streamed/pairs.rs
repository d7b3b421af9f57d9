//! Batches of pairs whose token cache is smaller than the text.
//!
//! # Design
//!
//! **Windows are the same in every epoch**: a fixed shuffle of the shards is cut into windows of [`WINDOW_SHARDS`]. So each window has the
//! same lengths in every epoch, and the counts of the index say how many batches of which shape it has ([`WindowBuckets`]).
//!
//! **An epoch permutes the windows.** Within a window, rows and batches are shuffled. Rows of the widest bucket that fill no batch begin
//! the first batch of the next window. So a row is at most a window away from its shard's place.
//!
//! Shards, positions and the thread that makes caches ahead are as for text.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::ahead::{Ahead, Key, Windows};
use crate::batch::{Collator, EpochPlan, Layout, WindowBuckets};
use crate::cache::{Shards, WINDOW_SHARDS};
use crate::error::{Error, Result};
use crate::host_batch::{HostBatch, Shape};
use crate::loader_config::LoaderConfig;
use crate::sampler::{Order, ShuffleOf};
use crate::source::pairs::PairRows;
use crate::source::{BatchSource, BatchWorker};
use crate::tokenizer::{PairTokenizers, SpecialIds};

/// Pairs in shards, in length buckets. The design stands at the head of the file.
#[derive(Debug)]
pub struct StreamedPairs {
    pairs: Arc<PairWindows>,
    ahead: Ahead<PairWindows>,
}

/// The pairs, and how their windows become batches.
#[derive(Debug)]
struct PairWindows {
    shards: Shards,
    special: SpecialIds,
    buckets: WindowBuckets,
    /// The shards of each window.
    windows: Vec<Vec<u32>>,
    /// The batches of each window.
    layouts: Vec<Layout>,
    /// The number of each shard's first row in the data set.
    first_rows: Vec<u32>,
    num_threads: usize,
}

/// A window whose caches are open.
struct OpenWindow {
    shards: Vec<OpenShard>,
    /// Its rows, batch after batch: places in `shards`, and rows there.
    rows: Vec<(u8, u32)>,
}

struct OpenShard {
    pairs: PairRows,
    /// Number of its first row in the data set.
    first_row: u32,
}

impl StreamedPairs {
    /// Sorts the pairs of shards into buckets. The shards were counted with `tokenizers` and with `loader.bucket_multiple`.
    ///
    /// # Errors
    ///
    /// If the shards hold text or were counted with another multiple, if a pair does not fit into `loader.batch_tokens`, or if the
    /// configuration is invalid.
    pub fn new(shards: Shards, tokenizers: &PairTokenizers, loader: &LoaderConfig) -> Result<Self> {
        let (multiple, wanted) = (shards.length_multiple(), loader.bucket_multiple);
        if multiple != wanted {
            return Err(Error::Invalid(format!(
                "the shards were counted with lengths in multiples of {multiple}, and loader.bucket_multiple is {wanted}: count them \
                 again with that"
            )));
        }

        let cells: Vec<&[(u32, u32, u64)]> = shards.cells().collect();
        let mut counts = BTreeMap::new();
        for (source, target, rows) in cells.iter().copied().flatten() {
            *counts.entry((*source as usize, *target as usize)).or_default() += *rows as usize;
        }
        let windows = windows_of(&cells);
        let buckets = WindowBuckets::new(&counts, shards.max_lens(), loader)?;
        let counts_of = |window: &Vec<u32>| window.iter().flat_map(|shard| cells[*shard as usize]).collect::<Vec<_>>();
        let layouts = windows.iter().map(|window| buckets.layout(counts_of(window).into_iter())).collect();

        let pairs = PairWindows {
            first_rows: first_rows(&shards)?,
            shards,
            special: tokenizers.special(),
            buckets,
            windows,
            layouts,
            num_threads: loader.num_workers.max(1),
        };
        let pairs = Arc::new(pairs);
        Ok(Self { ahead: Ahead::new(pairs.clone(), loader.in_flight()), pairs })
    }

    /// Returns the pairs.
    pub fn shards(&self) -> &Shards {
        &self.pairs.shards
    }
}

/// Returns the shards of each window. Shards without rows are in none.
fn windows_of(cells: &[&[(u32, u32, u64)]]) -> Vec<Vec<u32>> {
    // Windows that follow the files would hold neighbours in every epoch.
    let mut shards = Order::Shuffled { seed: 0, epoch: 0 }.indices(cells.len() as u32, ShuffleOf::Shards);
    shards.retain(|shard| !cells[*shard as usize].is_empty());
    shards.chunks(WINDOW_SHARDS).map(<[u32]>::to_vec).collect()
}

/// Returns the number of each shard's first row.
fn first_rows(shards: &Shards) -> Result<Vec<u32>> {
    let mut end = 0;
    let starts: Vec<u64> = shards
        .sizes()
        .map(|(rows, _)| {
            end += rows;
            end - rows
        })
        .collect();
    let too_many = |_| Error::Invalid(format!("the text has {end} pairs, more than 4,294,967,295: split it"));
    u32::try_from(end).map_err(too_many)?;
    Ok(starts.into_iter().map(|start| start as u32).collect())
}

impl PairWindows {
    /// Returns the windows in the order of an epoch.
    fn in_order(&self, order: Order) -> Vec<u32> {
        order.indices(self.windows.len() as u32, ShuffleOf::Shards)
    }

    /// Returns the order of the rows and batches of a window.
    fn order_within(window: u32, order: Order) -> Order {
        order.of_pass(u64::from(window), order.epoch())
    }

    /// Returns where the rows of a batch are: windows in the order of the epoch, and places in each. `n_rows` is their number. A batch
    /// with fewer `places` in its `window` begins with the last rows of the windows before.
    fn pieces(
        &self,
        order: Order,
        (window, places): (usize, Range<usize>),
        n_rows: usize,
    ) -> Vec<(usize, Range<usize>)> {
        let (mut n_missing, mut pieces) = (n_rows - places.len(), vec![(window, places)]);
        let in_order = if n_missing > 0 { self.in_order(order) } else { Vec::new() };
        for before in (0..window).rev() {
            if n_missing == 0 {
                break;
            }
            let layout = &self.layouts[in_order[before] as usize];
            let (end, n) = (layout.n_rows(), n_missing.min(layout.n_widest()));
            pieces.push((before, end - n..end));
            n_missing -= n;
        }
        pieces.reverse();
        pieces
    }
}

impl Windows for PairWindows {
    type Open = OpenWindow;

    fn next(&self, key: Key) -> Option<Key> {
        let next_epoch = key.order.next_epoch()?;
        Some(match key.window + 1 < self.windows.len() {
            true => Key { window: key.window + 1, ..key },
            false => Key { order: next_epoch, window: 0 },
        })
    }

    fn open(&self, key: Key, kept: &[Key], stops: &(dyn Fn() -> bool + Sync)) -> Result<OpenWindow> {
        let window_of = |key: &Key| self.in_order(key.order)[key.window];
        let window = window_of(&key);
        let wanted = &self.windows[window as usize];
        let kept: Vec<u32> = kept.iter().map(window_of).collect();
        let is_kept =
            |shard| kept.iter().chain([&window]).any(|window| self.windows[*window as usize].contains(&shard));
        let caches = self.shards.open(wanted, &is_kept, self.num_threads, stops)?;

        let open = |(cache, shard): (_, &u32)| OpenShard {
            pairs: PairRows { cache, special: self.special },
            first_row: self.first_rows[*shard as usize],
        };
        let shards: Vec<OpenShard> = caches.into_iter().zip(wanted).map(open).collect();
        let places: Vec<(u8, u32)> = (0..)
            .zip(&shards)
            .flat_map(|(at, shard)| (0..shard.pairs.cache.n_rows() as u32).map(move |row| (at, row)))
            .collect();

        let rows = Self::order_within(window, key.order).indices(places.len() as u32, ShuffleOf::Rows);
        let lengths = |row: u32| {
            let (shard, row) = places[row as usize];
            shards[shard as usize].pairs.cache.lengths(row as usize)
        };
        let Some(sorted) = self.buckets.sort(&self.layouts[window as usize], &rows, lengths) else {
            // The ids are the same, and divided differently into sources and targets.
            return Err(self.shards.changed(wanted[0], shards[0].pairs.cache.path()));
        };
        let rows = sorted.into_iter().map(|row| places[row as usize]).collect();
        Ok(OpenWindow { shards, rows })
    }
}

impl OpenWindow {
    /// Adds the rows at `places` to a batch.
    fn fill(&self, places: Range<usize>, collator: &mut Collator<'_>) -> Result<()> {
        self.rows[places].iter().try_for_each(|(shard, row)| {
            let OpenShard { pairs, first_row } = &self.shards[*shard as usize];
            pairs.push(collator, *row, first_row + row)
        })
    }
}

impl BatchSource for StreamedPairs {
    fn plan(&self, order: Order) -> EpochPlan {
        let PairWindows { buckets, layouts, .. } = &*self.pairs;
        let windows = self.pairs.in_order(order).into_iter();
        buckets.plan(windows.map(|window| (&layouts[window as usize], PairWindows::order_within(window, order))), order)
    }

    fn batches_per_epoch(&self) -> u64 {
        self.pairs.buckets.shapes(&self.pairs.layouts).values().map(|batches| *batches as u64).sum()
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        Some(self.pairs.buckets.shapes(&self.pairs.layouts))
    }

    fn fingerprint(&self) -> String {
        self.pairs.shards.fingerprint_with(&format!("windows of {WINDOW_SHARDS} shards of pairs"))
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(self)
    }
}

impl BatchWorker for Arc<StreamedPairs> {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> Result<()> {
        let (_, shape) = plan.batch(index);
        let (order, window, places) = plan.places(index);
        let mut collator = Collator::new(batch, shape, self.pairs.special);
        for (window, places) in self.pairs.pieces(order, (window, places), shape.batch_size) {
            self.ahead.get(Key { order, window })?.fill(places, &mut collator)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
