//! Rows of the other tasks in shards: conversations, answers to compare, texts with classes and words with tags.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use super::promises::Subject;
use super::*;
use crate::cache::prepare_chat;
use crate::corpus::{LabelConfig, LabelledCorpus, LabelledText, TextCorpus, TextFormat};
use crate::fixtures::stories;
use crate::loader::OnePass;
use crate::source::{LabelledSource, PreferenceSource};
use crate::tokenizer::{ChatTemplate, LabelledShape, TokenizerConfig, TokenizerKind};

pub(super) const LIMIT: u64 = 100 << 10;

/// A folder with small files of rows, and a tokenizer.
pub(super) struct Files {
    dir: tempfile::TempDir,
    pub(super) tokenizer: TextTokenizer,
    pub(super) files: Vec<PathBuf>,
}

impl Files {
    /// Writes `n` files of so many rows, made of their numbers and of a text.
    pub(super) fn new(
        n: usize,
        n_rows: usize,
        ending: &str,
        kind: TokenizerKind,
        row: &dyn Fn(usize, &str) -> String,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let all = stories(n_rows * n, 14);
        let write = |(file, texts): (usize, &[String])| {
            let rows = (0..).zip(texts).map(|(at, text)| row(n_rows * file + at, text));
            let path = dir.path().join(format!("{file:04}.{ending}"));
            fs::write(&path, rows.collect::<String>()).expect("writable");
            path
        };
        let files = all.chunks(n_rows).enumerate().map(write).collect();
        let config = TokenizerConfig { kind, vocab_size: 300, ..TokenizerConfig::default() };
        let tokenizer = TextTokenizer::train_on_documents(&config, &all[..200.min(all.len())], 2).expect("enough text");
        Self { dir, tokenizer, files }
    }

    pub(super) fn folder(&self) -> PathBuf {
        self.dir.path().join("shards")
    }

    fn template(&self) -> ChatTemplate {
        self.tokenizer.chat_template().expect("a template")
    }

    pub(super) fn conversations(&self, text: &TextConfig) -> Shards {
        let corpus = TextCorpus::open(&self.files, text).expect("files");
        let template = self.template();
        Shards::of_conversations(&self.folder(), corpus, &self.tokenizer, &template, LIMIT, 2).expect("an index")
    }

    pub(super) fn whole(&self, text: &TextConfig) -> crate::cache::TokenCache {
        let corpus = TextCorpus::open(&self.files, text).expect("files");
        let path = self.dir.path().join("whole.tokens");
        prepare_chat(&path, &corpus, &self.tokenizer, &self.template(), 2, &mut |_| ()).expect("a cache").cache
    }
}

pub(super) fn config() -> LoaderConfig {
    LoaderConfig { num_workers: 0, batch_tokens: 2048, prefetch_factor: 2, ..LoaderConfig::default() }
}

pub(super) fn dialogues() -> Files {
    Files::new(100, 8, "jsonl", TokenizerKind::ByteLevelBpe, &|number, text| {
        let messages = serde_json::json!([
            {"role": "user", "content": format!("{number}?")},
            {"role": "assistant", "content": text},
        ]);
        serde_json::json!({ "messages": messages }).to_string() + "\n"
    })
}

pub(super) fn text_of(format: TextFormat, packing: Packing) -> TextConfig {
    TextConfig { format, seq_len: 256, packing, max_bad_rows: 0.9, ..TextConfig::default() }
}

/// What each document of a batch says: its ids and labels, without padding.
pub(super) fn documents(batches: impl IntoIterator<Item = HostBatch>) -> Vec<Vec<(i32, i32)>> {
    let mut found = Vec::new();
    for batch in batches {
        let width = batch.target_len;
        for (row, len) in batch.lengths().iter().enumerate() {
            let places = row * width..row * width + *len as usize;
            let of_place =
                |place: usize| (batch.documents()[place], (batch.target_input()[place], batch.labels()[place]));
            let all: Vec<_> = places.map(of_place).collect();
            found.extend(
                all.chunk_by(|a, b| a.0 == b.0).map(|part| part.iter().map(|place| place.1).collect::<Vec<_>>()),
            );
        }
    }
    found.sort();
    found
}

