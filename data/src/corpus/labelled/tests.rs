use std::path::PathBuf;

use super::*;

fn read(text: &str, task: Task, config: &LabelConfig) -> Result<LabelledCorpus> {
    let folder = tempfile::tempdir().expect("a folder");
    let path: PathBuf = folder.path().join("rows.jsonl");
    std::fs::write(&path, text).expect("writable");
    LabelledCorpus::read(&[path], task, config)
}

fn error(text: &str, task: Task) -> String {
    read(text, task, &LabelConfig::default()).expect_err("refused").to_string()
}

#[test]
fn texts_pairs_and_names_in_order() {
    let text = "{\"text\": \"a\", \"label\": \"up\", \"id\": 7}\n\n{\"text\": \"b\", \"text_pair\": \"c\", \"label\": \"down\"}\n";
    let corpus = read(text, Task::Classification, &LabelConfig::default()).expect("two rows");
    assert_eq!(corpus.names(), ["down", "up"]);
    assert_eq!(corpus.rows()[0].labels, [1]);
    let pair = LabelledInput::Text { text: "b".into(), pair: Some("c".into()) };
    assert_eq!((&corpus.rows()[1].input, &corpus.rows()[1].labels[..]), (&pair, &[0][..]));
    assert_eq!(corpus.texts(), ["a", "b", "c"]);
}

#[test]
fn numbers_are_sorted_by_value_and_may_stand_for_names() {
    let row = |label: &str| format!("{{\"text\": \"a\", \"label\": {label}}}\n");
    let text: String = ["10", "9", "2"].map(row).concat();
    let corpus = read(&text, Task::Classification, &LabelConfig::default()).expect("rows");
    assert_eq!(corpus.names(), ["2", "9", "10"]);
    assert_eq!(corpus.rows().iter().map(|row| row.labels[0]).collect::<Vec<_>>(), [2, 1, 0]);

    let named = LabelConfig { names: ["no", "yes"].map(Into::into).into(), ..LabelConfig::default() };
    let corpus = read(&["1", "\"no\""].map(row).concat(), Task::Classification, &named).expect("rows");
    assert_eq!(corpus.rows().iter().map(|row| row.labels[0]).collect::<Vec<_>>(), [1, 0]);
    let unknown = read(&row("2"), Task::Classification, &named).expect_err("no third class").to_string();
    assert!(unknown.contains("rows.jsonl:1: label \"2\" is not one of the classes \"no\", \"yes\""), "{unknown}");
}

#[test]
fn labels_counted_from_1_are_not_left_out_but_counted_from_0() {
    let names = ["awful", "poor", "okay", "good", "superb"];
    let named = LabelConfig { names: names.map(Into::into).into(), ..LabelConfig::default() };
    for format in ["csv", "jsonl"] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(format!("rows.{format}"));
        let row = |n: usize| match format {
            "csv" => format!("the text {n},{}\n", n % 5 + 1),
            _ => format!("{{\"text\": \"the text {n}\", \"label\": {}}}\n", n % 5 + 1),
        };
        let rows: String = (0..60).map(row).collect();
        let head = if format == "csv" { "text,label\n" } else { "" };
        std::fs::write(&path, format!("{head}{rows}")).expect("writable");
        let files = [path];
        let refused = LabelledCorpus::read(&files, Task::Classification, &named).map(|corpus| corpus.names().to_vec());
        let refused = refused.expect_err("no class 5").to_string();
        assert!(refused.contains("\"superb\": numbers count the classes from 0"), "{refused}");
        assert!(refused.contains(". - 1) // .label)") && !refused.contains("max_bad_rows="), "{refused}");
    }
}

#[test]
fn a_number_is_no_id_where_names_are_numbers() {
    let row =
        |label: &str| format!("{{\"text\": \"a\", \"label\": {label}, \"tags\": [{label}], \"tokens\": [\"a\"]}}\n");
    for names in
        [&["0", "1", "2", "4"][..], &["-1", "1", "5", "7"], &["a", "b", "c", "4"], &["0.5", "1.5", "2.5", "3.5"]]
    {
        let named = LabelConfig { names: names.iter().map(ToString::to_string).collect(), ..LabelConfig::default() };
        for task in [Task::Classification, Task::Tagging] {
            let unknown = read(&row("3"), task, &named).expect_err("no class 3").to_string();
            assert!(unknown.contains("label \"3\" is not one of the classes"), "{names:?}: {unknown}");
        }
    }
}

