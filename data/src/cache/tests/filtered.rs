//! Caches of filtered text.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::super::*;
use super::ids;
use crate::corpus::{
    CorpusConfig, DroppedRows, FilterConfig, FilteredRows, LabelConfig, LabelledCorpus, PairCorpus, RowFilter, Task,
    TextConfig, TextCorpus, TextFormat,
};
use crate::fixtures::{Fixture, TextFixture, stories};
use crate::tokenizer::{TokenizerConfig, TokenizerKind};

fn filter(config: &FilterConfig, rows: FilteredRows) -> Option<Arc<RowFilter>> {
    RowFilter::new(config, None, rows).expect("valid")
}

fn counts(dropped: &[DroppedRows]) -> Vec<(&str, u64, u64)> {
    dropped.iter().map(|of| (of.filter.as_str(), of.rows, of.line)).collect()
}

/// Enough pairs for several blocks; every third row repeats one of 1,000, and every tenth has a long target.
fn pairs(n: usize) -> String {
    let row = |i: usize| {
        let name = if i.is_multiple_of(3) { i % 1000 } else { i };
        let target = if i % 10 == 9 { "seven ".repeat(9) } else { format!("seven {name}") };
        format!("seven {name}\t{target}\n")
    };
    (0..n).map(row).collect()
}

fn open(path: &Path, config: &FilterConfig) -> PairCorpus {
    let filter = filter(config, FilteredRows::Pairs);
    PairCorpus::open(&[path.into()], &CorpusConfig { filter, ..CorpusConfig::default() }).expect("a corpus")
}

#[test]
fn the_first_of_equal_rows_stays_and_threads_change_nothing() {
    const N: usize = 60_000;
    let fixture = Fixture::numbers(300);
    let path = fixture.dir.path().join("pairs.tsv");
    fs::write(&path, pairs(N)).expect("writable");
    let config = FilterConfig { max_length_ratio: 4.0, drop_duplicates: true, ..FilterConfig::default() };
    let corpus = open(&path, &config);
    let build = |threads: usize| {
        let to = fixture.dir.path().join(format!("{threads}.tokens"));
        let prepared = prepare_pairs(&to, &corpus, &fixture.tokenizers, threads, &mut |_| ()).expect("good text");
        (prepared.cache, fs::read(&to).expect("there"))
    };
    let ((cache, one), (_, four)) = (build(1), build(4));
    assert_eq!(one, four, "bytes do not depend on threads");

    // The same rows, found one after the other.
    let unfiltered = open(&path, &FilterConfig::default());
    let mut seen = std::collections::HashSet::new();
    let (mut n_long, mut first_repeated) = (0, 0);
    let mut wanted = Vec::new();
    for (line, example) in (1..).zip(unfiltered.read_all().expect("rows").0) {
        let words = |text: &str| text.split_whitespace().count();
        if words(&example.target) > 4 * words(&example.source) {
            n_long += 1;
        } else if seen.insert((example.source.clone(), example.target.clone())) {
            wanted.push(example);
        } else if first_repeated == 0 {
            first_repeated = line;
        }
    }
    let n_repeated = (N - wanted.len()) as u64 - n_long;
    assert!(n_repeated > 10_000 && first_repeated > 0, "{n_repeated}");
    let report = cache.report();
    assert_eq!((report.kept, report.bad(), report.rows()), (wanted.len() as u64, 0, N as u64));
    let mut found = counts(&report.dropped);
    found.sort_unstable();
    assert_eq!(found, [("drop_duplicates", n_repeated, first_repeated), ("max_length_ratio", n_long, 10)]);
    assert_eq!((cache.n_rows(), cache.n_duplicates()), (wanted.len(), 0));
    let sources: Vec<&str> = wanted.iter().map(|example| example.source.as_str()).collect();
    for (row, source) in fixture.tokenizers.encode_sources(&sources).expect("encodes").iter().enumerate() {
        assert_eq!(ids(cache.row(row).0), source[..source.len() - 1], "row {row}");
    }
}

