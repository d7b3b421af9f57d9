//! The token cache: a corpus, parsed and tokenized once, in one memory-mapped file.
//!
//! Opening it takes one pass over the lengths. The operating system pages tokens in as batches need them, and all
//! workers read the same pages.

mod build;
mod encode;
mod fingerprint;
mod format;
mod labels;
mod lengths;
mod mmap;
mod pool;
mod rows;
mod seen;
mod shards;
mod shared;
mod stats;
mod write;

use std::path::{Path, PathBuf};

pub use build::{Prepared, prepare_chat, prepare_pairs, prepare_text};
pub use fingerprint::{verify_file_record, verify_record_of};
pub(crate) use format::CacheKind;
pub use labels::find_classes;
pub use lengths::Lengths;
pub(crate) use shards::WINDOW_SHARDS;
pub use shards::{Shards, verify_shard_index};
pub use shared::SharedRows;

use self::format::{Header, Sections};
use self::mmap::MappedFile;
use crate::corpus::RowReport;
use crate::error::{Error, Result};
use crate::tokenizer::TextTokenizer;

/// A token cache on disk. Ids are stored without special tokens; lengths count eos.
#[derive(Debug)]
pub struct TokenCache {
    path: PathBuf,
    file: MappedFile,
    header: Header,
    sections: Sections,
    report: RowReport,
}

/// The ids of one row: 16 bits each if the vocabulary fits, else 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tokens<'a> {
    Narrow(&'a [u16]),
    Wide(&'a [u32]),
}

impl<'a> Tokens<'a> {
    fn to_vec(self) -> Vec<u32> {
        match self {
            Self::Narrow(ids) => ids.iter().map(|id| u32::from(*id)).collect(),
            Self::Wide(ids) => ids.to_vec(),
        }
    }

    /// Returns the ids without the first `n`. A damaged file may have fewer.
    fn skip(self, n: usize) -> Self {
        match self {
            Self::Narrow(ids) => Self::Narrow(ids.get(n..).unwrap_or_default()),
            Self::Wide(ids) => Self::Wide(ids.get(n..).unwrap_or_default()),
        }
    }
}

/// The ids of one row of a cache, without special tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CachedRow {
    /// A pair.
    Pair {
        /// What is translated.
        source: Vec<u32>,
        /// Its translation.
        target: Vec<u32>,
    },
    /// A document of plain text.
    Document(Vec<u32>),
}

impl TokenCache {
    /// Opens a cache and checks every count, length and offset in it. Ids are checked when batches read them.
    ///
    /// # Errors
    ///
    /// If the file is not a token cache, has another version, or is truncated or damaged.
    pub fn open(path: &Path) -> Result<Self> {
        let file = MappedFile::open(path, "opening the token cache")?;
        let header = Header::read(path, file.bytes())?;
        let sections = header.sections(path, file.bytes())?;
        let report = serde_json::from_slice(&file.bytes()[sections.report.clone()])
            .map_err(|e| Error::cache(path, format!("its report of rows is damaged ({e})")))?;
        Ok(Self { path: path.into(), file, header, sections, report })
    }

    /// Reads all tokens and compares them with the hash from when the cache was built.
    pub fn verify(&self) -> Result<()> {
        if blake3::hash(&self.file.bytes()[self.sections.tokens.clone()]) == self.header.tokens_hash {
            return Ok(());
        }
        Err(Error::cache(&self.path, "its tokens differ from the ones that were written"))
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.header.n_rows as usize
    }

    /// Returns the number of stored tokens of all rows, without special tokens.
    pub fn n_tokens(&self) -> u64 {
        match self.header.kind {
            // Each row begins with a length.
            CacheKind::Preferences => self.header.n_tokens.saturating_sub(self.header.n_rows),
            CacheKind::Labelled => self.source_lens().iter().map(|len| u64::from(*len)).sum(),
            CacheKind::Pairs | CacheKind::Text | CacheKind::Chat => self.header.n_tokens,
        }
    }

    /// Returns the number of source tokens of all rows, eos included; 0 for plain text.
    pub fn n_source_tokens(&self) -> u64 {
        self.source_lens().iter().map(|len| u64::from(*len) + 1).sum()
    }

    /// Returns the number of target tokens of all rows, eos included; 0 for plain text.
    pub fn n_target_tokens(&self) -> u64 {
        match self.header.kind {
            CacheKind::Pairs => self.header.n_tokens + 2 * self.header.n_rows - self.n_source_tokens(),
            CacheKind::Text | CacheKind::Chat | CacheKind::Preferences | CacheKind::Labelled => 0,
        }
    }

    /// Returns the source and target length of a pair in tokens, eos included.
    pub fn lengths(&self, row: usize) -> (usize, usize) {
        let offsets = self.offsets();
        let source = self.source_lens()[row] as usize;
        let both = (offsets[row + 1] - offsets[row]) as usize;
        (source + 1, both - source + 1)
    }

    /// Returns the counts of kept and bad rows of the corpus.
    pub fn report(&self) -> &RowReport {
        &self.report
    }

    /// Returns the fingerprint of the tokenizers that made it, in hex.
    pub fn tokenizer_fingerprint(&self) -> String {
        self.header.tokenizer.to_hex().to_string()
    }

