//! Batches of text from a token cache.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::single_rows::{part_len, parts_of};
use super::{BatchSource, BatchWorker};
use crate::batch::{Around, Buckets, DocumentOrder, EpochPlan, RowFormat, RowWriter};
use crate::cache::{CacheKind, Lengths, TokenCache};
use crate::corpus::{Packing, Task, TextConfig};
use crate::error::{Error, Result};
use crate::host_batch::{HostBatch, Shape};
use crate::loader_config::LoaderConfig;
use crate::sampler::{Order, ShuffleOf};
use crate::tokenizer::TextTokenizer;

/// Rows for a language model, packed from the documents of a token cache.
///
/// # Which tokens are labels
///
/// When the model learns to predict the next token, a document of n tokens d0 .. dn-1 takes n + 1 places:
///
/// | place | 0 | 1 | .. | n-1 | n |
/// |---|---|---|---|---|---|
/// | input | start | d0 | .. | dn-2 | dn-1 |
/// | label | d0 | d1 | .. | dn-1 | end |
///
/// The start token is the one that the tokenizer puts in front of a text, else the vocabulary's `bos` or its end-of-text
/// token (GPT-2). So every token
/// of every document, and one end token per document, is a label exactly once; a start token never is. For masked
/// language modelling a document takes one place per token and per special token around it (`[CLS]`, `[SEP]`), and the
/// labels are the input.
///
/// Packed rows are cut from the places of all documents in sequence: row r has places r T .. (r + 1) T. A document that
/// reaches beyond its row continues in the next. The model reads its second part without the first. The label of a
/// token stays the next token, so a cut loses and repeats nothing. Only the last row is padded.
///
/// # Order
///
/// Every epoch packs the documents in another order and shuffles the resulting rows. Seed and epoch decide both orders.
/// So documents get other neighbours and are cut at other places, and the parts of a long document do not follow each
/// other. The order depends on the lengths alone, so a loader starts at any position without reading a token.
#[derive(Debug)]
pub struct TextSource {
    cache: TokenCache,
    format: RowFormat,
    rows: Rows,
    seq_len: usize,
    vocab_size: usize,
    /// Everything that decides the content of a row, except the cache. Part of the fingerprint.
    settings: String,
}

/// How rows are made of documents.
#[derive(Debug)]
enum Rows {
    /// Documents in sequence.
    Packed {
        n_rows: u32,
        /// Rows of a full batch.
        batch_size: usize,
    },
    /// One row per document, or several consecutive ones for a long document.
    Sentences {
        /// Document and first place of each row.
        parts: Vec<(u32, u32)>,
        buckets: Buckets,
    },
}

impl TextSource {
    /// Packs the documents of a cache for a task. Replace a `text.seq_len` of 0 first ([`TextConfig::resolved`]).
    /// Packed batches have `batch_tokens / seq_len` rows; the last batch of an epoch has the remaining rows.
    ///
    /// # Errors
    ///
    /// If the cache holds pairs or was made with another tokenizer, if the tokenizer lacks a token that the task needs,
    /// or if the settings are invalid.
    pub fn new(
        cache: TokenCache,
        tokenizer: &TextTokenizer,
        task: Task,
        text: &TextConfig,
        loader: &LoaderConfig,
    ) -> Result<Self> {
        let (format, settings) = checked_format(tokenizer, task, text, loader)?;
        if cache.kind() != CacheKind::Text {
            return Err(Error::cache(cache.path(), "holds pairs, wanted documents of plain text"));
        }
        cache.check_tokenizer(tokenizer)?;

        let seq_len = text.seq_len;
        let mut source = Self {
            vocab_size: tokenizer.vocab_size(),
            rows: Rows::Packed { n_rows: 0, batch_size: loader.rows_of(seq_len) },
            cache,
            format,
            seq_len,
            settings,
        };
        match text.packing {
            Packing::Documents | Packing::Stream => source.pack()?,
            Packing::Sentences => source.sort_into_buckets(loader)?,
        }
        Ok(source)
    }

    fn pack(&mut self) -> Result<()> {
        let needed = self.n_tokens().div_ceil(self.seq_len as u64);
        let Rows::Packed { n_rows, .. } = &mut self.rows else { unreachable!("called for packed rows") };
        *n_rows = u32::try_from(needed).map_err(|_| too_many_rows(needed))?;
        Ok(())
    }

