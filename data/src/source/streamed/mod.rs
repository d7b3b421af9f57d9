//! Batches of a text whose token cache is smaller than the text: shards are tokenized ahead and removed behind.
//!
//! # Design
//!
//! **A shard** is a part of the text with a token cache of its own. Text, tokenizer and limit decide where shards begin.
//!
//! **An epoch permutes the shards** and cuts the permutation into windows of [`WINDOW_SHARDS`]. Each shard packs its documents into
//! rows, in another order in each epoch. Conversations are packed by best fit, the same in each epoch. The rows of a window are shuffled
//! together, and batches take them in sequence, across the borders
//! of windows. So a row is at most a window away from its shard's place, and the order is a pure function of seed and epoch.
//!
//! **A position is arithmetic.** The index has the tokens of each shard, or the lengths of its conversations, thus its rows: the window
//! of a batch is found without reading text. A run that resumes needs the caches of one window. Those that are on disk are used; the
//! others are made.
//!
//! **One thread makes caches ahead**, with the help of others: while the loader reads a window, it makes the next one ([`ahead`]). Only
//! the two windows must be on disk. Older caches stay until a new one needs their room.
//!
//! In the order of the files a window is one shard, which is made when it is needed.
//!
//! Rows that have a length of their own are not packed, but sorted into length buckets: [`rows`]. Training in the order of the files is
//! [`in_order`].

mod ahead;
mod in_order;
#[cfg(test)]
pub(crate) mod promises;
mod rows;
#[cfg(test)]
mod tasks;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::ahead::{Ahead, Key, Windows};
pub use self::in_order::StreamedInOrder;
pub use self::rows::StreamedRows;
use super::chat::{self, BestFit};
use super::text;
use super::{BatchSource, BatchWorker, ChatSource, TextSource};
use crate::batch::{DocumentOrder, EpochPlan, RowFormat, RowWriter, WindowOrder};
use crate::cache::{CacheKind, Shards, TokenCache, WINDOW_SHARDS};
use crate::corpus::{Packing, Task, TextConfig};
use crate::error::{Error, Result};
use crate::host_batch::{HostBatch, Shape};
use crate::loader_config::LoaderConfig;
use crate::sampler::{Order, ShuffleOf};
use crate::tokenizer::TextTokenizer;

/// Packed rows of a text or of conversations in shards. The design stands at the head of the file.
#[derive(Debug)]
pub struct StreamedSource {
    text: Arc<StreamedText>,
    ahead: Ahead<StreamedText>,
    format: RowFormat,
    shape: Shape,
    n_rows: u32,
    /// Decides the rows of every epoch, except the tokens. Part of the fingerprint.
    settings: String,
}

/// The text, and how its windows become rows.
#[derive(Debug)]
struct StreamedText {
    shards: Shards,
    tokenizer: TextTokenizer,
    /// Rows of each shard.
    rows: Vec<u64>,
    /// The number of each shard's first row in the data set.
    first_rows: Vec<u32>,
    task: Task,
    config: TextConfig,
    loader: LoaderConfig,
}

/// A window whose caches are open.
struct OpenWindow {
    shards: Vec<OpenShard>,
    /// The first row of each shard, in the numbers before the shuffle.
    firsts: Vec<u32>,
    /// The rows of all shards, shuffled.
    rows: Vec<u32>,
}

struct OpenShard {
    packed: Packed,
    /// Number of its first row in the data set.
    first_row: u32,
}

/// The rows of a shard.
enum Packed {
    Documents(TextSource, DocumentOrder),
    Conversations(ChatSource),
}

