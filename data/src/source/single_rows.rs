//! Rows of a token cache that each have a length of their own, and batches of them, padded to the length of a bucket.

use super::labelled::LabelledWriter;
use crate::batch::{Around, Collator, RowFormat, RowWriter};
use crate::cache::{CacheKind, TokenCache, Tokens};
use crate::error::{Error, Result};
use crate::host_batch::{HostBatch, Shape};
use crate::tokenizer::{FLAG, PairTokenizers, SpecialIds, TextTokenizer};

/// What such rows are, and how they become rows of a batch.
#[derive(Debug, Clone)]
pub(super) enum RowKind {
    /// Pairs, between these special tokens.
    Pairs(SpecialIds),
    /// Conversations. Ids are below the number.
    Conversations(RowFormat, usize),
    /// Answers to compare, two rows each. What decides how much a preference counts is passed on with each batch.
    Preferences(RowFormat, usize, f64),
    /// Texts or words with labels.
    Labelled {
        /// Fills padding.
        fill: i32,
        /// Whether the model distinguishes the types of tokens.
        has_types: bool,
        /// Ids are below this.
        vocab_size: usize,
        /// Classes are below this.
        n_classes: usize,
    },
}

impl RowKind {
    pub(super) fn pairs(tokenizers: &PairTokenizers) -> Self {
        Self::Pairs(tokenizers.special())
    }

    pub(super) fn conversations(tokenizer: &TextTokenizer) -> Self {
        Self::Conversations(format(tokenizer), tokenizer.vocab_size())
    }

    pub(super) fn preferences(tokenizer: &TextTokenizer, beta: f64) -> Self {
        Self::Preferences(format(tokenizer), tokenizer.vocab_size(), beta)
    }

    /// Returns the kind of caches with such rows.
    pub(super) fn of_caches(&self) -> CacheKind {
        match self {
            Self::Pairs(_) => CacheKind::Pairs,
            Self::Conversations(..) => CacheKind::Chat,
            Self::Preferences(..) => CacheKind::Preferences,
            Self::Labelled { .. } => CacheKind::Labelled,
        }
    }

    /// Returns how many rows of a batch a row of the cache becomes.
    pub(super) fn n_rows_each(&self) -> usize {
        if matches!(self, Self::Preferences(..)) { 2 } else { 1 }
    }

    /// Returns the source and the target length of a row in a batch.
    ///
    /// # Errors
    ///
    /// If the row is damaged.
    pub(super) fn lengths(&self, cache: &TokenCache, row: usize) -> Result<(usize, usize)> {
        Ok(match self {
            Self::Pairs(_) => cache.lengths(row),
            Self::Conversations(..) => (0, cache.document_len(row) as usize),
            Self::Preferences(..) => (0, answers(cache, row)?.map(<[u32]>::len).into_iter().max().unwrap_or(0)),
            Self::Labelled { .. } => (0, cache.labelled_len(row)),
        })
    }

    /// Makes room in a batch for a shape.
    pub(super) fn writer<'a>(&'a self, batch: &'a mut HostBatch, shape: Shape) -> BatchWriter<'a> {
        match self {
            Self::Pairs(special) => BatchWriter::Pairs(Collator::new(batch, shape, *special)),
            Self::Conversations(format, vocab_size) => {
                BatchWriter::Conversations(RowWriter::new(batch, shape, format), *vocab_size)
            }
            Self::Preferences(format, vocab_size, beta) => {
                BatchWriter::Preferences(RowWriter::new(batch, shape, format).comparing(*beta), *vocab_size)
            }
            Self::Labelled { fill, has_types, vocab_size, n_classes } => {
                let writer = LabelledWriter::new(batch, shape, *fill, *has_types);
                BatchWriter::Labelled(writer, *vocab_size, *n_classes)
            }
        }
    }
}

