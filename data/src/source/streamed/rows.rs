//! Batches of rows, each with a length of its own, whose token cache is smaller than the text: pairs, answers to compare, labelled rows,
//! and documents and conversations that are not packed.
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
use crate::batch::{EpochPlan, Layout, WindowBuckets};
use crate::cache::{Shards, WINDOW_SHARDS};
use crate::corpus::{Packing, Task, TextConfig};
use crate::error::{Error, Result};
use crate::host_batch::{HostBatch, Shape};
use crate::loader_config::LoaderConfig;
use crate::sampler::{Order, ShuffleOf};
use crate::source::preferences::budget_of_pairs;
use crate::source::single_rows::{BatchWriter, DividedCache, RowKind};
use crate::source::text::checked_format;
use crate::source::{BatchSource, BatchWorker, chat};
use crate::tokenizer::{LabelledShape, PairTokenizers, TextTokenizer};

/// Rows in shards, in length buckets. The design stands at the head of the file.
#[derive(Debug)]
pub struct StreamedRows {
    pub(super) rows: Arc<RowWindows>,
    ahead: Ahead<RowWindows>,
    /// Decides the batches of every epoch, except the rows. Part of the fingerprint.
    pub(super) settings: String,
}

/// The rows, and how their windows become batches.
#[derive(Debug)]
pub(super) struct RowWindows {
    pub(super) shards: Shards,
    pub(super) kind: RowKind,
    /// Longest source and target rows; 0: no limit.
    pub(super) max_lens: (usize, usize),
    /// The token budget of a batch.
    pub(super) budget: LoaderConfig,
    buckets: WindowBuckets,
    /// The shards of each window.
    windows: Vec<Vec<u32>>,
    /// The batches of each window.
    layouts: Vec<Layout>,
    /// The number of each shard's first row in the data set.
    pub(super) first_rows: Vec<u32>,
    pub(super) num_threads: usize,
}

/// A window whose caches are open.
pub(super) struct OpenWindow {
    shards: Vec<OpenShard>,
    /// Its rows, batch after batch: places in `shards`, and rows there.
    rows: Vec<(u8, u32)>,
}

struct OpenShard {
    rows: DividedCache,
    /// Number of its first row in the data set.
    first_row: u32,
}

impl StreamedRows {
    /// Sorts the pairs of shards into buckets. The shards were counted with `tokenizers` and with `loader.bucket_multiple`.
    ///
    /// # Errors
    ///
    /// If the shards hold other rows or were counted with another multiple, if a pair does not fit into `loader.batch_tokens`, or if the
    /// configuration is invalid.
    pub fn of_pairs(shards: Shards, tokenizers: &PairTokenizers, loader: &LoaderConfig) -> Result<Self> {
        let (multiple, wanted) = (shards.length_multiple(), loader.bucket_multiple);
        if multiple != wanted {
            return Err(Error::Invalid(format!(
                "the shards were counted with lengths in multiples of {multiple}, and loader.bucket_multiple is {wanted}: count them \
                 again with that"
            )));
        }
        let max_lens = shards.max_lens();
        Self::new(shards, RowKind::pairs(tokenizers), max_lens, loader, loader, " of pairs".into())
    }

    /// Sorts documents in rows of their own into buckets, as [`TextSource`](crate::TextSource) does with
    /// [`Packing::Sentences`]. The shards were counted with `tokenizer` and this packing.
    ///
    /// # Errors
    ///
    /// If the shards hold other rows or were counted to be packed, if the tokenizer lacks a token that the task needs, or if the settings
    /// are invalid.
    pub fn of_documents(
        shards: Shards,
        tokenizer: &TextTokenizer,
        task: Task,
        text: &TextConfig,
        loader: &LoaderConfig,
    ) -> Result<Self> {
        let (format, settings) = checked_format(tokenizer, task, text, loader)?;
        if shards.length_multiple() == 0 || text.packing != Packing::Sentences {
            return Err(Error::Invalid(
                "rows of documents have their own lengths only with data.text.packing = \"sentences\", with which their shards must be \
                 counted, too"
                    .into(),
            ));
        }
        let kind = RowKind::Documents { format, vocab_size: tokenizer.vocab_size(), seq_len: text.seq_len };
        Self::new(shards, kind, (0, text.seq_len), loader, loader, format!(" {settings}"))
    }

