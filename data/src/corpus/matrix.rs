//! Every format with every task: each cell of the table in `docs/data-formats.md` is a test here.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{
    CorpusConfig, Example, LabelConfig, LabelledCorpus, LabelledInput, PairCorpus, Role, Task, TextConfig, TextCorpus,
    TextFormat,
};
use crate::formats::{Split, find_files};

/// Rows of each file.
const N: usize = 6;

/// The classes of the rows, one after another.
const LABELS: [&str; 2] = ["no", "yes"];

/// Columns of the tables whose cells are texts.
const COLUMNS: [&str; 10] =
    ["src", "trg", "text", "label", "tokens", "tags", "prompt", "completion", "chosen", "rejected"];

/// What a table of pairs, documents, labels, tags, conversations and preferences has in all of its fields.
fn row(n: usize) -> Value {
    json!({
        "src": format!("row number {n}"),
        "trg": format!("riga numero {n}"),
        "translation": {"en": format!("row number {n}"), "it": format!("riga numero {n}")},
        "text": format!("Document {n}.\nIts second line: caffè."),
        "label": LABELS[n % 2],
        "tokens": ["in", "Rome", n.to_string()],
        "tags": ["O", "B-LOC", "O"],
        "prompt": format!("Question {n}?"),
        "completion": format!("Answer {n}."),
        "chosen": format!("Good answer {n}."),
        "rejected": format!("Bad answer {n}."),
        "messages": [{"role": "user", "content": format!("Hi {n}")}, {"role": "assistant", "content": "Hello!"}],
    })
}

/// Writes the rows as a file of the format that its name tells.
fn write(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    let rows: Vec<Value> = (0..N).map(row).collect();
    let stem = name.trim_end_matches(".gz").trim_end_matches(".zst");
    let text = match stem.rsplit_once('.').expect("an ending").1 {
        "jsonl" => rows.iter().map(|row| format!("{row}\n")).collect(),
        "json" => serde_json::to_string_pretty(&rows).expect("memory"),
        "csv" => table(&rows, ",", &COLUMNS),
        // A pair has no quotes in TSV, and so no line breaks.
        "tsv" => table(&rows, "\t", if name == "pairs.tsv" { &COLUMNS[..2] } else { &COLUMNS }),
        "conll" => (0..N).map(|n| format!("in\tO\nRome\tB-LOC\n{n}\tO\n\n")).collect(),
        _ => return Path::new("testdata").join(name),
    };
    fs::write(&path, compressed(name, text.as_bytes())).expect("writable");
    path
}

/// A table with texts in all columns, quoted where they must be.
fn table(rows: &[Value], delimiter: &str, columns: &[&str]) -> String {
    let cell = |value: &Value| match value {
        Value::Array(words) => words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
        Value::String(text) if text.contains('\n') => format!("\"{text}\""),
        other => other.as_str().expect("a text").to_owned(),
    };
    let line = |row: &Value| columns.iter().map(|name| cell(&row[*name])).collect::<Vec<_>>().join(delimiter);
    let lines = rows.iter().map(line);
    [columns.join(delimiter)].into_iter().chain(lines).map(|line| line + "\n").collect()
}

fn compressed(name: &str, text: &[u8]) -> Vec<u8> {
    use std::io::Write;
    match name.rsplit_once('.').expect("an ending").1 {
        "gz" => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(text).expect("memory");
            encoder.finish().expect("memory")
        }
        "zst" => zstd::encode_all(text, 1).expect("memory"),
        _ => text.to_vec(),
    }
}

/// Files of every format with all fields. Those of `testdata/` are written by `pyarrow` and `datasets`.
fn names() -> Vec<&'static str> {
    let mut names = vec!["a.jsonl", "a.json", "a.csv", "a.tsv", "a.json.gz", "a.csv.zst", "rows.jsonl.xz"];
    if cfg!(feature = "arrow") {
        names.extend(["rows.parquet", "zstd.parquet", "plain.parquet", "rows.arrow", "zstd.arrow", "rows.feather"]);
        names.push("saved/train/data-00000-of-00001.arrow");
    }
    names
}

fn each(names: &[&str], check: impl Fn(PathBuf, &str)) {
    let folder = tempfile::tempdir().expect("a folder");
    names.iter().for_each(|name| check(write(folder.path(), name), name));
}

