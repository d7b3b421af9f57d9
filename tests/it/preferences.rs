//! Training on preferences: the way of docs/preferences.md at small size, with the losses of `trl`'s trainer.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::kiln::{Ran, Workplace};

fn fixture() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("model/fixtures/preferences");
    path.to_str().expect("plain names").to_owned()
}

/// A place with the model of the fixture, the same with its adapter, and the pairs.
fn place() -> Workplace {
    let place = Workplace::new();
    place.run(&["import", &fixture(), "--out", "runs/base"]).ok();
    place.run(&["import", &fixture(), "--adapter", &fixture(), "--out", "runs/new"]).ok();
    fs::copy(Path::new(&fixture()).join("pairs.jsonl"), place.path("pairs.jsonl")).expect("a copy");
    place
}

/// `kiln train` on the pairs, as the fixture does it.
fn prefer(place: &Workplace, from: &str, run: &str, more: &[&str]) -> Ran {
    prefer_on(&["--device", "cpu"], place, from, run, more)
}

fn prefer_on(devices: &[&str], place: &Workplace, from: &str, run: &str, more: &[&str]) -> Ran {
    let settings = [
        "data.train=pairs.jsonl",
        "data.valid=pairs.jsonl",
        "data.text.format=preferences",
        "loader.batch_tokens=1024",
        "loader.bucket_multiple=36",
        "loader.num_workers=1",
        "optim.lr=0.02",
        "optim.schedule=constant",
        "optim.warmup_steps=0",
        "optim.weight_decay=0",
        "optim.beta2=0.999",
        "optim.eps=1e-8",
        "optim.max_grad_norm=1",
        "train.steps=5",
        "train.label_smoothing=0",
        "train.log_every=1",
        "train.save_every=2",
    ];

    let mut all = [&["train", "--run", run], devices].concat();
    all.extend(if from.is_empty() { vec!["--resume"] } else { vec!["--from", from] });
    all.extend(settings.iter().filter(|_| !from.is_empty()).flat_map(|set| ["--set", *set]));
    all.extend(more);
    place.run(&all)
}

fn records(place: &Workplace, run: &str, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(place.path(run).join("metrics.jsonl")).expect("metrics");
    let records = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    records.filter(|record| record["kind"] == kind).collect()
}

fn loss(record: &Value) -> f64 {
    record["loss"].as_f64().expect("a loss")
}

/// Compares the losses of a run with those in `file`, and returns the run's last validation: on the same pairs, after the last
/// step.
fn compare_with_trl(place: &Workplace, run: &str, file: &str) -> Value {
    let expected: Value =
        serde_json::from_slice(&fs::read(Path::new(&fixture()).join(file)).expect("there")).expect("JSON");
    let steps = records(place, run, "step");
    let wanted = expected["steps"].as_array().expect("steps");
    assert_eq!(steps.len(), wanted.len(), "{run}");
    for (found, wanted) in steps.iter().map(loss).zip(wanted.iter().map(loss)) {
        assert!((found - wanted).abs() < 2e-4, "{found} instead of {wanted}");
    }
    let last = records(place, run, "validation").pop().expect("a validation");
    assert!((loss(&last) - expected["loss_after"].as_f64().expect("a loss")).abs() < 2e-4, "{last}");
    last
}

#[test]
fn five_steps_have_the_losses_of_trl() {
    let place = place();
    let trained = prefer(&place, "runs/new", "runs/tuned", &[]).ok();
    let last = compare_with_trl(&place, "runs/tuned", "expected.json");
    assert_eq!((last["reward_accuracy"].as_f64(), last["target_tokens"].as_u64()), (Some(1.0), Some(8)), "{last}");
    assert!(last["reward_margin"].as_f64().expect("a margin") > 0.5, "{last}");
    assert!(trained.stderr.contains("reward accuracy 100.00% margin"), "{trained:#?}");
    let scores = place.run(&["evaluate", "runs/tuned", "--device", "cpu", "--json"]).ok();
    let scores: Value = serde_json::from_str(&scores.stdout).expect("JSON");
    assert_eq!(
        (scores["reward_accuracy"].as_f64(), scores["target_tokens"].as_u64()),
        (Some(1.0), Some(8)),
        "{scores}"
    );
    place.run_with_input(&["chat", "runs/tuned", "--device", "cpu", "--greedy"], "1 is\n").ok();
}