/// Returns how conversations in rows of their own are built.
fn format(tokenizer: &TextTokenizer) -> RowFormat {
    let fill = tokenizer.special().fill();
    RowFormat { input: Around::default(), labels: Around::default(), fill, boundaries: false }
}

/// Writes rows of token caches into a batch.
pub(super) enum BatchWriter<'a> {
    Pairs(Collator<'a>),
    Conversations(RowWriter<'a>, usize),
    Preferences(RowWriter<'a>, usize),
    Labelled(LabelledWriter<'a>, usize, usize),
}

impl BatchWriter<'_> {
    /// Adds row `row` of a cache, as row `number` of the data set.
    ///
    /// # Errors
    ///
    /// If the row is damaged.
    pub(super) fn push(&mut self, cache: &TokenCache, row: u32, number: u32) -> Result<()> {
        let at = row as usize;
        match self {
            Self::Pairs(collator) => {
                let (source_vocab, target_vocab) = cache.vocab_sizes();
                let (max_source, max_target) = match cache.row(at) {
                    (Tokens::Narrow(source), Tokens::Narrow(target)) => collator.push(number, source, target),
                    (Tokens::Wide(source), Tokens::Wide(target)) => collator.push(number, source, target),
                    _ => unreachable!("a cache has one token width"),
                };
                cache.check_id("row", at, max_source, source_vocab)?;
                cache.check_id("row", at, max_target, target_vocab)
            }
            Self::Conversations(rows, vocab_size) => {
                push_conversation(rows, cache, row, *vocab_size)?;
                rows.end_row(number);
                Ok(())
            }
            Self::Preferences(rows, vocab_size) => {
                for ids in answers(cache, at)? {
                    let largest = rows.push_flagged(ids);
                    cache.check_id("pair", at, largest, *vocab_size)?;
                    rows.end_row(number);
                }
                Ok(())
            }

            Self::Labelled(writer, vocab_size, n_classes) => {
                let damaged = || Error::cache(cache.path(), format!("row {row} is damaged"));
                let (Tokens::Wide(ids), Tokens::Wide(labels)) = cache.row(at) else { return Err(damaged()) };
                let (labels, rest) = labels.as_chunks::<2>();
                let is_label =
                    |[place, class]: &[u32; 2]| (*place as usize) < ids.len() && (*class as usize) < *n_classes;
                if !rest.is_empty() || !labels.iter().all(is_label) {
                    return Err(damaged());
                }
                let largest = ids.iter().map(|id| id & !FLAG).max().unwrap_or(0);
                cache.check_id("row", at, largest, *vocab_size)?;
                let tokens = ids.iter().map(|id| (id & !FLAG, u8::from(id & FLAG != 0)));
                writer.push(number, tokens, labels.iter().map(|[place, class]| (*place, *class)));
                Ok(())
            }
        }
    }
}

/// Adds a conversation of a cache to the open row.
pub(super) fn push_conversation(
    rows: &mut RowWriter<'_>,
    cache: &TokenCache,
    conversation: u32,
    vocab_size: usize,
) -> Result<()> {
    let Tokens::Wide(ids) = cache.document(conversation as usize) else {
        let problem = format!("conversation {conversation} is damaged: its ids have two bytes");
        return Err(Error::cache(cache.path(), problem));
    };
    let largest = rows.push_flagged(ids);
    cache.check_id("conversation", conversation as usize, largest, vocab_size)
}

/// Returns the flagged ids of both answers of a pair, each with the prompt.
fn answers(cache: &TokenCache, pair: usize) -> Result<[&[u32]; 2]> {
    let damaged = || Error::cache(cache.path(), format!("pair {pair} is damaged"));
    let Tokens::Wide([n_chosen, ids @ ..]) = cache.document(pair) else { return Err(damaged()) };
    let (chosen, rejected) = ids.split_at_checked(*n_chosen as usize).ok_or_else(damaged)?;
    if chosen.is_empty() || rejected.is_empty() { Err(damaged()) } else { Ok([chosen, rejected]) }
}