fn pairs(path: PathBuf, source: &str, target: &str) -> Result<Vec<Example>, String> {
    let config = CorpusConfig { source_field: source.into(), target_field: target.into(), ..CorpusConfig::default() };
    let corpus = PairCorpus::open(&[path], &config).map_err(|error| error.to_string())?;
    corpus.read_all().map(|(rows, _)| rows).map_err(|error| error.to_string())
}

fn documents(path: PathBuf, format: TextFormat, field: &str) -> Result<Vec<String>, String> {
    let config = TextConfig { format, field: field.into(), ..TextConfig::default() };
    let corpus = TextCorpus::open(&[path], &config).map_err(|error| error.to_string())?;
    corpus.read_all().map(|(rows, _)| rows).map_err(|error| error.to_string())
}

fn labelled(path: PathBuf, task: Task, config: &LabelConfig) -> Result<LabelledCorpus, String> {
    LabelledCorpus::read(&[path], task, config).map_err(|error| error.to_string())
}

#[test]
fn pairs_of_every_format() {
    let wanted: Vec<Example> =
        (0..N).map(|n| Example { source: format!("row number {n}"), target: format!("riga numero {n}") }).collect();
    each(&names(), |path, name| {
        if name != "a.tsv" {
            assert_eq!(pairs(path.clone(), "src", "trg").as_ref(), Ok(&wanted), "{name}");
        }
        let by_template = pairs(path.clone(), r"{src}\n!", "{prompt} {trg}").expect(name);
        assert_eq!(by_template[1].source, "row number 1\n!", "{name}");
        assert_eq!(by_template[1].target, "Question 1? riga numero 1", "{name}");
        if !name.contains("sv") {
            assert_eq!(pairs(path.clone(), "translation.en", "translation.it").as_ref(), Ok(&wanted), "{name}");
            assert_eq!(pairs(path, "tokens.1", "messages.1.content").expect(name)[0].target, "Hello!", "{name}");
        }
    });
    each(&["pairs.tsv"], |path, name| assert_eq!(pairs(path, "src", "trg").as_ref(), Ok(&wanted), "{name}"));
    each(&["a.conll"], |path, name| {
        let found = pairs(path, "text", "{tags}").expect(name);
        assert_eq!(found[2], Example { source: "in Rome 2".into(), target: "O B-LOC O".into() });
    });
}

#[test]
fn documents_of_every_format() {
    let wanted: Vec<String> = (0..N).map(|n| format!("Document {n}.\nIts second line: caffè.")).collect();
    each(&names(), |path, name| {
        assert_eq!(documents(path.clone(), TextFormat::Records, "text").as_ref(), Ok(&wanted), "{name}");
        let by_template = documents(path.clone(), TextFormat::Records, "{{ prompt }} {{ completion }}").expect(name);
        assert_eq!(by_template[5], "Question 5? Answer 5.", "{name}");
        if !name.contains("sv") {
            assert_eq!(documents(path, TextFormat::Auto, "text").as_ref(), Ok(&wanted), "{name}");
        }
    });
    each(&["a.conll"], |path, name| {
        assert_eq!(documents(path, TextFormat::Records, "text").expect(name)[3], "in Rome 3");
    });
}

#[test]
fn classes_of_every_format() {
    let is_the_wanted = |corpus: &LabelledCorpus, name: &str| {
        assert_eq!(corpus.names(), ["no", "yes"], "{name}");
        assert_eq!(corpus.rows().iter().map(|row| row.labels[0]).collect::<Vec<_>>(), [0, 1, 0, 1, 0, 1], "{name}");
    };
    each(&names(), |path, name| {
        let corpus = labelled(path.clone(), Task::Classification, &LabelConfig::default()).expect(name);
        is_the_wanted(&corpus, name);
        let text = "Document 4.\nIts second line: caffè.".to_owned();
        assert_eq!(corpus.rows()[4].input, LabelledInput::Text { text, pair: None }, "{name}");

        let config =
            LabelConfig { text_field: "{src}: {trg}".into(), pair_field: "prompt".into(), ..LabelConfig::default() };
        let corpus = labelled(path, Task::Classification, &config).expect(name);
        is_the_wanted(&corpus, name);
        let (text, pair) = ("row number 1: riga numero 1".to_owned(), Some("Question 1?".to_owned()));
        assert_eq!(corpus.rows()[1].input, LabelledInput::Text { text, pair }, "{name}");
    });
    each(&["a.conll"], |path, name| {
        let names = ["O", "B-LOC"].map(Into::into).into();
        let config = LabelConfig { label_field: "tags.1".into(), names, ..LabelConfig::default() };
        let corpus = labelled(path, Task::Classification, &config).expect(name);
        assert_eq!(corpus.rows()[0].labels, [1]);
    });
}

