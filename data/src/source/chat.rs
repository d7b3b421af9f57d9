//! Batches of conversations from a token cache.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::single_rows::push_conversation;
use super::{BatchSource, BatchWorker};
use crate::batch::{Around, Buckets, EpochPlan, RowFormat, RowWriter};
use crate::cache::{CacheKind, Lengths, TokenCache};
use crate::corpus::{Packing, TextConfig};
use crate::error::{Error, Result};
use crate::host_batch::{HostBatch, Shape};
use crate::loader_config::LoaderConfig;
use crate::sampler::{Order, ShuffleOf};
use crate::tokenizer::TextTokenizer;

/// Rows of whole conversations that do not see each other.
///
/// A conversation is never cut, since its second part would lack the question. The rows are packed once, by best fit in
/// the order of decreasing length (Johnson 1973): each conversation goes into the fullest row that has room for it.
/// An epoch shuffles the rows. Neighbours within a row stay the same, which the model does not notice.
///
/// With [`Packing::Sentences`], each conversation has a row of its own, padded to the length of its bucket.
#[derive(Debug)]
pub struct ChatSource {
    cache: TokenCache,
    format: RowFormat,
    rows: Rows,
    vocab_size: usize,
    seq_len: usize,
    /// Everything that decides the content of a row, except the cache. Part of the fingerprint.
    settings: String,
}

/// How rows are made of conversations.
#[derive(Debug)]
enum Rows {
    /// Several in a row.
    Packed {
        /// Conversations of each row.
        rows: Vec<Vec<u32>>,
        /// Of a full batch.
        shape: Shape,
    },
    /// Each in a row of its own.
    Single(Buckets),
}

impl ChatSource {
    /// Packs the conversations of a cache. Replace a `text.seq_len` of 0 first ([`TextConfig::resolved`]). Batches of packed
    /// rows have `batch_tokens / seq_len` of them; the last batch of an epoch has the remaining rows.
    ///
    /// # Errors
    ///
    /// If the cache holds other rows or was made with another tokenizer, or if the settings are invalid.
    pub fn new(cache: TokenCache, tokenizer: &TextTokenizer, text: &TextConfig, loader: &LoaderConfig) -> Result<Self> {
        let (format, settings) = checked_format(tokenizer, text, loader)?;
        if cache.kind() != CacheKind::Chat {
            return Err(Error::cache(cache.path(), "does not hold conversations"));
        }
        cache.check_tokenizer(tokenizer)?;

        let seq_len = text.seq_len;
        let rows = if format.boundaries {
            let shape = Shape::text(loader.rows_of(seq_len), seq_len);
            Rows::Packed { rows: packed(&cache, seq_len)?, shape }
        } else {
            Rows::Single(buckets(&cache, seq_len, loader)?)
        };
        Ok(Self { rows, vocab_size: tokenizer.vocab_size(), seq_len, settings, format, cache })
    }

    /// Returns the cache.
    pub fn cache(&self) -> &TokenCache {
        &self.cache
    }

    /// Returns the number of rows of an epoch.
    pub fn n_rows(&self) -> usize {
        match &self.rows {
            Rows::Packed { rows, .. } => rows.len(),
            Rows::Single(buckets) => buckets.n_rows(),
        }
    }

    /// Returns the share of padding among the tokens of an epoch, in [0, 1).
    pub fn padding_ratio(&self) -> f64 {
        match &self.rows {
            Rows::Packed { rows, shape } => 1.0 - self.cache.n_tokens() as f64 / (rows.len() * shape.target_len) as f64,
            Rows::Single(buckets) => buckets.padding_ratio(),
        }
    }

    /// Writes row `row`, as row `number` of the data set.
    pub(super) fn fill_row(&self, row: u32, number: u32, rows: &mut RowWriter<'_>) -> Result<()> {
        match &self.rows {
            Rows::Packed { rows: packed, .. } => {
                for conversation in &packed[row as usize] {
                    push_conversation(rows, &self.cache, *conversation, self.vocab_size)?;
                }
            }
            Rows::Single(_) => push_conversation(rows, &self.cache, row, self.vocab_size)?,
        }
        rows.end_row(number);
        Ok(())
    }

    /// Returns the length of the longest row.
    pub(super) fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// Returns how its rows are built.
    pub(super) fn format(&self) -> &RowFormat {
        &self.format
    }

    /// Returns the shape of a full batch of packed rows; `None` if each conversation has a row of its own.
    pub(super) fn packed_shape(&self) -> Option<Shape> {
        match &self.rows {
            Rows::Packed { shape, .. } => Some(*shape),
            Rows::Single(_) => None,
        }
    }

    /// Returns the padded length of a packed row, or the length of a conversation.
    pub(super) fn row_len(&self, row: usize) -> usize {
        match &self.rows {
            Rows::Packed { shape, .. } => shape.target_len,
            Rows::Single(_) => self.cache.document_len(row) as usize,
        }
    }
}

