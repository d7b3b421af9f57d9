//! Batches of a text whose token cache is smaller than the text: shards are tokenized ahead and removed behind.
//!
//! # Design
//!
//! **A shard** is a part of the text with a token cache of its own. Text, tokenizer and limit decide where shards begin.
//!
//! **An epoch permutes the shards** and cuts the permutation into windows of [`WINDOW_SHARDS`]. Each shard packs its documents into
//! rows, in another order in each epoch. The rows of a window are shuffled together, and batches take them in sequence, across the borders
//! of windows. So a row is at most a window away from its shard's place, and the order is a pure function of seed and epoch.
//!
//! **A position is arithmetic.** The index has the tokens of each shard, thus its rows: the window of a batch is found without reading
//! text. A run that resumes needs the caches of one window. Those that are on disk are used; the others are made.
//!
//! **One thread makes caches ahead**, with the help of others: while the loader reads a window, it makes the next one ([`ahead`]). Only
//! the two windows must be on disk. Older caches stay until a new one needs their room.
//!
//! In the order of the files a window is one shard, which is made when it is needed.

mod ahead;
mod pairs;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::ahead::{Ahead, Key, Windows};
pub use self::pairs::StreamedPairs;
use super::text::{checked_format, settings_of};
use super::{BatchSource, BatchWorker, TextSource};
use crate::batch::{DocumentOrder, EpochPlan, RowFormat, RowWriter, WindowOrder};
use crate::cache::{Shards, WINDOW_SHARDS};
use crate::corpus::{Packing, Task, TextConfig};
use crate::error::{Error, Result};
use crate::host_batch::{HostBatch, Shape};
use crate::loader_config::LoaderConfig;
use crate::sampler::{Order, ShuffleOf};
use crate::tokenizer::TextTokenizer;

/// Packed rows of a text in shards. The design stands at the head of the file.
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
    source: TextSource,
    documents: DocumentOrder,
    /// Number of its first row in the data set.
    first_row: u32,
}

impl StreamedSource {
    /// Packs the documents of a text in shards for a task. The shards were counted with `tokenizer`. Replace a `text.seq_len` of 0 first ([`TextConfig::resolved`]).
    /// Batches have `batch_tokens / seq_len` rows; the last batch of an epoch has the remaining rows.
    ///
    /// # Errors
    ///
    /// If the tokenizer lacks a token that the task needs, if `loader.shuffle` is off, if rows are single documents, or if the settings
    /// are invalid.
    pub fn new(
        shards: Shards,
        tokenizer: &TextTokenizer,
        task: Task,
        text: &TextConfig,
        loader: &LoaderConfig,
    ) -> Result<Self> {
        let format = checked_format(tokenizer, task, text, loader)?;
        if text.packing == Packing::Sentences {
            return Err(Error::Invalid(
                "data.text.packing = \"sentences\" sorts all documents by length, and data.cache_limit holds a part of them: remove one \
                 of the two"
                    .into(),
            ));
        }
        let places = |(documents, tokens): (u64, u64)| tokens + documents * format.input.len() as u64;
        let rows: Vec<u64> = shards.sizes().map(|size| places(size).div_ceil(text.seq_len as u64)).collect();
        let n_rows: u64 = rows.iter().sum();
        let n_rows = u32::try_from(n_rows).map_err(|_| {
            Error::Invalid(format!(
                "the text has {n_rows} rows, more than 4,294,967,295: raise data.text.seq_len or split the text"
            ))
        })?;
        let first_rows = rows.iter().scan(0, |before, rows| {
            let first = *before;
            *before += *rows as u32;
            Some(first)
        });

        let settings = format!("windows of {WINDOW_SHARDS} shards {}", settings_of(task, text, &format));
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
}

impl StreamedText {
    fn windows(&self, order: Order) -> WindowOrder {
        WindowOrder::new(order, &self.rows, WINDOW_SHARDS)
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
            let source = TextSource::new(cache, &self.tokenizer, self.task, &self.config, &self.loader)?;
            let order = key.order.of_pass(u64::from(shard), key.order.epoch());
            firsts.push(n_rows);
            n_rows += source.n_rows() as u32;
            shards.push(OpenShard {
                documents: source.documents(order),
                source,
                first_row: self.first_rows[shard as usize],
            });
        }
        // Lists of shards and of windows have streams of their own.
        let order = key.order.of_pass((1 << 32) | key.window as u64, key.order.epoch());
        Ok(OpenWindow { shards, firsts, rows: order.indices(n_rows, ShuffleOf::Rows) })
    }
}

impl OpenWindow {
    /// Writes a row of the window.
    fn fill(&self, row: u32, rows: &mut RowWriter<'_>) -> Result<()> {
        let row = self.rows[row as usize];
        // Shards without rows share their first row with the next one.
        let at = self.firsts.partition_point(|first| *first <= row) - 1;
        let (OpenShard { source, documents, first_row }, row) = (&self.shards[at], row - self.firsts[at]);
        source.fill_packed(documents, row, first_row + row, rows)
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
        let (full, left) = (self.n_rows as usize / self.shape.batch_size, self.n_rows as usize % self.shape.batch_size);
        let last = Shape { batch_size: left, ..self.shape };
        let all = [(self.shape, full), (last, usize::from(left > 0))];
        Some(all.into_iter().filter(|(_, batches)| *batches > 0).collect())
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
        let (mut row, end) = (first, first + shape.batch_size as u64);
        while row < end {
            let (window, within, left) = windows.find(row);
            let n = left.min(end - row);
            let open = self.ahead.get(Key { order: windows.order(), window })?;
            (within..within + n as u32).try_for_each(|row| open.fill(row, &mut rows))?;
            row += n;
        }
        Ok(())
    }
}
