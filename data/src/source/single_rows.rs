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
    /// Documents, of which long ones take several rows.
    Documents {
        /// Special tokens around a document.
        format: RowFormat,
        /// Ids are below this.
        vocab_size: usize,
        /// Places of the longest row.
        seq_len: usize,
    },
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
            Self::Documents { .. } => CacheKind::Text,
            Self::Conversations(..) => CacheKind::Chat,
            Self::Preferences(..) => CacheKind::Preferences,
            Self::Labelled { .. } => CacheKind::Labelled,
        }
    }

    /// Returns how many rows of a batch a row of the cache becomes.
    pub(super) fn n_rows_each(&self) -> usize {
        if matches!(self, Self::Preferences(..)) { 2 } else { 1 }
    }

    /// Returns how often rows have each length in a batch, of rows that an index has counted.
    pub(super) fn counted(&self, counts: &[(u32, u32, u64)]) -> Vec<(u32, u32, u64)> {
        let Self::Documents { format, seq_len, .. } = self else { return counts.to_vec() };
        let of_document = |(_, tokens, n): &(u32, u32, u64)| {
            let places = u64::from(*tokens) + format.input.len() as u64;
            let (full, left) = (places / *seq_len as u64, places % *seq_len as u64);
            [(0, *seq_len as u32, full * n), (0, left as u32, if left > 0 { *n } else { 0 })]
        };
        counts.iter().flat_map(of_document).filter(|(_, _, n)| *n > 0).collect()
    }

    /// Divides a cache into rows of batches.
    pub(super) fn divide(&self, cache: TokenCache) -> DividedCache {
        let parts = match self {
            Self::Documents { format, seq_len, .. } => Some(parts_of(&cache, format.input.len(), *seq_len)),
            _ => None,
        };
        DividedCache { cache, parts }
    }

    /// Returns the source and the target length of a row in a batch, which begins at place `from` of a row of the cache.
    ///
    /// # Errors
    ///
    /// If the row is damaged.
    pub(super) fn lengths(&self, cache: &TokenCache, (row, from): (u32, u32)) -> Result<(usize, usize)> {
        let row = row as usize;
        Ok(match self {
            Self::Pairs(_) => cache.lengths(row),
            Self::Documents { format, seq_len, .. } => (0, part_len(cache, (row, from), format.input.len(), *seq_len)),
            Self::Conversations(..) => (0, cache.document_len(row) as usize),
            Self::Preferences(..) => (0, answers(cache, row)?.map(<[u32]>::len).into_iter().max().unwrap_or(0)),
            Self::Labelled { .. } => (0, cache.labelled_len(row)),
        })
    }

    /// Makes room in a batch for a shape.
    pub(super) fn writer<'a>(&'a self, batch: &'a mut HostBatch, shape: Shape) -> BatchWriter<'a> {
        match self {
            Self::Pairs(special) => BatchWriter::Pairs(Collator::new(batch, shape, *special)),
            Self::Documents { format, vocab_size, seq_len } => {
                BatchWriter::Documents(RowWriter::new(batch, shape, format), format.input.len(), *vocab_size, *seq_len)
            }
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

/// A cache and its rows of batches.
pub(super) struct DividedCache {
    pub(super) cache: TokenCache,
    /// The parts of documents that have a row each. `None`: each row of the cache has one.
    parts: Option<Vec<(u32, u32)>>,
}

impl DividedCache {
    /// Returns the number of rows of batches.
    pub(super) fn n_rows(&self) -> usize {
        self.parts.as_ref().map_or(self.cache.n_rows(), Vec::len)
    }

    /// Returns the row of the cache, and its first place, of a row of batches.
    pub(super) fn part(&self, row: u32) -> (u32, u32) {
        self.parts.as_ref().map_or((row, 0), |parts| parts[row as usize])
    }
}

/// Divides documents with `n_special` special tokens each into rows of up to `seq_len` places. Returns document and first place of each.
pub(super) fn parts_of(cache: &TokenCache, n_special: usize, seq_len: usize) -> Vec<(u32, u32)> {
    let parts = |document: usize| {
        let starts = (0..cache.document_len(document) + n_special as u64).step_by(seq_len);
        starts.map(move |start| (document as u32, start as u32))
    };
    (0..cache.n_rows()).flat_map(parts).collect()
}

/// Returns the number of places of a part of a document.
pub(super) fn part_len(cache: &TokenCache, (document, from): (usize, u32), n_special: usize, seq_len: usize) -> usize {
    (cache.document_len(document) as usize + n_special - from as usize).min(seq_len)
}

/// Returns how conversations in rows of their own are built.
fn format(tokenizer: &TextTokenizer) -> RowFormat {
    let fill = tokenizer.special().fill();
    RowFormat { input: Around::default(), labels: Around::default(), fill, boundaries: false }
}

/// Writes rows of token caches into a batch.
pub(super) enum BatchWriter<'a> {
    Pairs(Collator<'a>),
    /// Documents with so many special tokens each; ids are below the second number, and rows have up to so many places.
    Documents(RowWriter<'a>, usize, usize, usize),
    Conversations(RowWriter<'a>, usize),
    Preferences(RowWriter<'a>, usize),
    Labelled(LabelledWriter<'a>, usize, usize),
}

impl BatchWriter<'_> {
    /// Adds what begins at place `from` of row `row` of a cache, as row `number` of the data set. Only documents have more than one part.
    ///
    /// # Errors
    ///
    /// If the row is damaged.
    pub(super) fn push(&mut self, cache: &TokenCache, (row, from): (u32, u32), number: u32) -> Result<()> {
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
            Self::Documents(rows, n_special, vocab_size, seq_len) => {
                let len = part_len(cache, (at, from), *n_special, *seq_len);
                let largest = rows.push(cache.document(at), from as usize, len);
                rows.end_row(number);
                cache.check_id("document", at, largest, *vocab_size)
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