    /// Sorts conversations in rows of their own into buckets, as [`ChatSource`](crate::ChatSource) does with
    /// [`Packing::Sentences`]. The shards were counted with `tokenizer`.
    ///
    /// # Errors
    ///
    /// If the shards hold other rows, or if the settings are invalid.
    pub fn of_conversations(
        shards: Shards,
        tokenizer: &TextTokenizer,
        text: &TextConfig,
        loader: &LoaderConfig,
    ) -> Result<Self> {
        let (_, settings) = chat::checked_format(tokenizer, text, loader)?;
        let (kind, max_lens) = (RowKind::conversations(tokenizer), (0, text.seq_len));
        Self::new(shards, kind, max_lens, loader, loader, format!(" {settings}"))
    }

    /// Sorts pairs of answers into buckets by the longer one, as [`PreferenceSource::new`](crate::PreferenceSource::new) does. The
    /// shards were counted with `tokenizer`.
    ///
    /// # Errors
    ///
    /// If the shards hold other rows, if a pair does not fit into `loader.batch_tokens`, or if the settings are invalid.
    pub fn of_preferences(
        shards: Shards,
        tokenizer: &TextTokenizer,
        max_len: usize,
        loader: &LoaderConfig,
        beta: f64,
    ) -> Result<Self> {
        let lengths = shards.cells().flatten().map(|(_, len, _)| *len as usize);
        let (of_pairs, limit) = budget_of_pairs(lengths.max().unwrap_or(0), max_len, loader)?;
        let settings = format!(" preferences {}", tokenizer.special().fill());
        Self::new(shards, RowKind::preferences(tokenizer, beta), (0, limit), &of_pairs, loader, settings)
    }

    /// Sorts labelled rows into buckets. The shards were counted with `tokenizer` and `shape`; `n_classes` is the number of classes.
    ///
    /// # Errors
    ///
    /// If the shards hold other rows, if a row does not fit into `loader.batch_tokens`, or if the configuration is invalid.
    pub fn of_labels(
        shards: Shards,
        tokenizer: &TextTokenizer,
        shape: LabelledShape,
        n_classes: usize,
        loader: &LoaderConfig,
    ) -> Result<Self> {
        let (fill, vocab_size, has_types) = (tokenizer.special().fill(), tokenizer.vocab_size(), shape.has_types);
        let kind = RowKind::Labelled { fill, has_types, vocab_size, n_classes };
        let settings = format!(" labels {shape:?} {n_classes} {fill}");
        Self::new(shards, kind, (0, shape.max_len), loader, loader, settings)
    }

    /// Plans windows with the token budget of `budget`. `loader` says how many batches are in flight.
    fn new(
        shards: Shards,
        kind: RowKind,
        max_lens: (usize, usize),
        budget: &LoaderConfig,
        loader: &LoaderConfig,
        settings: String,
    ) -> Result<Self> {
        if shards.kind() != kind.of_caches() {
            let (found, wanted) = (shards.kind(), kind.of_caches());
            return Err(Error::Invalid(format!("the shards hold {found:?}, wanted {wanted:?}")));
        }
        let cells = cells_of(&shards, &kind);
        let mut counts = BTreeMap::new();
        for (source, target, rows) in cells.iter().flatten() {
            *counts.entry((*source as usize, *target as usize)).or_default() += *rows as usize;
        }
        let windows = windows_of(&cells);
        let buckets = WindowBuckets::new(&counts, max_lens, budget)?;
        let layout_of = |window: &Vec<u32>| buckets.layout(window.iter().flat_map(|shard| &cells[*shard as usize]));
        let layouts = windows.iter().map(layout_of).collect();

        let rows = RowWindows {
            first_rows: first_rows(&cells)?,
            shards,
            kind,
            max_lens,
            budget: budget.clone(),
            buckets,
            windows,
            layouts,
            num_threads: loader.num_workers.max(1),
        };
        let rows = Arc::new(rows);
        let settings = format!("windows of {WINDOW_SHARDS} shards{settings}");
        Ok(Self { ahead: Ahead::new(rows.clone(), loader.in_flight()), rows, settings })
    }

    /// Returns the rows.
    pub fn shards(&self) -> &Shards {
        &self.rows.shards
    }

    /// Returns the number of rows of the shards.
    pub(crate) fn n_rows(&self) -> u64 {
        self.rows.cells().iter().flatten().map(|(_, _, rows)| rows).sum()
    }
}

/// Returns the lengths of the rows of each shard, and how many rows have them.
fn cells_of(shards: &Shards, kind: &RowKind) -> Vec<Vec<(u32, u32, u64)>> {
    shards.cells().map(|cells| kind.counted(cells)).collect()
}

