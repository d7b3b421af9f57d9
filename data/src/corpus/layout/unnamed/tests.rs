//! What is said of lists without names, and what the printed commands make of them.

use serde_json::json;

use super::super::{CorpusConfig, LabelConfig, TextConfig};
use super::*;
use crate::corpus::followed::rows_made;

/// Returns what is said of a file in a folder.
fn said_of(text: &str, task: Task, format: TextFormat, folder: &Path) -> String {
    let is_of_lines = text.starts_with('[') && text.contains("]\n[");
    let file = folder.join(if is_of_lines { "it's.jsonl" } else { "it's.json" });
    std::fs::write(&file, text).expect("writable");
    let (corpus, labels) = (CorpusConfig::default(), LabelConfig::default());
    let config = TextConfig { format, ..TextConfig::default() };
    let other_tasks = &[Task::Lm, Task::Translation, Task::Classification, Task::Tagging];
    let reader = RowReader { task, other_tasks, corpus: &corpus, text: &config, labels: &labels };
    super::super::check_layout(&[file], &reader).expect_err(text).to_string()
}

/// Returns the same, and the rows that the printed command makes; no rows without `jq`.
fn advice(text: &str, task: Task, format: TextFormat) -> (String, Vec<Value>) {
    let folder = tempfile::tempdir().expect("a folder");
    let said = said_of(text, task, format, folder.path());
    let rows = rows_made(&said, folder.path()).unwrap_or_default();
    (said, rows)
}

fn list(item: impl Fn(usize) -> Value) -> Value {
    (0..20).map(item).collect()
}

/// Each list alone as an array, as lines, and in an object.
fn files(list: &Value) -> [String; 4] {
    let lines = list.as_array().expect("a list").iter().map(|row| format!("{row}\n")).collect();
    let parts = json!({"train": list, "val": [["a b", "x"], ["c d", "y"], ["e f", "x"]]});
    [list.to_string(), lines, json!({"version": 1, "data": list}).to_string(), parts.to_string()]
}

fn check(list: &Value, (task, format): (Task, TextFormat), then: &str, first: &Value) {
    for text in files(list) {
        let (said, rows) = advice(&text, task, format);
        assert!(said.contains(then) && !said.contains("pandas"), "{then}: {said}");
        assert!(rows.is_empty() || rows[0] == *first && rows.len() == 20, "{text}: {said} {rows:?}");
        let is_of_parts = text.contains("\"val\"");
        assert_eq!(said.contains("in place of \"train\" makes rows of \"val\""), is_of_parts, "{said}");
    }
}

const AUTO: TextFormat = TextFormat::Auto;

#[test]
fn pairs_and_classes_in_lists_get_names_by_their_values() {
    let pairs = list(|n| json!([format!("good morning {n}"), format!("buon giorno {n}")]));
    let first = json!({"src": "good morning 0", "trg": "buon giorno 0"});
    check(&pairs, (Task::Translation, AUTO), "and read rows.jsonl with the same flags", &first);
    let first = json!({"prompt": "good morning 0", "completion": "buon giorno 0"});
    check(&pairs, (Task::Lm, TextFormat::Chat), "and read rows.jsonl with the same flags", &first);
    check(
        &pairs,
        (Task::Classification, AUTO),
        "--task translation",
        &json!({"src": "good morning 0", "trg": "buon giorno 0"}),
    );
    check(&pairs, (Task::Lm, AUTO), "and read rows.jsonl with --set data.text.format=chat", &first);

    let intent = |n: usize| ["balance", "card_lost"][n % 2];
    let first = json!({"text": "how much 0", "label": "balance"});
    for classes in [
        list(|n| json!([format!("how much {n}"), intent(n)])),
        list(|n| json!([intent(n), format!("how much {n}")])),
        list(|n| json!([format!("how much {n}"), {"cats": {"balance": n.is_multiple_of(2), "card_lost": n % 2 == 1}}])),
    ] {
        check(&classes, (Task::Classification, AUTO), "and read rows.jsonl with the same flags", &first);
        check(&classes, (Task::Translation, AUTO), "and read rows.jsonl with --task classification", &first);
    }
}

#[test]
fn wider_lists_get_the_names_in_the_first_row_or_new_ones() {
    let wide = list(|n| json!([n, format!("a text {n}"), "x", null]));
    let first = json!({"column_0": 0, "column_1": "a text 0", "column_2": "x", "column_3": null});
    check(&wide, (Task::Translation, AUTO), "name the values, for which you can write better names", &first);
    let named = list(|n| if n == 0 { json!(["text", "label"]) } else { json!([format!("a text {n}"), n % 2]) });
    for text in files(&named) {
        let (said, rows) = advice(&text, Task::Classification, AUTO);
        assert!(said.contains("the names in the first row"), "{said}");
        assert!(rows.is_empty() || rows[0] == json!({"text": "a text 1", "label": 1}) && rows.len() == 19, "{rows:?}");
    }
}

#[test]
fn texts_with_spans_behind_them_are_texts_or_words_with_tags() {
    let spans = list(|n| json!([format!("Rome {n}"), {"entities": [[0, 4, "CITY"]]}]));
    check(&spans, (Task::Lm, AUTO), "take the texts alone", &json!({"text": "Rome 0"}));
    for text in files(&spans) {
        let folder = tempfile::tempdir().expect("a folder");
        let said = said_of(&text, Task::Translation, AUTO, folder.path());
        assert!(said.contains("make words with tags of them") && said.contains("entities: .[1].entities"), "{said}");
    }
}

#[test]
fn lists_of_turns_become_conversations_and_words_get_their_tags() {
    let turns =
        list(|n| json!([[format!("Hi there {n}"), "Hello you"], ["How far is it?", null], ["And now?", "Far."]]));
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let said = ["Hi there 0", "How far is it?", "And now?"].map(|text| message("user", text));
    let [one, two, three] = said;
    let first = json!({"messages": [one, message("assistant", "Hello you"), two, three, message("assistant", "Far.")]});
    check(&turns, (Task::Lm, TextFormat::Chat), "make conversations of them", &first);
    check(&turns, (Task::Translation, AUTO), "with --task lm --set data.text.format=chat", &first);

    let words = list(|n| json!([["Rome", "B-CITY"], ["sleeps", "O"], [format!("w{n}"), "O"], [".", "O"]]));
    let first = json!({"tokens": ["Rome", "sleeps", "w0", "."], "tags": ["B-CITY", "O", "O", "O"]});
    check(&words, (Task::Tagging, AUTO), "and read rows.jsonl with the same flags", &first);
}

#[test]
fn rows_with_lists_of_their_own_stay() {
    let row = r#"{"prompt": "Why is the sky so blue in the summer months?", "history": [["a", "b"], ["c", "d"], ["e", "f"]]}"#;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.json");
    std::fs::write(&file, row).expect("writable");
    let rows = crate::corpus::json::first_rows(&file, FileFormat::JSON).rows;
    assert!(lists_in(&file, FileFormat::JSON, &rows).is_none());
}
