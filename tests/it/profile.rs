//! `kiln profile` takes real steps and says where their time went.

use std::collections::BTreeMap;

use kiln_model::flops::{TrainFlops, train_flops_per_batch};
use serde_json::Value;

use crate::kiln::{Ran, SMALL, Workplace};

/// `kiln profile` on the CPU with the small model of text and further arguments.
fn profile(place: &Workplace, arguments: &[&str]) -> Ran {
    let mut all = vec!["profile", "--device", "cpu"];
    all.extend(arguments);
    place.run(&all)
}

fn small() -> Vec<&'static str> {
    SMALL.iter().flat_map(|set| ["--set", *set]).collect()
}

fn json(place: &Workplace, name: &str) -> Value {
    serde_json::from_str(&place.read(name)).expect("JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number, not {value}"))
}

fn rows<'a>(profile: &'a Value, table: &str) -> Vec<&'a Value> {
    profile[table].as_array().expect("a table").iter().collect()
}

/// The operations of all rows.
fn flops(profile: &Value) -> f64 {
    rows(profile, "operators").iter().filter_map(|row| row["work"]["flops"].as_f64()).sum()
}

#[test]
fn operators_have_the_operations_that_the_model_predicts() {
    let place = Workplace::new();
    let arguments =
        ["--preset", "gpt2-tiny", "--set", "model.dropout=0.0", "--out", "out", "--steps", "3", "--warm-up", "1"];
    let ran = profile(&place, &[&small()[..], &arguments].concat()).ok();
    for part in ["training thread", "operator ", "attention backward", "roofs (measured)", "kiln-loader-0"] {
        assert!(ran.stdout.contains(part), "{part} is missing in {}", ran.stdout);
    }
    assert!(!place.path("runs").exists(), "nothing of the run is left");

    let found = json(&place, "out/profile.json");
    let names: Vec<&str> = rows(&found, "operators").iter().filter_map(|row| row["name"].as_str()).collect();
    for name in ["linear NN", "linear TN", "attention forward", "norm backward", "embedding backward", "AdamW"] {
        assert!(names.contains(&name), "{name} is missing in {names:?}");
    }

    // Recorded where they are computed, and predicted from the configuration alone.
    let keys = SMALL.iter().filter_map(|set| set.split_once('='));
    let config = keys.fold(kiln::Config::preset("gpt2-tiny"), |config, (key, value)| config.set(key, value));
    let mut model = config.validate().expect("a configuration").model;
    let table = rows(&found, "operators").into_iter().find(|row| row["name"] == "embedding forward").expect("a row");
    let sizes: Vec<usize> =
        table["sizes"].as_str().expect("sizes").split(" x ").filter_map(|n| n.parse().ok()).collect();
    (model.source_vocab_size, model.target_vocab_size) = (sizes[1], sizes[1]);
    let shapes = rows(&found, "steps").into_iter().flat_map(|step| step["shapes"].as_array().expect("shapes"));
    let predicted: f64 = shapes
        .map(|shape| {
            let sizes = shape.as_str().expect("a shape").split(" x ").map(|n| n.parse().expect("a size"));
            let sizes: Vec<usize> = sizes.collect();
            let TrainFlops { weights, attention } = train_flops_per_batch(&model, [sizes[0], 0, sizes[1]]);
            // Of the six products of attention, backward computes one again.
            weights + attention * 7.0 / 6.0
        })
        .sum();
    let recorded = flops(&found);
    assert!((recorded / predicted - 1.0).abs() < 1e-6, "{recorded} recorded, {predicted} predicted");

    // The parts of the time are parts of the whole.
    let host: f64 = rows(&found, "host").iter().map(|row| number(&row["share"])).sum();
    assert!((host - 1.0).abs() < 0.02, "{host}");
    let operators: f64 = rows(&found, "operators").iter().map(|row| number(&row["share"])).sum();
    assert!((0.2..1.001).contains(&operators), "{operators}");
    assert!(place.read("out/roofline.svg").contains("<title>Roofline</title>"));
}

#[test]
fn a_time_line_is_in_the_trace_event_format() {
    let place = Workplace::new();
    profile(&place, &[&small()[..], &["--out", "out", "--steps", "2", "--warm-up", "0"]].concat()).ok();
    let trace = json(&place, "out/trace.json");
    let events = trace["traceEvents"].as_array().expect("events");

    let mut tracks: BTreeMap<_, Vec<(f64, f64, &str)>> = BTreeMap::new();
    let mut named = Vec::new();
    for event in events {
        let place = (event["pid"].as_u64().expect("a process"), event["tid"].as_u64().expect("a thread"));
        let name = event["name"].as_str().expect("a name");
        match event["ph"].as_str() {
            Some("M") => {
                assert!(["process_name", "thread_name"].contains(&name), "{event}");
                assert!(event["args"]["name"].is_string(), "{event}");
                named.push(place);
            }
            Some("X") => {
                let (start, length) = (number(&event["ts"]), number(&event["dur"]));
                assert!(start.is_finite() && length >= 0.0, "{event}");
                tracks.entry(place).or_default().push((start, start + length, name));
            }
            other => panic!("{other:?}: only complete events and metadata"),
        }
    }

    // Slices of a track lie one after the other or one in the other, as readers want them.
    for (place, slices) in &mut tracks {
        assert!(named.contains(place), "{place:?} has no name");
        slices.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
        let mut around: Vec<(f64, f64, &str)> = Vec::new();
        for slice in slices.iter() {
            while around.last().is_some_and(|outer| outer.1 <= slice.0 + 1e-3) {
                around.pop();
            }
            if let Some(outer) = around.last() {
                assert!(slice.1 <= outer.1 + 1e-3, "{slice:?} ends after {outer:?}");
            }
            around.push(*slice);
        }
    }
    let has = |name: &str| tracks.values().flatten().any(|slice| slice.2 == name);
    for name in ["step 1", "step 2", "upload", "enqueue", "batch", "attention forward", "AdamW"] {
        assert!(has(name), "{name} is missing");
    }
    let threads = events.iter().filter_map(|event| event["args"]["name"].as_str());
    assert!(threads.into_iter().any(|name| name == "kiln-loader-0"));
}

#[test]
fn a_run_is_profiled_and_stays_as_it_is() {
    let place = Workplace::new();
    place.train(&["--run", "run", "--set", "train.steps=10"]).ok();
    let before = place.read("run/metrics.jsonl");
    let files = |place: &Workplace| {
        let entries = std::fs::read_dir(place.path("run")).expect("a folder").flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        names.sort();
        names
    };
    let earlier = files(&place);
    let ran = profile(&place, &["--run", "run", "--steps", "1", "--json"]).ok();
    let printed: Value = serde_json::from_str(&ran.stdout).expect("one JSON object");
    assert_eq!((printed["schema"].as_u64(), printed["warm_up"].as_u64()), (Some(1), Some(5)));
    assert_eq!(printed, json(&place, "run/profile/profile.json"));
    assert_eq!(place.read("run/metrics.jsonl"), before);
    let mut later = files(&place);
    later.retain(|name| name != "profile");
    assert_eq!(later, earlier);
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let place = Workplace::new();
    place.write("file", "");
    profile(&place, &["--steps", "0"]).refused(2, &["--steps", "1..=1000"]);
    profile(&place, &["--run", "nothing"]).refused(2, &["nothing: there is no run here"]);
    profile(&place, &["--out", "file/out"]).refused(1, &["file/out", "--out names another"]);
}
