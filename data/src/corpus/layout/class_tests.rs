//! Rows with classes and tags: what a refusal says.

use super::*;

/// Writes a file with `text` and returns how a task refuses it; nothing if it accepts the file.
pub(super) fn refused(name: &str, text: &str, task: Task, labels: &LabelConfig) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join(name);
    std::fs::write(&file, text).expect("writable");
    let (corpus, text) = (CorpusConfig::default(), TextConfig::default());
    let other_tasks = &[Task::Lm, Task::Tagging, Task::Translation, Task::Classification];
    let reader = RowReader { task, other_tasks, corpus: &corpus, text: &text, labels };
    check_layout(&[file], &reader).err().map(|error| error.to_string()).unwrap_or_default()
}

fn hint(row: &str, task: Task) -> String {
    refused("a.jsonl", row, task, &LabelConfig::default())
}

fn fields(text: &str, pair: &str, label: &str) -> LabelConfig {
    let named = |name: &str, other: String| if name.is_empty() { other } else { name.to_owned() };
    let default = LabelConfig::default();
    LabelConfig {
        text_field: named(text, default.text_field.clone()),
        pair_field: named(pair, default.pair_field.clone()),
        label_field: named(label, default.label_field.clone()),
        ..default
    }
}

const LONG: &str =
    "a long text of many words that is at least four times as long as the other one which stands next to it";

