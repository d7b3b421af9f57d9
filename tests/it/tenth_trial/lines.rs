//! Texts of several lines: the printed next command passes one as a whole, and a line of plain text gets a note.

use serde_json::{Value, json};

use super::{PAIRS, between, ran, rows};
use crate::kiln::{Ran, Workplace};

/// Trains a small model on `file`, and returns what it prints.
fn train(place: &Workplace, options: &[&str], file: &str, run: &str) -> Ran {
    let train = format!("data.train={file}");
    let more = ["--run", run, "--set", &train, "--set", "data.split=8", "--set", "train.steps=8"];
    place.train(&[options, &more, &["--set", "train.validate_every=4"]].concat()).ok()
}

/// Returns the printed next command.
fn next(ran: &Ran) -> &str {
    between(&ran.stdout, "Next: ", "\n").strip_prefix("Next: ").expect("a command")
}

fn function(n: usize) -> Value {
    json!({"src": format!("def it's_{n}(items):\n    \"\"\"Count.\"\"\"\n\treturn '\\n' * {n}"), "trg": format!("Count the items\nfor {n}.")})
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?} in {text}"))).collect()
}

#[test]
fn a_source_of_several_lines_is_one_text() {
    let place = Workplace::new();
    place.write("code.jsonl", rows(80, function));
    let trained = train(&place, PAIRS, "code.jsonl", "runs/code");
    let Some([stdout, stderr]) = ran(&place, next(&trained)) else { return };
    let found = objects(&stdout);
    let source = found[0]["source"].as_str().expect("a source");
    assert!(found.len() == 1 && source.starts_with("def it's_") && source.contains("\n\treturn '\\n'"), "{stdout}");
    assert!(
        found[0]["translation"].is_string() && !stderr.contains("note: the model has learned"),
        "{stdout} {stderr}"
    );
    let samples = between(&trained.stdout, "  def", "Next:");
    assert!(samples.lines().all(|line| line.starts_with("  ")), "a sample has its lines joined: {samples}");

    let rows = format!("{}\n\nplain\n", json!({"source": "def f():\n  pass", "id": 7}));
    let mixed = place.run_with_input(&["translate", "runs/code", "--device", "cpu"], &rows).ok();
    let lines: Vec<&str> = mixed.stdout.lines().collect();
    assert!(lines.len() == 3 && lines[1].is_empty() && !lines[2].starts_with('{'), "{mixed:#?}");
    assert_eq!(objects(lines[0])[0]["source"], "def f():\n  pass");
    let best = place.run_with_input(&["translate", "runs/code", "--device", "cpu", "--n-best", "2"], &rows).ok();
    assert!(objects(best.stdout.lines().next().expect("a line"))[0]["translations"].is_array(), "{best:#?}");

    let plain = place.run_with_input(&["translate", "runs/code", "--device", "cpu"], "def f():\n  pass\n").ok();
    assert_eq!(plain.stdout.lines().count(), 2);
    let note = between(&plain.stderr, "note: the model has learned", "\n");
    assert!(note.contains("each line of stdin is read by itself"), "{note}");
    // The example of the note is a text of its own.
    let example = &note[note.find('{').expect("an example")..];
    let shown = place.run_with_input(&["translate", "runs/code", "--device", "cpu"], format!("{example}\n")).ok();
    assert_eq!(objects(&shown.stdout)[0]["source"], "one line\nand another");
    assert!(!shown.stderr.contains("the model has learned"), "{shown:#?}");
    // Rows of the training data come with the command that passes them whole.
    let refused =
        place.run_with_input(&["translate", "runs/code"], format!("{}\n", function(3))).refused(2, &["field \"src\""]);
    let binary = env!("CARGO_BIN_EXE_kiln");
    let command = between(&refused.stderr, "python3 -c", "\n").replace("| kiln ", &format!("| {binary} "));
    let Some([stdout, _]) = ran(&place, &format!("head -3 code.jsonl | {command}")) else { return };
    assert!(objects(&stdout).len() == 3 && objects(&stdout)[1]["source"] == function(1)["src"], "{stdout}");
}

