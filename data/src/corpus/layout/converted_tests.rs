//! What is said of rows that no task reads as they are, in each task and format.

use super::*;

fn refusal(name: &str, text: &str, task: Task, format: TextFormat) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join(name);
    std::fs::write(&file, text).expect("writable");
    let (corpus, labels) = (CorpusConfig::default(), LabelConfig::default());
    let text = TextConfig { format, ..TextConfig::default() };
    let other_tasks = &[Task::Lm, Task::Translation];
    let reader = RowReader { task, other_tasks, corpus: &corpus, text: &text, labels: &labels };
    check_layout(&[file], &reader).err().map(|error| error.to_string()).unwrap_or_default()
}

const ASKED: [(Task, TextFormat); 4] = [
    (Task::Lm, TextFormat::Chat),
    (Task::Lm, TextFormat::Preferences),
    (Task::Lm, TextFormat::Auto),
    (Task::Translation, TextFormat::Auto),
];

#[test]
fn several_answers_are_preferences_whatever_was_asked() {
    for row in [
        r#"{"prompt": "q", "favored": "a b", "unfavored": "c d"}"#,
        r#"{"query": "q", "candidate_A": "a b", "candidate_B": "c d", "verdict": "A"}"#,
        r#"{"turn": {"messages": [{"role": "user", "content": "q"}]}, "winning_output": [{"role": "assistant", "content": "a"}], "losing_output": [{"role": "assistant", "content": "b"}]}"#,
    ] {
        for (task, format) in ASKED {
            let message = refusal("a.jsonl", &format!("{row}\n").repeat(9), task, format);
            assert!(
                message.contains("its rows are preferences, with several answers in"),
                "{task:?} {format:?}: {message}"
            );
            assert!(message.contains("jq -c '") && message.contains("> rows.jsonl\n"), "{message}");
            assert!(!message.contains("data.text.field") && !message.contains("label_field"), "{message}");
            let flag = "--set data.text.format=preferences";
            assert_eq!(message.contains(flag), format != TextFormat::Preferences, "{message}");
        }
    }
}

#[test]
fn questions_about_a_text_never_learn_the_text() {
    let row =
        r#"{"context": "The cat sat.", "question": "Who sat?", "answers": {"text": ["The cat"], "answer_start": [0]}}"#;
    for (task, format) in ASKED {
        let message = refusal("a.json", &format!("[{row}, {row}]"), task, format);
        assert!(message.contains("jq -c '.[] | {prompt: (.context + "), "{task:?} {format:?}: {message}");
        assert!(!message.contains("data.text.field") && !message.contains("label_field=context"), "{message}");
    }
    let alone = r#"{"question": "Who sat?", "passage": "The cat sat."}"#;
    assert!(!refusal("a.jsonl", alone, Task::Lm, TextFormat::Chat).contains("question,passage"));
}

#[test]
fn tables_are_told_which_columns_and_converted_with_their_delimiter() {
    let table = "Ask;Better;Worse\nq1;a b;c\nq2;d e;f\n";
    let message = refusal("my 'a'.csv", table, Task::Lm, TextFormat::Preferences);
    assert!(message.contains(r#"delimiter=";")"#) && message.contains(r"my '\''a'\''.csv' | jq -c "), "{message}");
    assert!(message.contains("rename the columns Ask, Better and Worse to prompt, chosen and rejected"), "{message}");
    let table = "Question,Answer\nHow do I go?,On foot.\nWhere is it?,Over there.\n";
    let message = refusal("a.csv", table, Task::Lm, TextFormat::Chat);
    assert!(message.ends_with("--set data.text.field=Question,Answer"), "{message}");
}

#[test]
fn an_author_is_not_an_answer() {
    let rows: String =
        (0..9).map(|n| format!("{{\"sender\": \"U{}\", \"text\": \"the words of message {n}\"}}\n", n % 2)).collect();
    let message = refusal("a.jsonl", &rows, Task::Lm, TextFormat::Chat);
    assert!(!message.contains("text,sender") && !message.contains("sender,text"), "{message}");
}