impl StreamedSource {
    /// Packs the documents or conversations of a text in shards for a task. The shards were counted with `tokenizer`. Replace a
    /// `text.seq_len` of 0 first ([`TextConfig::resolved`]). Batches have `batch_tokens / seq_len` rows; the last batch of an epoch has
    /// the remaining rows.
    ///
    /// # Errors
    ///
    /// If the shards hold other rows, if the tokenizer lacks a token that the task needs, if rows are single documents or
    /// conversations, or if the settings are invalid.
    pub fn new(
        shards: Shards,
        tokenizer: &TextTokenizer,
        task: Task,
        text: &TextConfig,
        loader: &LoaderConfig,
    ) -> Result<Self> {
        if text.packing == Packing::Sentences {
            return Err(Error::Invalid(
                "rows of data.text.packing = \"sentences\" are not packed: open the shards with StreamedRows".into(),
            ));
        }
        let (format, settings, rows): (_, _, Vec<u64>) = match shards.kind() {
            CacheKind::Text => {
                let (format, settings) = text::checked_format(tokenizer, task, text, loader)?;
                let n_special = format.input.len() as u64;
                let places = |(documents, tokens): (u64, u64)| tokens + documents * n_special;
                let rows = shards.sizes().map(|size| places(size).div_ceil(text.seq_len as u64)).collect();
                (format, settings, rows)
            }
            CacheKind::Chat => {
                let (format, settings) = chat::checked_format(tokenizer, text, loader)?;
                (format, settings, shards.cells().map(|cells| n_packed(cells, text.seq_len)).collect())
            }
            kind => return Err(Error::Invalid(format!("the shards hold {kind:?}, wanted documents or conversations"))),
        };
        let n_rows: u64 = rows.iter().sum();
        let n_rows = u32::try_from(n_rows).map_err(|_| text::too_many_rows(n_rows))?;
        let first_rows = rows.iter().scan(0, |before, rows| {
            let first = *before;
            *before += *rows as u32;
            Some(first)
        });

        let settings = format!("windows of {WINDOW_SHARDS} shards {settings}");
        let first_rows = first_rows.collect();
        let text = StreamedText {
            shards,
            tokenizer: tokenizer.clone(),
            rows,
            first_rows,
            task,
            config: text.clone(),
            loader: loader.clone(),
        };
        let text = Arc::new(text);
        Ok(Self {
            ahead: Ahead::new(text.clone(), loader.in_flight()),
            shape: Shape::text(loader.rows_of(text.config.seq_len), text.config.seq_len),
            text,
            format,
            n_rows,
            settings,
        })
    }

    /// Returns the text.
    pub fn shards(&self) -> &Shards {
        &self.text.shards
    }

    /// Returns the number of rows of an epoch.
    pub(crate) fn n_rows(&self) -> u32 {
        self.n_rows
    }

    /// Returns the shape of a full batch.
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns how its rows are built.
    pub(crate) fn format(&self) -> &RowFormat {
        &self.format
    }

    /// Returns the windows of an epoch.
    pub(crate) fn windows(&self, order: Order) -> WindowOrder {
        self.text.windows(order)
    }

    /// Returns what reads rows for one batch.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader { source: self, open: Vec::new() }
    }
}

/// Reads rows for one batch. It asks for each window once: [`Ahead`] counts how often.
pub(crate) struct Reader<'a> {
    source: &'a StreamedSource,
    open: Vec<(Key, Arc<OpenWindow>)>,
}

impl Reader<'_> {
    /// Writes row `row` of an epoch. `before` is added to its number in the data set.
    pub(crate) fn fill(
        &mut self,
        windows: &WindowOrder,
        row: u64,
        before: u32,
        rows: &mut RowWriter<'_>,
    ) -> Result<()> {
        let (window, within, _) = windows.find(row);
        let key = Key { order: windows.order(), window };
        let at = match self.open.iter().position(|(open, _)| *open == key) {
            Some(at) => at,
            None => {
                self.open.push((key, self.source.ahead.get(key)?));
                self.open.len() - 1
            }
        };
        self.open[at].1.fill(within, before, rows)
    }
}

/// Returns the number of rows that best fit makes of conversations, which are counted by their lengths in increasing order.
fn n_packed(cells: &[(u32, u32, u64)], seq_len: usize) -> u64 {
    let mut best_fit = BestFit::new(seq_len);
    for (_, len, n) in cells.iter().rev() {
        (0..*n).for_each(|_| {
            best_fit.place(*len as usize);
        });
    }
    best_fit.n_rows() as u64
}

impl StreamedText {
    fn windows(&self, order: Order) -> WindowOrder {
        WindowOrder::new(order, &self.rows, WINDOW_SHARDS)
    }