#[test]
fn another_filter_makes_another_cache_and_the_same_one_keeps_its_counts() {
    let fixture = Fixture::numbers(300);
    let path = fixture.dir.path().join("pairs.tsv");
    fs::write(&path, pairs(400)).expect("writable");
    let cache = |config: &FilterConfig| {
        let corpus = open(&path, config);
        prepare_pairs(&fixture.cache_path(), &corpus, &fixture.tokenizers, 2, &mut |_| ()).expect("good text")
    };
    let mut config = FilterConfig { max_length_ratio: 4.0, ..FilterConfig::default() };
    let built = cache(&config);
    let again = cache(&config);
    assert_eq!((again.built_because, again.cache.fingerprint()), (None, built.cache.fingerprint()));
    let wanted = "data.filter.max_length_ratio drops 40 of 400 rows (10.0 %), first ";
    let notes = again.cache.report().filter_notes();
    assert!(notes.len() == 1 && notes[0].starts_with(wanted) && notes[0].contains("pairs.tsv:10: "), "{notes:?}");
    assert!(again.cache.report().to_string().starts_with("360 of 400 rows kept, 40 dropped by filters"));

    config.max_length_ratio = 5.0;
    let other = cache(&config);
    assert_eq!(other.built_because.as_deref(), Some("the text, its fields, filters or length limits changed"));
    assert_ne!(other.cache.fingerprint(), built.cache.fingerprint(), "a run is not resumed on it");

    config.max_length = 1;
    let corpus = open(&path, &config);
    let error = prepare_pairs(&fixture.cache_path(), &corpus, &fixture.tokenizers, 2, &mut |_| ()).expect_err("empty");
    let error = error.to_string();
    assert!(
        error.contains("the filters leave no row") && error.contains("data.filter.max_length drops 400"),
        "{error}"
    );
}

#[test]
fn documents_are_filtered_except_those_read_in_parts() {
    // Cutting a document does not change its tokens in this vocabulary.
    let kind = TokenizerKind::ByteLevelBpe;
    let tokenizer = TokenizerConfig { kind, vocab_size: 500, ..TokenizerConfig::default() };
    let fixture = TextFixture::new(&stories(200, 12), &tokenizer);
    let path = fixture.dir.path().join("text.txt");
    let long = "one two three four five six seven eight nine ten\n".repeat(60_000);
    let text = format!("one two\n\none\n\none two\n\n{long}\n{long}\none two three\n");
    fs::write(&path, text).expect("writable");
    let config = FilterConfig { min_length: 2, max_length: 5, drop_duplicates: true, ..FilterConfig::default() };
    let filter = filter(&config, FilteredRows::Texts);
    let corpus = TextCorpus::open(&[path], &TextConfig { filter, ..TextConfig::default() }).expect("a text");
    let to = fixture.dir.path().join("text.tokens");
    let cache = prepare_text(&to, &corpus, &fixture.tokenizer, 3, &mut |_| ()).expect("a good text").cache;
    let report = cache.report();
    assert_eq!((report.kept, report.unfiltered, report.bad()), (4, 2, 0), "{report}");
    assert_eq!(counts(&report.dropped), [("min_length", 1, 3), ("drop_duplicates", 1, 5)]);
    let texts = ["one two", long.trim_end(), long.trim_end(), "one two three"];
    for (row, text) in texts.into_iter().enumerate() {
        assert!(ids(cache.document(row)) == fixture.tokenizer.encode(text).expect("encodes"), "document {row}");
    }
    let notes = report.filter_notes();
    assert!(notes[2].contains("2 documents of more than 1 MiB are kept"), "{notes:?}");
}