#[test]
fn all_weights_are_trained_and_compared_with_the_model_that_the_run_began_with() {
    let place = place();
    let rate = ["--set", "optim.lr=0.002", "--set", "train.keep_last=1"];
    prefer(&place, "runs/base", "runs/whole", &rate).ok();
    let last = compare_with_trl(&place, "runs/whole", "expected_whole.json");
    assert_eq!(last["reward_accuracy"].as_f64(), Some(1.0), "{last}");

    // Resumed, the reference is still the model before the first step.
    prefer(&place, "runs/base", "runs/parts", &[&rate[..], &["--set", "train.steps=2"]].concat()).ok();
    prefer(&place, "", "runs/parts", &["--set", "train.steps=5"]).ok();
    let losses = |run: &str| records(&place, run, "step").iter().map(loss).map(f64::to_bits).collect::<Vec<_>>();
    assert_eq!(losses("runs/parts"), losses("runs/whole"));
    let kept = fs::read_dir(place.path("runs/parts/checkpoints")).expect("a folder").flatten();
    let kept: Vec<_> = kept.map(|entry| entry.file_name()).filter(|name| name != "last" && name != "best").collect();
    assert!(kept.len() <= 3 && kept.iter().any(|name| name == "step-00000000"), "{kept:?}");
    let scores = place.run(&["evaluate", "runs/parts", "--device", "cpu", "--json"]).ok();
    let scores: Value = serde_json::from_str(&scores.stdout).expect("JSON");
    assert!((loss(&scores) - loss(&last)).abs() < 1e-6, "{scores} {last}");

    // Two processes.
    let halves = ["--set", "loader.batch_tokens=512"];
    let one = [&rate[..], &halves, &["--set", "train.grad_accum_steps=2"]].concat();
    prefer(&place, "runs/base", "runs/one", &one).ok();
    let two = [&rate[..], &halves].concat();
    prefer_on(&["--devices", "cpu,cpu"], &place, "runs/base", "runs/two", &two).ok();
    assert_eq!(losses("runs/two"), losses("runs/one"));

    // Without the first checkpoint nothing can be compared.
    fs::remove_dir_all(place.path("runs/parts/checkpoints/step-00000000")).expect("there");
    let wanted = ["answers are compared with the model that the run began with", "step-00000000"];
    prefer(&place, "", "runs/parts", &["--set", "train.steps=6"]).refused(2, &wanted);
    place.run(&["evaluate", "runs/parts", "--device", "cpu"]).refused(2, &wanted);
}

#[test]
fn a_run_of_preferences_is_not_compared_with_one_of_conversations() {
    let place = place();
    let two = ["--set", "train.steps=2"];
    prefer(&place, "runs/new", "runs/pairs", &two).ok();
    place.write("rows.jsonl", "{\"prompt\": \"1 is\", \"completion\": \"one\"}\n".repeat(20));
    let rows = ["--set", "data.text.format=chat", "--set", "data.train=rows.jsonl", "--set", "optim.warmup_steps=0"];
    let tune = ["train", "--device", "cpu", "--from", "runs/base", "--run", "runs/rows"];
    place.run(&[&tune[..], &two, &rows].concat()).ok();
    let wanted = ["runs/pairs learns preferences and runs/rows does not", "compare runs of one data.text.format"];
    place.run(&["compare", "runs/rows", "runs/pairs"]).refused(2, &wanted);
    prefer(&place, "runs/new", "runs/again", &two).ok();
    place.run(&["compare", "runs/pairs", "runs/again"]).ok();
}

#[test]
fn a_resumed_run_and_two_processes_go_the_same_way() {
    let place = place();
    prefer(&place, "runs/new", "runs/whole", &[]).ok();
    let losses = |run: &str| {
        let steps = records(&place, run, "step");
        steps.iter().map(|step| step["loss"].as_f64().expect("a loss").to_bits()).collect::<Vec<_>>()
    };
    let whole = losses("runs/whole");

    prefer(&place, "runs/new", "runs/parts", &["--set", "train.steps=2"]).ok();
    prefer(&place, "", "runs/parts", &["--set", "train.steps=5"]).ok();
    assert_eq!(losses("runs/parts"), whole);

    // Two micro-batches of half as many pairs, in one process and in two.
    let halves = ["--set", "loader.batch_tokens=512"];
    prefer(&place, "runs/new", "runs/one", &[&halves[..], &["--set", "train.grad_accum_steps=2"]].concat()).ok();
    prefer_on(&["--devices", "cpu,cpu"], &place, "runs/new", "runs/two", &halves).ok();
    assert_eq!(losses("runs/two"), losses("runs/one"));
}

#[test]
fn what_adapters_have_learned_is_the_reference_of_the_next_run() {
    let place = place();
    prefer(&place, "runs/new", "runs/tuned", &[]).ok();
    let twice = prefer(&place, "runs/tuned", "runs/twice", &[]).ok();
    assert!(
        twice.stderr.contains("its adapters are merged into the model that answers are compared with"),
        "{twice:#?}"
    );
    let first = records(&place, "runs/twice", "step")[0]["loss"].as_f64().expect("a loss");
    assert!((first - 2_f64.ln()).abs() < 1e-6, "{first}: the model begins as its own reference");
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let place = place();
    // Without a model to start from there is no reference.
    let scratch = ["--preset", "gpt2-tiny", "--set", "data.text.format=preferences", "--set", "data.train=pairs.jsonl"];
    place
        .run(&[&["train", "--device", "cpu", "--run", "runs/none"][..], &scratch].concat())
        .refused(2, &["trains a model that exists, but this run begins with random weights: name a run with --from"]);
    place.write("pairs.jsonl", "{\"prompt\": \"1 is\", \"chosen\": \"one\"}\n");
    prefer(&place, "runs/new", "runs/bad", &[]).refused(3, &["pairs.jsonl:1: no field \"rejected\""]);
}
