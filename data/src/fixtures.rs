//! Small corpora and tokenizers for tests.

use std::path::PathBuf;

use crate::built_in::numbers;
use crate::cache::{Shards, TokenCache, prepare_pairs, prepare_text};
use crate::corpus::{CorpusConfig, Example, PairCorpus, Task, TextConfig, TextCorpus};
use crate::loader_config::LoaderConfig;
use crate::source::{PairSource, TextSource};
use crate::tokenizer::{PairTokenizers, TextTokenizer, TokenizerConfig, TokenizerKind};

/// A folder with a corpus, its tokenizers and, if needed, its cache.
pub(crate) struct Fixture {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) corpus: PairCorpus,
    pub(crate) tokenizers: PairTokenizers,
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
        let corpus = PairCorpus::open(&[path], config).expect("a corpus");
        let tokenizers = PairTokenizers::train(tokenizer, &corpus, 2).expect("enough text");
        Self { dir, corpus, tokenizers }
    }

    pub(crate) fn cache_path(&self) -> PathBuf {
        self.dir.path().join("rows.tokens")
    }

    pub(crate) fn cached(&self, config: &LoaderConfig) -> PairSource {
        let prepared =
            prepare_pairs(&self.cache_path(), &self.corpus, &self.tokenizers, 2, &mut |_| ()).expect("a good corpus");
        PairSource::new(prepared.cache, &self.tokenizers, config).expect("a matching cache")
    }
}

/// A folder with plain text, a tokenizer trained on it and, if needed, its cache.
pub(crate) struct TextFixture {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) corpus: TextCorpus,
    pub(crate) tokenizer: TextTokenizer,
}

impl TextFixture {
    /// Writes one document per line and trains the vocabulary on them.
    pub(crate) fn new(documents: &[String], tokenizer: &TokenizerConfig) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("documents.jsonl");
        let lines: Vec<_> = documents.iter().map(|text| serde_json::json!({ "text": text }).to_string()).collect();
        std::fs::write(&path, lines.join("\n")).expect("a writable folder");
        let corpus = TextCorpus::open(&[path], &TextConfig::default()).expect("a corpus");
        let tokenizer = TextTokenizer::train(tokenizer, &corpus, 2).expect("enough text");
        Self { dir, corpus, tokenizer }
    }

    pub(crate) fn cache(&self) -> TokenCache {
        let path = self.dir.path().join("documents.tokens");
        prepare_text(&path, &self.corpus, &self.tokenizer, 2, &mut |_| ()).expect("a good corpus").cache
    }

    pub(crate) fn source(&self, task: Task, text: &TextConfig, loader: &LoaderConfig) -> TextSource {
        TextSource::new(self.cache(), &self.tokenizer, task, text, loader).expect("settings that fit")
    }
}

/// Documents of 1 to `max_words` numbers in words.
pub(crate) fn stories(n: usize, max_words: usize) -> Vec<String> {
    let length = |i: usize| 1 + (i * 7919 + i / 3) % max_words;
    let words = |i: usize| (0..length(i)).map(|j| numbers::in_words(((i * 31 + j) % 1000) as u64)).collect::<Vec<_>>();
    (0..n).map(|i| words(i).join(" ")).collect()
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

/// A folder of text files that are about 3 KB each, and a tokenizer.
pub(crate) struct TextFiles {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) tokenizer: TextTokenizer,
}

impl TextFiles {
    pub(crate) fn new(n: usize) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("text")).expect("writable");
        let all = stories(8 * n, 60);
        for (i, documents) in all.chunks(8).enumerate() {
            let path = dir.path().join(format!("text/{i:04}.txt"));
            std::fs::write(path, documents.join("\n\n")).expect("writable");
        }
        let config =
            TokenizerConfig { kind: TokenizerKind::ByteLevelBpe, vocab_size: 300, ..TokenizerConfig::default() };
        let tokenizer = TextTokenizer::train_on_documents(&config, &all[..40], 2).expect("enough text");
        Self { dir, tokenizer }
    }

    pub(crate) fn corpus(&self) -> TextCorpus {
        TextCorpus::open(&[self.dir.path().join("text")], &TextConfig::default()).expect("a corpus")
    }

    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.corpus().files().map(Into::into).collect()
    }

    /// The folder of the caches of shards.
    pub(crate) fn folder(&self) -> PathBuf {
        self.dir.path().join("shards")
    }

    pub(crate) fn shards(&self, limit: u64) -> crate::error::Result<Shards> {
        Shards::of_text(&self.folder(), self.corpus(), &self.tokenizer, limit, 2)
    }
}

/// A folder of files of pairs that are about 3 KB each, and tokenizers.
pub(crate) struct PairFiles {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) tokenizers: PairTokenizers,
    n_files: usize,
}

impl PairFiles {
    pub(crate) fn new(n: usize) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let stories = stories(20 * n, 14);
        let pair = |(i, source): (usize, &String)| Example {
            // Different in each row, and sometimes much shorter than the source.
            source: format!("{i} {source}"),
            target: if i % 7 == 0 { i.to_string() } else { format!("{source} {}", numbers::in_words(i as u64 % 1000)) },
        };
        let all: Vec<Example> = stories.iter().enumerate().map(pair).collect();
        for (i, rows) in all.chunks(20).enumerate() {
            numbers::write_jsonl(&dir.path().join(format!("{i:04}.jsonl")), rows).expect("writable");
        }
        let config = TokenizerConfig { vocab_size: 320, ..TokenizerConfig::default() };
        let tokenizers = PairTokenizers::train_on_examples(&config, &all[..200.min(all.len())], 2);
        Self { dir, tokenizers: tokenizers.expect("enough text"), n_files: n }
    }

    pub(crate) fn files(&self) -> Vec<PathBuf> {
        (0..self.n_files).map(|i| self.dir.path().join(format!("{i:04}.jsonl"))).collect()
    }

    pub(crate) fn corpus(&self) -> PairCorpus {
        PairCorpus::open(&self.files(), &CorpusConfig::default()).expect("a corpus")
    }

    /// The cache of all pairs.
    pub(crate) fn whole(&self) -> TokenCache {
        let path = self.dir.path().join("whole.tokens");
        prepare_pairs(&path, &self.corpus(), &self.tokenizers, 2, &mut |_| ()).expect("a good corpus").cache
    }

    /// The folder of the caches of shards.
    pub(crate) fn folder(&self) -> PathBuf {
        self.dir.path().join("shards")
    }

    /// Lengths are counted in multiples of eight.
    pub(crate) fn shards(&self, limit: u64) -> crate::error::Result<Shards> {
        Shards::of_pairs(&self.folder(), self.corpus(), &self.tokenizers, 8, limit, 2)
    }
}