pub(super) fn pass(source: Arc<dyn BatchSource>) -> Vec<HostBatch> {
    OnePass::new(source, &config()).expect("starts").map(|batch| batch.expect("a batch")).collect()
}

#[test]
fn conversations_in_shards_are_those_of_the_whole_cache_packed_or_not() {
    let files = dialogues();
    for packing in [Packing::Documents, Packing::Sentences] {
        let text = text_of(TextFormat::Chat, packing);
        let open = |loader: &LoaderConfig| -> Arc<dyn BatchSource> {
            let shards = files.conversations(&text);
            match packing {
                Packing::Sentences => {
                    Arc::new(StreamedRows::of_conversations(shards, &files.tokenizer, &text, loader).expect("rows"))
                }
                _ => Arc::new(StreamedSource::new(shards, &files.tokenizer, Task::Lm, &text, loader).expect("rows")),
            }
        };

        let folder = files.folder();
        let subject = Subject { open: &open, folders: vec![&folder], config: config(), limit: LIMIT };
        let shards = files.conversations(&text);
        let n_rows = match packing {
            Packing::Sentences => shards.sizes().map(|(rows, _)| rows).sum::<u64>() as u32,
            _ => shards.cells().map(|cells| n_packed(cells, text.seq_len)).sum::<u64>() as u32,
        };
        let epoch = subject.an_epoch_has_every_row(n_rows, 1);
        let whole = ChatSource::new(files.whole(&text), &files.tokenizer, &text, &config()).expect("a source");
        assert!(documents(epoch) == documents(pass(Arc::new(whole))), "{packing:?}");
        subject.the_disk_stays_under_its_limit(shards.n_bytes());
        subject.batches_depend_on_the_position_alone();
    }
}

#[test]
fn answers_to_compare_in_shards_are_those_of_the_whole_cache() {
    let files = Files::new(120, 5, "jsonl", TokenizerKind::ByteLevelBpe, &|number, text| {
        serde_json::json!({"prompt": number.to_string(), "chosen": text, "rejected": "no"}).to_string() + "\n"
    });
    let text = text_of(TextFormat::Preferences, Packing::Documents);
    let open = |loader: &LoaderConfig| -> Arc<dyn BatchSource> {
        let shards = files.conversations(&text);
        Arc::new(StreamedRows::of_preferences(shards, &files.tokenizer, 256, loader, 0.25).expect("pairs"))
    };
    let folder = files.folder();
    let subject = Subject { open: &open, folders: vec![&folder], config: config(), limit: LIMIT };
    let epoch = subject.an_epoch_has_every_row(600, 2);
    for batch in &epoch {
        assert_eq!(batch.preference, Some(0.25));
        assert!(batch.rows.chunks(2).all(|pair| pair[0] == pair[1]), "both answers are in one batch");
    }
    let whole = PreferenceSource::new(files.whole(&text), &files.tokenizer, 256, &config(), 0.25).expect("a source");
    assert!(documents(epoch) == documents(pass(Arc::new(whole))));
    subject.the_disk_stays_under_its_limit(files.conversations(&text).n_bytes());
    subject.batches_depend_on_the_position_alone();

    let low = LoaderConfig { batch_tokens: 40, ..config() };
    let refused = StreamedRows::of_preferences(files.conversations(&text), &files.tokenizer, 256, &low, 0.25);
    let refused = refused.expect_err("too small").to_string();
    assert!(refused.contains("cannot hold both answers of the longest pair"), "{refused}");
}

/// Ids, types and labels of each row of batches, without padding.
fn labelled(batches: impl IntoIterator<Item = HostBatch>) -> Vec<(u32, Vec<[i32; 3]>)> {
    let mut found = Vec::new();
    for batch in batches {
        for (row, len) in batch.lengths().iter().enumerate() {
            let places = row * batch.target_len..row * batch.target_len + *len as usize;
            let of_place =
                |place: usize| [batch.target_input()[place], batch.documents()[place], batch.labels()[place]];
            found.push((batch.rows[row], places.map(of_place).collect()));
        }
    }
    found.sort();
    found
}

