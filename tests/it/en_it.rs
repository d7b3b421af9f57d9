//! Real text, English -> Italian, in CI time: prepare, train, resume, evaluate, translate.
//!
//! The rows come from `scripts/corpora/parallel.sh it DIR`; `KILN_EN_IT` names DIR. Without it the test says so and stops.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::Value;

use crate::kiln::{Workplace, copy_folder};

/// The first `n` rows whose texts are short.
fn slice(file: &Path, n: usize) -> String {
    let rows =
        BufReader::new(fs::File::open(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))).lines();
    let short = rows.map(|row| row.expect("UTF-8")).filter(|row| row.len() < 160);
    short.take(n).map(|row| row + "\n").collect()
}

#[test]
fn a_slice_of_real_text_goes_all_the_way() {
    let Some(corpus) = std::env::var_os("KILN_EN_IT") else {
        eprintln!("skipped: KILN_EN_IT is not set; make the corpus with scripts/corpora/parallel.sh it DIR");
        return;
    };
    let corpus = Path::new(&corpus);
    let place = Workplace::new();
    place.write("train.jsonl", slice(&corpus.join("en-it.train.jsonl"), 2000));
    place.write("dev.jsonl", slice(&corpus.join("en-it.dev.jsonl"), 30));
    place.write(
        "slice.toml",
        "preset = \"tiny\"
[data]
train = [\"train.jsonl\"]
valid = [\"dev.jsonl\"]
[tokenizer]
vocab_size = 1000
[loader]
batch_tokens = 512
[model]
d_model = 64
[optim]
warmup_steps = 20
[train]
steps = 60
save_every = 30
validate_every = 30
",
    );
    let prepared = place.run(&["prepare", "--config", "slice.toml"]).ok();
    assert!(prepared.stderr.contains("2000 of 2000 rows kept"), "{prepared:#?}");
    let trained = place.run(&["train", "--config", "slice.toml", "--device", "cpu"]).ok();
    assert!(!trained.stderr.contains("train.tokens: built"), "prepared before: {trained:#?}");

    copy_folder(&place.path("runs/slice"), &place.path("runs/again"));
    fs::remove_dir_all(place.path("runs/again/checkpoints/step-00000060")).expect("there");
    place.run(&["train", "--run", "runs/again", "--resume", "--device", "cpu"]).ok();
    let weights =
        |run: &str| fs::read(place.path(run).join("checkpoints/step-00000060/model.safetensors")).expect("saved");
    assert_eq!(weights("runs/slice"), weights("runs/again"), "resumed bit for bit");

    let scores = place.run(&["evaluate", "runs/slice", "--json", "--device", "cpu"]).ok();
    let scores: Value = serde_json::from_str(&scores.stdout).expect("JSON");
    let nll = scores["nll"].as_f64().expect("a number");
    // A uniform guess over 1,000 entries costs 6.9 nats.
    assert!(nll < 6.2, "60 steps have taught it something: {nll}");
    let sources: String = slice(&corpus.join("en-it.dev.jsonl"), 5)
        .lines()
        .map(|row| serde_json::from_str::<Value>(row).expect("JSON")["src"].as_str().expect("text").to_owned() + "\n")
        .collect();
    let translated = place.run_with_input(&["translate", "runs/slice", "--device", "cpu", "--beam", "2"], sources).ok();
    assert_eq!(translated.stdout.lines().count(), 5, "{translated:#?}");
}
