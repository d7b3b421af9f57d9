//! What shards are made of: a corpus, read block by block, and its tokenizers.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use blake3::Hash;

use super::super::build::{pair_header, text_header};
use super::super::encode::{EncodedBlock, PairBlockEncoder, TextBlockEncoder};
use super::super::fingerprint::{Ledger, pair_fingerprint, text_fingerprint};
use super::super::format::Header;
use crate::corpus::{BlockStart, PairCorpus, RowParser, RowReport, TextCorpus, for_each_block};
use crate::error::Result;
use crate::tokenizer::{PairTokenizers, TextTokenizer};

/// A tokenized block and where it lies.
pub(super) struct Placed {
    pub(super) start: BlockStart,
    /// Whether it is the first of its file.
    pub(super) is_first: bool,
    /// Whether it begins with the rest of a row.
    pub(super) continues: bool,
    pub(super) encoded: EncodedBlock,
}

/// Takes tokenized blocks, in order.
pub(super) type Sink<'a> = &'a mut dyn FnMut(Placed) -> Result<()>;

/// A corpus and its tokenizers.
pub(super) trait Rows: fmt::Debug + Send + Sync {
    /// Returns what the caches of all shards have in common.
    fn header(&self) -> &Header;

    /// Returns a hash of the text and of how it is read, and the record of its files. Trusts `seen` for files with the same time stamp.
    fn fingerprint(&self, seen: &Ledger) -> Result<(Hash, Ledger)>;

    /// Refuses a corpus without rows, or with more bad ones than tolerated.
    fn check(&self, report: &RowReport) -> Result<()>;

    /// Returns the file of that number.
    fn file(&self, number: usize) -> &Path;

    /// Returns of each file whether reading can begin at any of its rows.
    fn can_start_within(&self) -> Result<Vec<bool>>;

    /// Tokenizes `blocks` of those from `start` on, with `num_threads` threads.
    fn encode(&self, start: BlockStart, blocks: Range<usize>, num_threads: usize, sink: Sink<'_>) -> Result<()>;
}

/// Documents of plain text.
#[derive(Debug)]
pub(super) struct Documents {
    corpus: TextCorpus,
    tokenizer: TextTokenizer,
    header: Header,
}

impl Documents {
    pub(super) fn new(corpus: TextCorpus, tokenizer: &TextTokenizer) -> Self {
        Self { corpus, tokenizer: tokenizer.clone(), header: text_header(tokenizer) }
    }
}

impl Rows for Documents {
    fn header(&self) -> &Header {
        &self.header
    }

    fn fingerprint(&self, seen: &Ledger) -> Result<(Hash, Ledger)> {
        text_fingerprint(&self.corpus, seen)
    }

    fn check(&self, report: &RowReport) -> Result<()> {
        self.corpus.check(report)
    }

    fn file(&self, number: usize) -> &Path {
        &self.corpus.text_files()[number].path
    }

    fn can_start_within(&self) -> Result<Vec<bool>> {
        self.corpus.text_files().iter().map(|file| file.can_start_within()).collect()
    }

    fn encode(&self, start: BlockStart, blocks: Range<usize>, num_threads: usize, sink: Sink<'_>) -> Result<()> {
        let narrow = self.header.is_narrow();
        for_each_block(
            self.corpus.blocks_from(start).take(blocks.end).skip(blocks.start),
            num_threads,
            || TextBlockEncoder::new(&self.corpus, &self.tokenizer, narrow),
            |encoder, block| {
                let encoded = encoder.encode(&block)?;
                Ok(Placed { start: block.start(), is_first: block.is_first, continues: block.continues(), encoded })
            },
            sink,
        )
    }
}

/// Pairs of texts.
#[derive(Debug)]
pub(super) struct Pairs {
    corpus: PairCorpus,
    tokenizers: PairTokenizers,
    header: Header,
}

impl Pairs {
    pub(super) fn new(corpus: PairCorpus, tokenizers: &PairTokenizers) -> Self {
        Self { header: pair_header(&corpus, tokenizers), corpus, tokenizers: tokenizers.clone() }
    }
}

impl Rows for Pairs {
    fn header(&self) -> &Header {
        &self.header
    }

    fn fingerprint(&self, seen: &Ledger) -> Result<(Hash, Ledger)> {
        pair_fingerprint(&self.corpus, seen)
    }

    fn check(&self, report: &RowReport) -> Result<()> {
        self.corpus.check(report)
    }

    fn file(&self, number: usize) -> &Path {
        self.corpus.inputs()[number].main_file()
    }

    fn can_start_within(&self) -> Result<Vec<bool>> {
        self.corpus.inputs().iter().map(|input| input.can_start_within()).collect()
    }

    fn encode(&self, start: BlockStart, blocks: Range<usize>, num_threads: usize, sink: Sink<'_>) -> Result<()> {
        let (narrow, parser) = (self.header.is_narrow(), RowParser::new(self.corpus.config()));
        for_each_block(
            self.corpus.blocks_from(start).take(blocks.end).skip(blocks.start),
            num_threads,
            || PairBlockEncoder::new(&self.corpus, &self.tokenizers, narrow),
            |encoder, block| {
                let encoded = encoder.encode(&block, &parser)?;
                Ok(Placed { start: block.start(), is_first: block.is_first, continues: false, encoded })
            },
            sink,
        )
    }
}
