//! The token cache: a corpus parsed and tokenized once, kept as one file that is mapped into memory.
//!
//! Opening it costs a pass over the lengths, no more; the operating system pages tokens in as batches need them, and
//! every worker reads the same pages.

mod build;
mod encode;
mod fingerprint;
mod format;
mod mmap;
mod write;

use std::path::{Path, PathBuf};

pub use build::{Prepared, prepare_pairs, prepare_text};
pub(crate) use format::CacheKind;
pub(crate) use mmap::MappedFile;

use self::format::{Header, Sections};
use crate::corpus::RowReport;
use crate::error::{Error, Result};

/// A token cache on disk. Ids are stored without special tokens; lengths count eos.
#[derive(Debug)]
pub struct TokenCache {
    path: PathBuf,
    file: MappedFile,
    header: Header,
    sections: Sections,
    report: RowReport,
}

/// The ids of one row, as wide as the vocabulary needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tokens<'a> {
    Narrow(&'a [u16]),
    Wide(&'a [u32]),
}

impl TokenCache {
    /// Opens a cache and checks every count, length and offset in it. The ids themselves are checked as they are read.
    pub fn open(path: &Path) -> Result<Self> {
        let file = MappedFile::open(path, "opening the token cache")?;
        let header = Header::read(path, file.bytes())?;
        let sections = header.sections(path, file.bytes())?;
        let report = serde_json::from_slice(&file.bytes()[sections.report.clone()])
            .map_err(|e| Error::cache(path, format!("its report of rows is damaged ({e})")))?;
        Ok(Self { path: path.into(), file, header, sections, report })
    }

    /// Reads everything and compares it with the hash made when the cache was built.
    pub fn verify(&self) -> Result<()> {
        if blake3::hash(&self.file.bytes()[self.sections.tokens.clone()]) == self.header.tokens_hash {
            return Ok(());
        }
        Err(Error::cache(&self.path, "its tokens are not those that were written"))
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Rows.
    pub fn n_rows(&self) -> usize {
        self.header.n_rows as usize
    }

    /// Tokens of all rows as they are stored, without special tokens.
    pub fn n_tokens(&self) -> u64 {
        self.header.n_tokens
    }

    /// Source tokens of all rows, eos included; 0 for plain text.
    pub fn n_source_tokens(&self) -> u64 {
        self.source_lens().iter().map(|len| u64::from(*len) + 1).sum()
    }

    /// Target tokens of all rows, eos included; 0 for plain text.
    pub fn n_target_tokens(&self) -> u64 {
        match self.header.kind {
            CacheKind::Pairs => self.header.n_tokens + 2 * self.header.n_rows - self.n_source_tokens(),
            CacheKind::Text => 0,
        }
    }

    /// Source and target length of a row of pairs in tokens, eos included.
    pub fn lengths(&self, row: usize) -> (usize, usize) {
        let offsets = self.offsets();
        let source = self.source_lens()[row] as usize;
        let both = (offsets[row + 1] - offsets[row]) as usize;
        (source + 1, both - source + 1)
    }

    /// What became of the rows of the corpus.
    pub fn report(&self) -> &RowReport {
        &self.report
    }

    /// Fingerprint of the tokenizers that made it, in hex.
    pub fn tokenizer_fingerprint(&self) -> String {
        self.header.tokenizer.to_hex().to_string()
    }

    /// Fingerprint of the rows: the text, how it was read, and the ids it became; in hex.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.header.corpus.as_bytes()).update(self.header.tokens_hash.as_bytes());
        hasher.finalize().to_hex().to_string()
    }

    /// Longest allowed source and target rows in tokens, eos included; 0: no limit.
    pub(crate) fn max_lens(&self) -> (usize, usize) {
        (self.header.max_source_len as usize, self.header.max_target_len as usize)
    }

    /// Sizes of the vocabularies that made it.
    pub(crate) fn vocab_sizes(&self) -> (usize, usize) {
        (self.header.source_vocab_size as usize, self.header.target_vocab_size as usize)
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// Source and target ids of a row, without eos.
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

    /// Whether rows are pairs or documents.
    pub(crate) fn kind(&self) -> CacheKind {
        self.header.kind
    }

    /// Tokens of a document, without special tokens.
    pub(crate) fn document_len(&self, document: usize) -> u64 {
        let offsets = self.offsets();
        offsets[document + 1] - offsets[document]
    }

    /// Ids of a document, without special tokens.
    pub(crate) fn document(&self, document: usize) -> Tokens<'_> {
        let offsets = self.offsets();
        let range = offsets[document] as usize..offsets[document + 1] as usize;
        let bytes = &self.file.bytes()[self.sections.tokens.clone()];
        match self.header.token_bytes {
            2 => Tokens::Narrow(&bytemuck::cast_slice(bytes)[range]),
            _ => Tokens::Wide(&bytemuck::cast_slice(bytes)[range]),
        }
    }

    /// Start of each row in tokens, and the end of the last.
    fn offsets(&self) -> &[u64] {
        bytemuck::cast_slice(&self.file.bytes()[self.sections.offsets.clone()])
    }

    fn source_lens(&self) -> &[u32] {
        bytemuck::cast_slice(&self.file.bytes()[self.sections.source_lens.clone()])
    }
}

#[cfg(test)]
mod tests;