#[test]
fn classes_are_the_same_in_any_order_and_by_id() {
    let row = |label: &str| format!("{{\"text\": \"a\", \"label\": {label}}}\n");
    let has = |labels: &[&str], names: &[&str]| {
        let text: String = labels.iter().map(|label| row(label)).collect();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        read(&text, Task::Classification, &LabelConfig::default()).expect("rows").classes().are(&names)
    };
    assert!(has(&["\"yes\"", "\"no\""], &["yes", "no"]) && has(&["\"no\"", "\"yes\""], &["yes", "no"]));
    assert!(has(&["1", "0"], &["yes", "no"]) && has(&["2", "5"], &["5", "2"]) && has(&["2", "5"], &["2.0", "5.0"]));
    assert!(!has(&["1", "2"], &["yes", "no"]), "not all ids");
    assert!(!has(&["0", "1"], &["0", "2"]), "numbers are names there");
    assert!(!has(&["\"yes\"", "\"no\""], &["yes", "no", "perhaps"]) && !has(&["\"a\"", "\"b\""], &["a"]));
}

#[test]
fn words_have_one_tag_each() {
    let corpus = read(
        "{\"tokens\": [\"Anna\", \"sleeps\"], \"tags\": [\"B-PER\", \"O\"]}\n",
        Task::Tagging,
        &LabelConfig::default(),
    )
    .expect("a row");
    assert_eq!((corpus.names(), &corpus.rows()[0].labels[..]), (&["B-PER".to_owned(), "O".into()][..], &[0, 1][..]));
    assert_eq!(corpus.texts(), ["Anna sleeps"]);
    let short = error("{\"tokens\": [\"Anna\", \"sleeps\"], \"tags\": [\"O\"]}\n", Task::Tagging);
    assert!(short.contains("rows.jsonl:1: 2 words in \"tokens\", but 1 tags in \"tags\""), "{short}");
}

#[test]
fn whole_numbers_with_a_point_are_the_numbers() {
    let row = |label: &str| format!("{{\"text\": \"a\", \"label\": {label}}}\n");
    let ids = |labels: &[&str], config: &LabelConfig| {
        let text: String = labels.iter().map(|label| row(label)).collect();
        let corpus = read(&text, Task::Classification, config).expect("rows");
        corpus.rows().iter().map(|row| row.labels[0]).collect::<Vec<_>>()
    };
    assert_eq!(ids(&["5.0", "1", "5", "-2.0"], &LabelConfig::default()), [2, 1, 2, 0]);
    // A table gave the names.
    let named = LabelConfig { names: ["1.0", "5.0"].map(Into::into).into(), ..LabelConfig::default() };
    assert_eq!(ids(&["5.0", "1", "\"5.0\""], &named), [1, 0, 1]);
    let named = LabelConfig { names: ["1", "5"].map(Into::into).into(), ..LabelConfig::default() };
    assert_eq!(ids(&["5.0", "\"1.0\""], &named), [1, 0]);
    // Half stars are classes as in tables, in the order of their values.
    assert_eq!(ids(&["4.5", "10", "0.5", "5.0", "1.5"], &LabelConfig::default()), [2, 4, 0, 3, 1]);
}