    /// Packs the cache of a shard.
    ///
    /// # Errors
    ///
    /// If it makes other rows than the index counted.
    fn pack(&self, shard: u32, cache: TokenCache, order: Order) -> Result<Packed> {
        let path = cache.path().to_path_buf();
        let (packed, n_rows) = match self.shards.kind() {
            CacheKind::Chat => {
                let source = ChatSource::new(cache, &self.tokenizer, &self.config, &self.loader)?;
                let n_rows = source.n_rows();
                (Packed::Conversations(source), n_rows)
            }
            _ => {
                let source = TextSource::new(cache, &self.tokenizer, self.task, &self.config, &self.loader)?;
                let (documents, n_rows) = (source.documents(order), source.n_rows());
                (Packed::Documents(source, documents), n_rows)
            }
        };
        let is_counted = n_rows as u64 == self.rows[shard as usize];
        if is_counted { Ok(packed) } else { Err(self.shards.changed(shard, &path)) }
    }
}

impl Windows for StreamedText {
    type Open = OpenWindow;

    fn next(&self, key: Key) -> Option<Key> {
        let next_epoch = key.order.next_epoch()?;
        let n_windows = self.rows.len().div_ceil(WINDOW_SHARDS);
        Some(match key.window + 1 < n_windows {
            true => Key { window: key.window + 1, ..key },
            false => Key { order: next_epoch, window: 0 },
        })
    }

    fn open(&self, key: Key, kept: &[Key], stops: &(dyn Fn() -> bool + Sync)) -> Result<OpenWindow> {
        let shards_of = |key: &Key| self.windows(key.order).shards(key.window).to_vec();
        let wanted = shards_of(&key);
        let kept: Vec<u32> = kept.iter().flat_map(shards_of).chain(wanted.iter().copied()).collect();
        let num_threads = self.loader.num_workers.max(1);
        let caches = self.shards.open(&wanted, &|shard| kept.contains(&shard), num_threads, stops)?;

        let (mut shards, mut firsts, mut n_rows) = (Vec::new(), Vec::new(), 0);
        for (cache, shard) in caches.into_iter().zip(wanted) {
            let order = key.order.of_pass(u64::from(shard), key.order.epoch());
            let packed = self.pack(shard, cache, order)?;
            firsts.push(n_rows);
            n_rows += self.rows[shard as usize] as u32;
            shards.push(OpenShard { packed, first_row: self.first_rows[shard as usize] });
        }
        // Lists of shards and of windows have streams of their own.
        let order = key.order.of_pass((1 << 32) | key.window as u64, key.order.epoch());
        Ok(OpenWindow { shards, firsts, rows: order.indices(n_rows, ShuffleOf::Rows) })
    }
}

impl OpenWindow {
    /// Writes a row of the window. `before` is added to its number in the data set.
    fn fill(&self, row: u32, before: u32, rows: &mut RowWriter<'_>) -> Result<()> {
        let row = self.rows[row as usize];
        // Shards without rows share their first row with the next one.
        let at = self.firsts.partition_point(|first| *first <= row) - 1;
        let (OpenShard { packed, first_row }, row) = (&self.shards[at], row - self.firsts[at]);
        let number = before + first_row + row;
        match packed {
            Packed::Documents(source, documents) => source.fill_packed(documents, row, number, rows),
            Packed::Conversations(source) => source.fill_row(row, number, rows),
        }
    }
}

impl BatchSource for StreamedSource {
    fn plan(&self, order: Order) -> EpochPlan {
        EpochPlan::of_windows(self.text.windows(order), self.shape)
    }

    fn batches_per_epoch(&self) -> u64 {
        u64::from(self.n_rows).div_ceil(self.shape.batch_size as u64)
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        Some(self.shape.batches_of(self.n_rows as usize))
    }

    fn fingerprint(&self) -> String {
        self.text.shards.fingerprint_with(&self.settings)
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(self)
    }
}

impl BatchWorker for Arc<StreamedSource> {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> Result<()> {
        let (windows, first, shape) = plan.windows(index).expect("a plan of this source");
        let mut rows = RowWriter::new(batch, shape, &self.format);
        let mut reader = self.reader();
        (first..first + shape.batch_size as u64).try_for_each(|row| reader.fill(windows, row, 0, &mut rows))
    }
}
