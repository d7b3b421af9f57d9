//! Stops of somebody who comes from other trainers: each message names what is there, and what mends it.

use crate::kiln::Workplace;

/// Training that stops before the first step, of this task.
fn dry<'a>(task: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["train", "--device", "cpu", "--dry-run", "--task", task][..], more].concat()
}

/// Sets each key.
fn sets<'a>(keys: &[&'a str]) -> Vec<&'a str> {
    keys.iter().flat_map(|key| ["--set", *key]).collect()
}

fn documents(n: usize, name: &str) -> String {
    (0..n).map(|i| format!("{name}: a text of some words, number {i}\n\n")).collect()
}

/// Rows of a table of tickets with names of its own.
fn tickets(n: usize) -> String {
    let row = |i: usize| format!("{i},{},the message has number {i}\n", ["Billing", "Shipping"][i % 2]);
    "ticket_id,Queue,Body\n".to_owned() + &(0..n).map(row).collect::<String>()
}

const TEXT_KEYS: [&str; 4] =
    ["train.steps=12", "tokenizer.vocab_size=300", "data.text.seq_len=32", "model.max_positions=32"];

#[test]
fn validation_text_in_the_training_folder_is_warned_about() {
    let place = Workplace::new();
    place.write("texts/a.txt", documents(60, "a"));
    place.write("texts/more/b.txt", documents(60, "b"));
    place.write("dev/c.txt", documents(60, "c"));
    let warned = |train: &str, valid: &str| {
        let keys = [format!("data.train={train}"), format!("data.valid={valid}")];
        let keys = sets(&[keys[0].as_str(), &keys[1], "tokenizer.vocab_size=300"]);
        let ran = place.run(&dry("lm", &keys)).ok();
        let text = ran.stdout + &ran.stderr;
        text.lines().find(|line| line.contains("in data.train and in data.valid")).unwrap_or_default().to_owned()
    };

    for (train, valid, named) in [
        ("texts", "texts/a.txt", "warning: texts/a.txt is in data.train"),
        ("texts", "texts/../texts/more/b.txt", "more/b.txt is in data.train"),
        ("texts/*.txt", "texts", "warning: texts/a.txt is in data.train"),
        ("texts", "texts/more", "warning: texts/more/b.txt is in data.train"),
        ("texts", "texts", "warning: texts is in data.train"),
        ("[\"texts/a.txt\", \"texts/more/b.txt\"]", "texts", "warning: texts/a.txt and another file are in data.train"),
    ] {
        let warning = warned(train, valid);
        assert!(warning.contains(named) && warning.ends_with("let data.split take some"), "{train} {valid}: {warning}");
    }
    assert_eq!(warned("texts", "dev"), "");
    assert_eq!(warned("texts/a.txt", "texts/more"), "");
}

#[test]
fn two_texts_of_any_names_are_questions_and_answers_for_a_language_model() {
    let place = Workplace::new();
    place.write("text.txt", documents(60, "a"));
    let keys = ["train.steps=12", "tokenizer.vocab_size=300", "data.text.seq_len=128", "model.max_positions=128"];
    place.train(&[&["--task", "lm", "--run", "runs/a", "text.txt"][..], &sets(&keys)].concat()).ok();
    let rows: String = (0..60).map(|i| format!("{{\"Frage\": \"text {i}\", \"Antwort\": \"number {i}\"}}\n")).collect();
    place.write("de.jsonl", rows);

    let tune = ["train", "--device", "cpu", "--dry-run", "--from", "runs/a", "--set", "data.train=de.jsonl"];
    let field = "--set data.text.field=Frage,Antwort";
    let asked = place.run(&[&tune[..], &sets(&["data.text.format=chat"])].concat());
    let asked = asked.refused(3, &["its rows are questions and answers", field]);
    assert!(!asked.stderr.contains("translation"), "{asked:#?}");
    place.run(&tune).refused(3, &[&format!("--set data.text.format=chat {field}")]);
    let keys = sets(&["data.text.format=chat", "data.text.field=Frage,Antwort", "data.text.seq_len=128"]);
    place.run(&[&tune[..], &keys].concat()).ok();
}

#[test]
fn one_document_is_not_divided_by_another_number() {
    let place = Workplace::new();
    place.write("input.txt", documents(200, "ROMEO").replace("\n\n", "\n"));
    for split in ["data.split=0.1", "data.split=1", "data.split=2"] {
        let ran = place.run(&dry("lm", &[&["input.txt"][..], &sets(&[split])].concat()));
        let ran = ran.refused(3, &["blank lines separate documents", "--set data.text.format=lines", "data.valid"]);
        assert!(!ran.stderr.contains("another number"), "{ran:#?}");
    }
    let lines = sets(&["data.split=0.1", "data.text.format=lines", "tokenizer.vocab_size=300"]);
    place.run(&dry("lm", &[&["input.txt"][..], &lines].concat())).ok();

    place.write("one.jsonl", "{\"src\": \"a b\", \"trg\": \"c d\"}\n");
    let ran = place.run(&dry("translation", &[&["one.jsonl"][..], &sets(&["data.split=0.1"])].concat()));
    ran.refused(3, &["cannot divide one document or row", "add rows"]);
}