    fn sort_into_buckets(&mut self, loader: &LoaderConfig) -> Result<()> {
        let parts = parts_of(&self.cache, self.format.input.len(), self.seq_len);
        if parts.len() > u32::MAX as usize {
            return Err(too_many_rows(parts.len() as u64));
        }
        let lengths = parts.iter().map(|part| (0, self.part_len(*part)));
        let buckets = Buckets::new(lengths, (0, self.seq_len), loader)?;
        self.rows = Rows::Sentences { parts, buckets };
        Ok(())
    }

    /// Returns the cache.
    pub fn cache(&self) -> &TokenCache {
        &self.cache
    }

    /// Returns the number of non-padding tokens of an epoch: labels, or for masked language modelling all tokens of the
    /// input.
    pub fn n_tokens(&self) -> u64 {
        self.cache.n_tokens() + self.cache.n_rows() as u64 * self.format.input.len() as u64
    }

    /// Returns the number of rows of an epoch.
    pub fn n_rows(&self) -> usize {
        match &self.rows {
            Rows::Packed { n_rows, .. } => *n_rows as usize,
            Rows::Sentences { parts, .. } => parts.len(),
        }
    }

    /// Returns the number of documents that no single row has room for.
    pub fn n_longer_than_row(&self) -> u64 {
        (0..self.cache.n_rows()).filter(|document| self.places(*document) > self.seq_len as u64).count() as u64
    }

    /// Returns the share of padding among the tokens of an epoch, in [0, 1).
    pub fn padding_ratio(&self) -> f64 {
        match &self.rows {
            Rows::Packed { n_rows, .. } => 1.0 - self.n_tokens() as f64 / (f64::from(*n_rows) * self.seq_len as f64),
            Rows::Sentences { buckets, .. } => buckets.padding_ratio(),
        }
    }

    /// Returns the number of places that a document takes.
    fn places(&self, document: usize) -> u64 {
        self.cache.document_len(document) + self.format.input.len() as u64
    }

    fn part_len(&self, (document, start): (u32, u32)) -> usize {
        part_len(&self.cache, (document as usize, start), self.format.input.len(), self.seq_len)
    }

    /// Adds a part of a document to the open row.
    fn push(&self, rows: &mut RowWriter<'_>, document: usize, from: u64, len: usize) -> Result<()> {
        let largest = rows.push(self.cache.document(document), from as usize, len);
        self.cache.check_id("document", document, largest, self.vocab_size)
    }

    /// Writes row `row` of a pass that packs `documents`, as row `number` of the data set.
    pub(super) fn fill_packed(
        &self,
        documents: &DocumentOrder,
        row: u32,
        number: u32,
        rows: &mut RowWriter<'_>,
    ) -> Result<()> {
        self.fill_room(documents, u64::from(row) * self.seq_len as u64, rows)?;
        rows.end_row(number);
        Ok(())
    }

    /// Fills the open row with the documents from a place on. Returns the number of places that they take, which is smaller than the room at
    /// the end of the text.
    pub(super) fn fill_room(&self, documents: &DocumentOrder, place: u64, rows: &mut RowWriter<'_>) -> Result<usize> {
        let room = rows.room();
        for (document, before) in documents.starting_at(place, |document| self.places(document)) {
            let len = (self.places(document) - before).min(rows.room() as u64);
            self.push(rows, document, before, len as usize)?;
            if rows.room() == 0 {
                break;
            }
        }
        Ok(room - rows.room())
    }

    /// Writes row `row` of a text whose rows are [`Packing::Sentences`], as row `number` of the data set.
    pub(super) fn fill_part(&self, row: u32, number: u32, rows: &mut RowWriter<'_>) -> Result<()> {
        let Rows::Sentences { parts, .. } = &self.rows else { unreachable!("rows of sentences") };
        let part = parts[row as usize];
        self.push(rows, part.0 as usize, u64::from(part.1), self.part_len(part))?;
        rows.end_row(number);
        Ok(())
    }

    /// Returns how its rows are built.
    pub(super) fn format(&self) -> &RowFormat {
        &self.format
    }

    /// Returns the shape of a full batch of packed rows; `None` for sentences.
    pub(super) fn packed_shape(&self) -> Option<Shape> {
        match &self.rows {
            Rows::Packed { batch_size, .. } => Some(Shape::text(*batch_size, self.seq_len)),
            Rows::Sentences { .. } => None,
        }
    }

    /// Returns the length of a row. Rows but the last are full if they are packed.
    pub(super) fn row_len(&self, row: usize) -> usize {
        match &self.rows {
            Rows::Packed { .. } => self.seq_len,
            Rows::Sentences { parts, .. } => self.part_len(parts[row]),
        }
    }

