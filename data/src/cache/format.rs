//! The layout of a token cache, all numbers little-endian:
//!
//! | part | size in bytes |
//! |---|---|
//! | header | 512 |
//! | tokens: source ids and target ids of each row, or ids of each document, without special tokens | 2 or 4 each |
//! | padding | up to a multiple of 8 |
//! | offsets: the start of each row, in tokens, and the end of the last row | 8 * (rows + 1) |
//! | pairs: the number of source tokens in each row; labelled rows: the number of tokens in each | 4 * rows |
//! | report: counts of kept and bad rows of the corpus, JSON | see header |
//!
//! The header holds a hash of itself and of the index behind the tokens, so that opening a damaged file fails. It also
//! holds a hash of the tokens, which `TokenCache::verify` compares.

use std::ops::Range;
use std::path::Path;

use blake3::Hash;

use crate::error::{Error, Result};

const MAGIC: [u8; 8] = *b"KILNTOKS";
const VERSION: u32 = 1;
pub(super) const HEADER_BYTES: usize = 512;
/// How the error about a foreign file begins.
pub(super) const NOT_A_CACHE: &str = "is not a token cache";

// The map is read as it lies on disk.
const _: () =
    assert!(cfg!(target_endian = "little"), "token caches are read in place and need a little-endian machine");

/// What the rows of a cache are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheKind {
    /// Source and target ids.
    Pairs = 0,
    /// Documents of plain text.
    Text = 1,
    /// Conversations. Ids have four bytes, and the highest bit marks the tokens to learn.
    Chat = 2,
    /// Answers to compare: the length of the first, then the ids of both, flagged as in a conversation.
    Preferences = 3,
    /// Texts or words with labels: ids, special tokens included, then the place and the class of each label. The highest bit marks the
    /// ids of the second type.
    Labelled = 4,
}

impl CacheKind {
    /// Whether the length of the first part of each row is stored: of a source, or of a text without its labels.
    pub(super) fn has_first_lengths(self) -> bool {
        matches!(self, Self::Pairs | Self::Labelled)
    }
}

/// What a cache holds, and what it was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    /// 2 or 4.
    pub(crate) token_bytes: u32,
    pub(crate) n_rows: u64,
    pub(crate) n_tokens: u64,
    pub(crate) report_bytes: u64,
    pub(crate) source_vocab_size: u32,
    pub(crate) target_vocab_size: u32,
    pub(crate) max_source_len: u32,
    pub(crate) max_target_len: u32,
    /// Fingerprint of the tokenizers.
    pub(crate) tokenizer: Hash,
    /// Fingerprint of the text and of how it was read.
    pub(crate) corpus: Hash,
    pub(crate) tokens_hash: Hash,
    /// Hash of everything behind the tokens.
    pub(crate) index_hash: Hash,
    pub(crate) kind: CacheKind,
}

/// The byte ranges of the parts.
#[derive(Debug, Clone)]
pub(crate) struct Sections {
    pub(crate) tokens: Range<usize>,
    pub(crate) offsets: Range<usize>,
    pub(crate) source_lens: Range<usize>,
    pub(crate) report: Range<usize>,
}

impl Header {
    /// Returns a header in which everything else is still to be filled in.
    pub(super) fn new(kind: CacheKind, tokenizer: Hash) -> Self {
        let nothing = Hash::from_bytes([0; 32]);
        Self {
            token_bytes: 0,
            n_rows: 0,
            n_tokens: 0,
            report_bytes: 0,
            source_vocab_size: 0,
            target_vocab_size: 0,
            max_source_len: 0,
            max_target_len: 0,
            tokenizer,
            corpus: nothing,
            tokens_hash: nothing,
            index_hash: nothing,
            kind,
        }
    }

    /// Whether ids are stored in 16 bits: the vocabularies fit, and no bit of an id marks it.
    pub(super) fn is_narrow(&self) -> bool {
        let fits = self.source_vocab_size.max(self.target_vocab_size) <= 1 << 16;
        fits && matches!(self.kind, CacheKind::Pairs | CacheKind::Text)
    }

