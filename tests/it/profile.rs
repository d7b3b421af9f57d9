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
            let TrainFlops { weights, attention } = train_flops_per_batch(&model, [sizes[0], 0, sizes[1]], None);
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
    assert!((0.01..1.001).contains(&operators), "{operators}");
    assert!(place.read("out/roofline.svg").contains("<title>Roofline</title>"));
}

#[test]
fn a_time_line_is_in_the_trace_event_format() {
    let place = Workplace::new();
    // More steps than the loader is ahead, so that some of their batches are made meanwhile.
    profile(&place, &[&small()[..], &["--out", "out", "--steps", "24", "--warm-up", "0"]].concat()).ok();
    let trace = json(&place, "out/trace.json");
    let events = trace["traceEvents"].as_array().expect("events");

    let mut tracks: BTreeMap<_, Vec<(f64, f64, &str)>> = BTreeMap::new();
    let (mut named, mut counted) = (Vec::new(), Vec::new());
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
            Some("C") => {
                assert_eq!(name, "memory in bytes");
                let parts = event["args"].as_object().expect("categories");
                counted.push((number(&event["ts"]), parts.values().map(number).sum::<f64>()));
            }
            other => panic!("{other:?}: only complete events, counters and metadata"),
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
    // The memory lies within the step that it belongs to, behind the others.
    let watched =
        tracks.values().flatten().find(|slice| slice.2 == "step 25, whose memory was watched").expect("a step");
    assert!(counted.iter().all(|(at, _)| (watched.0..=watched.1).contains(at)), "{counted:?}");
    assert!(counted.iter().any(|(_, bytes)| *bytes > 1e5), "{counted:?}");
    let threads = events.iter().filter_map(|event| event["args"]["name"].as_str());
    assert!(threads.into_iter().any(|name| name == "kiln-loader-0"));
}

#[test]
fn memory_grows_in_forward_and_shrinks_in_backward() {
    let place = Workplace::new();
    let arguments = ["--preset", "gpt2-tiny", "--out", "out", "--steps", "1", "--warm-up", "1"];
    profile(&place, &arguments).ok();
    let memory = &json(&place, "out/profile.json")["memory"];
    let points = memory["points"].as_array().expect("points");
    let bytes = |point: &Value, category: &str| number(&point[category]);
    let total = |point: &Value| {
        ["weights", "optimizer", "other", "gradients", "activations"].iter().map(|name| bytes(point, name)).sum::<f64>()
    };

    // Two moments of each optimizer state per weight, in f32.
    let [first, last, peak] = [&points[0], &points[points.len() - 1], &memory["peak"]];
    assert!((bytes(first, "optimizer") / bytes(first, "weights") - 2.0).abs() < 1e-9, "{first}");
    assert!(points.iter().all(|point| total(point) <= total(peak)), "{peak}");
    assert!(bytes(first, "activations") < 0.1 * bytes(peak, "activations"), "{first} {peak}");
    // A residual sum of each of the four layers is a small part of what backward needs.
    let found = json(&place, "out/profile.json");
    let shape = found["steps"][0]["shapes"][0].as_str().expect("a shape").to_owned();
    let rows: f64 = shape.split(" x ").map(|n| n.parse::<f64>().expect("a size")).product();
    assert!(bytes(peak, "activations") > 4.0 * rows * 128.0 * 4.0, "{shape} {peak}");
    let of = |point: &Value| bytes(point, "activations");
    let at_peak = points.iter().position(|point| point == peak).expect("the peak is one of the points");
    assert!(of(last) < 0.5 * of(peak) && at_peak > points.len() / 4, "{last}");

    // Gradients come with backward: at the end each weight has one.
    assert_eq!(bytes(first, "gradients"), 0.0);
    let most = points.iter().map(|point| bytes(point, "gradients")).fold(0.0, f64::max);
    assert!((0.5..=1.01).contains(&(most / bytes(first, "weights"))), "{most}");
    assert!(place.read("out/memory.svg").contains("<title>Memory of a step</title>"));
}

#[test]
fn several_devices_are_profiled_together_on_one_time_line() {
    let place = Workplace::new();
    let arguments = ["--devices", "cpu,cpu", "--out", "out", "--steps", "2", "--warm-up", "1"];
    let ran = place.run(&[&["profile"], &small()[..], &arguments].concat()).ok();
    for part in ["rank 0: CPU", "rank 1: CPU", "exchange"] {
        assert!(ran.stdout.contains(part), "{part} is missing in {}", ran.stdout);
    }
    let found = json(&place, "out/profile.json");
    let ranks = rows(&found, "ranks");
    assert_eq!(ranks.len(), 2);
    for rank in &ranks {
        assert!(number(&rank["exchange_share"]) > 0.0 && number(&rank["total_ms"]) > 0.0, "{rank}");
        assert_eq!(rank["tokens"], ranks[0]["tokens"], "a step is one step of all ranks");
    }

    let trace = json(&place, "out/trace.json");
    let events = trace["traceEvents"].as_array().expect("events");
    let named = |name: &str| {
        let found = events.iter().find(|event| event["args"]["name"] == name).unwrap_or_else(|| panic!("no {name}"));
        found["pid"].as_u64().expect("a process")
    };
    let hosts = [named("rank 0: host"), named("rank 1: host")];
    let slices = |host: u64, name: &str| -> Vec<(f64, f64)> {
        let own = events.iter().filter(|event| event["pid"] == host && event["name"] == name);
        own.map(|event| (number(&event["ts"]), number(&event["ts"]) + number(&event["dur"]))).collect()
    };
    // An exchange ends on neither rank before it has begun on both.
    let exchanges = hosts.map(|host| slices(host, "exchange"));
    assert!(!exchanges[0].is_empty() && exchanges[0].len() == exchanges[1].len(), "{exchanges:?}");
    for (first, second) in exchanges[0].iter().zip(&exchanges[1]) {
        let slack = 2_000.0;
        assert!(first.1 + slack >= second.0 && second.1 + slack >= first.0, "{first:?} {second:?}");
    }
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