    /// Returns the length of the longest row.
    pub(super) fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// Returns the order in which a pass packs the documents.
    pub(super) fn documents(&self, order: Order) -> DocumentOrder {
        DocumentOrder::new(self.cache.n_rows(), order, |document| self.places(document))
    }
}

pub(super) fn too_many_rows(rows: u64) -> Error {
    Error::Invalid(format!(
        "the text has {rows} rows, more than 4,294,967,295: raise data.text.seq_len or split the text"
    ))
}

/// Returns how rows of a task are built, and what decides their content next to the tokens, as a part of a fingerprint.
///
/// # Errors
///
/// If the tokenizer lacks a token that the task needs, or if the settings are invalid.
pub(super) fn checked_format(
    tokenizer: &TextTokenizer,
    task: Task,
    text: &TextConfig,
    loader: &LoaderConfig,
) -> Result<(RowFormat, String)> {
    let problems: Vec<_> = text.validate(0).into_iter().chain(loader.validate()).collect();
    if !problems.is_empty() {
        return Err(Error::Invalid(problems.join("\n")));
    }
    tokenizer.check(task)?;

    let format = row_format(tokenizer, task, text.packing);
    let seq_len = text.seq_len;
    if seq_len <= format.input.len() {
        return Err(Error::Invalid(format!(
            "data.text.seq_len = {seq_len} leaves no room for text next to {} special tokens: set it to the model's \
             positions, or at least {}",
            format.input.len(),
            format.input.len() + 1
        )));
    }
    if loader.batch_tokens < seq_len {
        return Err(Error::Invalid(format!(
            "loader.batch_tokens = {} cannot hold one row of data.text.seq_len = {seq_len} tokens: raise it to a \
             multiple of {seq_len}, or lower data.text.seq_len",
            loader.batch_tokens
        )));
    }
    // Saved runs know this text as part of the source's fingerprint.
    let settings = format!("{task:?} {:?} {seq_len} {format:?}", text.packing);
    Ok((format, settings))
}

pub(super) fn row_format(tokenizer: &TextTokenizer, task: Task, packing: Packing) -> RowFormat {
    let special = tokenizer.special();
    let one = |id: Option<u32>| id.map(|id| id as i32).into_iter().collect::<Vec<_>>();
    let (input, labels) = match task {
        // `TextTokenizer::check` made sure of an end token, which also stands in for a missing start token.
        Task::Lm | Task::Translation => (
            Around { before: one(tokenizer.start_of_document()), behind: Vec::new() },
            Around { before: Vec::new(), behind: one(special.eos) },
        ),
        Task::Mlm | Task::Classification | Task::Tagging => {
            let (before, behind) = tokenizer.around();
            let signed = |ids: Vec<u32>| ids.into_iter().map(|id| id as i32).collect();
            let around = Around { before: signed(before), behind: signed(behind) };
            (around.clone(), around)
        }
    };
    RowFormat { input, labels, fill: special.fill(), boundaries: packing == Packing::Documents }
}

impl BatchSource for TextSource {
    fn plan(&self, order: Order) -> EpochPlan {
        match &self.rows {
            Rows::Packed { n_rows, batch_size } => {
                let documents = self.documents(order);
                let rows = order.indices(*n_rows, ShuffleOf::Rows);
                EpochPlan::packed(rows, Shape::text(*batch_size, self.seq_len), documents)
            }
            Rows::Sentences { buckets, .. } => buckets.plan(order),
        }
    }

    fn batches_per_epoch(&self) -> u64 {
        match &self.rows {
            Rows::Packed { n_rows, batch_size } => u64::from(*n_rows).div_ceil(*batch_size as u64),
            Rows::Sentences { buckets, .. } => buckets.batches_per_epoch(),
        }
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        Some(match &self.rows {
            Rows::Packed { n_rows, batch_size } => Shape::text(*batch_size, self.seq_len).batches_of(*n_rows as usize),
            Rows::Sentences { buckets, .. } => buckets.shapes(),
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

impl BatchWorker for Arc<TextSource> {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> Result<()> {
        let (numbers, shape) = plan.batch(index);
        let mut rows = RowWriter::new(batch, shape, &self.format);
        for number in numbers {
            match (&self.rows, plan.documents()) {
                (Rows::Packed { .. }, Some(documents)) => self.fill_packed(documents, *number, *number, &mut rows)?,
                (Rows::Sentences { .. }, None) => self.fill_part(*number, *number, &mut rows)?,
                _ => unreachable!("a plan of this source"),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
