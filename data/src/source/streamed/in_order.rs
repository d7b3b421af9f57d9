//! Batches in the order of the files (`loader.shuffle = false`) of rows whose token cache is smaller than the text.
//!
//! # Design
//!
//! **Batches are the same as from a whole cache**, bit for bit. The counts of the index say which rows of which shards a batch has. A packed row
//! goes on from one shard to the next. Rows with lengths of their own come bucket after bucket ([`BucketOrder`]), so an epoch passes over
//! the text once for each bucket. Conversations are packed by best fit, which keeps no order of files: each shard packs its own, and the
//! shards come in the order of the files.
//!
//! **A window is some batches in sequence**, filled ahead of the training ([`Ahead`]). Filling them takes one shard at a time, and copies
//! its rows. So a batch may have rows of any number of shards, while no cache stays open. A run that resumes fills one window.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ahead::{Ahead, Key, Windows};
use super::rows::{RowWindows, StreamedRows};
use super::{Packed, StreamedSource, StreamedText};
use crate::batch::{BucketOrder, EpochPlan, RowFormat, RowWriter};
use crate::cache::{CacheKind, Shards};
use crate::error::Result;
use crate::host_batch::{HostBatch, Shape};
use crate::sampler::Order;
use crate::source::single_rows::DividedCache;
use crate::source::text::too_many_rows;
use crate::source::{BatchSource, BatchWorker};

/// Most tokens of a window, padding included: about 80 MB of host memory.
const MOST_WINDOW_TOKENS: u64 = 4 << 20;

/// Rows in shards in the order of the files, whatever the order of the loader. The design stands at the head of the file.
#[derive(Debug)]
pub struct StreamedInOrder {
    batches: Arc<Batches>,
    ahead: Ahead<Batches>,
    /// Decides the batches, except the rows. Part of the fingerprint.
    settings: String,
}

/// The batches of an epoch.
#[derive(Debug)]
struct Batches {
    rows: Rows,
    plan: EpochPlan,
    /// The first batch of each window, and the number of all batches.
    starts: Vec<usize>,
    num_threads: usize,
}

/// Where rows come from.
#[derive(Debug)]
enum Rows {
    /// They are packed.
    Packed {
        text: Arc<StreamedText>,
        format: RowFormat,
        /// The first place of each shard, and the number of all places. Of conversations the first row.
        starts: Vec<u64>,
    },
    /// They have lengths of their own.
    Single { rows: Arc<RowWindows>, order: BucketOrder },
}

impl StreamedSource {
    /// Returns the rows in the order of the files. Documents are packed as [`TextSource`](crate::TextSource) packs the whole text.
    /// Each shard packs its own conversations.
    ///
    /// # Errors
    ///
    /// If there are too many rows.
    pub fn in_file_order(self) -> Result<StreamedInOrder> {
        let (text, seq_len) = (self.text, self.shape.target_len as u64);
        let is_chat = text.shards.kind() == CacheKind::Chat;
        let n_special = self.format.input.len() as u64;
        let places = |(documents, tokens): (u64, u64)| tokens + documents * n_special;
        let sizes: Vec<u64> = if is_chat { text.rows.clone() } else { text.shards.sizes().map(places).collect() };
        let mut starts = vec![0];
        sizes.iter().for_each(|size| starts.push(starts[starts.len() - 1] + size));
        let n_rows = starts[sizes.len()].div_ceil(if is_chat { 1 } else { seq_len });
        u32::try_from(n_rows).map_err(|_| too_many_rows(n_rows))?;

        let (n_rows, size) = (n_rows as usize, self.shape.batch_size);
        let batch = |start: usize| {
            let batch_size = size.min(n_rows - start);
            (start..start + batch_size, Shape { batch_size, ..self.shape })
        };
        let plan = EpochPlan::of_ranges((0..n_rows).step_by(size).map(batch).collect());
        let (in_flight, num_threads) = (text.loader.in_flight(), text.loader.num_workers);
        let rows = Rows::Packed { text, format: self.format, starts };
        Ok(StreamedInOrder::new(rows, plan, in_flight, num_threads, &self.settings))
    }
}