#[test]
fn classes_and_tags_in_shards_are_those_of_the_rows_in_memory() {
    type RowOf<'a> = &'a dyn Fn(usize, &str) -> String;
    let class = |number: usize, text: &str| {
        let pair = if number.is_multiple_of(3) { "one two" } else { "" };
        let pair = if pair.is_empty() { serde_json::Value::Null } else { pair.into() };
        let label = ["up", "down", "left"][number % 3];
        serde_json::json!({"text": text, "text_pair": pair, "label": label}).to_string() + "\n"
    };
    let tags = |number: usize, text: &str| {
        let words: Vec<&str> = text.split(' ').collect();
        let tag = |at: usize| ["O", "B-x", "I-x"][(number + at) % 3];
        words.iter().enumerate().map(|(at, word)| format!("{word} {}\n", tag(at))).collect::<String>() + "\n"
    };
    let rows: [RowOf<'_>; 2] = [&class, &tags];
    let cases = [(Task::Classification, "jsonl", true, rows[0]), (Task::Tagging, "conll", false, rows[1])];
    for (task, ending, has_types, row) in cases {
        let files = Files::new(110, 20, ending, TokenizerKind::WordPiece, row);
        let labels = LabelConfig::default();
        let shape = LabelledShape { max_len: 24, has_types, is_decoder: false, splits_special_tokens: true };
        let shards = || {
            let text = LabelledText::open(&files.files, task, &labels).expect("files");
            let classes = crate::cache::find_classes(&files.folder(), &text, 2).expect("classes");
            let text = text.with_classes(&classes.names);
            Shards::of_labels(&files.folder(), text, &files.tokenizer, shape, LIMIT, 2).expect("an index")
        };
        let open = |loader: &LoaderConfig| -> Arc<dyn BatchSource> {
            Arc::new(StreamedRows::of_labels(shards(), &files.tokenizer, shape, 3, loader).expect("rows"))
        };
        let folder = files.folder();
        let config = LoaderConfig { batch_tokens: 1024, ..config() };
        let subject = Subject { open: &open, folders: vec![&folder], config: config.clone(), limit: LIMIT };
        let epoch = subject.an_epoch_has_every_row(2200, 1);

        let corpus = LabelledCorpus::read(&files.files, task, &labels).expect("rows");
        let whole = LabelledSource::new(&corpus, &files.tokenizer, shape, &config, 2).expect("a source");
        let report = shards().report().clone();
        assert_eq!((report.kept, report.cut), (2200, whole.n_cut()), "{task:?}");
        assert_eq!(epoch[0].token_types, has_types);
        let n_tokens: u64 = epoch.iter().map(|batch| batch.target_tokens).sum();
        assert_eq!(shards().n_tokens(), n_tokens, "labels are not tokens");
        assert!(labelled(epoch) == labelled(pass(Arc::new(whole))), "{task:?}");
        subject.the_disk_stays_under_its_limit(shards().n_bytes());
        subject.batches_depend_on_the_position_alone();
    }
}

#[test]
fn classes_are_found_once_and_again_when_the_text_changed() {
    let row = |number: usize, text: &str| serde_json::json!({"text": text, "label": number % 2}).to_string() + "\n";
    let files = Files::new(4, 20, "jsonl", TokenizerKind::WordPiece, &row);
    let find = || {
        let text = LabelledText::open(&files.files, Task::Classification, &LabelConfig::default()).expect("files");
        crate::cache::find_classes(&files.folder(), &text, 2).expect("classes")
    };
    let first = find();
    assert_eq!((&first.names[..], &first.counts[..], first.n_rows), (&["0".into(), "1".into()][..], &[40, 40][..], 80));
    let path = files.folder().join("classes.json");
    let written = fs::metadata(&path).and_then(|file| file.modified()).expect("there");
    assert_eq!(find(), first);
    assert_eq!(fs::metadata(&path).and_then(|file| file.modified()).expect("there"), written, "not written again");
    fs::write(&files.files[0], row(0, "a") + &row(3, "b").replace('1', "\"third\"")).expect("writable");
    assert_eq!(find().names, ["0", "1", "third"]);
    fs::write(&path, b"torn").expect("writable");
    assert_eq!(find().names, ["0", "1", "third"]);
}
