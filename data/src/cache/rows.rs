//! What token caches are made of: a corpus, read block by block, and its tokenizers.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use blake3::Hash;

use super::encode::{ChatBlockEncoder, EncodedBlock, PairBlockEncoder, TextBlockEncoder};
use super::fingerprint::{Ledger, pair_fingerprint, text_fingerprint};
use super::format::{CacheKind, Header};
use super::pool::Pool;
use crate::corpus::{
    BlockStart, Learn, PairCorpus, RowFilter, RowParser, RowReport, TextBlock, TextCorpus, for_each_block,
};
use crate::error::Result;
use crate::tokenizer::{
    ChatEncoder, ChatTemplate, PairEncoder, PairTokenizers, SpecialEncoder, TextEncoder, TextTokenizer,
};

/// A tokenized block and where it lies.
pub(super) struct Placed {
    pub(super) start: BlockStart,
    /// Whether it is the first of its file.
    pub(super) is_first: bool,
    /// Whether it begins with the rest of a row.
    pub(super) continues: bool,
    pub(super) encoded: EncodedBlock,
}

impl Placed {
    pub(super) fn of(block: &TextBlock, encoded: EncodedBlock) -> Self {
        Self { start: block.start(), is_first: block.is_first, continues: block.continues(), encoded }
    }
}

/// Takes tokenized blocks, in order.
pub(super) type Sink<'a> = &'a mut dyn FnMut(Placed) -> Result<()>;

/// A corpus and its tokenizers.
pub(super) trait Rows: fmt::Debug + Send + Sync {
    /// Returns the header of its caches, without what the text decides.
    fn header(&self) -> &Header;

    /// Returns the filter of its rows.
    fn filter(&self) -> Option<&RowFilter>;

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

/// Documents of plain text, conversations, or answers to compare.
#[derive(Debug)]
pub(super) struct Texts {
    corpus: TextCorpus,
    encoding: Encoding,
    header: Header,
}

/// How texts become tokens.
#[derive(Debug)]
enum Encoding {
    Documents(Box<TextTokenizer>, Pool<TextEncoder>),
    Conversations(Box<SpecialEncoder>, ChatTemplate),
}

impl Texts {
    pub(super) fn documents(corpus: TextCorpus, tokenizer: &TextTokenizer) -> Self {
        let (encoding, header) =
            (Encoding::Documents(tokenizer.clone().into(), Pool::default()), text_header(CacheKind::Text, tokenizer));
        Self { corpus, encoding, header }
    }

    /// # Errors
    ///
    /// If the tokenizer fails.
    pub(super) fn conversations(
        corpus: TextCorpus,
        tokenizer: &TextTokenizer,
        template: &ChatTemplate,
    ) -> Result<Self> {
        let is_compared = corpus.config().is_preferences();
        let kind = if is_compared { CacheKind::Preferences } else { CacheKind::Chat };
        let encoding = Encoding::Conversations(tokenizer.special_encoder()?.into(), template.clone());
        Ok(Self { corpus, encoding, header: text_header(kind, tokenizer) })
    }
}

impl Rows for Texts {
    fn header(&self) -> &Header {
        &self.header
    }

    fn filter(&self) -> Option<&RowFilter> {
        self.corpus.config().filter.as_deref()
    }

    fn fingerprint(&self, seen: &Ledger) -> Result<(Hash, Ledger)> {
        let (text, ledger) = text_fingerprint(&self.corpus, seen)?;
        let Encoding::Conversations(_, template) = &self.encoding else { return Ok((text, ledger)) };
        let mut hasher = blake3::Hasher::new();
        hasher.update(text.as_bytes()).update(template.source().as_bytes());
        Ok((hasher.finalize(), ledger))
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
        let (corpus, config) = (&self.corpus, self.corpus.config());
        let blocks = corpus.blocks_from(start).take(blocks.end).skip(blocks.start);

        match &self.encoding {
            Encoding::Documents(tokenizer, pool) => for_each_block(
                blocks,
                num_threads,
                || TextBlockEncoder::new(corpus, tokenizer, pool, self.header.is_narrow()),
                |encoder, block| Ok(Placed::of(&block, encoder.encode(&block)?)),
                sink,
            ),
            Encoding::Conversations(special, template) => {
                let learn = if config.is_preferences() { Learn::LastAnswer } else { config.learn };
                let encoder = || {
                    ChatEncoder::new((**special).clone(), template.clone(), learn)
                        .splitting_special_tokens(config.split_special_tokens)
                };
                for_each_block(
                    blocks,
                    num_threads,
                    || ChatBlockEncoder::new(corpus, encoder()),
                    |encoder, block| Ok(Placed::of(&block, encoder.encode(&block)?)),
                    sink,
                )
            }
        }
    }
}

/// Pairs of texts.
#[derive(Debug)]
pub(super) struct Pairs {
    corpus: PairCorpus,
    tokenizers: PairTokenizers,
    encoders: Pool<PairEncoder>,
    header: Header,
}

impl Pairs {
    pub(super) fn new(corpus: PairCorpus, tokenizers: &PairTokenizers) -> Self {
        let header = Header {
            source_vocab_size: tokenizers.source_vocab_size() as u32,
            target_vocab_size: tokenizers.target_vocab_size() as u32,
            max_source_len: corpus.config().max_source_len as u32,
            max_target_len: corpus.config().max_target_len as u32,
            ..Header::new(CacheKind::Pairs, tokenizers.fingerprint_hash())
        };
        Self { header, corpus, tokenizers: tokenizers.clone(), encoders: Pool::default() }
    }
}

impl Rows for Pairs {
    fn header(&self) -> &Header {
        &self.header
    }

    fn filter(&self) -> Option<&RowFilter> {
        self.corpus.config().filter.as_deref()
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
            || PairBlockEncoder::new(&self.corpus, &self.tokenizers, &self.encoders, narrow),
            |encoder, block| {
                let encoded = encoder.encode(&block, &parser)?;
                Ok(Placed { start: block.start(), is_first: block.is_first, continues: false, encoded })
            },
            sink,
        )
    }
}

/// Returns the header of a cache of text, without what the text decides.
pub(super) fn text_header(kind: CacheKind, tokenizer: &TextTokenizer) -> Header {
    let vocab_size = tokenizer.vocab_size() as u32;
    let header = Header::new(kind, tokenizer.fingerprint_hash());
    Header { source_vocab_size: vocab_size, target_vocab_size: vocab_size, ..header }
}
