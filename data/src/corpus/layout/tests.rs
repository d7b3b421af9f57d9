use super::*;

fn layout(rows: &[&str]) -> Option<Layout> {
    let rows: Vec<Map<String, Value>> = rows.iter().map(|row| serde_json::from_str(row).expect(row)).collect();
    recognize(&rows)
}

#[test]
fn layouts_are_recognized_by_names() {
    let of = |row: &str| layout(&[row]).expect(row);
    assert_eq!(of(r#"{"prompt": "a", "chosen": "b", "rejected": "c"}"#), Layout::Preferences);
    assert_eq!(of(r#"{"prompt": "a", "completion": "b", "label": false}"#), Layout::Rated);
    for name in ["messages", "conversations", "dialog"] {
        let row = format!(r#"{{"id": 1, "{name}": [{{"role": "user", "content": "a"}}]}}"#);
        assert_eq!(of(&row), Layout::Conversations { field: name.into() });
    }
    for [question, answer] in ANSWERS {
        let row = format!(r#"{{"{question}": "a", "{answer}": "b"}}"#);
        assert_eq!(of(&row), Layout::Answers { question: question.into(), answer: answer.into() }, "{row}");
    }

    let tagged = of(r#"{"words": ["Anna", "reads"], "pos_tags": [3, 4], "ner_tags": [1, 0], "id": "0"}"#);
    assert_eq!(tagged, Layout::Tagged { words: "words".into(), tags: "ner_tags".into() });
    let labelled = of(r#"{"review": "good", "stars": 5}"#);
    assert_eq!(labelled, Layout::Labelled { text: "review".into(), label: "stars".into() });
    for (row, source, target) in [
        (r#"{"translation": {"en": "a", "ipa": "b"}, "id": 1}"#, "translation.en", "translation.ipa"),
        (r#"{"target": "b", "source": "a"}"#, "source", "target"),
    ] {
        assert_eq!(of(row), Layout::Pairs { source: source.into(), target: target.into() });
    }
    assert_eq!(
        of(r#"{"id": 3, "body": "a b c", "url": "http://x.org/a/b/c"}"#),
        Layout::Texts { field: "body".into() }
    );
    assert_eq!(layout(&[r#"{"n": 3}"#]), None);
}

#[test]
fn a_class_is_recognized_because_it_recurs() {
    let rows: Vec<String> = (0..40).map(|i| format!(r#"{{"frase": "testo {i}", "tipo": "{}"}}"#, i % 3)).collect();
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    assert_eq!(layout(&rows), Some(Layout::Labelled { text: "frase".into(), label: "tipo".into() }));
    let pairs: Vec<String> =
        (0..40).map(|i| format!(r#"{{"a": "text {i}", "b": "testo {i}", "lang": "it"}}"#)).collect();
    let pairs: Vec<&str> = pairs.iter().map(String::as_str).collect();
    assert!(!matches!(layout(&pairs), Some(Layout::Labelled { .. })));
}

#[test]
fn a_run_that_keeps_its_task_gets_no_flag_for_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rows.jsonl");
    std::fs::write(&file, "{\"text\": \"a\", \"label\": \"up\"}\n").expect("writable");
    let (corpus, text, labels) = (CorpusConfig::default(), TextConfig::default(), LabelConfig::default());
    let reader = RowReader { task: Task::Translation, other_tasks: &[], corpus: &corpus, text: &text, labels: &labels };
    let check =
        |reader: RowReader<'_>| check_layout(std::slice::from_ref(&file), &reader).expect_err("labels").to_string();
    let kept = check(reader);
    assert!(kept.contains("a run of task classification reads them") && !kept.contains("--"), "{kept}");
    let free = check(RowReader { other_tasks: &[Task::Classification], ..reader });
    assert!(free.ends_with(
        "its rows are texts with labels (they have \"label\", \"text\"): read them as such with --task classification"
    ));
}