impl StreamedRows {
    /// Returns the rows in the order of the files within length buckets, as the source of a whole cache has them.
    ///
    /// # Errors
    ///
    /// If a row is longer than the token budget.
    pub fn in_file_order(self) -> Result<StreamedInOrder> {
        let rows = self.rows;
        let order = BucketOrder::new(&rows.cells(), rows.max_lens, &rows.budget)?;
        let plan = order.plan().with_rows_each(rows.kind.n_rows_each());
        let (in_flight, num_threads) = (rows.budget.in_flight(), rows.num_threads);
        Ok(StreamedInOrder::new(Rows::Single { rows, order }, plan, in_flight, num_threads, &self.settings))
    }
}

impl StreamedInOrder {
    fn new(rows: Rows, plan: EpochPlan, in_flight: usize, num_threads: usize, settings: &str) -> Self {
        // A window that took more than a shard would begin late.
        let largest = rows.shards().sizes().map(|(_, tokens)| tokens).max().unwrap_or(0);
        let starts = windows(&plan, largest.min(MOST_WINDOW_TOKENS), in_flight);
        let batches = Arc::new(Batches { rows, plan, starts, num_threads: num_threads.max(1) });
        let settings = format!("in the order of the files: {settings}");
        Self { ahead: Ahead::new(batches.clone(), in_flight), batches, settings }
    }

    /// Returns the rows.
    pub fn shards(&self) -> &Shards {
        self.batches.rows.shards()
    }
}

/// Cuts the batches of a plan into windows of at least so many batches, and up to so many tokens. Returns the first batch of each, and the
/// number of all batches.
fn windows(plan: &EpochPlan, most_tokens: u64, least_batches: usize) -> Vec<usize> {
    let (mut starts, mut n_tokens) = (vec![0], 0);
    for index in 0..plan.len() {
        let tokens = plan.batch(index).1.padded_tokens() as u64;
        if n_tokens + tokens > most_tokens && index >= starts[starts.len() - 1] + least_batches.max(1) {
            starts.push(index);
            n_tokens = 0;
        }
        n_tokens += tokens;
    }
    starts.push(plan.len());
    starts
}

impl Rows {
    fn shards(&self) -> &Shards {
        match self {
            Self::Packed { text, .. } => &text.shards,
            Self::Single { rows, .. } => &rows.shards,
        }
    }
}

impl Windows for Batches {
    type Open = Vec<HostBatch>;

    fn next(&self, key: Key) -> Option<Key> {
        Some(Key { window: (key.window + 1) % (self.starts.len() - 1), ..key })
    }

    fn open(&self, key: Key, _kept: &[Key], stops: &(dyn Fn() -> bool + Sync)) -> Result<Vec<HostBatch>> {
        let mut reader = Reader { batches: self, open: None, stops };
        (self.starts[key.window]..self.starts[key.window + 1]).map(|index| reader.batch(index)).collect()
    }
}

/// Fills batches from one shard at a time.
struct Reader<'a> {
    batches: &'a Batches,
    /// The shard that was read last.
    open: Option<(u32, OpenShard)>,
    stops: &'a (dyn Fn() -> bool + Sync),
}

enum OpenShard {
    Packed(Box<Packed>),
    /// Its rows, and the rows of each bucket.
    Single(Box<DividedCache>, Vec<Vec<u32>>),
}

