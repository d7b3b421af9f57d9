//! `kiln diagnose` as its users meet it, on the CPU.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::kiln::{Ran, SMALL, Workplace};

/// `kiln diagnose` with the small model and further arguments.
fn diagnose(place: &Workplace, arguments: &[&str]) -> Ran {
    let mut all = vec!["diagnose", "--steps", "2", "--repeats", "2", "--leak-steps", "250"];
    all.extend(SMALL.iter().flat_map(|set| ["--set", *set]));
    all.extend(arguments);
    place.run(&all)
}

/// The bytes of all files below `folder`.
fn files(folder: &Path, into: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(folder).expect("there") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            files(&path, into);
        } else {
            into.insert(path.display().to_string(), fs::read(&path).expect("readable"));
        }
    }
}

#[test]
fn a_run_is_diagnosed_and_left_as_it_is() {
    let place = Workplace::new();
    place.train(&["--run", "runs/a", "--set", "train.steps=4", "--set", "optim.warmup_steps=0"]).ok();
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    files(&place.path("runs/a"), &mut before);

    let ran = place
        .run(&[
            "diagnose",
            "--run",
            "runs/a",
            "--device",
            "cpu",
            "--steps",
            "2",
            "--repeats",
            "2",
            "--leak-steps",
            "60",
        ])
        .ok();
    for part in [
        "CPU (",
        "inference",
        "forward and backward",
        "whole step",
        "not on this device",
        "loader.num_workers = 8",
        "tokenize",
        "live bytes after",
        "peak of the memory",
        "needs several devices",
        "\nbottleneck: ",
    ] {
        assert!(ran.stdout.contains(part), "{part:?} is missing in {}", ran.stdout);
    }
    files(&place.path("runs/a"), &mut after);
    assert!(before == after, "a diagnosis changes no file of a run");
}

#[test]
fn a_diagnosis_in_json_has_figures_and_the_bottleneck() {
    let place = Workplace::new();
    let ran =
        diagnose(&place, &["--device", "cpu", "--task", "lm", "--only", "step,real,stages,map,batch", "--json"]).ok();
    let found: Value = serde_json::from_str(&ran.stdout).expect("one object");
    let tests: Vec<_> =
        found["outcomes"].as_array().expect("a list").iter().map(|outcome| outcome["test"].clone()).collect();
    assert_eq!(tests, ["step", "batch", "stages", "map", "real"], "in the order of the tests");
    assert!(found["figures"]["step_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{found}");
    assert!(found["bottleneck"].as_str().is_some_and(|text| text.starts_with("bottleneck: ")), "{found}");
    assert!(!place.path("runs").exists(), "nothing is left");
}

#[test]
fn checks_pass_with_thresholds_that_hold_and_name_the_one_that_fails() {
    let place = Workplace::new();
    let base = ["--device", "cpu", "--assert"];
    // Other tests load the machine meanwhile. The check of the stopwatch notices that, and the next try may be alone.
    let all = || diagnose(&place, &[&base[..], &["--max-data-share", "1"]].concat());
    let is_disturbed = |ran: &Ran| ran.stderr.contains("error: failed: timing (");
    let ran = (0..4).map(|_| all()).find(|ran| !is_disturbed(ran)).unwrap_or_else(all).ok();
    for name in ["timing", "numerics", "metrics", "data", "memory"] {
        assert!(ran.stdout.contains(&format!("ok      {name} ")), "{name} in {}", ran.stdout);
    }

    let failed = |more: &[&str], name: &str| {
        let ran = diagnose(&place, &[&base[..], more].concat());
        assert_eq!(ran.code, 1, "{ran:#?}");
        assert!(ran.stderr.contains(&format!("error: failed: {name} (")), "{ran:#?}");
        assert!(ran.stdout.contains("FAILED"), "{ran:#?}");
    };
    failed(&["--only", "real", "--max-data-share", "0"], "data");
    failed(&["--only", "peak", "--memory", "4KiB"], "memory");
}

#[test]
fn text_in_shards_is_diagnosed_by_stage() {
    let place = Workplace::new();
    place.write("text.txt", (0..300).map(|n| format!("the number {n} and the next\n\n")).collect::<String>());
    let limited = [
        "--device",
        "cpu",
        "--set",
        "data.train=text.txt",
        "--set",
        "data.cache_limit=1MB",
        "--set",
        "tokenizer.vocab_size=300",
        "--task",
        "lm",
    ];
    let ran = diagnose(&place, &[&limited[..], &["--only", "stages,padding,loader"]].concat()).ok();
    for part in ["paid in every epoch", "packs rows in full", "collate"] {
        assert!(ran.stdout.contains(part), "{part:?} is missing in {}", ran.stdout);
    }
}

#[test]
fn two_devices_are_compared_with_one() {
    let place = Workplace::new();
    let ran = diagnose(&place, &["--devices", "cpu,cpu", "--only", "together"]).ok();
    for part in ["2 x CPU", "step of each device alone", "of 2 times one device", "share of the exchange"] {
        assert!(ran.stdout.contains(part), "{part:?} is missing in {}", ran.stdout);
    }
}

#[test]
fn wrong_requests_are_refused() {
    let place = Workplace::new();
    diagnose(&place, &["--only", "lodaer"]).refused(2, &["no test \"lodaer\"; choose from harness"]);
    diagnose(&place, &["--max-data-share", "0.5"]).refused(2, &["--assert"]);
    diagnose(&place, &["--assert", "--max-data-share", "2"]).refused(2, &["from 0 to 1"]);
    place.run(&["diagnose", "--steps", "0"]).refused(2, &["--steps", "at least 1"]);
    diagnose(&place, &["--devices", "cpu,cpu", "--only", "loader"]).refused(2, &["the test loader is for one device"]);
    place.run(&["diagnose", "--run", "runs/none"]).refused(2, &["runs/none"]);
}