#[test]
fn conversations_and_preferences_are_filtered_by_their_messages() {
    let fixture =
        TextFixture::new(&stories(200, 12), &TokenizerConfig { vocab_size: 500, ..TokenizerConfig::default() });
    let template = fixture.tokenizer.chat_template().expect("a template");
    let build = |name: &str, rows: &[&str], format: TextFormat, config: &FilterConfig| {
        let path = fixture.dir.path().join(name);
        fs::write(&path, rows.join("\n")).expect("writable");
        let filter = filter(config, FilteredRows::Texts);
        let corpus = TextCorpus::open(&[path], &TextConfig { format, filter, ..TextConfig::default() }).expect("rows");
        let to = fixture.dir.path().join(name).with_extension("tokens");
        prepare_chat(&to, &corpus, &fixture.tokenizer, &template, 2, &mut |_| ()).expect("good rows").cache
    };
    let config = FilterConfig {
        min_length: 3,
        drop_regex: "(?i)as an ai".into(),
        script: vec!["Latin".into()],
        drop_duplicates: true,
        ..FilterConfig::default()
    };
    let chat = [
        r#"{"prompt": "Is it one?", "completion": "It is."}"#,
        r#"{"prompt": "one", "completion": "two"}"#,
        r#"{"prompt": "Is it one?", "completion": "As an AI, no."}"#,
        r#"{"prompt": "Is it one?", "completion": "It is."}"#,
        r#"{"prompt": "Это один?", "completion": "Да, один."}"#,
        r#"{"prompt": "Is it one?", "completion": "It is not."}"#,
    ];
    let cache = build("chat.jsonl", &chat, TextFormat::Chat, &config);
    assert_eq!((cache.n_rows(), cache.report().kept), (2, 2));
    let wanted = [("min_length", 1, 2), ("drop_regex", 1, 3), ("script", 1, 5), ("drop_duplicates", 1, 4)];
    assert_eq!(counts(&cache.report().dropped), wanted);

    let preferences = [
        r#"{"prompt": "Is it one?", "chosen": "It is.", "rejected": "No"}"#,
        r#"{"prompt": "Is it one?", "chosen": "It is.", "rejected": "As an AI, no."}"#,
        r#"{"prompt": "Is it one?", "chosen": "It is.", "rejected": "No"}"#,
        r#"{"prompt": "Is it one?", "chosen": "No", "rejected": "It is."}"#,
    ];
    let cache = build("preferences.jsonl", &preferences, TextFormat::Preferences, &config);
    assert_eq!((cache.n_rows(), cache.report().kept), (2, 2));
    assert_eq!(counts(&cache.report().dropped), [("drop_regex", 1, 2), ("drop_duplicates", 1, 3)]);
}

#[test]
fn labelled_rows_are_filtered_with_their_labels() {
    let folder = tempfile::tempdir().expect("a folder");
    let read = |name: &str, rows: &[&str], task: Task| {
        let path = folder.path().join(name);
        fs::write(&path, rows.join("\n")).expect("writable");
        let config = FilterConfig { min_length: 2, drop_duplicates: true, ..FilterConfig::default() };
        let filter = filter(&config, FilteredRows::Texts);
        LabelledCorpus::read(&[path], task, &LabelConfig { filter, ..LabelConfig::default() }).expect("rows")
    };
    let rows = [
        r#"{"text": "so good", "label": "yes"}"#,
        r#"{"text": "bad", "label": "no"}"#,
        r#"{"text": "so good", "label": "no"}"#,
        r#"{"text": "so good", "label": "yes"}"#,
        r#"{"text": "so", "text_pair": "good", "label": "yes"}"#,
    ];
    let corpus = read("classes.jsonl", &rows, Task::Classification);
    assert_eq!((corpus.rows().len(), corpus.report().kept), (3, 3));
    assert_eq!(counts(&corpus.report().dropped), [("min_length", 1, 2), ("drop_duplicates", 1, 4)]);

    let rows = [
        r#"{"tokens": ["in", "Rome"], "tags": ["O", "LOC"]}"#,
        r#"{"tokens": ["Rome"], "tags": ["LOC"]}"#,
        r#"{"tokens": ["in", "Rome"], "tags": ["O", "LOC"]}"#,
    ];
    let corpus = read("tags.jsonl", &rows, Task::Tagging);
    assert_eq!((corpus.rows().len(), corpus.report().kept), (1, 1));
    assert_eq!(counts(&corpus.report().dropped), [("min_length", 1, 2), ("drop_duplicates", 1, 3)]);
}
