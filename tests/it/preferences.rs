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

#[test]
fn five_steps_have_the_losses_of_trl() {
    let place = place();
    let trained = prefer(&place, "runs/new", "runs/tuned", &[]).ok();
    let expected: Value =
        serde_json::from_slice(&fs::read(Path::new(&fixture()).join("expected.json")).expect("there")).expect("JSON");
    let steps = records(&place, "runs/tuned", "step");
    let wanted = expected["steps"].as_array().expect("steps");
    assert_eq!(steps.len(), wanted.len(), "{trained:#?}");
    for (found, wanted) in steps.iter().zip(wanted) {
        let (found, wanted) = (found["loss"].as_f64().expect("a loss"), wanted["loss"].as_f64().expect("a loss"));
        assert!((found - wanted).abs() < 2e-4, "{found} instead of {wanted}");
    }

    // Validated after the last step on the same pairs.
    let last = records(&place, "runs/tuned", "validation").pop().expect("a validation");
    let loss = |record: &Value| record["loss"].as_f64().expect("a loss");
    assert!((loss(&last) - expected["loss_after"].as_f64().expect("a loss")).abs() < 2e-4, "{last}");
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
    // Without adapters there is no reference.
    prefer(&place, "runs/base", "runs/none", &[]).refused(2, &["set model.lora.rank, for example to 16"]);
    place.write("pairs.jsonl", "{\"prompt\": \"1 is\", \"chosen\": \"one\"}\n");
    prefer(&place, "runs/new", "runs/bad", &[]).refused(3, &["pairs.jsonl:1: no field \"rejected\""]);
}