#[test]
fn a_source_of_one_line_is_passed_as_it_is() {
    let place = Workplace::new();
    place.write("a.jsonl", rows(80, |n| json!({"src": format!("a line {n}"), "trg": format!("una riga {n}")})));
    let trained = train(&place, PAIRS, "a.jsonl", "runs/a");
    assert!(next(&trained).starts_with("echo 'a line "), "{trained:#?}");
    let Some([stdout, stderr]) = ran(&place, next(&trained)) else { return };
    assert!(
        stdout.lines().count() == 1 && !stdout.starts_with('{') && !stderr.contains("learned from"),
        "{stdout} {stderr}"
    );
}

#[test]
fn a_question_of_several_lines_is_one_message() {
    let place = Workplace::new();
    let row = |n: usize| {
        let context = format!("The brewery of {n} stands at the river, as it always has. ").repeat(3);
        json!({"prompt": format!("{context}\n\nWhere's brewery {n}?"), "completion": format!("at the river {n}")})
    };
    place.write("squad.jsonl", rows(80, row));
    let chat = ["--task", "lm", "--set", "data.text.format=chat"];
    let trained = train(&place, &chat, "squad.jsonl", "runs/squad");
    let Some([stdout, stderr]) = ran(&place, next(&trained)) else { return };
    let messages = objects(&stdout)[0]["messages"].as_array().expect("messages").clone();
    let question = messages[0]["content"].as_str().expect("a question");
    assert!(messages.len() == 2 && question.contains("\n\nWhere's brewery"), "{stdout}");
    assert!(!stderr.contains("learned from"), "{stderr}");

    let metrics = place.read("runs/squad/metrics.jsonl");
    let samples = metrics.lines().filter(|line| line.contains("\"kind\":\"sample\""));
    let samples: Vec<Value> = samples.map(|line| serde_json::from_str(line).expect(line)).collect();
    assert!(!samples.is_empty() && samples.iter().all(|sample| !sample["output"].to_string().contains("<|im_end|>")));
    let shown = trained.stderr.lines().find(|line| line.contains("-> ")).unwrap_or_else(|| panic!("{trained:#?}"));
    assert!(shown.contains(" ... ") && shown.contains("?"), "the answer stands behind the question: {shown}");

    let plain = place.run_with_input(&["chat", "runs/squad", "--device", "cpu"], "Where?\n").ok();
    let note = between(&plain.stderr, "note: the model has learned", "\n");
    let example = &note[note.find('{').expect("an example")..];
    let shown = place.run_with_input(&["chat", "runs/squad", "--device", "cpu"], format!("{example}\n")).ok();
    assert_eq!(objects(&shown.stdout)[0]["messages"][0]["content"], "one line\nand another");
}

#[test]
fn a_text_of_several_lines_has_one_class() {
    let place = Workplace::new();
    let song = |n: usize| {
        let (word, label) = [("sea", "a"), ("sun", "b")][n % 2];
        json!({"text": format!("la la\nla {word}\n{n}"), "label": label})
    };
    place.write("songs.jsonl", rows(80, song));
    train(&place, &["--task", "classification"], "songs.jsonl", "runs/songs");
    let plain = place.run_with_input(&["classify", "runs/songs", "--device", "cpu"], "la la\nla sea\n").ok();
    let note = between(&plain.stderr, "note: the model has learned", "\n");
    let example = &note[note.find('{').expect("an example")..];
    let rows =
        place.run_with_input(&["classify", "runs/songs", "--device", "cpu", "--jsonl"], format!("{example}\n")).ok();
    assert_eq!(objects(&rows.stdout)[0]["text"], "one line\nand another");
    let one = place.run(&["classify", "runs/songs", "--device", "cpu", "la la\nla sea"]).ok();
    assert!(!one.stderr.contains("learned from"), "{one:#?}");
}