#[test]
fn a_number_in_a_path_picks_an_element_of_a_list() {
    for (row, [text, label]) in [
        (r#"{"text": "a b", "labels": ["x"]}"#, ["text", "labels.0"]),
        (r#"{"text": "a b", "labels": [{"name": "x", "color": "red"}]}"#, ["text", "labels.0.name"]),
        (r#"{"doc": {"body": "a b"}, "meta": {"labels": [{"name": "x"}]}}"#, ["doc.body", "meta.labels.0.name"]),
        (r#"{"parts": ["a b", "c"], "label": 1}"#, ["parts.0", "label"]),
    ] {
        assert_eq!(refused("a.jsonl", row, Task::Classification, &fields(text, "", label)), "", "{row}");
    }

    let (text, labels) = (TextConfig { field: "labels.0".into(), ..TextConfig::default() }, LabelConfig::default());
    let corpus = CorpusConfig {
        source_field: "question".into(),
        target_field: "answers.text.0".into(),
        ..CorpusConfig::default()
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.jsonl");
    std::fs::write(&file, r#"{"context": "c", "question": "q", "answers": {"text": ["a"]}, "labels": ["x"]}"#)
        .expect("writable");
    for task in [Task::Translation, Task::Lm, Task::Mlm] {
        let reader = RowReader { task, other_tasks: &[], corpus: &corpus, text: &text, labels: &labels };
        check_layout(std::slice::from_ref(&file), &reader).expect("its fields are there");
    }
    let corpus = CorpusConfig { source_field: "missing".into(), ..corpus };
    let reader = RowReader { task: Task::Translation, other_tasks: &[], corpus: &corpus, text: &text, labels: &labels };
    let hint = check_layout(&[file], &reader).expect_err("no such field").to_string();
    assert!(!hint.contains("target_field"), "the given path stays: {hint}");
}

#[test]
fn a_hint_keeps_the_fields_that_the_user_has_named() {
    let row = r#"{"comment": "a b c", "body": "a longer text of words", "kind": "x", "category": "y"}"#;
    for (labels, wanted) in [
        (
            fields("comment", "", "topic"),
            "with --set data.labels.pair_field=body --set data.labels.label_field=category",
        ),
        (fields("body", "comment", "topic"), "with --set data.labels.label_field=category"),
        (fields("txt", "comment", "kind"), "with --set data.labels.text_field=body"),
    ] {
        let hint = refused("a.jsonl", row, Task::Classification, &labels);
        assert!(hint.ends_with(wanted), "{labels:?}: {hint}");
    }
    let tagged = r#"{"words": ["a", "b"], "upos": ["X", "Y"], "ner_tags": [0, 1]}"#;
    let labels = LabelConfig { tags_field: "upos".into(), ..LabelConfig::default() };
    let hint = refused("a.jsonl", tagged, Task::Tagging, &labels);
    assert!(hint.ends_with("with --set data.labels.words_field=words"), "{hint}");
}

#[test]
fn two_texts_of_any_length_get_both_fields() {
    for (row, [text, pair], label) in [
        (
            format!(r#"{{"sentence1": "{LONG}", "sentence2": "short", "label": 0, "idx": 1}}"#),
            ["sentence1", "sentence2"],
            "",
        ),
        (format!(r#"{{"question": "who?", "sentence": "{LONG}", "label": 0}}"#), ["question", "sentence"], ""),
        (
            format!(r#"{{"question": "is it", "passage": "{LONG}", "answer": false}}"#),
            ["question", "passage"],
            "answer",
        ),
        (
            format!(r#"{{"uid": "7", "premise": "{LONG}", "hypothesis": "no", "label": 0, "reason": ""}}"#),
            ["premise", "hypothesis"],
            "",
        ),
        (
            format!(
                r#"{{"gold_label": "no", "sentence1_parse": "( {LONG} )", "sentence1": "a b", "sentence2": "c", "pairID": "x"}}"#
            ),
            ["sentence1", "sentence2"],
            "gold_label",
        ),
        (
            r#"{"question1": "a", "question2": "b c", "is_duplicate": false}"#.to_owned(),
            ["question1", "question2"],
            "is_duplicate",
        ),
        (
            format!(r#"{{"headline": "three words here", "summary": "{LONG}", "topic": "x", "author": "B"}}"#),
            ["headline", "summary"],
            "topic",
        ),
    ] {
        let hint = hint(&row, Task::Classification);
        let label = if label.is_empty() { String::new() } else { format!(" --set data.labels.label_field={label}") };
        let flags = format!("with --set data.labels.text_field={text} --set data.labels.pair_field={pair}{label}");
        assert!(hint.ends_with(&flags), "{flags}\n{hint}");
    }

    // Texts that recur are texts all the same.
    let rows: String = (0..60)
        .map(|i| {
            format!(
                "{{\"premise\": \"the car is {} today\", \"hypothesis\": \"the car is {}\", \"label\": {}}}\n",
                i % 3,
                i % 4,
                i % 3 - 1
            )
        })
        .collect();
    let hint = hint(&rows, Task::Classification);
    assert!(hint.ends_with("text_field=premise --set data.labels.pair_field=hypothesis"), "{hint}");
}

#[test]
fn rows_with_a_class_are_never_answered_with_another_task() {
    for row in [
        format!(r#"{{"source": "gj04", "label": 0, "mark": "*", "sentence": "{LONG}"}}"#),
        format!(r#"{{"title": "a", "body": "{LONG}", "labels": ["x", "y"], "state": "open"}}"#),
        r#"{"text": "a b", "label": ["x"]}"#.to_owned(),
        r#"{"data": {"text": "a b"}, "annotations": [{"id": 3, "result": [{"value": {"choices": ["x"]}}]}]}"#
            .to_owned(),
        r#"{"premise": "a b", "hypothesis": "c", "label": -1}"#.to_owned(),
    ] {
        for task in [Task::Classification, Task::Tagging] {
            let hint = hint(&row, task);
            assert!(hint.contains("data.labels.") && !hint.contains("data.corpus"), "{hint}");
            assert_eq!(hint.contains("--task classification"), task == Task::Tagging, "{hint}");
            assert!(!hint.contains("--task lm") && !hint.contains("--task translation"), "{hint}");
        }
    }
    let rows: String =
        (0..40).map(|i| format!("{{\"prompt\": \"a text {i}\", \"completion\": \" class{}\"}}\n", i % 3)).collect();
    let hint = hint(&rows, Task::Classification);
    assert!(hint.ends_with("text_field=prompt --set data.labels.label_field=completion"), "{hint}");
}

#[test]
fn a_class_inside_an_object_is_found() {
    let hint = hint(r#"{"text": "a b", "label": {"id": 3, "name": "x"}, "url": "x"}"#, Task::Classification);
    assert!(hint.ends_with("with --set data.labels.label_field=label.name"), "{hint}");
}

#[test]
fn other_fields_that_can_be_the_class_are_named() {
    let rows: String = (0..40)
        .map(|i| format!("{{\"text\": \"a text {i}\", \"mild\": {}, \"rude\": {}, \"n\": {i}}}\n", i % 2, i % 3))
        .collect();
    let hint = hint(&rows, Task::Classification);
    assert!(hint.contains("label_field=rude\nother fields that can be the class: mild"), "{hint}");
    let named = refused("a.jsonl", &rows.replace("rude", "gold_label"), Task::Classification, &LabelConfig::default());
    assert!(named.ends_with("label_field=gold_label"), "{named}");
}

#[test]
fn a_list_of_labels_is_said_to_be_one_and_its_first_label_can_be_read() {
    for (row, flags) in [
        (r#"{"text": "a b", "labels": ["x", "y"]}"#, "--set data.labels.label_field=labels.0"),
        (r#"{"text": "a b", "label": [{"name": "x"}]}"#, "--set data.labels.label_field=label.0.name"),
        (
            r#"{"data": {"text": "a b"}, "annotations": [{"result": [{"value": {"choices": ["x"]}}]}]}"#,
            "--set data.labels.text_field=data.text --set data.labels.label_field=annotations.0.result.0.value.choices.0",
        ),
    ] {
        let hint = hint(row, Task::Classification);
        assert!(
            hint.contains("texts with lists of labels")
                && hint.contains("several labels of one text are not supported"),
            "{hint}"
        );
        assert!(hint.contains(&format!("with {flags}\n")), "{hint}");
    }
}

#[test]
fn spans_of_characters_come_with_the_command_that_makes_words_with_tags() {
    for (row, part) in [
        (r#"{"id": 0, "text": "Rome sleeps", "label": [[0, 4, "NAME"]]}"#, "for a, b, t in row[\"label\"]"),
        (
            r#"{"text": "Rome", "spans": [{"start": 0, "end": 4, "label": "X"}]}"#,
            "(s[\"start\"], s[\"end\"], s[\"label\"])",
        ),
        (
            r#"{"text": "a", "annotations": [{"result": [{"value": {"start": 0, "end": 1, "labels": ["X"]}}]}]}"#,
            "entities: [.annotations[0].result[].value | select(.labels?[0])",
        ),
    ] {
        for task in [Task::Tagging, Task::Classification] {
            let hint = hint(row, task);
            assert!(hint.contains("labels of spans of characters") && hint.contains(part), "{hint}");
            assert!(!hint.contains("--task"), "{hint}");
        }
    }
    let array =
        refused("a.json", r#"[{"text": "Rome", "label": [[0, 4, "NAME"]]}]"#, Task::Tagging, &LabelConfig::default());
    assert!(array.contains("jq -c '.[]' "), "{array}");
}

#[test]
fn labels_of_the_parts_of_a_text_are_not_its_class() {
    let row = |n: usize| {
        let texts: Vec<String> = (0..1 + n % 3).map(|part| format!("the planet {n} moves {part}")).collect();
        let parts = vec!["AIMS"; texts.len()];
        let answer = ["yes", "no"][n % 2];
        format!(
            "{}\n",
            serde_json::json!({"ASKED": format!("does it move {n}"), "LABELS": parts, "PARTS": texts, "outcome": answer})
        )
    };
    let rows: String = (0..20).map(row).collect();
    let found = hint(&rows, Task::Classification);
    assert!(found.contains("label_field=outcome") && !found.contains("LABELS.0"), "{found}");
}

#[test]
fn spans_are_found_under_any_name() {
    for name in ["entities", "spans", "annotations", "ents", "ner", "gold"] {
        for (list, part) in [
            ("[]", "for a, b, t in row[\"NAME\"]"),
            ("[[0, 4, \"X\"]]", "for a, b, t in row[\"NAME\"]"),
            (
                "[{\"id\": 7, \"start_offset\": 0, \"end_offset\": 4, \"type\": \"X\"}]",
                "(s[\"start_offset\"], s[\"end_offset\"], s[\"type\"]) for s in row[\"NAME\"]",
            ),
        ] {
            let tokens = r#""tokens": [{"text": "Rome", "start": 0, "end": 4, "id": 0}]"#;
            let row = format!(r#"{{"text": "Rome", "category": "x", {tokens}, "{name}": {list}}}"#);
            let rows = format!("{row}\n{}", row.replace(": []", ": [[0, 4, \"X\"]]"));
            let hint = hint(&rows, Task::Tagging);
            assert!(hint.contains(&part.replace("NAME", name)) && !hint.contains("--task"), "{name}: {hint}");
        }
    }
    let places = hint(r#"{"text": "Rome sleeps", "parts": [{"start": 0, "end": 4}]}"#, Task::Tagging);
    assert!(!places.contains("spans"), "no labels: {places}");
}

#[test]
fn a_second_text_that_no_row_has_is_refused() {
    let rows = "{\"premise\": \"a b c\", \"hypothesis\": \"d e f\", \"label\": 0}\n";
    let typo = refused("a.jsonl", rows, Task::Classification, &fields("premise", "hypothesis_", ""));
    assert!(typo.contains("no row has the field \"hypothesis_\"") && typo.ends_with("pair_field=hypothesis"), "{typo}");
    let one = refused("a.jsonl", "{\"text\": \"a\", \"label\": 0}\n", Task::Classification, &fields("", "other", ""));
    assert!(one.contains("leave data.labels.pair_field out"), "{one}");
    // Rows may lack it, also all of the first ones.
    let late = "{\"text\": \"a\", \"label\": 0}\n".repeat(200) + "{\"text\": \"a\", \"other\": \"b\", \"label\": 1}\n";
    assert_eq!(refused("a.jsonl", &late, Task::Classification, &fields("", "other", "")), "");
    assert_eq!(refused("a.jsonl", rows, Task::Classification, &fields("premise", "{hypothesis}!", "")), "");
}

#[test]
fn tables_as_pandas_writes_them_are_named() {
    for (text, orientation) in [
        (r#"{"0": {"text": "a", "label": "x"}, "1": {"text": "b", "label": "y"}}"#, "index"),
        (r#"{"text": {"0": "a", "1": "b"}, "label": {"0": "x", "1": "y"}}"#, "columns"),
        (r#"{"columns": ["text", "label"], "index": [0], "data": [["a", "x"]]}"#, "split"),
        (r#"{"schema": {"fields": [], "pandas_version": "1.4.0"}, "data": [{"text": "a", "label": "x"}]}"#, "table"),
    ] {
        for task in [Task::Classification, Task::Lm, Task::Translation, Task::Tagging] {
            let found = refused("a.json", text, task, &LabelConfig::default());
            assert!(found.contains(&format!("orient=\"{orientation}\"")), "{found}");
            assert!(found.contains("orient=\"records\", lines=True") && !found.contains("--set"), "{found}");
        }
    }
    let lists = refused("a.json", r#"[["a", "x"], ["b", "y"]]"#, Task::Classification, &LabelConfig::default());
    assert!(lists.contains("lists of values without names"), "{lists}");
    let nested = r#"{"translation": {"en": "a", "it": "b"}}"#;
    assert!(!refused("a.json", nested, Task::Translation, &LabelConfig::default()).contains("pandas"));
}

#[test]
fn words_in_one_text_come_with_the_command_that_makes_a_list() {
    for (row, part) in [
        (
            r#"{"sentence": "Anna reads", "ner": ["B-PER", "O"]}"#,
            r#".tokens = [.sentence | scan("\\S+")] | .tags = .ner' "#,
        ),
        (
            r#"{"text": "Anna reads", "tags": "B-PER O"}"#,
            r#".tokens = [.text | scan("\\S+")] | .tags = [.tags | scan("\\S+")]' "#,
        ),
    ] {
        let found = hint(row, Task::Tagging);
        assert!(found.contains(part) && !found.contains("--"), "{found}");
        assert!(!hint(row, Task::Classification).contains("jq"));
    }
    let one = hint(r#"{"text": "Rome", "labels": ["x"]}"#, Task::Tagging);
    assert!(one.contains("labels.0"), "{one}");
}

#[test]
fn marks_for_each_class_become_the_number_of_the_class() {
    for (field, rows) in [
        ("label", [r#"{"text": "a b", "label": [0, 1, 0]}"#, r#"{"text": "c d", "label": [1, 0, 0]}"#]),
        (
            "y",
            [
                r#"{"review": "a b", "y": {"labels": [false, true]}}"#,
                r#"{"review": "c d", "y": {"labels": [true, true]}}"#,
            ],
        ),
    ] {
        let text = rows.join("\n");
        let hint = refused("a.jsonl", &text, Task::Classification, &LabelConfig::default());
        assert!(hint.contains("marks in") && hint.contains("| index") | hint.contains("|= index("), "{field}: {hint}");
        assert!(!hint.contains("label_field") && hint.contains("data.labels.names"), "{hint}");
        assert_eq!(hint.contains("rows with several, which are not supported"), field == "y", "{hint}");
    }
    let counts = r#"{"text": "a b", "labels": [3, 1]}"#;
    assert!(refused("a.jsonl", counts, Task::Classification, &LabelConfig::default()).contains("labels.0"));
}

#[test]
fn all_fields_that_can_be_the_class_are_listed() {
    let row = |n: usize| {
        let (mood, theme) = (["good", "bad"][n % 2], ["sport", "news", "food"][n % 3]);
        format!(
            r#"{{"sentence": "the words of text {n}", "sentiment": "{mood}", "topic": "{theme}", "checked": {}}}"#,
            n.is_multiple_of(2)
        )
    };
    let rows: Vec<String> = (0..24).map(row).collect();
    let hint = refused("a.jsonl", &rows.join("\n"), Task::Classification, &LabelConfig::default());
    let (_, others) = hint.split_once("other fields that can be the class: ").expect("a list");
    for name in ["sentiment", "topic", "checked"] {
        assert!(others.contains(name) || hint.contains(&format!("label_field={name}")), "{name}: {hint}");
    }
    let context = r#"{"question": "who?", "context": "the cat sat", "answer": true}"#;
    let hint = refused("a.jsonl", &format!("{context}\n").repeat(9), Task::Classification, &LabelConfig::default());
    assert!(!hint.contains("label_field=context"), "{hint}");
}
