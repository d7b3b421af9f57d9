//! A program with a model of its own: `examples/own_model` with arguments has the commands of `kiln`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::kiln::{Ran, Workplace};

/// The program. `cargo test` builds it; a build of one test target alone does not.
fn program() -> Option<PathBuf> {
    example("own_model")
}

fn example(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_BIN_EXE_kiln")).with_file_name("examples").join(name);
    if !path.exists() {
        eprintln!("skipped: {} is not there; cargo test builds it", path.display());
        return None;
    }
    Some(path)
}

fn run(place: &Workplace, program: &Path, arguments: &[&str]) -> Ran {
    let output = Command::new(program).args(arguments).current_dir(place.path("")).output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: output.status.code().expect("not killed"), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A run of 8 steps, and what `kiln train` printed.
fn trained(place: &Workplace, program: &Path) -> Ran {
    let set = ["model.d_model=32", "loader.batch_tokens=512", "optim.warmup_steps=2", "train.validate_every=4"];
    let set = set.iter().flat_map(|key| ["--set", key]);
    let fixed = ["train", "--task", "lm", "--preset", "gpt2-tiny", "--device", "cpu", "--run", "runs/own"];
    let arguments: Vec<&str> = fixed.into_iter().chain(set).chain(["--set", "train.steps=8"]).collect();
    run(place, program, &arguments).ok()
}

#[test]
fn a_program_trains_evaluates_and_resumes_its_own_model() {
    let (Some(program), place) = (program(), Workplace::new()) else { return };
    let ran = trained(&place, &program);
    assert!(ran.stdout.contains("own_model evaluate runs/own"), "{}", ran.stdout);

    let scores = run(&place, &program, &["evaluate", "runs/own", "--device", "cpu", "--json"]).ok();
    let scores: Value = serde_json::from_str(&scores.stdout).expect("JSON");
    let logged = place.read("runs/own/metrics.jsonl");
    let last = logged.lines().rev().find(|line| line.contains("\"kind\":\"validation\"")).expect("a validation");
    let last: Value = serde_json::from_str(last).expect("JSON");
    assert_eq!(scores["nll"], last["nll"], "the score of the last validation");

    let resume = ["train", "--run", "runs/own", "--resume", "--set", "train.steps=12", "--device", "cpu"];
    let ran = run(&place, &program, &resume).ok();
    assert!(ran.stderr.contains("step 12") || ran.stdout.contains("step 12"), "{}\n{}", ran.stdout, ran.stderr);
    run(&place, &program, &["check", "runs/own"]).ok();
    run(&place, &program, &["report", "runs/own"]).ok();

    // The program of Kiln's own says that the weights are not its.
    let other = place.run(&["evaluate", "runs/own", "--device", "cpu"]);
    assert!(other.code != 0 && !other.stderr.contains("panicked"), "{}", other.stderr);
}

#[test]
fn a_program_measures_its_own_model() {
    let (Some(program), place) = (program(), Workplace::new()) else { return };
    trained(&place, &program);
    let of_run = |command: &[&str]| {
        let arguments = [command, &["--run", "runs/own", "--device", "cpu"][..]].concat();
        run(&place, &program, &arguments).ok().stdout
    };

    let memory = of_run(&["memory", "--measure"]);
    for part in ["embedding", "hidden", "output", "measured:"] {
        assert!(memory.lines().any(|line| line.starts_with(part)), "{part}:\n{memory}");
    }
    assert!(!memory.contains("attention"), "{memory}");

    let bench = of_run(&["bench", "--operators", "--steps", "2", "--repeats", "2", "--rows", "4", "--len", "32"]);
    assert!(bench.contains("cross-entropy") && !bench.contains("attention"), "{bench}");
    let n_params = 32 * 32 + 2 * 32 * vocabulary(&place);
    assert!(bench.contains(&format!("{:.1} M parameters", n_params as f64 / 1e6)), "{n_params}: {bench}");

    let profile: Value =
        serde_json::from_str(&of_run(&["profile", "--steps", "2", "--warm-up", "1", "--json"])).expect("JSON");
    let operators = profile["operators"].as_array().expect("rows");
    let has = |name: &str| operators.iter().any(|row| row["name"].as_str().is_some_and(|found| found.contains(name)));
    assert!(has("embedding") && !has("attention"), "{operators:?}");

    let tests = "inference,forward,backward,step,phases,fused,live,peak,real";
    let diagnosis = of_run(&["diagnose", "--steps", "2", "--repeats", "2", "--leak-steps", "60", "--only", tests]);
    assert!(diagnosis.contains("inference") && diagnosis.contains("peak of the memory"), "{diagnosis}");
}

#[test]
fn the_error_detector_is_measured_and_trained_at_another_size() {
    let (Some(program), place) = (example("error_detector"), Workplace::new()) else { return };
    let keys = ["model.d_model=32", "model.d_ff=64", "tokenizer.vocab_size=300", "loader.batch_tokens=512"];
    let set: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
    let with = |command: &[&'static str]| [command, &["--preset", "bert-tiny", "--device", "cpu"], &set[..]].concat();

    let bench = with(&["bench", "--rows", "4", "--len", "16", "--steps", "2", "--repeats", "1"]);
    let measured = run(&place, &program, &bench).ok().stdout;
    let row = measured.lines().find(|line| line.trim_start().starts_with("kiln ")).expect("a row");
    assert!(row.contains("samples/s"), "{measured}");

    // Rows of 32 tokens of the documentation, with errors.
    let train = ["train", "--run", "runs/detector", "--set", "data.text.seq_len=32", "--set", "train.steps=4"];
    run(&place, &program, &with(&train)).ok();
    let logged = place.read("runs/detector/metrics.jsonl");
    assert!(logged.contains("detection_f1"), "{logged}");
}

#[test]
fn commands_for_transformers_and_named_workloads_are_refused_in_words() {
    let (Some(program), place) = (program(), Workplace::new()) else { return };
    for arguments in [
        &["generate", "runs/own", "--prompt", "a"][..],
        &["export", "runs/own", "model"],
        &["bench", "gpt"],
        &["bench"],
    ] {
        let ran = run(&place, &program, arguments);
        assert!(ran.code == 2 && ran.stderr.contains("a model of its own"), "{arguments:?}: {}", ran.stderr);
    }
}

/// Size of the run's vocabulary.
fn vocabulary(place: &Workplace) -> usize {
    let config: String = place.read("runs/own/config.toml");
    let line = config.lines().find(|line| line.starts_with("target_vocab_size")).expect("a key");
    line.split('=').nth(1).expect("a value").trim().parse().expect("a number")
}
