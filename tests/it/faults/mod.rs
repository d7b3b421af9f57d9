//! Kill it, fill its disk, flip its bits: the weights at the end are those of the undisturbed run, or the command says what is wrong.
//!
//! Counts are small here and large by hand:
//!
//! ```text
//! KILN_FAULT_KILLS=200 KILN_FAULT_FLIPS=500 cargo test --release --test it faults -- --nocapture
//! ```

mod damage;
mod disk;
#[cfg(unix)]
mod kill;
#[cfg(target_os = "linux")]
mod lost_replicas;
#[cfg(unix)]
mod making;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod mixture;
#[cfg(unix)]
mod moved;
mod pointers;
#[cfg(target_os = "linux")]
mod ranks;
#[cfg(target_os = "linux")]
mod streamed;
#[cfg(target_os = "linux")]
mod streamed_tasks;

use std::fs;
use std::path::Path;
#[cfg(unix)]
use std::process::{Command, Stdio};
#[cfg(unix)]
use std::thread::sleep;
#[cfg(unix)]
use std::time::{Duration, Instant};

use crate::kiln::{Ran, SMALL, Workplace};

/// Runs like [`Workplace::train`] on few rows, with many checkpoints.
const SETTINGS: [&str; 12] = [
    "data.corpus.max_source_len=32",
    "data.corpus.max_target_len=32",
    "data.train=train.jsonl",
    "data.valid=valid.jsonl",
    "tokenizer.vocab_size=300",
    "model.d_model=16",
    "model.d_ff=32",
    "loader.batch_tokens=128",
    "train.save_every=3",
    "train.validate_every=7",
    "train.keep_last=2",
    "train.log_every=1",
];

/// A count that the environment may raise.
fn count(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{variable}={value}")))
}

/// Numbers that are random enough for instants and bits; printed seeds repeat a failure as far as instants can be repeated.
struct Random(u64);

impl Random {
    fn new(name: &str) -> Self {
        let seed = count("KILN_FAULT_SEED", 1) as u64;
        println!("{name}: KILN_FAULT_SEED={seed}");
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// xorshift64* (Vigna 2016).
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % end.max(1)
    }
}

/// A folder with text of its own.
fn workplace() -> Workplace {
    let place = Workplace::new();
    let rows = |numbers: std::ops::Range<usize>| -> String {
        let digits = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
        let words =
            |n: usize| n.to_string().bytes().map(|b| digits[usize::from(b - b'0')]).collect::<Vec<_>>().join(" ");
        numbers.map(|n| format!("{{\"src\": \"{n}\", \"trg\": \"{}\"}}\n", words(n))).collect()
    };
    place.write("train.jsonl", rows(1..400));
    place.write("valid.jsonl", rows(400..420));
    place
}

/// Arguments of a run of `steps` steps in the folder `run`, begun or continued.
fn arguments(run: &str, steps: usize) -> Vec<String> {
    let mut all: Vec<String> = ["train", "--device", "cpu", "--run", run].map(String::from).into();
    let steps = format!("train.steps={steps}");
    let sets = SMALL.iter().chain(&SETTINGS).copied().chain([steps.as_str()]);
    all.extend(sets.flat_map(|set| ["--set".to_string(), set.to_string()]));
    all
}

fn begin(place: &Workplace, run: &str, steps: usize) -> Ran {
    place.run(&arguments(run, steps).iter().map(String::as_str).collect::<Vec<_>>())
}

fn resume(place: &Workplace, run: &str) -> Ran {
    place.run(&["train", "--device", "cpu", "--run", run, "--resume"])
}

/// What must be the same whatever happened on the way: weights, moments, metrics of every step, the best checkpoint.
#[track_caller]
fn assert_same_end(place: &Workplace, undisturbed: &str, disturbed: &str, steps: usize) {
    let bytes = |run: &str, file: &str| {
        let path = place.path(&format!("{run}/checkpoints/step-{steps:08}/{file}"));
        fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    for file in ["model.safetensors", "optimizer.safetensors", "tokenizer.json", "config.json"] {
        assert!(bytes(undisturbed, file) == bytes(disturbed, file), "{file} differs");
    }
    assert_eq!(losses(place, undisturbed), losses(place, disturbed), "every step is written once, with the same loss");
    for pointer in ["last", "best"] {
        let name = |run: &str| place.read(&format!("{run}/checkpoints/{pointer}"));
        assert_eq!(name(undisturbed), name(disturbed), "{pointer}");
    }
    let checked = place.run(&["check", disturbed]).ok();
    assert!(!checked.stdout.contains("DAMAGED"), "{checked:#?}");
}

/// Step and loss of every line of a step.
fn losses(place: &Workplace, run: &str) -> Vec<(u64, String)> {
    let text = place.read(&format!("{run}/metrics.jsonl"));
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let steps = lines.filter(|line| line["kind"] == "step");
    steps.map(|line| (line["step"].as_u64().expect("a step"), line["loss"].to_string())).collect()
}

/// Sends a signal (`-TERM`) to a process. Returns whether there was one.
#[cfg(unix)]
fn signal(pid: u32, name: &str) -> bool {
    let kill = Command::new("kill").args([name, &pid.to_string()]).stderr(Stdio::null()).status();
    kill.expect("kill is there").success()
}

#[cfg(unix)]
#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(120), "two minutes without {what}");
        sleep(Duration::from_millis(5));
    }
}

/// Every file below `dir`.
fn files_below(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("there") {
        let path = entry.expect("readable").path();
        if path.is_dir() { found.extend(files_below(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}