/// Returns how rows of conversations are built, and what decides their content next to the tokens, as a part of a fingerprint.
///
/// # Errors
///
/// If the settings are invalid.
pub(super) fn checked_format(
    tokenizer: &TextTokenizer,
    text: &TextConfig,
    loader: &LoaderConfig,
) -> Result<(RowFormat, String)> {
    let problems: Vec<_> = text.validate(0).into_iter().chain(loader.validate()).collect();
    if !problems.is_empty() {
        return Err(Error::Invalid(problems.join("\n")));
    }
    let seq_len = text.seq_len;
    if loader.batch_tokens < seq_len {
        return Err(Error::Invalid(format!(
            "loader.batch_tokens = {} cannot hold one row of data.text.seq_len = {seq_len} tokens: raise it to a \
             multiple of {seq_len}, or lower data.text.seq_len",
            loader.batch_tokens
        )));
    }

    let fill = tokenizer.special().fill();
    let is_packed = text.packing != Packing::Sentences;
    let format = RowFormat { input: Around::default(), labels: Around::default(), fill, boundaries: is_packed };
    // Saved runs know this text as part of the source's fingerprint.
    Ok((format, format!("{} {seq_len} {fill}", if is_packed { "chat" } else { "chat in rows" })))
}

/// Returns the length of each conversation.
fn lengths(cache: &TokenCache, seq_len: usize) -> Result<Vec<usize>> {
    let lengths: Vec<usize> = (0..cache.n_rows()).map(|row| cache.document_len(row) as usize).collect();
    match lengths.iter().copied().max() {
        Some(longest) if longest > seq_len => Err(Error::cache(
            cache.path(),
            format!("has a conversation of {longest} tokens, data.text.seq_len = {seq_len} has no room for it"),
        )),
        _ => Ok(lengths),
    }
}

/// Sorts conversations in rows of their own by length.
fn buckets(cache: &TokenCache, seq_len: usize, loader: &LoaderConfig) -> Result<Buckets> {
    Buckets::new(lengths(cache, seq_len)?.into_iter().map(|len| (0, len)), (0, seq_len), loader)
}

/// Returns the conversations of each row.
fn packed(cache: &TokenCache, seq_len: usize) -> Result<Vec<Vec<u32>>> {
    let lengths = lengths(cache, seq_len)?;
    let len = |conversation: u32| lengths[conversation as usize];
    let mut by_length: Vec<u32> = (0..cache.n_rows() as u32).collect();
    by_length.sort_by_key(|conversation| std::cmp::Reverse(len(*conversation)));

    let (mut best_fit, mut rows) = (BestFit::new(seq_len), Vec::<Vec<u32>>::new());
    for conversation in by_length {
        let row = best_fit.place(len(conversation));
        if row == rows.len() {
            rows.push(Vec::new());
        }
        rows[row].push(conversation);
    }
    Ok(rows)
}

/// Rows that are packed by best fit.
pub(super) struct BestFit {
    seq_len: usize,
    n_rows: usize,
    /// Rows by their free places.
    open: BTreeMap<usize, Vec<usize>>,
}

impl BestFit {
    pub(super) fn new(seq_len: usize) -> Self {
        Self { seq_len, n_rows: 0, open: BTreeMap::new() }
    }

    /// Returns the row of the next conversation, whose length must not exceed a row's. Lengths come in decreasing order.
    pub(super) fn place(&mut self, needed: usize) -> usize {
        let (room, row) = match self.open.range(needed..).next().map(|(room, _)| *room) {
            Some(room) => {
                let rows_with_room = self.open.get_mut(&room).expect("found above");
                let row = rows_with_room.pop().expect("never empty");
                if rows_with_room.is_empty() {
                    self.open.remove(&room);
                }
                (room, row)
            }
            None => {
                self.n_rows += 1;
                (self.seq_len, self.n_rows - 1)
            }
        };
        self.open.entry(room - needed).or_default().push(row);
        row
    }

    /// Returns the number of rows so far.
    pub(super) fn n_rows(&self) -> usize {
        self.n_rows
    }
}

impl BatchSource for ChatSource {
    fn plan(&self, order: Order) -> EpochPlan {
        match &self.rows {
            Rows::Packed { rows, shape } => {
                let rows = order.indices(rows.len() as u32, ShuffleOf::Rows);
                let mut plan = EpochPlan::with_capacity(rows.len());
                for batch in rows.chunks(shape.batch_size) {
                    plan.push(batch, Shape { batch_size: batch.len(), ..*shape });
                }
                plan
            }
            Rows::Single(buckets) => buckets.plan(order),
        }
    }

    fn batches_per_epoch(&self) -> u64 {
        match &self.rows {
            Rows::Packed { rows, shape } => rows.len().div_ceil(shape.batch_size) as u64,
            Rows::Single(buckets) => buckets.batches_per_epoch(),
        }
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        Some(match &self.rows {
            Rows::Packed { rows, shape } => shape.batches_of(rows.len()),
            Rows::Single(buckets) => buckets.shapes(),
        })
    }

    fn lengths(&self) -> Vec<Lengths> {
        Lengths::of_cache(&self.cache, Lengths::MOST_COUNTED)
    }

    fn fingerprint(&self) -> String {
        self.cache.fingerprint_with(&self.settings)
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(self)
    }
}

impl BatchWorker for Arc<ChatSource> {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> Result<()> {
        let (numbers, shape) = plan.batch(index);
        let mut rows = RowWriter::new(batch, shape, &self.format);
        for number in numbers {
            self.fill_row(*number, *number, &mut rows)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