    pub(super) fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.token_bytes.to_le_bytes());
        for number in [self.n_rows, self.n_tokens, self.report_bytes] {
            bytes.extend(number.to_le_bytes());
        }
        for number in [self.source_vocab_size, self.target_vocab_size, self.max_source_len, self.max_target_len] {
            bytes.extend(number.to_le_bytes());
        }
        for hash in [self.tokenizer, self.corpus, self.tokens_hash, self.index_hash] {
            bytes.extend(hash.as_bytes());
        }
        bytes.extend((self.kind as u32).to_le_bytes());
        bytes.resize(HEADER_BYTES - 32, 0);
        bytes.extend(blake3::hash(&bytes).as_bytes());
        bytes.try_into().expect("the fields fit the header")
    }

    /// Reads the header at the start of a file.
    pub(super) fn read(path: &Path, file: &[u8]) -> Result<Self> {
        if !file.starts_with(&MAGIC) {
            let found = String::from_utf8_lossy(&file[..file.len().min(8)]).into_owned();
            return Err(Error::cache(path, format!("{NOT_A_CACHE}: it starts with {found:?}, wanted \"KILNTOKS\"")));
        }
        let version = file.get(8..12).map(|b| u32::from_le_bytes(b.try_into().expect("4 bytes")));
        if let Some(version) = version.filter(|version| *version != VERSION) {
            return Err(Error::cache(
                path,
                format!("has format version {version}, this program reads version {VERSION}"),
            ));
        }
        let Some((header, hash)) = file.get(..HEADER_BYTES).and_then(|header| header.split_last_chunk::<32>()) else {
            return Err(Error::cache(
                path,
                format!("is truncated: {} bytes, the header alone takes {HEADER_BYTES}", file.len()),
            ));
        };
        if blake3::hash(header) != *hash {
            return Err(Error::cache(path, "its header is damaged"));
        }

        let mut rest = &header[12..];
        let mut take = |n: usize| {
            let (head, tail) = rest.split_at(n);
            rest = tail;
            head
        };
        let mut u32_of = || u32::from_le_bytes(take(4).try_into().expect("4 bytes"));
        let token_bytes = u32_of();
        let mut u64_of = || u64::from(u32_of()) | u64::from(u32_of()) << 32;
        let (n_rows, n_tokens, report_bytes) = (u64_of(), u64_of(), u64_of());
        let [source_vocab_size, target_vocab_size, max_source_len, max_target_len] =
            [u32_of(), u32_of(), u32_of(), u32_of()];
        let mut hash_of = || Hash::from_bytes(take(32).try_into().expect("32 bytes"));
        let [tokenizer, corpus, tokens_hash, index_hash] = [hash_of(), hash_of(), hash_of(), hash_of()];

        // Zero in caches that are older than this field.
        let kind = match u32::from_le_bytes(take(4).try_into().expect("4 bytes")) {
            0 => CacheKind::Pairs,
            1 => CacheKind::Text,
            2 => CacheKind::Chat,
            3 => CacheKind::Preferences,
            4 => CacheKind::Labelled,
            kind => {
                return Err(Error::cache(path, format!("holds rows of kind {kind}, this program reads kinds 0 to 4")));
            }
        };

        Ok(Self {
            token_bytes,
            n_rows,
            n_tokens,
            report_bytes,
            source_vocab_size,
            target_vocab_size,
            max_source_len,
            max_target_len,
            tokenizer,
            corpus,
            tokens_hash,
            index_hash,
            kind,
        })
    }

    /// Finds the parts and checks the index, so that reading a row stays within the file.
    pub(super) fn sections(&self, path: &Path, file: &[u8]) -> Result<Sections> {
        let damaged = |what: &str| Error::cache(path, format!("its index is damaged: {what}"));
        let sections = self.layout().ok_or_else(|| damaged("its sizes do not fit into memory"))?;
        if file.len() != sections.report.end {
            return Err(Error::cache(
                path,
                format!(
                    "is truncated or was appended to: {} bytes, wanted {} for {} rows",
                    file.len(),
                    sections.report.end,
                    self.n_rows
                ),
            ));
        }
        if file[sections.tokens.end..sections.offsets.start].iter().any(|byte| *byte != 0) {
            return Err(damaged("the bytes that align it are not zero"));
        }
        if blake3::hash(&file[sections.offsets.start..]) != self.index_hash {
            return Err(damaged("its hash differs"));
        }

        let cast = |range: &Range<usize>| bytemuck::try_cast_slice::<u8, u64>(&file[range.clone()]).ok();
        let offsets = cast(&sections.offsets).ok_or_else(|| damaged("its offsets are not aligned"))?;
        let source_lens: &[u32] = bytemuck::try_cast_slice(&file[sections.source_lens.clone()])
            .map_err(|_| damaged("its lengths are not aligned"))?;
        let ends_meet = offsets.first() == Some(&0) && offsets.last() == Some(&self.n_tokens);
        // Documents have no source lengths to compare with.
        let rows_fit = offsets
            .windows(2)
            .zip(source_lens.iter().chain(std::iter::repeat(&0)))
            .all(|(row, source)| row[1].checked_sub(row[0]).is_some_and(|both| both >= u64::from(*source)));
        if !ends_meet || !rows_fit {
            return Err(damaged("its offsets do not ascend"));
        }
        Ok(sections)
    }

    /// Returns the byte ranges; `None` if the sizes do not fit into memory or the token width is unknown.
    pub(super) fn layout(&self) -> Option<Sections> {
        if !matches!(self.token_bytes, 2 | 4) || self.n_rows > u64::from(u32::MAX) {
            return None;
        }
        let tokens_end = self.n_tokens.checked_mul(u64::from(self.token_bytes))?.checked_add(HEADER_BYTES as u64)?;
        let offsets_start = tokens_end.checked_next_multiple_of(8)?;
        let lens_start = offsets_start.checked_add(8 * (self.n_rows + 1))?;
        let n_lens = if self.kind.has_first_lengths() { self.n_rows } else { 0 };
        let report_start = lens_start.checked_add(4 * n_lens)?;
        let end = report_start.checked_add(self.report_bytes)?;
        let bytes = |n: u64| usize::try_from(n).ok();
        Some(Sections {
            tokens: HEADER_BYTES..bytes(tokens_end)?,
            offsets: bytes(offsets_start)?..bytes(lens_start)?,
            source_lens: bytes(lens_start)?..bytes(report_start)?,
            report: bytes(report_start)?..bytes(end)?,
        })
    }
}
