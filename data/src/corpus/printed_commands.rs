//! Every command that a message about data offers names files as the shell reads them.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::error::Result;
use crate::terminal::shell_path;

/// How the rows of a file are asked for.
#[derive(Debug, Clone, Copy)]
enum Asked {
    Layout(Task, TextFormat),
    Labels(Task),
    Pairs,
}

fn message(file: &PathBuf, asked: Asked) -> Result<()> {
    let files = std::slice::from_ref(file);
    let (corpus, labels) = (CorpusConfig::default(), LabelConfig::default());
    match asked {
        Asked::Layout(task, format) => {
            let text = TextConfig { format, ..TextConfig::default() };
            check_layout(
                files,
                &RowReader { task, other_tasks: &[Task::Lm], corpus: &corpus, text: &text, labels: &labels },
            )
        }
        Asked::Labels(task) => LabelledCorpus::read(files, task, &labels).map(drop),
        Asked::Pairs => PairCorpus::open(files, &corpus).map(drop),
    }
}

const CHAT: Asked = Asked::Layout(Task::Lm, TextFormat::Chat);
const TAGS: Asked = Asked::Layout(Task::Tagging, TextFormat::Auto);
const CLASSES: Asked = Asked::Layout(Task::Classification, TextFormat::Auto);

const INTENTS: &str = r#"{"intents": [
    {"tag": "a", "patterns": ["b"], "responses": ["c"]},
    {"tag": "d", "patterns": ["e"], "responses": ["f"]}]}"#;

/// The ending of a file, its text, and what asks for its rows.
type Case = (&'static str, String, Asked);

/// Returns files with the messages that their rows get.
fn cases() -> Vec<Case> {
    let table = |header: &str, row: fn(usize) -> String| format!("{header}\n{}", (0..20).map(row).collect::<String>());
    let labelled = |n: usize| format!("{},the message {n}\n", ["info", "error"][n % 2]);

    let conversations: Vec<Case> = vec![
        ("json", r#"{"units": [{"text": "a b"}, {"text": "c d"}]}"#.into(), CHAT),
        ("json", r#"{"columns": ["text"], "data": [["a b"], ["c d"]]}"#.into(), CHAT),
        ("jsonl.gz", r#"{"prompt": "q", "good": "a", "bad": "b"}"#.into(), CHAT),
        ("jsonl", r#"{"prompt": "q", "good": "a", "bad": "b"}"#.into(), CHAT),
        ("csv", "prompt,good,bad\nq,a b,c\n".into(), CHAT),
        ("json", r#"[{"question": "q", "answers": ["a"]}]"#.into(), CHAT),
        ("json", INTENTS.into(), CHAT),
        ("jsonl", r#"{"chat": [{"human": "a", "bot": "b"}]}"#.into(), CHAT),
        ("jsonl", r#"{"messages": "[{\"role\": \"user\", \"content\": \"a\"}]"}"#.into(), CHAT),
        (
            "jsonl",
            r#"{"prompt": "q", "completion": "a", "label": true}"#.into(),
            Asked::Layout(Task::Lm, TextFormat::Auto),
        ),
    ];

    let words: Vec<Case> = vec![
        ("jsonl", r#"{"text": "in Rome now", "spans": [{"start": 3, "end": 7, "label": "place"}]}"#.into(), TAGS),
        ("json", r#"[{"text": "in Rome now", "spans": [{"start": 3, "end": 7, "label": "place"}]}]"#.into(), TAGS),
        ("jsonl", r#"{"sentence": "in Rome now", "ner_tags": ["O", "B", "O"]}"#.into(), TAGS),
        ("csv", table("sentence,word_labels", |n| format!("in Rome {n},\"O,B,O\"\n")), TAGS),
        ("jsonl", r#"{"text": "a b", "label": [0, 1, 0]}"#.into(), CLASSES),
    ];

    let others: Vec<Case> = vec![
        ("txt", "__label__info a b\n__label__error c d\n".into(), Asked::Labels(Task::Classification)),
        ("csv", table("text|label", |n| format!("the message {n}|{}\n", n % 2)), Asked::Labels(Task::Classification)),
        ("csv", (0..20).map(labelled).collect(), Asked::Labels(Task::Classification)),
        (
            "csv",
            table("body,kinds", |n| format!("the body {n},\"['a', 'b{}']\"\n", n % 2)),
            Asked::Labels(Task::Classification),
        ),
        (
            "csv",
            table("# today\nbody,kind", |n| format!("the body {n},{}\n", n % 2)),
            Asked::Labels(Task::Classification),
        ),
        ("csv", table("sentence,word,tag", |n| format!("{},w{n},O\n", n / 4)), Asked::Labels(Task::Tagging)),
        (
            "tsv",
            table("tokens\ttags", |n| format!("w{n}\tO{}\n", if n % 4 == 3 { "\n" } else { "" })),
            Asked::Labels(Task::Tagging),
        ),
        ("tsv", table("# today\nEnglish\tItaliano\tKind", |n| format!("good {n}\tbuono {n}\tx\n")), Asked::Pairs),
        ("csv", table("id,lang,text", |n| format!("{},{},words of {n}\n", n / 2, ["en", "it"][n % 2])), Asked::Pairs),
        ("tsv", (0..20).map(|n| format!("{n}\t{}\twords of {n}\n", ["en", "it"][n % 2])).collect(), Asked::Pairs),
        ("csv", table("a|b", |n| format!("good {n}|buono {n}\n")), Asked::Pairs),
        ("conll", "The/at jury/nn said/vbd it/pps ./.\n".repeat(9), Asked::Labels(Task::Tagging)),
        ("txt", "AF = a flutter\n".repeat(9), Asked::Pairs),
    ];
    [conversations, words, others].concat()
}

#[test]
fn no_command_writes_into_the_file_that_it_reads() {
    let written = ["rows.jsonl", "rows.tsv", "rows.csv", "rows.conll", "words.jsonl"];
    let mut n_apart = 0;
    for (ending, text, asked) in cases() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in written {
            // Files with other endings are read otherwise, but some are asked for in the same way.
            let file = folder.path().join(name);
            fs::write(&file, &text).expect("writable");
            let Err(found) = message(&file, asked) else { continue };
            let found = found.to_string() + "\n";
            let writes = |name: &str| ["\n", " ", ","].iter().any(|end| found.contains(&format!("> {name}{end}")));
            assert!(!writes(name), "{ending}: {found}");
            n_apart += usize::from(writes(&format!("new-{name}")));
        }
    }
    assert!(n_apart > 9, "{n_apart} commands were in danger");
}

#[test]
fn files_are_quoted_in_every_command() {
    for (ending, text, asked) in cases() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(format!("it's my file.{ending}"));
        fs::write(&file, &text).expect("writable");
        let found = message(&file, asked).expect_err(&text).to_string();
        let is_command =
            ["jq", "python3", "awk", "cat", "tail"].iter().any(|program| found.contains(&format!("{program} ")));
        assert!(is_command, "{found}");
        let name = file.display().to_string();
        let n_named = found.matches(&name).count();
        assert!(found.starts_with(&name) && n_named == 1, "the name stands alone in a command: {found}");
        assert!(found.contains(&shell_path(&file)), "{found}");
    }
}
