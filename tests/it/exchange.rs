//! `train.exchange_mib`: gradients and weights travel in pieces, and the bits stay the same.

use serde_json::Value;

use crate::kiln::{SMALL, Workplace};

/// Trains on two CPUs, and returns what the steps have computed and the weights at the end.
fn train(place: &Workplace, run: &str, more: &[&str]) -> (Vec<Value>, Vec<u8>) {
    let mut all = vec!["train", "--devices", "cpu,cpu", "--run", run];
    all.extend(SMALL.iter().flat_map(|set| ["--set", *set]));
    // More than 4 MiB of gradients for each rank, which pieces of 1 and of 2 MiB do not divide.
    for set in ["model.d_model=320", "model.d_ff=900", "train.steps=6", "train.profile_at=2"] {
        all.extend(["--set", set]);
    }
    all.extend(more);
    place.run(&all).ok();
    let text = place.read(&format!("{run}/metrics.jsonl"));
    let mut steps: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    steps.retain(|line| line["kind"] == "step");
    steps.iter_mut().for_each(|step| drop(step.as_object_mut().expect("an object").remove("time")));
    let weights = place.path(&format!("{run}/checkpoints/step-00000006/model.safetensors"));
    (steps, std::fs::read(weights).expect("weights"))
}

/// Messages of a kind that rank 0 has exchanged in the profiled step.
fn messages(place: &Workplace, run: &str, kind: &str) -> usize {
    let trace: Value = serde_json::from_str(&place.read(&format!("{run}/profile-step-2/trace.json"))).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    events.iter().filter(|event| event["name"] == kind && event["pid"] == 1).count()
}

#[test]
fn pieces_change_no_bit_and_there_are_as_many_as_asked_for() {
    let place = Workplace::new();
    let whole = train(&place, "whole", &[]);
    assert_eq!(whole.0.len(), 6);
    assert_eq!(messages(&place, "whole", "exchange"), 1);
    for (mib, is_cut) in [("1", true), ("2", true), ("500", false)] {
        let set = format!("train.exchange_mib={mib}");
        assert_eq!(train(&place, mib, &["--set", &set]), whole, "{mib} MiB");
        let found = messages(&place, mib, "exchange");
        assert_eq!(found > 1, is_cut, "{mib} MiB: {found} messages");
        assert!(messages(&place, mib, "all_gather") >= found, "{mib} MiB");
    }
    assert!(messages(&place, "1", "exchange") > messages(&place, "2", "exchange"));
    let wrong = ["train", "--device", "cpu", "--set", "train.exchange_mib=25165824"];
    place.run(&wrong).refused(2, &["train.exchange_mib 25165824", "MiB"]);
}