impl Reader<'_> {
    fn batch(&mut self, index: usize) -> Result<HostBatch> {
        let (_, shape) = self.batches.plan.batch(index);
        let (_, _, rows) = self.batches.plan.places(index);
        let mut batch = HostBatch::default();
        match &self.batches.rows {
            Rows::Packed { text, format, starts } => {
                let mut writer = RowWriter::new(&mut batch, shape, format);
                rows.into_iter().try_for_each(|row| self.fill_packed(row as u64, text, starts, &mut writer))?;
            }
            Rows::Single { rows: all, order } => {
                let mut writer = all.kind.writer(&mut batch, shape);
                for run in order.runs(rows) {
                    let OpenShard::Single(cache, buckets) = self.shard(run.shard)? else { unreachable!("not packed") };
                    let first = all.first_rows[run.shard as usize];
                    for row in &buckets[run.bucket][run.rows] {
                        writer.push(&cache.cache, cache.part(*row), first + row)?;
                    }
                }
            }
        }
        Ok(batch)
    }

    /// Writes a packed row, from as many shards as it has places of.
    fn fill_packed(&mut self, row: u64, text: &StreamedText, starts: &[u64], rows: &mut RowWriter<'_>) -> Result<()> {
        // Shards without rows share their start with the next one.
        let shard_of = |at: u64| starts.partition_point(|start| *start <= at) - 1;
        let mut at = if text.shards.kind() == CacheKind::Chat { row } else { row * rows.room() as u64 };
        while rows.room() > 0 && at < starts[starts.len() - 1] {
            let shard = shard_of(at);
            let OpenShard::Packed(packed) = self.shard(shard as u32)? else { unreachable!("packed") };
            let within = at - starts[shard];
            match &**packed {
                Packed::Conversations(source) => return source.fill_row(within as u32, row as u32, rows),
                Packed::Documents(source, documents) => {
                    let n_places = source.fill_room(documents, within, rows)?;
                    if n_places == 0 {
                        return Err(text.shards.changed(shard as u32, source.cache().path()));
                    }
                    at += n_places as u64;
                }
            }
        }
        rows.end_row(row as u32);
        Ok(())
    }

    /// Opens a shard, unless it is open.
    fn shard(&mut self, shard: u32) -> Result<&OpenShard> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != shard) {
            // The room of the one before may be needed.
            self.open = None;
            self.open = Some((shard, self.open_shard(shard)?));
        }
        Ok(&self.open.as_ref().expect("opened above").1)
    }

    fn open_shard(&self, shard: u32) -> Result<OpenShard> {
        let Batches { rows, num_threads, .. } = self.batches;
        let opened = rows.shards().open(&[shard], &|kept| kept == shard, *num_threads, self.stops)?;
        let cache = opened.into_iter().next().expect("as many as wanted");
        match rows {
            Rows::Packed { text, .. } => Ok(OpenShard::Packed(text.pack(shard, cache, Order::Sequential)?.into())),
            Rows::Single { rows, order } => {
                let cache = rows.kind.divide(cache);
                let of_row = |row: u32| rows.kind.lengths(&cache.cache, cache.part(row));
                let sorted = order.sort(shard, (0..cache.n_rows() as u32).map(of_row))?;
                // The ids are the same, and divided differently into sources and targets.
                let buckets = sorted.ok_or_else(|| rows.shards.changed(shard, cache.cache.path()))?;
                Ok(OpenShard::Single(cache.into(), buckets))
            }
        }
    }
}

impl BatchSource for StreamedInOrder {
    fn plan(&self, _order: Order) -> EpochPlan {
        self.batches.plan.clone()
    }

    fn batches_per_epoch(&self) -> u64 {
        self.batches.plan.len() as u64
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        let mut shapes = BTreeMap::new();
        (0..self.batches.plan.len())
            .for_each(|index| *shapes.entry(self.batches.plan.batch(index).1).or_default() += 1);
        Some(shapes)
    }

    fn fingerprint(&self) -> String {
        self.shards().fingerprint_with(&self.settings)
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(self)
    }
}

impl BatchWorker for Arc<StreamedInOrder> {
    fn fill(&mut self, _plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> Result<()> {
        let starts = &self.batches.starts;
        let window = starts.partition_point(|start| *start <= index) - 1;
        let filled = self.ahead.get(Key { order: Order::Sequential, window })?;
        batch.clone_from(&filled[index - starts[window]]);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
