//! Small corpora and tokenizers for tests.

use std::path::PathBuf;

use crate::cache::prepare;
use crate::corpus::{Corpus, CorpusConfig, Example};
use crate::loader::{CachedSource, LoaderConfig};
use crate::numbers;
use crate::tokenizer::{TokenizerConfig, Tokenizers};

/// A folder with a corpus, its tokenizers and, when asked for, its cache.
pub(crate) struct Fixture {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) corpus: Corpus,
    pub(crate) tokenizers: Tokenizers,
}

impl Fixture {
    /// Numbers in digits and words.
    pub(crate) fn numbers(n_rows: usize) -> Self {
        let rows = numbers::examples(n_rows, 0, 9, 1).expect("valid settings").train;
        Self::new(&rows, &numbers::tokenizer_config(), &CorpusConfig::default())
    }

    pub(crate) fn new(rows: &[Example], tokenizer: &TokenizerConfig, config: &CorpusConfig) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("rows.jsonl");
        numbers::write_jsonl(&path, rows).expect("a writable folder");
        let corpus = Corpus::open(&[path], config).expect("a corpus");
        let tokenizers = Tokenizers::train(tokenizer, &corpus, 2).expect("enough text");
        Self { dir, corpus, tokenizers }
    }

    pub(crate) fn cache_path(&self) -> PathBuf {
        self.dir.path().join("rows.tokens")
    }

    pub(crate) fn cached(&self, config: &LoaderConfig) -> CachedSource {
        let prepared =
            prepare(&self.cache_path(), &self.corpus, &self.tokenizers, 2, &mut |_| ()).expect("a good corpus");
        CachedSource::new(prepared.cache, &self.tokenizers, config).expect("a matching cache")
    }
}

/// Pairs with accents, several scripts, digits, runs of spaces and control tokens spelled out.
pub(crate) fn multilingual() -> Vec<Example> {
    let texts = [
        "Il caffè è già pronto, perché no?",
        "The quick brown fox jumps over 1234 lazy dogs.",
        "Die Straße führt über die Brücke – 3,50 € pro Stück",
        "two  spaces,   three and a trailing one ",
        " leading space",
        "<s>struck out</s> and <pad> and <unk> and <0x41>",
        "e\u{301}cole de\u{301}compose\u{301}e",
        "no\u{a0}break and \u{fb01}ne ligature \u{2460}",
        "日本語のテキスト と 中文",
        "emoji 👩‍👩‍👧 and a literal ▁ meta symbol",
        "tab\tand\u{3000}wide space \u{a0}x",
        "<2it> translate me, a<2it>b",
    ];
    let pair = |(i, text): (usize, &&str)| Example {
        source: (*text).to_owned(),
        target: texts[(i + 5) % texts.len()].to_owned(),
    };
    texts.iter().enumerate().map(pair).collect()
}