#[test]
fn two_spellings_of_a_number_are_one_class_and_no_number_of_one() {
    let row = |label: &str| format!("{{\"text\": \"a\", \"label\": {label}}}\n");
    let of = |labels: &[&str], config: &LabelConfig| {
        let text: String = labels.iter().map(|label| row(label)).collect();
        read(&text, Task::Classification, config).expect("rows")
    };
    let mixed = of(&["\"3.0\"", "\"10.0\"", "\"3\"", "\"-1.0\"", "3"], &LabelConfig::default());
    assert_eq!(mixed.names(), ["-1", "3", "10"]);
    assert_eq!(mixed.rows().iter().map(|row| row.labels[0]).collect::<Vec<_>>(), [1, 2, 1, 0, 1]);
    assert_eq!(of(&["\"3.0\"", "\"4.0\""], &LabelConfig::default()).names(), ["3.0", "4.0"]);
    assert_eq!(of(&["\"3\"", "\"3.0\"", "\"v1.0\"", "\"v1\""], &LabelConfig::default()).names().len(), 3);

    let named = |names: &[&str]| LabelConfig {
        names: names.iter().map(ToString::to_string).collect(),
        ..LabelConfig::default()
    };
    for (label, names) in [("1", ["1.0", "2.0"]), ("\"2.0\"", ["1", "2"])] {
        assert_eq!(of(&[label], &named(&names)).classes().note_on_numbers(), None, "read by value");
    }
    let note = of(&["1"], &named(&["no", "yes"])).classes().note_on_numbers().expect("an id");
    assert!(note.contains("0 is \"no\", 1 is \"yes\""), "{note}");
}

#[test]
fn a_row_that_cannot_be_used_is_named() {
    for (line, wanted) in [
        ("{\"text\": 5, \"label\": 1}", "field \"text\" is a number, wanted a string"),
        ("{\"text\": \"a\", \"label\": [0.5]}", "field \"label\" has a list for a label, wanted a name or a number"),
        ("{\"text\": \"a\", \"label\": \"\"}", "field \"label\" has an empty string for a label"),
        ("{\"text\": \"a\", \"class\": 1}", "no field \"label\": the row has \"class\", \"text\""),
        ("{\"text\": \" \", \"label\": 1}", "the document has no text"),
        ("[1]", "a list, wanted a JSON object"),
        ("{\"text\": ", "not a JSON object: EOF"),
    ] {
        let found = error(&format!("{line}\n"), Task::Classification);
        assert!(found.contains(&format!("rows.jsonl:1: {wanted}")), "{line}: {found}");
    }
    let one = error("{\"text\": \"a\", \"label\": 1}\n", Task::Classification);
    assert!(one.starts_with("all rows have the label \"1\""), "{one}");
}

#[test]
fn a_share_of_bad_rows_can_be_tolerated() {
    let text = "{\"text\": \"a\", \"label\": 0}\n{\"text\": \"b\", \"label\": 1}\nbroken\n";
    let tolerant = LabelConfig { max_bad_rows: 0.4, ..LabelConfig::default() };
    let corpus = read(text, Task::Classification, &tolerant).expect("two of three");
    assert_eq!((corpus.rows().len(), corpus.report().malformed), (2, 1));
    assert!(error(text, Task::Classification).contains("--set data.labels.max_bad_rows=0.34"));
}

#[test]
fn a_damaged_row_is_reported_and_never_panics() {
    for (task, row) in [
        (Task::Classification, "{\"text\": \"a\", \"text_pair\": \"b\", \"label\": 1}"),
        (Task::Tagging, "{\"tokens\": [\"Anna\"], \"tags\": [3]}"),
    ] {
        for at in 0..row.len() {
            for byte in [0, b'"', b'{', b'}', b'[', b']', b',', b'-', b'9', b'e', b'\\', 0xff] {
                let mut damaged = row.as_bytes().to_vec();
                damaged[at] = byte;
                let _ = read_row(&damaged, task, &LabelConfig::default());
                let _ = read_row(&damaged[..at], task, &LabelConfig::default());
            }
        }
    }
}

#[test]
fn columns_of_conll_under_other_names_come_with_the_flags_that_read_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.conll");
    std::fs::write(&path, "Anna B-PER\nsleeps O\n\n").expect("writable");
    let of = |words_field: &str, tags_field: &str| {
        let fields =
            LabelConfig { words_field: words_field.into(), tags_field: tags_field.into(), ..LabelConfig::default() };
        LabelledCorpus::read(std::slice::from_ref(&path), Task::Tagging, &fields).map_err(|error| error.to_string())
    };
    let found = of("tokens", "ner_tags").expect_err("no such column");
    assert!(
        found.contains("read them with --set data.labels.tags_field=tags") && !found.contains("fix the rows"),
        "{found}"
    );
    assert!(of("words", "tags").expect_err("no such column").contains("--set data.labels.words_field=tokens"));
    of("tokens", "1").expect("a column by its number");
}