#[test]
fn two_texts_with_a_class_are_read_by_a_classifier() {
    let place = Workplace::new();
    let row = |i: usize| format!("\"sentence1\": \"first {i}\", \"sentence2\": \"second {i}\", \"label\": {}", i % 2);
    place.write("pairs.jsonl", (0..60).map(|i| format!("{{{}}}\n", row(i))).collect::<String>());
    let rows: String = (0..60).map(|i| format!("first {i}\tsecond {i}\t{}\n", i % 2)).collect();
    place.write("pairs.tsv", format!("sentence1\tsentence2\tlabel\n{rows}"));
    let keys = ["data.labels.text_field=sentence1", "data.labels.pair_field=sentence2"];
    for file in ["pairs.jsonl", "pairs.tsv"] {
        let refused = place.run(&dry("classification", &[file])).refused(3, &keys);
        assert!(!refused.stderr.contains("translation"), "{refused:#?}");
        let keys = sets(&[keys[0], keys[1], "tokenizer.vocab_size=300"]);
        place.run(&dry("classification", &[&[file][..], &keys].concat())).ok();
    }
}

#[test]
fn a_list_without_a_value_is_empty() {
    let place = Workplace::new();
    place.write("a.txt", documents(60, "a"));
    place.write("b.txt", documents(60, "b"));
    place.write("k", "");
    let keys = [&["data.valid=b.txt"][..], &TEXT_KEYS].concat();
    place.train(&[&["--task", "lm", "--run", "runs/a", "a.txt"][..], &sets(&keys)].concat()).ok();

    let tune = ["train", "--device", "cpu", "--dry-run", "--from", "runs/a"];
    let ran = place.run(&[&tune[..], &sets(&["data.train=b.txt", "data.valid=", "data.split=0.2"])].concat()).ok();
    assert!((ran.stdout + &ran.stderr).contains("data.split: "));
    let named = place.run(&[&tune[..], &sets(&["data.train=b.txt", "data.valid=b.txt"])].concat()).ok();
    assert!(!named.stderr.contains("names another one"), "the text was named: {named:#?}");
    for (key, way) in [("data.train", "([] takes the built-in data)"), ("tokenizer.path", "leave the key out")] {
        let set = format!("{key}=");
        let ran = place.run(&dry("lm", &sets(&[&set]))).refused(2, &[&format!("{key} is empty: name a file"), way]);
        assert!(!ran.stderr.contains("did you mean"), "{ran:#?}");
    }
}

#[test]
fn tables_and_files_are_not_classified_as_texts() {
    let place = Workplace::new();
    place.write("tickets.csv", tickets(80));
    let flags = "--set data.labels.text_field=Body --set data.labels.label_field=Queue\n";
    let refused = place.run(&dry("classification", &["tickets.csv"])).refused(3, &[flags]);
    assert!(!refused.stderr.contains("above it"), "its first row has names: {refused:#?}");
    let fields = ["data.labels.text_field=Body", "data.labels.label_field=Queue"];
    let keys = [&fields[..], &["train.steps=6", "tokenizer.vocab_size=300"]].concat();
    place.train(&[&["--task", "classification", "--run", "runs/a", "tickets.csv"][..], &sets(&keys)].concat()).ok();

    let classify = ["classify", "runs/a", "--device", "cpu"];
    let name = place.run(&[&classify[..], &["tickets.csv"]].concat());
    name.refused(2, &["tickets.csv is a file", "csv.DictReader", "< tickets.csv | kiln classify runs/a --jsonl"]);
    place.write("texts.txt", "one\ntwo\n");
    let name = place.run(&[&classify[..], &["texts.txt"]].concat());
    name.refused(2, &["texts.txt is a file: kiln classify runs/a < texts.txt", "echo 'texts.txt'"]);
    place.run_with_input(&classify, place.read("texts.txt")).ok();

    place.run_with_input(&classify, tickets(9)).refused(2, &["a table with the column \"Body\"", "--jsonl"]);
    let rows = "{\"Body\": \"the message\"}\n";
    place.run_with_input(&classify, rows).refused(2, &["kiln classify runs/a --jsonl reads them"]);
    place.run_with_input(&[&classify[..], &["--jsonl"]].concat(), rows).ok();
    let other = place.run_with_input(&classify, tickets(9).replace("Body", "text")).ok();
    assert!(other.stderr.contains("note: stdin seems to be a table"), "{other:#?}");
}

#[test]
fn a_run_elsewhere_and_other_small_stops_have_a_way_out() {
    let place = Workplace::new();
    place.write("a.txt", documents(60, "a"));
    place.write("b.txt", documents(60, "b"));
    let keys = [&["data.valid=b.txt"][..], &TEXT_KEYS].concat();
    place.train(&[&["--task", "lm", "--run", "runs/a", "a.txt"][..], &sets(&keys)].concat()).ok();
    place.run(&["train", "--resume"]).refused(2, &["no run to resume here", "(the newest run there is runs/a)"]);
    place.run(&["generate", "runs/a", "--device", "cpu", "--prompt", ""]).refused(2, &["begins a text from nothing"]);
    place
        .run(&["generate", "runs/a", "--set", "generate.max_new_tokens=2"])
        .refused(2, &["kiln generate and kiln chat have --max-new-tokens 2"]);
    std::fs::remove_file(place.path("b.txt")).expect("there");
    place
        .run(&["evaluate", "runs/a", "--device", "cpu"])
        .refused(2, &["b.txt: the validation text of this run is not there", "--data"]);

    place.write("ax.yaml", "base: x\ndatasets:\n  - path: a.jsonl\n    type: chat\n");
    let ran = place.run(&["train", "--config", "ax.yaml", "--dry-run"]).refused(2, &["ax.yaml:1: this is YAML"]);
    assert_eq!(ran.stderr.matches("TOML").count(), 1, "{ran:#?}");
    place.write("model/model.safetensors", "");
    place.run(&["import", "model/model.safetensors"]).refused(2, &["a file; name the folder", "config.json: model"]);
}
