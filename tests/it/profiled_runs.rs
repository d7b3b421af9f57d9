//! `train.profile_at`: steps of a run are profiled while it trains, and the training stays the same bit for bit.

use std::fs;

use serde_json::Value;

use crate::kiln::{SMALL, Workplace};

/// The lines of the metrics of a run.
fn lines(place: &Workplace, run: &str) -> Vec<Value> {
    let text = place.read(&format!("{run}/metrics.jsonl"));
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Everything that the steps of a run have computed.
fn steps(place: &Workplace, run: &str) -> Vec<Value> {
    let mut steps: Vec<Value> = lines(place, run).into_iter().filter(|line| line["kind"] == "step").collect();
    steps.iter_mut().for_each(|step| drop(step.as_object_mut().expect("an object").remove("time")));
    steps
}

fn notes(place: &Workplace, run: &str) -> Vec<String> {
    lines(place, run).iter().filter_map(|line| line["note"].as_str().map(str::to_owned)).collect()
}

fn weights(place: &Workplace, run: &str, step: u64) -> Vec<u8> {
    let path = place.path(&format!("{run}/checkpoints/step-{step:08}/model.safetensors"));
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json(place: &Workplace, name: &str) -> Value {
    serde_json::from_str(&place.read(name)).expect("JSON")
}

#[test]
fn a_profile_of_a_step_changes_no_bit_and_has_the_form_of_kiln_profile() {
    let place = Workplace::new();
    let same = ["--set", "train.steps=12", "--set", "train.grad_accum_steps=2"];
    place.train(&[&same[..], &["--run", "plain"]].concat()).ok();
    place.train(&[&same[..], &["--run", "seen", "--set", "train.profile_at=5,9"]].concat()).ok();
    assert_eq!(steps(&place, "plain"), steps(&place, "seen"));
    assert_eq!(steps(&place, "seen").len(), 12);
    assert_eq!(weights(&place, "plain", 12), weights(&place, "seen", 12));
    let of_lines = |run: &str| {
        let windows = lines(&place, run).into_iter().filter(|line| line["kind"] == "window");
        windows.map(|line| (line["step"].clone(), line["loss"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(of_lines("plain"), of_lines("seen"), "no line more or less");

    for step in [5_u64, 9] {
        let folder = format!("seen/profile-step-{step}");
        let found = json(&place, &format!("{folder}/profile.json"));
        let taken = found["steps"].as_array().expect("steps");
        assert!(taken.len() == 1 && taken[0]["step"] == step && found["warm_up"] == step - 1, "{found}");
        assert_eq!(taken[0]["shapes"].as_array().expect("shapes").len(), 2, "a micro-batch each");
        let of_run = &steps(&place, "seen")[step as usize - 1];
        assert_eq!(taken[0]["tokens"], of_run["tokens"]);
        assert!(found["memory"]["peak"]["weights"].as_u64().is_some_and(|bytes| bytes > 0), "{found}");
        let names: Vec<&str> =
            found["operators"].as_array().expect("rows").iter().filter_map(|row| row["name"].as_str()).collect();
        for name in ["linear NN", "attention backward", "AdamW"] {
            assert!(names.contains(&name), "{name} is missing in {names:?}");
        }
        let text = place.read(&format!("{folder}/profile.txt"));
        for part in ["1 step after", "training thread", "operator, all sizes", "memory in use at most", "roofs ("] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        assert!(
            place
                .read(&format!("{folder}/trace.json"))
                .contains(&format!("step {}, whose memory was watched", step + 1))
        );
        assert!(place.read(&format!("{folder}/memory.svg")).contains("<title>Memory of a step</title>"));
        assert!(place.read(&format!("{folder}/roofline.svg")).contains("<title>Roofline</title>"));
        let note = format!("profiled step {step}: ");
        assert!(notes(&place, "seen").iter().any(|text| text.starts_with(&note) && text.ends_with(&folder)), "{step}");
    }

    // The time for writing, of which the roofs take most, is not training time.
    let windows: Vec<Value> = lines(&place, "seen").into_iter().filter(|line| line["kind"] == "window").collect();
    let number = |value: &Value| value.as_f64().expect("a number");
    let [wall, training] =
        [1e3 * (number(&windows[2]["time"]) - number(&windows[1]["time"])), number(&windows[2]["host"]["elapsed_ms"])];
    assert!(windows[2]["step"] == 6 && training < wall - 200.0, "{training} of {wall} ms");

    place.run(&["report", "seen"]).ok();
    let page = place.read("seen/report.html");
    for part in ["<h2 id=\"profiles-h\">Profiles</h2>", "<h3>Step 5</h3>", "Operators in Step 9", "linear TN"] {
        assert!(page.contains(part), "{part} is missing");
    }
}

#[test]
fn a_resumed_run_profiles_the_steps_that_it_computes() {
    let place = Workplace::new();
    let run = ["--run", "run", "--set", "train.save_every=6"];
    place.train(&[&run[..], &["--set", "train.steps=6", "--set", "train.profile_at=2"]].concat()).ok();
    let first = place.read("run/profile-step-2/profile.json");
    let more = ["--resume", "--set", "train.steps=12"];
    place.train(&[&run[..], &more, &["--set", "train.profile_at=[2, 3, 9]"]].concat()).ok();
    assert_eq!(place.read("run/profile-step-2/profile.json"), first, "computed once");
    let found = json(&place, "run/profile-step-9/profile.json");
    assert!(found["steps"][0]["step"] == 9 && found["warm_up"] == 2, "{found}");
    assert!(!place.path("run/profile-step-3").exists());
    let left_out = "train.profile_at: step 3 was not profiled, because the run goes on from step 6";
    assert_eq!(
        notes(&place, "run").iter().filter(|note| note.starts_with("train.profile_at")).collect::<Vec<_>>(),
        [left_out]
    );

    // The same run without a profile, in one piece.
    place
        .train(&[
            "--run",
            "whole",
            "--set",
            "train.save_every=6",
            "--set",
            "train.steps=12",
            "--set",
            "optim.schedule=constant",
        ])
        .ok();
    let again = ["--run", "parts", "--set", "train.save_every=6", "--set", "optim.schedule=constant"];
    place.train(&[&again[..], &["--set", "train.steps=6", "--set", "train.profile_at=6"]].concat()).ok();
    place.train(&[&again[..], &more, &["--set", "train.profile_at=7"]].concat()).ok();
    assert_eq!(weights(&place, "whole", 12), weights(&place, "parts", 12));
    let last = json(&place, "parts/profile-step-6/profile.json");
    assert!(last["memory"].is_null(), "the run ended");
    assert!(last["notes"].to_string().contains("the run ended with this step"), "{}", last["notes"]);
    assert!(json(&place, "parts/profile-step-7/profile.json")["memory"].is_object());
}

#[test]
fn steps_that_a_run_does_not_reach_are_refused_or_noted() {
    let place = Workplace::new();
    let late = ["--run", "late", "--set", "train.steps=12", "--set", "train.profile_at=13"];
    place.train(&late).refused(2, &["train.profile_at 13 is above train.steps 12", "train.profile_at=0"]);
    for wrong in ["soon", "-3", "1.5"] {
        let set = format!("train.profile_at={wrong}");
        place.train(&["--run", "wrong", "--set", &set]).refused(2, &["train.profile_at", "such as [500, 5000]"]);
    }

    let short = ["--run", "short", "--set", "train.max_minutes=0.00001", "--set", "train.profile_at=[400, 500]"];
    let steps = ["--set", "train.steps=600"];
    place.train(&[&short[..], &steps].concat()).ok();
    let wanted = "train.profile_at: steps 400, 500 were not profiled, because the run ended with step ";
    assert!(notes(&place, "short").iter().any(|note| note.starts_with(wanted)), "{:?}", notes(&place, "short"));

    // Steps next to each other leave no step between them to watch the memory.
    place.train(&["--run", "near", "--set", "train.steps=6", "--set", "train.profile_at=[3, 4]"]).ok();
    let [first, second] = [3, 4].map(|step| json(&place, &format!("near/profile-step-{step}/profile.json")));
    assert!(first["memory"].is_null() && first["notes"].to_string().contains("the next step is profiled, too"));
    assert!(second["memory"].is_object());

    // A file in the way of a profile ends no run.
    place.train(&["--run", "way", "--set", "train.steps=6"]).ok();
    place.write("way/profile-step-7", "");
    place.train(&["--run", "way", "--resume", "--set", "train.steps=9", "--set", "train.profile_at=7"]).ok();
    assert!(
        notes(&place, "way").iter().any(|note| note.contains("the profile of step 7 is lost")),
        "{:?}",
        notes(&place, "way")
    );
}

#[test]
fn ranks_profile_a_step_together() {
    let place = Workplace::new();
    let train = |run: &str, more: &[&str]| {
        let all = ["train", "--devices", "cpu,cpu", "--run", run, "--set", "train.steps=6"];
        let small: Vec<&str> = SMALL.iter().flat_map(|set| ["--set", *set]).collect();
        place.run(&[&all[..], &small, more].concat()).ok();
    };
    train("plain", &[]);
    train("seen", &["--set", "train.profile_at=3"]);
    assert_eq!(steps(&place, "plain"), steps(&place, "seen"));
    assert_eq!(weights(&place, "plain", 6), weights(&place, "seen", 6));
    let found = json(&place, "seen/profile-step-3/profile.json");
    assert_eq!(found["ranks"].as_array().expect("ranks").len(), 2, "{found}");
    let exchanged = found["ranks"][1]["exchange_share"].as_f64().expect("a number");
    assert!(exchanged > 0.0, "{found}");
    assert!(place.read("seen/profile-step-3/trace.json").contains("rank 1: host"));

    // Replicas take steps alone: rank 0 profiles its own.
    train("replicas", &["--set", "train.sync_every=3", "--set", "train.profile_at=2"]);
    let found = json(&place, "replicas/profile-step-2/profile.json");
    assert!(found["ranks"].is_null() && found["steps"][0]["step"] == 2, "{found}");
}

#[test]
fn each_line_has_the_peak_of_the_memory_since_the_last_one() {
    let place = Workplace::new();
    place.train(&["--run", "run", "--set", "train.steps=8"]).ok();
    let mut most = 0;
    for line in lines(&place, "run").iter().filter(|line| line["kind"] == "window") {
        let of = |field: &str| line["host_memory"][field].as_u64().unwrap_or_else(|| panic!("{field} in {line}"));
        let [resident, since_last, peak] = ["resident_bytes", "line_peak_bytes", "peak_bytes"].map(of);
        assert!(since_last >= resident && since_last <= peak && peak >= most, "{line}");
        assert!(line["host_syncs"].as_u64().expect("a number") <= 1, "{line}");
        most = peak;
    }
    assert!(most > 1 << 20);
    place.run(&["report", "run", "--figure", "host-memory", "--svg", "memory.svg"]).ok();
    assert!(place.read("memory.svg").contains("peak since the last line"));
}
