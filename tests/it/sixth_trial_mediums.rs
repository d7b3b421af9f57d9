//! Stops of the sixth trial by newcomers: averages, classes and tags, runs in place of texts, and hints.

use crate::fifth_trial::with_set;
use crate::kiln::Workplace;

/// A translator of numbers with validation rows of `data.split`.
fn with_split(place: &Workplace) {
    let pairs: String = (0..300).map(|n| format!("word{n} of {n}\tparola{n} di {n}\n")).collect();
    place.write("train.tsv", pairs);
    let keys = ["data.train=train.tsv", "data.split=0.1", "train.steps=8", "train.save_every=4", "train.keep_last=2"];
    place.run(&with_set(&["train", "--run", "runs/a", "--device", "cpu", "--preset", "tiny"], &keys)).ok();
}

#[test]
fn an_averaged_run_is_scored_on_the_split_of_its_run() {
    let place = Workplace::new();
    with_split(&place);
    place.run(&["average", "runs/a", "--last", "2"]).ok();
    let pairs = |run: &str| {
        let ran = place.run(&["evaluate", run, "--device", "cpu"]).ok();
        ran.stderr.split(" on ").nth(1).expect("a number of pairs").trim().to_owned()
    };
    assert_eq!(pairs("runs/a-average"), pairs("runs/a"));
    place.run(&["check", "runs/a-average"]).ok();

    // Without the rows there is a note.
    std::fs::remove_file(place.path("runs/a/cache/split.valid.jsonl")).expect("a file");
    let ran = place.run(&["average", "runs/a", "--last", "1", "--out", "runs/b"]).ok();
    assert!(ran.stderr.contains("kiln evaluate needs --data"), "{}", ran.stderr);
}

#[test]
fn a_run_in_place_of_a_text_is_never_read_as_one() {
    let place = Workplace::new();
    with_split(&place);
    let ran = place.run(&["data", "stats", "runs/a"]).refused(2, &["this command takes a run with --run runs/a"]);
    assert!(!ran.stderr.contains("data.train="), "{}", ran.stderr);
    for command in [
        &["data", "stats", "--set", "data.train=runs/a"][..],
        &["train", "--set", "data.train=runs/a", "--dry-run", "--device", "cpu"],
        &["train", "--set", "data.train=train.tsv", "--set", "data.valid=runs/a", "--dry-run", "--device", "cpu"],
        &["prepare", "runs/a"],
        &["tokenizer", "runs/a", "--out", "tokenizer"],
        &["evaluate", "runs/a", "--data", "runs/a", "--device", "cpu"],
    ] {
        let ran = place.run(command);
        assert!(ran.code != 0 && ran.stderr.contains("this is a run and not text"), "{command:?}: {}", ran.stderr);
    }
}

#[test]
fn steps_for_rows_with_labels_count_no_other_fields() {
    let place = Workplace::new();
    let other = "\"about\": \"many other words of a field that no model reads, again and again\"";
    let row = |n: usize| format!("{{\"text\": \"text {} of {n}\", \"label\": \"c{}\", {other}}}\n", n * 7, n % 3);
    place.write("rows.jsonl", (0..400).map(row).collect::<String>());
    place.write("short.txt", "One document that is short.\n\nAnother one of them.\n");
    for (file, task) in [("rows.jsonl", "classification"), ("short.txt", "lm")] {
        let ran = place.run(&["train", file, "--task", task, "--dry-run", "--device", "cpu"]).ok();
        let shown = format!("{}{}", ran.stdout, ran.stderr);
        let epochs = shown.split(" steps are ").nth(1).and_then(|rest| rest.split(" epochs").next());
        let epochs: f64 = epochs.expect("a number of epochs").replace(',', "").parse().expect("a number");
        assert!(shown.contains("about 100 epochs at most") && epochs <= 100.0, "{shown}");
    }
}

#[test]
fn a_text_that_is_empty_comes_with_a_note() {
    let place = Workplace::new();
    let text: String = (0..200).map(|n| format!("line {n} of the text\n\n")).collect();
    place.write("train.txt", text);
    let keys = ["data.train=train.txt", "train.steps=4", "optim.warmup_steps=1"];
    place.run(&with_set(&["train", "--run", "runs/a", "--device", "cpu", "--preset", "gpt2-tiny"], &keys)).ok();
    let generate = ["generate", "runs/a", "--device", "cpu", "--greedy", "--max-new-tokens", "8", "--prompt", "line"];
    let text = place.run(&generate).ok().stdout;
    let first: String = text.trim_end_matches('\n').chars().take(1).collect();
    assert!(!first.is_empty(), "{text:?}");
    let ran = place.run(&[&generate[..], &["--stop", &first]].concat()).ok();
    assert!(ran.stderr.contains("note: the text is empty: it began with a text that --stop"), "{}", ran.stderr);
    let ran = place.run(&[&generate[..], &["--stop", &first, "--prompt", "line"]].concat()).ok();
    assert!(ran.stderr.contains("note: 2 of 2 texts are empty"), "{}", ran.stderr);
}
