use std::process::Command;

use super::*;

/// Runs a program of jq on a row; `None` without jq.
fn ran(program: &str, row: &str) -> Option<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rows.jsonl");
    std::fs::write(&file, row).expect("writable");
    let made = Command::new("jq").args(["-c", program]).arg(&file).output().ok()?;
    assert!(made.status.success(), "{program}: {}", String::from_utf8_lossy(&made.stderr));
    Some(String::from_utf8(made.stdout).expect("UTF-8").trim().to_owned())
}

fn rows(rows: &[&str]) -> Vec<Map<String, Value>> {
    rows.iter().map(|row| serde_json::from_str(row).expect(row)).collect()
}

/// What a row, with others of its file, must become.
const CASES: [(&[&str], &str, &str); 29] = [
    (&[r#"{"question": "who?", "options": {"A": "x y", "B": "z"}, "answer": "B"}"#], "who?\n\nA. x y\nB. z", "B. z"),
    (
        &[
            r#"{"question": "who?", "subject": "law", "choices": ["x", "y", "z"], "answer": 2}"#,
            r#"{"question": "a", "choices": ["x", "y", "z"], "answer": 0}"#,
        ],
        "who?\n\nA. x\nB. y\nC. z",
        "C. z",
    ),
    (
        &[
            r#"{"question": "who?", "choices": ["x", "y"], "answer": "1"}"#,
            r#"{"question": "a", "choices": ["x", "y"], "answer": "2"}"#,
        ],
        "who?\n\nA. x\nB. y",
        "A. x",
    ),
    (
        &[r#"{"question": "who?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "A"}"#],
        "who?\n\nA. x\nB. y",
        "A. x",
    ),
    (
        &[r#"{"question": "who?", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2"}"#],
        "who?\n\n1. x\n2. y",
        "2. y",
    ),
    (
        &[
            r#"{"question": {"stem": "who?", "choices": [{"label": "A", "text": "x"}, {"label": "B", "text": "y"}]}, "answerKey": "B"}"#,
        ],
        "who?\n\nA. x\nB. y",
        "B. y",
    ),
    (
        &[
            r#"{"question": "who?", "opa": "x", "opb": "y", "opc": "z", "opd": "w", "cop": 0, "exp": "so it is", "subject_name": "b"}"#,
        ],
        "who?\n\nA. x\nB. y\nC. z\nD. w",
        "A. x",
    ),
    (&[r#"{"Question": "who?", "A": "x", "B": "y", "Answer": "B"}"#], "who?\n\nA. x\nB. y", "B. y"),
    (
        &[r#"{"question": "who?", "option_a": "x", "option_b": "y", "correct": "option_b"}"#],
        "who?\n\nA. x\nB. y",
        "B. y",
    ),
    (&[r#"{"question": "who?", "options": ["x", "y"], "answer": "y"}"#], "who?\n\nA. x\nB. y", "B. y"),
    (
        &[r#"{"question": "who?", "options": ["A) x", "B) y"], "correct": "B", "rationale": "so it is"}"#],
        "who?\n\nA. x\nB. y",
        "B. y",
    ),
    (&[r#"{"question": "who?", "options": ["(A) x", "(B) y"], "target": "(B)"}"#], "who?\n\nA. x\nB. y", "B. y"),
    (
        &[
            r#"{"ctx": "he went", "endings": ["x y", "z w"], "label": "1"}"#,
            r#"{"ctx": "a", "endings": ["x", "y"], "label": "0"}"#,
        ],
        "he went\n\nA. x y\nB. z w",
        "B. z w",
    ),
    (
        &[
            r#"{"goal": "to go", "sol1": "x", "sol2": "y", "label": 1}"#,
            r#"{"goal": "a", "sol1": "x", "sol2": "y", "label": 0}"#,
        ],
        "to go\n\nA. x\nB. y",
        "B. y",
    ),
    (
        &[r#"{"sentence": "the cat and _ sat", "option1": "x", "option2": "y", "answer": "1"}"#],
        "the cat and _ sat\n\nA. x\nB. y",
        "A. x",
    ),
    (
        &[
            r#"{"context": "she sat", "question": "why?", "answerA": "x", "answerB": "y", "answerC": "z", "label": "3"}"#,
        ],
        "she sat\n\nwhy?\n\nA. x\nB. y\nC. z",
        "C. z",
    ),
    (
        &[r#"{"premise": "it fell", "choice1": "x", "choice2": "y", "question": "cause", "label": 0}"#],
        "it fell\n\ncause\n\nA. x\nB. y",
        "A. x",
    ),
    (
        &[r#"{"article": "a long one", "question": "who?", "options": ["x", "y"], "answer": "A"}"#],
        "a long one\n\nwho?\n\nA. x\nB. y",
        "A. x",
    ),
    (
        &[
            r#"{"question": "who?", "correct_answer": "y", "distractor1": "x", "distractor2": "z", "support": "it was y"}"#,
        ],
        "it was y\n\nwho?\n\nA. x\nB. y\nC. z",
        "B. y",
    ),
    (
        &[r#"{"Question": "who?", "Correct Answer": "b", "Incorrect Answer 1": "c", "Incorrect Answer 2": "a"}"#],
        "who?\n\nA. a\nB. b\nC. c",
        "B. b",
    ),
    (
        &[r#"{"question": "who?", "answers": [{"text": "x", "correct": false}, {"text": "y", "correct": true}]}"#],
        "who?\n\nA. x\nB. y",
        "B. y",
    ),
    (
        &[r#"{"question": "who?", "mc1_targets": {"choices": ["x", "y"], "labels": [0, 1]}}"#],
        "who?\n\nA. x\nB. y",
        "B. y",
    ),
    (
        &[r#"{"inputs": "who?", "multiple_choice_targets": ["x", "y"], "multiple_choice_scores": [1, 0]}"#],
        "who?\n\nA. x\nB. y",
        "A. x",
    ),
    (
        &[
            r#"{"question": "who?", "options": {"A": "x", "B": "y", "C": "z"}, "answer_idx": "C", "answer": "z", "meta_info": "step1"}"#,
        ],
        "who?\n\nA. x\nB. y\nC. z",
        "C. z",
    ),
    (&[r#"{"question": "who?", "options": ["A. x", "B. y"], "answer": "B. y"}"#], "who?\n\nA. x\nB. y", "B. y"),
    (&[r#"{"question": "who?", "options": "A) x\nB) y\n", "answer": "A"}"#], "who?\n\nA. x\nB. y", "A. x"),
    (
        &[
            r#"{"question": "who?", "options": [{"identifier": "A", "content": "x"}, {"identifier": "B", "content": "y"}], "correct_options": ["B"]}"#,
        ],
        "who?\n\nA. x\nB. y",
        "B. y",
    ),
    (
        &[
            r#"{"ctx_a": "he went", "ctx_b": "and", "ctx": "he went and", "endings": ["x y", "z w"], "label": 1, "activity_label": "going"}"#,
            r#"{"ctx": "a", "endings": ["x", "y"], "label": 0}"#,
        ],
        "he went and\n\nA. x y\nB. z w",
        "B. z w",
    ),
    (
        &[
            r#"{"text": "a long text", "question": "who?", "formatted_question": "who? (A) x (B) y", "choices": ["x", "y"], "answer": "x"}"#,
        ],
        "a long text\n\nwho?\n\nA. x\nB. y",
        "A. x",
    ),
];

#[test]
fn questions_with_options_become_prompts_with_all_options_and_the_right_answer() {
    for (given, prompt, completion) in CASES {
        let found = of(&rows(given)).unwrap_or_else(|| panic!("{given:?}"));
        assert_eq!(found.open, None, "{given:?}");
        let Some(made) = ran(&found.as_answers(), given[0]) else { return };
        let made: Value = serde_json::from_str(&made).unwrap_or_else(|_| panic!("{given:?}: {made}"));
        assert_eq!((&made["prompt"], &made["completion"]), (&prompt.into(), &completion.into()), "{given:?}");
        let made = ran(&found.as_classes(), given[0]).expect("jq");
        let made: Value = serde_json::from_str(&made).unwrap_or_else(|_| panic!("{given:?}: {made}"));
        assert_eq!((&made["text"], &made["label"]), (&prompt.into(), &completion[..1].into()), "{given:?}");
    }
}

#[test]
fn rows_without_a_right_option_are_left_out_and_a_first_number_that_no_row_shows_is_asked_for() {
    let given = [
        r#"{"question": "a", "opa": "x", "opb": "y", "cop": 1}"#,
        r#"{"question": "b", "opa": "x", "opb": "y", "cop": 0}"#,
    ];
    let found = of(&rows(&given)).expect("options");
    for other in [
        r#"{"question": "a", "opa": "x", "opb": "y", "cop": -1}"#,
        r#"{"question": "a", "opa": "x", "opb": "y", "cop": null}"#,
        r#"{"question": "a", "opa": "x", "opb": "y", "cop": 7}"#,
    ] {
        assert!(ran(&found.as_answers(), other).is_none_or(|made| made.is_empty()), "{other}");
    }
    let open = of(&rows(&[r#"{"question": "a", "choices": ["x", "y", "z"], "answer": 1}"#])).expect("options");
    assert!(open.open.expect("open").contains("for FIRST"), "0 or 1");
    let two = r#"{"question": "a", "choices": ["x", "y"], "answer": "A", "label": "B"}"#;
    let two = of(&rows(&[two])).expect("options");
    assert!(two.open.as_ref().is_some_and(|open| open.contains("\"answer\" and \"label\"")), "{:?}", two.open);
    assert!(two.as_answers().contains(".NAME"), "{}", two.as_answers());
}

#[test]
fn options_that_are_the_same_in_all_rows_are_classes_and_several_right_ones_are_left_out() {
    let same: Vec<String> = (0..9)
        .map(|n| format!(r#"{{"question": "q {n}", "options": ["x", "y"], "answer": "{}"}}"#, ["x", "y"][n % 2]))
        .collect();
    assert!(of(&rows(&same.iter().map(String::as_str).collect::<Vec<_>>())).is_none());
    let one = r#"{"question": "a", "options": {"A": "x", "B": "y"}, "answers": ["A"]}"#;
    let found = of(&rows(&[one])).expect("options");
    let several = ran(&found.as_answers(), &one.replace("[\"A\"]", "[\"A\", \"B\"]"));
    assert!(several.is_none_or(|made| made.is_empty()));
}

#[test]
fn other_fields_are_named_and_other_rows_are_none() {
    let row =
        r#"{"id": 3, "question": "a", "opa": "x", "opb": "y", "cop": 1, "exp": "so", "subject_name": "b", "n": 4}"#;
    assert_eq!(
        of(&rows(&[row, &row.replace("\"cop\": 1", "\"cop\": 0")])).expect("options").left_out,
        ["exp", "subject_name"]
    );
    for other in [
        r#"{"premise": "a b c", "hypothesis": "d e", "label": 1}"#,
        r#"{"question": "a", "answers": ["b", "c"]}"#,
        r#"{"question": "a", "answers": {"text": ["b", "c"], "answer_start": [1, 2]}, "context": "b c"}"#,
        r#"{"prompt": "a", "response_a": "b", "response_b": "c", "winner": "a"}"#,
        r#"{"prompt": "a", "candidates": ["b", "c"], "best": 1}"#,
        r#"{"text": "a", "options": ["b", "c"]}"#,
        r#"{"prompt": "a", "chosen": "b", "rejected": "c", "options": ["b", "c"], "answer": "b"}"#,
        r#"{"text1": "a b", "text2": "c d", "label": 1}"#,
        r#"{"question1": "a b", "question2": "c d", "is_duplicate": 1}"#,
        r#"{"tokens": ["a", "b"], "labels": [0, 1]}"#,
    ] {
        assert!(of(&rows(&[other])).is_none(), "{other}");
    }
}

#[test]
fn options_in_fields_of_their_own_stay_options_where_all_rows_have_the_same() {
    let row = |n: usize| {
        format!(
            r#"{{"qID": "{n}-1", "sentence": "Sarah was better {n} than Maria so _ was asked.", "option1": "Sarah", "option2": "Maria", "answer": "{}"}}"#,
            1 + n % 2
        )
    };
    let given: Vec<String> = (0..24).map(row).collect();
    let found = of(&rows(&given.iter().map(String::as_str).collect::<Vec<_>>())).expect("options");
    let Some(made) = ran(&found.as_answers(), &given[1]) else { return };
    let made: Value = serde_json::from_str(&made).expect("a row");
    let prompt = "Sarah was better 1 than Maria so _ was asked.\n\nA. Sarah\nB. Maria";
    assert_eq!((&made["prompt"], &made["completion"]), (&prompt.into(), &"B. Maria".into()));
    // A list in another order in each row says nothing by its number alone.
    let turned = |n: usize| {
        let options = [r#"["x", "y"]"#, r#"["y", "x"]"#][n % 2];
        format!(r#"{{"question": "q {n}", "options": {options}, "answer": {}}}"#, n / 2 % 2)
    };
    let given: Vec<String> = (0..24).map(turned).collect();
    assert!(of(&rows(&given.iter().map(String::as_str).collect::<Vec<_>>())).is_some());
}
