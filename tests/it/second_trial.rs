//! What newcomers with other data stumbled over: folders of one name, cut translations, rows of files that nobody wrote.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::kiln::{Workplace, copy_folder};

/// Copies a model folder of the fixtures, and changes its last weight if asked to.
fn model_folder(place: &Workplace, name: &str, is_changed: bool) {
    let dir = place.path(name);
    fs::create_dir_all(&dir).expect("writable");
    copy_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("model/fixtures/hf/llama"), &dir);
    if is_changed {
        let weights = dir.join("model.safetensors");
        let mut bytes = fs::read(&weights).expect("a fixture");
        *bytes.last_mut().expect("bytes") ^= 1;
        fs::write(&weights, bytes).expect("writable");
    }
}

#[test]
fn a_run_stands_for_the_model_folder_that_it_was_imported_from_and_no_other() {
    let place = Workplace::new();
    model_folder(&place, "a/llama", false);
    model_folder(&place, "same/llama", false);
    model_folder(&place, "other/llama", true);
    place.write("text.txt", "a b c d e f g\n\n".repeat(40));
    place.run(&["import", "a/llama"]).ok();

    let from = |folder: &str, run: &str| {
        place.run(&[
            "train",
            "--device",
            "cpu",
            "--from",
            folder,
            "--run",
            run,
            "--set",
            "data.train=text.txt",
            "--set",
            "train.steps=1",
            "--set",
            "data.text.seq_len=16",
        ])
    };
    for (folder, run) in [("a/llama", "runs/one"), ("same/llama", "runs/two")] {
        let ran = from(folder, run).ok();
        assert!(ran.stderr.contains("which was imported from it"), "{ran:#?}");
    }
    from("other/llama", "runs/three")
        .refused(2, &["was not made of its files", "kiln import other/llama --out runs/NAME"]);

    // Nor does a run with the folder's name that nobody imported.
    fs::rename(place.path("runs/llama"), place.path("runs/kept")).expect("a run");
    fs::rename(place.path("runs/one"), place.path("runs/llama")).expect("a run");
    from("a/llama", "runs/four").refused(2, &["was not made of its files"]);
}

#[test]
fn an_exported_translator_says_how_long_a_translation_may_be() {
    let place = Workplace::new();
    let pairs = (0..80).fold(String::new(), |mut text, i| {
        writeln!(text, "number {i} is here\til numero {i}").expect("text");
        text
    });
    place.write("pairs.tsv", pairs);
    place.train(&["--run", "runs/a", "--set", "train.steps=20", "--set", "tokenizer.vocab_size=200", "pairs.tsv"]).ok();
    place.run(&["export", "runs/a", "few.onnx"]).refused(2, &["writes a model folder", ".gguf"]);
    place.run(&["export", "runs/a", "out"]).ok();
    let read = |name: &str| -> Value { serde_json::from_str(&place.read(name)).expect("JSON") };
    let (generation, config) = (read("out/generation_config.json"), read("out/config.json"));
    assert_eq!(generation["max_length"], config["max_position_embeddings"], "{generation}");
    assert!(generation["max_length"].as_u64().is_some_and(|length| length > 20), "{generation}");

    // All lines that are too long are named at once.
    let long = "here ".repeat(2000);
    let lines = format!("number 1\n{long}\nnumber 2\n{long}\n{long}\n");
    let translate = ["translate", "runs/a", "--device", "cpu"];
    place.run_with_input(&translate, lines).refused(3, &["line 2 has", "too long, too: 4, 5"]);
}

#[test]
fn bad_rows_are_named_where_they_are_when_a_split_is_taken_off() {
    let place = Workplace::new();
    let mut rows = String::from("message,severity\n");
    for i in 0..300 {
        writeln!(rows, "row {i} of the log,{}", if i % 2 == 0 { "info" } else { "error" }).expect("text");
    }
    rows.push_str(",info\nno label,\n");
    place.write("logs.csv", rows);
    let train = |bad: &str, run: &str| {
        let keys = [
            "data.labels.text_field=message",
            "data.labels.label_field=severity",
            "data.split=0.1",
            "train.steps=2",
            "tokenizer.vocab_size=300",
            bad,
        ];
        let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", *key]).collect();
        place.run(
            &[&["train", "--device", "cpu", "--task", "classification", "--run", run, "logs.csv"][..], &sets].concat(),
        )
    };
    train("data.labels.max_bad_rows=0.0", "runs/a").refused(3, &["logs.csv:302", "logs.csv:303"]);

    let ran = train("data.labels.max_bad_rows=0.1", "runs/b").ok();
    assert!(ran.stderr.contains("logs.csv:302") && !ran.stderr.contains("split.train.jsonl:"), "{ran:#?}");
    assert!(!place.read("runs/b/cache/split.train.jsonl").contains("no label"));
}