/// Returns the shards of each window. Shards without rows are in none.
fn windows_of(cells: &[Vec<(u32, u32, u64)>]) -> Vec<Vec<u32>> {
    // Windows that follow the files would hold neighbours in every epoch.
    let mut shards = Order::Shuffled { seed: 0, epoch: 0 }.indices(cells.len() as u32, ShuffleOf::Shards);
    shards.retain(|shard| !cells[*shard as usize].is_empty());
    shards.chunks(WINDOW_SHARDS).map(<[u32]>::to_vec).collect()
}

/// Returns the number of each shard's first row.
fn first_rows(cells: &[Vec<(u32, u32, u64)>]) -> Result<Vec<u32>> {
    let mut end = 0;
    let start_of = |cells: &Vec<(u32, u32, u64)>| {
        let start = end;
        end += cells.iter().map(|(_, _, rows)| rows).sum::<u64>();
        start
    };
    let starts: Vec<u64> = cells.iter().map(start_of).collect();
    let too_many = |_| Error::Invalid(format!("the text has {end} rows, more than 4,294,967,295: split it"));
    u32::try_from(end).map_err(too_many)?;
    Ok(starts.into_iter().map(|start| start as u32).collect())
}

impl RowWindows {
    pub(super) fn cells(&self) -> Vec<Vec<(u32, u32, u64)>> {
        cells_of(&self.shards, &self.kind)
    }

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

impl Windows for RowWindows {
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
            rows: self.kind.divide(cache),
            first_row: self.first_rows[*shard as usize],
        };
        let shards: Vec<OpenShard> = caches.into_iter().zip(wanted).map(open).collect();
        let places: Vec<(u8, u32)> = (0..)
            .zip(&shards)
            .flat_map(|(at, shard)| (0..shard.rows.n_rows() as u32).map(move |row| (at, row)))
            .collect();
        let of_place = |(shard, row): &(u8, u32)| {
            let rows = &shards[*shard as usize].rows;
            self.kind.lengths(&rows.cache, rows.part(*row))
        };
        let lengths = places.iter().map(of_place).collect::<Result<Vec<_>>>()?;

        let rows = Self::order_within(window, key.order).indices(places.len() as u32, ShuffleOf::Rows);
        let sorted = self.buckets.sort(&self.layouts[window as usize], &rows, |row| lengths[row as usize]);
        let Some(sorted) = sorted else {
            // The ids are the same, and divided differently into sources and targets.
            return Err(self.shards.changed(wanted[0], shards[0].rows.cache.path()));
        };
        let rows = sorted.into_iter().map(|row| places[row as usize]).collect();
        Ok(OpenWindow { shards, rows })
    }
}

impl OpenWindow {
    /// Adds the rows at `places` to a batch.
    fn fill(&self, places: Range<usize>, writer: &mut BatchWriter<'_>) -> Result<()> {
        self.rows[places].iter().try_for_each(|(shard, row)| {
            let OpenShard { rows, first_row } = &self.shards[*shard as usize];
            writer.push(&rows.cache, rows.part(*row), first_row + row)
        })
    }
}

impl RowWindows {
    /// Returns the shape of a batch of so many rows of caches.
    fn in_rows(&self, shape: Shape) -> Shape {
        Shape { batch_size: self.kind.n_rows_each() * shape.batch_size, ..shape }
    }
}

impl BatchSource for StreamedRows {
    fn plan(&self, order: Order) -> EpochPlan {
        let RowWindows { buckets, layouts, kind, .. } = &*self.rows;
        let windows = self.rows.in_order(order).into_iter();
        let windows = windows.map(|window| (&layouts[window as usize], RowWindows::order_within(window, order)));
        buckets.plan(windows, order).with_rows_each(kind.n_rows_each())
    }

    fn batches_per_epoch(&self) -> u64 {
        self.rows.buckets.shapes(&self.rows.layouts).values().map(|batches| *batches as u64).sum()
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        let shapes = self.rows.buckets.shapes(&self.rows.layouts).into_iter();
        Some(shapes.map(|(shape, batches)| (self.rows.in_rows(shape), batches)).collect())
    }

    fn fingerprint(&self) -> String {
        self.rows.shards.fingerprint_with(&self.settings)
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(self)
    }
}

impl BatchWorker for Arc<StreamedRows> {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> Result<()> {
        let (_, shape) = plan.batch(index);
        let (order, window, places) = plan.places(index);
        let n_rows = shape.batch_size / self.rows.kind.n_rows_each();
        let mut writer = self.rows.kind.writer(batch, shape);
        for (window, places) in self.rows.pieces(order, (window, places), n_rows) {
            self.ahead.get(Key { order, window })?.fill(places, &mut writer)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
