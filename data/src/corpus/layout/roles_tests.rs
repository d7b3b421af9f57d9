//! Rows with three texts and more: what belongs together is read together, or the user is asked.

use super::*;

pub(super) fn refusal(row: &dyn Fn(usize) -> String, task: Task, format: TextFormat) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.jsonl");
    std::fs::write(&file, (0..24).map(|n| row(n) + "\n").collect::<String>()).expect("writable");
    let (corpus, labels) = (CorpusConfig::default(), LabelConfig::default());
    let text = TextConfig { format, ..TextConfig::default() };
    let other_tasks = &[Task::Lm, Task::Translation, Task::Classification];
    let reader = RowReader { task, other_tasks, corpus: &corpus, text: &text, labels: &labels };
    check_layout(&[file], &reader).err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn two_texts_next_to_names_and_numbers_are_a_pair_in_the_direction_of_their_names() {
    for (fields, [source, target]) in [
        (r#""repo": "x/y", "message": "set x to N", "diff": "+ x = N of y""#, ["diff", "message"]),
        (r#""image": "pN.png", "gold": "the cat N sat", "ocr": "thc cat N", "confidence": 0.5"#, ["ocr", "gold"]),
        (
            r#""url": "http://a.org/N", "highlights": "cats N sat", "article": "a long text of N cats""#,
            ["article", "highlights"],
        ),
        (r#""level": "A2", "simple": "the cat N sat", "complex": "the feline N reposed""#, ["complex", "simple"]),
        (r#""db": "shopN", "query_sql": "select N from a", "question": "how many are N""#, ["question", "query_sql"]),
        (
            r#""file": "a.wav", "corrected": "the cat N sat", "asr_output": "the cap N sat""#,
            ["asr_output", "corrected"],
        ),
    ] {
        let said =
            refusal(&|n| format!("{{{}}}", fields.replace('N', &n.to_string())), Task::Translation, TextFormat::Auto);
        let flags = format!("--set data.corpus.source_field={source} --set data.corpus.target_field={target}");
        assert!(said.ends_with(&flags), "{fields}: {said}");
    }

    let code = r#"{"lang": "py", "repo": "a/b", "code": "def f(x): return N", "docstring": "adds N to x"}"#;
    let both = refusal(&|n| code.replace('N', &n.to_string()), Task::Translation, TextFormat::Auto);
    assert!(
        both.ends_with("source_field=code --set data.corpus.target_field=docstring (or the other way round)"),
        "{both}"
    );
    let unknown = refusal(
        &|n| format!(r#"{{"src_file": "a{n}", "uno": "a b {n}", "due": "c d {n}"}}"#),
        Task::Translation,
        TextFormat::Auto,
    );
    assert!(
        unknown.ends_with("source_field=uno --set data.corpus.target_field=due (or the other way round)"),
        "{unknown}"
    );
}

#[test]
fn three_texts_without_known_names_are_asked_about() {
    let row = |n: usize| format!(r#"{{"uno": "a b {n}", "due": "c d e {n}", "tre": "f g h i {n}"}}"#);
    let pairs = refusal(&row, Task::Translation, TextFormat::Auto);
    assert!(
        pairs.contains("its texts are in \"uno\", \"due\", \"tre\"") && pairs.contains("source_field=NAME"),
        "{pairs}"
    );
    let chat = refusal(&row, Task::Lm, TextFormat::Chat);
    assert!(chat.contains("\"uno\", \"due\", \"tre\"") && chat.contains("field=QUESTION,ANSWER"), "{chat}");
    assert!(!chat.contains("jsonl --set") && !chat.contains("field=tre"), "{chat}");
    // Names that tell two of them are enough.
    let named = refusal(
        &|n| format!(r#"{{"question": "a b {n}", "notes": "c d e {n}", "reply": "f g h i {n}"}}"#),
        Task::Lm,
        TextFormat::Chat,
    );
    let flag = "--set data.text.field=question,reply\nthat leaves out the texts in notes";
    assert!(named.ends_with(flag), "{named}");
}

#[test]
fn questions_about_texts_get_all_of_them_in_any_layout() {
    let cases = [
        (
            r#"{"question": "q?", "context": {"contexts": ["a long text", "of two parts"], "labels": ["A", "B"]}, "long_answer": "so it is", "final_decision": "yes"}"#,
            r#"{prompt: ((.context.contexts | join("\n\n")) + "\n\n" + .question), completion: .long_answer}"#,
            "final_decision",
        ),
        (
            r#"{"query": "q?", "tools": "[{\"name\": \"f of x\"}]", "answers": "[{\"name\": \"f\"}]"}"#,
            r#"{prompt: (.tools + "\n\n" + .query), completion: .answers}"#,
            "",
        ),
        (
            r#"{"question": "q?", "docs": [{"title": "t", "text": "a long text"}], "gold_answer": "so it is", "source": "a book"}"#,
            r#"{prompt: ((.docs | map(.title, .text | strings) | join("\n\n")) + "\n\n" + .question), completion: .gold_answer}"#,
            "source",
        ),
        (
            r#"{"problem": "q?", "background": "a long text", "solution": "so it is"}"#,
            r#"{prompt: (.background + "\n\n" + .problem), completion: .solution}"#,
            "",
        ),
    ];

    for (row, prompt, left) in cases {
        for (task, format) in
            [(Task::Lm, TextFormat::Chat), (Task::Lm, TextFormat::Auto), (Task::Translation, TextFormat::Auto)]
        {
            let said = refusal(&|_| row.to_owned(), task, format);
            assert!(said.contains(prompt), "{row}: {said}");
            assert_eq!(said.contains("that leaves out"), !left.is_empty(), "{said}");
            assert!(said.contains(left) && !said.contains("data.text.field"), "{said}");
        }
    }
}

#[test]
fn a_class_belongs_to_most_of_the_text_of_its_rows() {
    let long = "many words of a long text that goes on and on";
    let row = |n: usize| {
        let class = ["high", "low"][n % 2];
        format!(
            r#"{{"subject": "the words {n}", "priority": "{class}", "comments": [{{"by": "x", "body": "{long} {n}"}}]}}"#
        )
    };
    let said = refusal(&row, Task::Classification, TextFormat::Auto);
    assert!(said.contains("text_field={{ subject }}\\n{% for x1 in comments or [] %}"), "{said}");
    assert!(said.contains("--set data.labels.label_field=priority"), "{said}");
    let decided = |n: usize| {
        let class = ["yes", "no", "maybe"][n % 3];
        format!(
            r#"{{"question": "is it {n} of them?", "context": {{"contexts": ["{long} {n}", "{long}"], "labels": ["A", "B"]}}, "final_decision": "{class}"}}"#
        )
    };
    let said = refusal(&decided, Task::Classification, TextFormat::Auto);
    assert!(said.contains("label_field=final_decision") && said.contains("context.contexts"), "{said}");
    assert!(!said.contains("labels.0"), "{said}");
}

#[test]
fn texts_of_parts_are_joined_whatever_reads_them() {
    let row = |n: usize| match n % 2 {
        0 => format!(r#"{{"from": "a", "text": "words {n}", "topic": "{}"}}"#, ["x", "y"][n / 2 % 2]),
        _ => {
            format!(r#"{{"from": "b", "text": ["see ", {{"type": "link", "text": "http://x.y/{n}"}}], "topic": "x"}}"#)
        }
    };
    for (task, format) in [
        (Task::Lm, TextFormat::Auto),
        (Task::Lm, TextFormat::Chat),
        (Task::Mlm, TextFormat::Auto),
        (Task::Classification, TextFormat::Auto),
    ] {
        let said = refusal(&row, task, format);
        assert!(
            said.contains("\"text\" are strings or lists of parts (12 lists in the first rows)"),
            "{task:?}: {said}"
        );
        assert!(said.contains(r#"jq -c '.text |= if type == "array" then map("#), "{said}");
    }
    let lists = |n: usize| format!(r#"{{"text": "words {n}", "tags": ["a", "b"]}}"#);
    assert_eq!(refusal(&lists, Task::Lm, TextFormat::Auto), "");
}
