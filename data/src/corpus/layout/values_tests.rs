//! What fields hold decides, whatever they are called: nobody learns identifiers, marks, tags and lists.

use super::roles_tests::refusal;
use super::*;

/// All ways to ask for rows of texts.
const TEXTS: [(Task, TextFormat); 3] =
    [(Task::Translation, TextFormat::Auto), (Task::Lm, TextFormat::Auto), (Task::Lm, TextFormat::Chat)];

#[test]
fn doubles_of_texts_and_empty_lists_are_not_tags() {
    let sql = |n: usize| {
        format!(
            r#"{{"question": "how many of {n} are there", "query": "select x{n} from y", "toks": ["Select", "x{n}"], "toks_no_value": ["select", "value"], "db_id": "d{}"}}"#,
            n % 2
        )
    };
    let chat = |n: usize| format!(r#"{{"content": "some words of {n}", "attachments": [], "reactions": []}}"#);
    for (task, format) in TEXTS {
        let said = refusal(&sql, task, format);
        assert!(said.contains("question") && said.contains("=query") || said.contains("=question,query"), "{said}");
        assert!(!said.contains("tagging") && !said.contains("db_id="), "{said}");
        assert!(!refusal(&chat, task, format).contains("tagging"));
    }
    let tagged = |n: usize| format!(r#"{{"words": ["w{n}", "is", "here"], "upos": ["NOUN", "VERB", "ADV"]}}"#);
    assert!(refusal(&tagged, Task::Lm, TextFormat::Auto).contains("its rows are words with tags"));
}

#[test]
fn identifiers_are_neither_texts_nor_classes() {
    let row = |n: usize| {
        format!(
            r#"{{"session": "6f1d4c1e-0c5e-4b1a-9a53-{n:012x}", "digest": "a{n:015x}", "table_id": "1-{}", "note": "some words of {n}"}}"#,
            n % 2
        )
    };
    for (task, format) in TEXTS {
        let said = refusal(&row, task, format);
        assert!(said.contains("field=note") && !said.contains("=session") && !said.contains("=table_id"), "{said}");
    }
    let indonesian = r#"{"translation": {"en": "some words of N", "id": "dua kata N"}}"#;
    let said = refusal(&|n| indonesian.replace('N', &n.to_string()), Task::Translation, TextFormat::Auto);
    assert!(said.contains("source_field=translation.en --set data.corpus.target_field=translation.id"), "{said}");
}

#[test]
fn what_says_where_when_or_by_whom_is_no_text() {
    // Each is offered by no task, wherever it stands; the text is.
    let others: [fn(usize) -> String; 8] = [
        |n| format!("http://en.wikipedia.org/wiki/Page_{n}"),
        |n| format!("images/{n}.jpg"),
        |n| format!("Tue Oct 31 22:10:{:02} +0000 2017", n % 60),
        |n| format!("05 {}, 2014", n % 28 + 1),
        |n| format!("2016-01-{:02}T00:00:00Z", n % 28 + 1),
        |n| format!("6f1d4c1e-0c5e-4b1a-9a53-{n:012x}"),
        |n| format!("ada{n}@example.org"),
        |_| "the same words in all rows".to_owned(),
    ];

    for (task, format) in TEXTS {
        for other in &others {
            let row = |n: usize| {
                format!(r#"{{"aaa": "{}", "note": "some words of {n}", "zzz": "{}"}}"#, other(n), other(n + 1))
            };
            let said = refusal(&row, task, format);
            assert!(said.contains("field=note"), "{said}");
            assert!(
                !["aaa", "zzz"]
                    .iter()
                    .any(|name| said.contains(&format!("={name}")) || said.contains(&format!(",{name}"))),
                "{said}"
            );
        }
        let row = |n: usize| format!(r#"{{"authors": "Ada A., Bob B{n} and Eve", "note": "some words of {n}"}}"#);
        let said = refusal(&row, task, format);
        assert!(said.contains("field=note") && !said.contains("=authors"), "{said}");
    }

    // Where rows have nothing else, dates are what is learned.
    let dates = |n: usize| format!(r#"{{"human": "{} may 1998", "machine": "1998-05-{:02}"}}"#, n % 28 + 1, n % 28 + 1);
    let said = refusal(&dates, Task::Translation, TextFormat::Auto);
    assert!(said.contains("source_field=human --set data.corpus.target_field=machine"), "{said}");
    let dates =
        |n: usize| format!(r#"{{"raw": "{}. Mai 19{n:02}", "iso": "19{n:02}-05-{:02}"}}"#, n % 28 + 1, n % 28 + 1);
    let said = refusal(&dates, Task::Translation, TextFormat::Auto);
    assert!(said.contains("source_field=raw --set data.corpus.target_field=iso"), "{said}");
}

#[test]
fn texts_next_to_lists_with_most_of_the_text_are_the_users_choice() {
    let row = |n: usize| {
        format!(
            r#"{{"page": "The page {n}", "part": "A part {n}", "table": [["a long cell of many words {n}", "and one more cell of words"]], "kept": [0]}}"#
        )
    };
    let said = refusal(&row, Task::Translation, TextFormat::Auto);
    assert!(said.contains("their names do not tell what to learn") && !said.contains("values that recur"), "{said}");
    assert!(said.contains("is in \"table\", which a template reads"), "{said}");
}

#[test]
fn texts_in_languages_are_pairs_next_to_anything() {
    let row = |n: usize| {
        let text = |language: &str| format!(r#""sentence_{language}_Latn": "some words in {language} {n}""#);
        format!(r#"{{"id": {n}, {}, {}, {}, "topic": "x"}}"#, text("deu"), text("eng"), text("ita"))
    };
    let said = refusal(&row, Task::Translation, TextFormat::Auto);
    assert!(said.contains("its rows are pairs") && said.contains("source_field=sentence_deu_Latn"), "{said}");
    assert!(said.contains("or the other way round") && said.contains("sentence_ita_Latn"), "{said}");
}

#[test]
fn two_texts_next_to_values_that_recur_are_the_users_choice() {
    let row = |n: usize| {
        format!(r#"{{"uno": "some words of {n}", "due": "other words of {n}", "kind": "{}"}}"#, ["x", "y"][n % 2])
    };
    let said = refusal(&row, Task::Translation, TextFormat::Auto);
    assert!(said.contains("\"uno\" (\"some words of 0\"), \"due\" (\"other words of 0\")"), "{said}");
    assert!(said.contains("values that recur: \"kind\" (\"x\")") && said.contains("label_field=NAME"), "{said}");
}

#[test]
fn the_usual_rows_say_what_a_file_is() {
    let row = |n: usize| match n {
        0 => r#"{"id": 0, "type": "service", "action": "pin", "text": ""}"#.to_owned(),
        _ => format!(
            r#"{{"id": {n}, "type": "message", "from": {{"name": "{}"}}, "text": "m {n}"}}"#,
            ["Ann", "Bob"][n % 2]
        ),
    };
    let said = refusal(&row, Task::Lm, TextFormat::Chat);
    assert!(
        said.contains("messages of persons in \"from.name\"") && said.contains("if .from.name == \"Ann\""),
        "{said}"
    );
}

#[test]
fn answers_of_other_kinds_become_texts() {
    for (row, program) in [
        (r#"{"question": "is it N", "answer": true}"#, ".answer |= if . == true then \"yes\""),
        (
            r#"{"article": "many words of N", "highlights": ["one of N here", "two of N there"]}"#,
            ".highlights |= if type == \"array\" then join(\"\\n\")",
        ),
        (r#"{"question": "what of N", "sql": {"sel": 1}}"#, ".sql |= if type == \"string\" then . else tojson end"),
        (
            r#"{"question": "what of N", "solutions": "[\"a b\", \"c\"]"}"#,
            ".solutions = (.solutions | (fromjson? // .)",
        ),
    ] {
        let row = |n: usize| row.replace('N', &n.to_string());
        for (task, format) in [TEXTS[0], TEXTS[2]] {
            let said = refusal(&row, task, format);
            assert!(said.contains(program) && said.contains("> rows.jsonl\nand train on rows.jsonl"), "{said}");
        }
    }
    // A list of messages and a call in JSON are what they are.
    let call = |n: usize| format!(r#"{{"question": "call {n} of it", "answer": "[{{\"name\": \"f\"}}]"}}"#);
    assert_eq!(refusal(&call, Task::Lm, TextFormat::Chat), "");
}

#[test]
fn answers_with_marks_are_never_turns() {
    let row = |marks: &str| {
        format!(
            r#"{{"problem": "what is N of it", "generations": ["it is a", "it is b"], {marks}, "solution": "a then N"}}"#
        )
    };
    for (task, format) in TEXTS {
        let of = |marks: &str| refusal(&|n| row(marks).replace('N', &n.to_string()), task, format);
        let said = of(r#""verified": [true, false]"#);
        assert!(
            said.contains("says which ones are right") && said.contains("{prompt: $prompt, completion: .[0]}"),
            "{said}"
        );
        // Numbers may be grades: the better answer is preferred.
        let said = of(r#""correctness": [1, 0]"#);
        assert!(said.contains("max_by(.[0])") && !said.contains("in turn"), "{said}");
    }
    let unmarked = refusal(&|n| row(r#""lengths": [7, 8]"#).replace('N', &n.to_string()), Task::Lm, TextFormat::Chat);
    assert!(unmarked.contains("=problem,solution") && !unmarked.contains("in turn"), "{unmarked}");
}

#[test]
fn decisions_rate_an_answer_under_any_name_of_a_state() {
    for (name, word) in [("status", "rejected"), ("review_state", "approved"), ("decision", "Accepted")] {
        let row = |n: usize| format!(r#"{{"prompt": "ask {n}", "completion": "say {n}", "{name}": "{word}"}}"#);
        for (task, format) in TEXTS {
            assert!(refusal(&row, task, format).contains("answers that are rated (KTO)"), "{name}");
        }
    }
    let open = |n: usize| format!(r#"{{"prompt": "ask {n}", "completion": "say {n}", "status": "open"}}"#);
    assert_eq!(refusal(&open, Task::Lm, TextFormat::Chat), "");
}

#[test]
fn a_class_of_its_own_in_each_row_is_no_class() {
    // In the second file, some questions have several answers.
    for repeated in [1, 2] {
        let row = |n: usize| {
            let at = if n < 12 { n / repeated } else { n };
            format!(
                r#"{{"intent": "sort the list {at} by letter", "rewritten_intent": "sort the list `x{n}` by letter", "snippet": "sorted(x{n})", "question_id": {n}}}"#
            )
        };
        let said = refusal(&row, Task::Translation, TextFormat::Auto);
        let flags = "--set data.corpus.source_field=intent --set data.corpus.target_field=snippet";
        assert!(said.contains(&format!("{flags}\nthat leaves out the texts in rewritten_intent")), "{said}");
        let said = refusal(&row, Task::Lm, TextFormat::Chat);
        assert!(said.contains("data.text.field=intent,snippet\n"), "{said}");
        let said = refusal(&row, Task::Classification, TextFormat::Auto);
        assert!(said.contains("its rows are pairs") && said.contains(flags) && !said.contains("label_field"), "{said}");
    }
    let labelled = |n: usize| format!(r#"{{"utterance": "put on song {n}", "intent": "{}"}}"#, ["play", "stop"][n % 2]);
    let said = refusal(&labelled, Task::Translation, TextFormat::Auto);
    assert!(said.contains("text_field=utterance --set data.labels.label_field=intent"), "{said}");
}

#[test]
fn both_directions_are_offered_where_both_are_usual() {
    let row = |n: usize| format!(r#"{{"latex": "\\sqrt {{x {n}}}", "text": "the square root of x {n}"}}"#);
    let said = refusal(&row, Task::Translation, TextFormat::Auto);
    assert!(said.contains("source_field=latex --set data.corpus.target_field=text (or the other way round)"), "{said}");
}

#[test]
fn a_language_model_of_plain_texts_gets_one_text_of_a_pair() {
    let row = |n: usize| {
        format!(
            r#"{{"number": "US-{n}", "abstract": "A valve {n} closes.", "description": "The valve {n} of it closes."}}"#
        )
    };
    for task in [Task::Lm, Task::Mlm] {
        let said = refusal(&row, task, TextFormat::Auto);
        let flags = "to learn one text alone: --set data.text.field=description (other texts: abstract)";
        assert!(said.contains(flags), "{said}");
    }
    assert!(!refusal(&row, Task::Translation, TextFormat::Auto).contains("one text alone"));
}

#[test]
fn usual_names_of_classes_come_before_other_values_that_recur() {
    let row = |n: usize| {
        let (room, severity) = (["lab", "hall", "roof"][n % 3], n / 2 % 3);
        format!(
            r#"{{"ts": {}, "device": {{"id": "s{n}", "room": "{room}"}}, "reading": {{"message": "temp={n}C hum={n}%"}}, "severity": {severity}}}"#,
            1700 + 60 * n
        )
    };
    for task in [Task::Classification, Task::Translation] {
        let said = refusal(&row, task, TextFormat::Auto);
        assert!(said.contains("text_field=reading.message --set data.labels.label_field=severity"), "{said}");
        assert!(task != Task::Classification || said.contains("can be the class: device.room"), "{said}");
    }
}

#[test]
fn units_in_a_table_are_no_texts_of_a_class() {
    let units = |n: usize| format!("{n},{},{},{}\n", ["km", "kg", "h"][n % 3], ["m", "g", "min"][n % 3], 10 * (n % 4));
    let rows: String = (0..40).map(units).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.csv");
    std::fs::write(&file, format!("value,from,to,result\n{rows}")).expect("writable");
    let (corpus, text, labels) = (CorpusConfig::default(), TextConfig::default(), LabelConfig::default());
    let other_tasks = &[Task::Lm, Task::Translation, Task::Classification];
    let reader = RowReader { task: Task::Translation, other_tasks, corpus: &corpus, text: &text, labels: &labels };
    let refused = check_layout(&[file], &reader).err().map(|error| error.to_string());
    assert_eq!(refused, None, "the reader of tables asks for the columns");
}