#[test]
fn tags_of_every_format() {
    each(&[names(), vec!["a.conll", "a.conll.gz"]].concat(), |path, name| {
        let corpus = labelled(path, Task::Tagging, &LabelConfig::default()).expect(name);
        assert_eq!((corpus.rows().len(), corpus.names()), (N, &["B-LOC".to_owned(), "O".into()][..]), "{name}");
        let words = ["in", "Rome", "5"].map(str::to_owned).into();
        assert_eq!(corpus.rows()[5].input, LabelledInput::Words(words), "{name}");
        assert_eq!(corpus.rows()[5].labels, [1, 0, 1], "{name}");
    });
}

#[test]
fn conversations_of_every_format() {
    each(&names(), |path, name| {
        let config = TextConfig { format: TextFormat::Chat, ..TextConfig::default() };
        let corpus = TextCorpus::open(&[path], &config).expect(name);
        let block = corpus.blocks().next().expect("a block").expect(name);
        let rows: Vec<_> = block.conversations(corpus.config()).map(|(_, row)| row.expect(name).messages).collect();
        let [user, assistant] = [&rows[3][0], &rows[3][1]];
        assert_eq!((rows.len(), user.role, assistant.role), (N, Role::User, Role::Assistant), "{name}");
        // A table has no lists of messages: a prompt and its completion.
        let wanted = if name.contains("sv") { ("Question 3?", "Answer 3.") } else { ("Hi 3", "Hello!") };
        assert_eq!((user.content.as_str(), assistant.content.as_str()), wanted, "{name}");
    });
    each(&["a.conll"], |path, name| {
        let problem = documents(path, TextFormat::Chat, "text").expect_err(name);
        assert!(problem.contains("a.conll:1: no field \"messages\""), "{problem}");
    });
}

#[test]
fn preferences_of_every_format() {
    each(&names(), |path, name| {
        let config = TextConfig { format: TextFormat::Preferences, ..TextConfig::default() };
        let corpus = TextCorpus::open(&[path], &config).expect(name);
        let block = corpus.blocks().next().expect("a block").expect(name);
        let rows: Vec<_> = block.preferences(corpus.config()).map(|(_, row)| row.expect(name)).collect();
        assert_eq!((rows.len(), rows[2].rejected.messages[1].content.as_str()), (N, "Bad answer 2."), "{name}");
    });
    each(&["a.conll"], |path, name| {
        let problem = documents(path, TextFormat::Preferences, "text").expect_err(name);
        assert!(
            problem.contains("a.conll:1: no field \"rejected\"") || problem.contains("no field \"chosen\""),
            "{problem}"
        );
    });
}

#[test]
fn fields_that_are_missing_are_named_with_those_that_are_there() {
    each(&names(), |path, name| {
        let problem = documents(path.clone(), TextFormat::Records, "body").expect_err(name);
        assert!(problem.contains("\"prompt\"") && problem.contains("\"body\""), "{name}: {problem}");
        let problem =
            labelled(path, Task::Classification, &LabelConfig { label_field: "class".into(), ..Default::default() });
        let problem = problem.expect_err(name);
        // A table has the fields of all rows in its first one.
        let says = ["no field \"class\": the row has", "none of them is \"class\": it has"];
        assert!(says.iter().any(|says| problem.contains(says)), "{name}: {problem}");
    });
}

#[test]
fn a_folder_that_datasets_has_saved_has_splits() {
    if cfg!(feature = "arrow") {
        let saved = [PathBuf::from("testdata/saved")];
        let corpus = PairCorpus::open(&saved, &CorpusConfig::default()).expect("a data set");
        assert_eq!(corpus.read_all().expect("pairs").0.len(), N, "the rows to train on");
        let valid = find_files(&saved, Split::Valid, false).expect("a split");
        let corpus = LabelledCorpus::read(&valid, Task::Tagging, &LabelConfig::default()).expect("rows");
        assert_eq!(corpus.rows().len(), 2, "the rows of the test split");
    }
}