    /// Returns the fingerprint of the rows, in hex: of the text, of how it was read, and of its ids.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.header.corpus.as_bytes()).update(self.header.tokens_hash.as_bytes());
        hasher.finalize().to_hex().to_string()
    }

    /// Returns a fingerprint of the rows and of `settings` that decide what batches hold.
    pub(crate) fn fingerprint_with(&self, settings: &str) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.fingerprint().as_bytes()).update(settings.as_bytes());
        hasher.finalize().to_hex().to_string()
    }

    /// Refuses a cache that another tokenizer has made.
    pub(crate) fn check_tokenizer(&self, tokenizer: &TextTokenizer) -> Result<()> {
        if self.tokenizer_fingerprint() == tokenizer.fingerprint() {
            return Ok(());
        }
        Err(Error::cache(self.path(), "was made with another tokenizer"))
    }

    /// Returns the longest allowed source and target rows in tokens, eos included; 0: no limit.
    pub fn max_lens(&self) -> (usize, usize) {
        (self.header.max_source_len as usize, self.header.max_target_len as usize)
    }

    /// Returns the sizes of the vocabularies that made it.
    pub(crate) fn vocab_sizes(&self) -> (usize, usize) {
        (self.header.source_vocab_size as usize, self.header.target_vocab_size as usize)
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// Returns a copy of row `row`.
    ///
    /// # Errors
    ///
    /// If the row is damaged, or holds a conversation or answers to compare, whose ids are marked.
    ///
    /// # Panics
    ///
    /// If there are not so many rows.
    pub fn read_row(&self, row: usize) -> Result<CachedRow> {
        assert!(row < self.n_rows(), "row {row} of {}", self.n_rows());
        let (source_vocab, target_vocab) = self.vocab_sizes();
        let checked = |ids: Tokens<'_>, vocab_size: usize| {
            let ids = ids.to_vec();
            ids.iter().max().map_or(Ok(()), |largest| self.check_id("row", row, *largest, vocab_size)).map(|()| ids)
        };
        match self.kind() {
            CacheKind::Pairs => {
                let (source, target) = self.row(row);
                Ok(CachedRow::Pair { source: checked(source, source_vocab)?, target: checked(target, target_vocab)? })
            }
            CacheKind::Text => Ok(CachedRow::Document(checked(self.document(row), target_vocab)?)),
            CacheKind::Chat | CacheKind::Preferences | CacheKind::Labelled => {
                let problem = "holds marked rows, wanted pairs or documents: take batches of their source";
                Err(Error::cache(&self.path, problem))
            }
        }
    }

    /// Checks the largest id of `what` number `index`: a damaged file must not become an index out of range on the device.
    pub(crate) fn check_id(&self, what: &str, index: usize, largest: u32, vocab_size: usize) -> Result<()> {
        if (largest as usize) < vocab_size {
            return Ok(());
        }
        let problem = format!("{what} {index} is damaged: it has id {largest}, the vocabulary holds {vocab_size}");
        Err(Error::cache(&self.path, problem))
    }

    /// Returns the number of tokens of a labelled row.
    pub(crate) fn labelled_len(&self, row: usize) -> usize {
        self.source_lens()[row] as usize
    }

    /// Returns the source and target ids of a pair, without eos; of a labelled row its ids and its labels.
    pub(crate) fn row(&self, row: usize) -> (Tokens<'_>, Tokens<'_>) {
        let offsets = self.offsets();
        let (start, end) = (offsets[row] as usize, offsets[row + 1] as usize);
        let middle = start + self.source_lens()[row] as usize;
        let bytes = &self.file.bytes()[self.sections.tokens.clone()];
        if self.header.token_bytes == 2 {
            let tokens: &[u16] = bytemuck::cast_slice(bytes);
            (Tokens::Narrow(&tokens[start..middle]), Tokens::Narrow(&tokens[middle..end]))
        } else {
            let tokens: &[u32] = bytemuck::cast_slice(bytes);
            (Tokens::Wide(&tokens[start..middle]), Tokens::Wide(&tokens[middle..end]))
        }
    }

    /// Returns whether the rows are pairs of a source and a target.
    pub fn is_pairs(&self) -> bool {
        self.header.kind == CacheKind::Pairs
    }

    /// Returns whether rows are pairs or documents.
    pub(crate) fn kind(&self) -> CacheKind {
        self.header.kind
    }

    /// Returns the number of tokens of a document, without special tokens.
    pub(crate) fn document_len(&self, document: usize) -> u64 {
        let offsets = self.offsets();
        offsets[document + 1] - offsets[document]
    }

    /// Returns the ids of a document, without special tokens.
    pub(crate) fn document(&self, document: usize) -> Tokens<'_> {
        let offsets = self.offsets();
        let range = offsets[document] as usize..offsets[document + 1] as usize;
        let bytes = &self.file.bytes()[self.sections.tokens.clone()];
        match self.header.token_bytes {
            2 => Tokens::Narrow(&bytemuck::cast_slice(bytes)[range]),
            _ => Tokens::Wide(&bytemuck::cast_slice(bytes)[range]),
        }
    }

    /// Returns the start of each row in tokens, and the end of the last row.
    fn offsets(&self) -> &[u64] {
        bytemuck::cast_slice(&self.file.bytes()[self.sections.offsets.clone()])
    }

    fn source_lens(&self) -> &[u32] {
        bytemuck::cast_slice(&self.file.bytes()[self.sections.source_lens.clone()])
    }
}

#[cfg(test)]
mod tests;
