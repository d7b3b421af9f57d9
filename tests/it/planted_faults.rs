//! Five faults of real training programs, each planted in `examples/planted_faults.rs` or by a setting, and found by `diagnose` with the
//! right sentence. Without the fault, the sentence does not come.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use kiln::distributed::free_port;
use serde_json::Value;

use crate::kiln::Workplace;

/// Other tests load the machine meanwhile, and single measurements are disturbed: a program without a fault must look like one once.
const TRIES: usize = 6;

/// The program. `cargo test` builds it; a build of one test target alone does not.
fn program() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_BIN_EXE_kiln")).with_file_name("examples").join("planted_faults");
    if !path.exists() {
        eprintln!("skipped: {} is not there; cargo test builds it", path.display());
        return None;
    }
    Some(path)
}

/// Diagnoses the program with a fault, or without one. Returns the object that it prints.
fn diagnose(program: &Path, fault: &str, tests: &str, more: &[&str]) -> Value {
    let place = Workplace::new();
    let mut command = Command::new(program);
    command.args(["diagnose", "--task", "lm", "--preset", "gpt2-tiny", "--json", "--only", tests]);
    command.args(["--set", "model.d_model=16", "--set", "loader.num_workers=1"]).args(more);
    // Threads that wait for a busy core would add to the time of large operations.
    let output = command
        .env("FAULT", fault)
        .env("RAYON_NUM_THREADS", "1")
        .current_dir(place.path(""))
        .output()
        .expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stdout)))
}

/// The causes with what was found and the setting that helps, the costliest first.
fn causes(found: &Value) -> Vec<String> {
    let text = |cause: &Value, field: &str| cause[field].as_str().expect("text").to_owned();
    let causes = found["causes"].as_array().expect("a list").iter();
    causes
        .map(|cause| format!("{}: {}: {}", text(cause, "name"), text(cause, "found"), text(cause, "setting")))
        .collect()
}

/// Requires that the costliest cause begins with `name` and has all `parts`, and that it is missing without the fault. Each in one of
/// [`TRIES`]: others use the machine, too.
fn found_only_with(fault: &str, tests: &str, more: &[&str], name: &str, parts: &[&str]) {
    let Some(program) = program() else { return };
    let is_first = |causes: &[String]| causes.first().is_some_and(|first| first.starts_with(&format!("{name}: ")));
    let mut with = Vec::new();
    for _ in 0..TRIES {
        with = causes(&diagnose(&program, fault, tests, more));
        if is_first(&with) {
            break;
        }
    }
    assert!(is_first(&with), "found with {fault}: {with:?}");
    let first = &with[0];
    for part in parts {
        assert!(first.contains(part), "{part:?} is missing in {first}");
    }

    let is_named = |causes: &[String]| causes.iter().any(|cause| cause.starts_with(name));
    let without: Vec<_> =
        (0..TRIES).map(|_| causes(&diagnose(&program, "", tests, more))).take_while(|it| is_named(it)).collect();
    assert!(without.len() < TRIES, "found without the fault, too: {without:?}");
}

#[test]
fn a_loop_over_rows_and_candidates_is_found() {
    let batch = ["--device", "cpu", "--set", "loader.batch_tokens=1024", "--steps", "3", "--repeats", "8"];
    let parts =
        ["a forward pass calls ", "a quarter of the length still ", "into calls, not into numbers", "docs/own-head.md"];
    found_only_with("loop", "step,calls", &batch, "many small operations", &parts);
}

#[test]
fn the_loop_makes_768_scores_one_by_one() {
    let Some(program) = program() else { return };
    let batch = ["--device", "cpu", "--set", "loader.batch_tokens=1024", "--steps", "1", "--repeats", "1"];
    let calls = |fault| diagnose(&program, fault, "calls", &batch)["figures"]["calls"]["n"].as_u64().expect("counted");
    let (looped, at_once) = (calls("loop"), calls(""));
    // A lookup, a product and a sum for each of 128 rows and 6 candidates.
    assert!(looped >= 3 * 768 && at_once < 40, "{looped} and {at_once}");
}

#[test]
fn a_loader_that_parses_in_one_thread_is_found() {
    let batch = ["--device", "cpu", "--set", "loader.batch_tokens=1024", "--steps", "5", "--repeats", "3"];
    let parts = ["training waits for batches for ", "which 1 loader thread makes in ", "loader.num_workers"];
    found_only_with("parse", "step,loader,workers,real", &batch, "the loader", &parts);
}

#[test]
fn caches_that_are_emptied_every_50_steps_are_found() {
    let batch = ["--device", "cpu", "--set", "loader.batch_tokens=256", "--leak-steps", "850"];
    found_only_with("flush", "live", &batch, "work at intervals", &["every 50 steps, a step takes ", "memory_cleanup"]);
}

#[test]
fn a_sync_in_each_step_is_found() {
    let Some(program) = program() else { return };
    let words = |log_every: &str| {
        let more = ["--device", "cpu", "--set", log_every, "--steps", "10", "--repeats", "2"];
        let found = diagnose(&program, "", "deferred", &more);
        let verdicts = found["outcomes"][0]["verdicts"].as_array().expect("a list");
        verdicts.iter().map(|verdict| verdict["words"].as_str().expect("text")).collect::<Vec<_>>().join("\n")
    };
    let (each, tenth) = (words("train.log_every=1"), words("train.log_every=10"));
    let sentence =
        "the run reads its metrics after each step: train.log_every = 10 reads as much with a tenth of the waits";
    assert!(each.contains(sentence) && each.contains("1.00 host syncs per step"), "{each}");
    assert!(!tenth.contains("after each step") && tenth.contains("every 10 steps (train.log_every)"), "{tenth}");
}

/// Passes on what comes, 32 KiB every 2 milliseconds: at most 16 MB per second.
fn slow_wire(from: &TcpStream, to: &TcpStream) {
    let (mut from, mut to) = (from.try_clone().expect("a handle"), to.try_clone().expect("a handle"));
    thread::spawn(move || {
        let mut buffer = vec![0; 32 << 10];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            thread::sleep(Duration::from_millis(2));
            if to.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}

/// Returns a port that leads to `port` over slow wires.
fn slow_way_to(port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let near_port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            // Rank 0 may not listen yet; rank 1 tries again.
            let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
            slow_wire(&near, &far);
            slow_wire(&far, &near);
        }
    });
    near_port
}

/// Diagnoses the program on two ranks with a slow link between them. Returns the causes, and the share of twice one device's speed.
fn diagnose_two(program: &Path, settings: [&str; 2]) -> (String, f64) {
    let place = Workplace::new();
    let port = free_port().expect("a port");
    let far = slow_way_to(port);
    let rank = |rank: usize, port: u16| {
        let mut command = Command::new(program);
        command.args([
            "diagnose",
            "--task",
            "lm",
            "--preset",
            "gpt2-tiny",
            "--device",
            "cpu",
            "--json",
            "--only",
            "together",
        ]);
        command.args(["--steps", "2", "--repeats", "3", "--set", "model.d_model=512", "--set", "loader.num_workers=1"]);
        command.args(settings.iter().flat_map(|set| ["--set", *set])).current_dir(place.path(""));
        let world =
            [("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("KILN_SECRET", "slow")];
        command.envs(world).env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
        command.env("MASTER_PORT", port.to_string()).env("RAYON_NUM_THREADS", "1").env_remove("FAULT");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let (first, second) = (rank(0, port), rank(1, far));
    let [first, second] = [first, second].map(|rank| rank.wait_with_output().expect("it ends"));
    let errors = String::from_utf8_lossy(&first.stderr).into_owned() + &String::from_utf8_lossy(&second.stderr);
    assert!(first.status.success() && second.status.success(), "{errors}");

    let found: Value = serde_json::from_slice(&first.stdout).expect("one object");
    let ms = |field: &str| found["figures"]["together"][field].as_f64().expect("measured");
    (causes(&found).join("\n"), ms("alone_ms") / ms("together_ms"))
}

#[test]
fn an_exchange_per_micro_batch_is_found() {
    let Some(program) = program() else { return };
    let (each, of_each) = diagnose_two(&program, ["train.grad_accum_steps=1", "loader.batch_tokens=64"]);
    for part in [
        "the link between the devices: 2 devices reach",
        "they exchange after each batch",
        "train.grad_accum_steps = 64",
    ] {
        assert!(each.contains(part), "{part:?} is missing in {each}");
    }
    let (once, of_once) = diagnose_two(&program, ["train.grad_accum_steps=32", "loader.batch_tokens=256"]);
    assert!(!once.contains("after each batch") && of_once > of_each + 0.2, "{of_each} {each}\n{of_once} {once}");
}

#[test]
fn commands_that_read_files_are_refused_by_a_program_with_data_of_its_own() {
    let (Some(program), place) = (program(), Workplace::new()) else { return };
    for arguments in [&["prepare", "--task", "lm"][..], &["evaluate", "runs/own"], &["data", "stats", "--task", "lm"]] {
        let output = Command::new(&program).args(arguments).current_dir(place.path("")).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains("data of its own"), "{arguments:?}: {said}");
    }
}

#[test]
fn a_program_with_data_of_its_own_trains_resumes_and_measures() {
    let (Some(program), place) = (program(), Workplace::new()) else { return };
    let run = |arguments: &[&str]| {
        let output = Command::new(&program).args(arguments).current_dir(place.path("")).output().expect("it starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{arguments:?}: {}\n{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout) + &text(&output.stderr)
    };
    let train = ["train", "--task", "lm", "--preset", "gpt2-tiny", "--device", "cpu", "--run", "runs/own"];
    let settings = ["--set", "model.d_model=32", "--set", "train.steps=6", "--set", "optim.warmup_steps=1"];
    let trained = run(&[&train[..], &settings[..]].concat());
    assert!(trained.contains("planted_faults report runs/own"), "the next command is one that it has: {trained}");
    let resumed = run(&["train", "--run", "runs/own", "--resume", "--device", "cpu", "--set", "train.steps=9"]);
    assert!(resumed.contains("step 9"), "{resumed}");

    let profile = run(&["profile", "--run", "runs/own", "--device", "cpu", "--steps", "2", "--warm-up", "1"]);
    assert!(profile.contains("embedding"), "{profile}");
    let memory = run(&["memory", "--run", "runs/own", "--device", "cpu"]);
    assert!(memory.contains("hidden"), "{memory}");
    run(&["check", "runs/own"]);
}

/// The commands of a document that run the program, in their order: the fault, and the arguments.
fn commands_of(document: &str) -> Vec<(String, Vec<String>)> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(document)).expect("a document");
    let lines = text.replace("\\\n", " ");
    let commands = lines.lines().filter_map(|line| line.split_once("--example planted_faults -- "));
    let fault = |before: &str| {
        before.split("FAULT=").nth(1).map_or("", |rest| rest.split(' ').next().unwrap_or_default()).to_owned()
    };
    commands.map(|(before, after)| (fault(before), after.split_whitespace().map(str::to_owned).collect())).collect()
}

#[test]
fn the_commands_of_the_case_study_run() {
    let (Some(program), place) = (program(), Workplace::new()) else { return };
    let commands = commands_of("docs/case-study.md");
    assert!(commands.len() >= 12, "the day has many commands: {commands:?}");
    for (fault, mut arguments) in commands {
        // What they print at their full length stands in the results; here they must run.
        let short: &[&str] = match arguments[0].as_str() {
            "diagnose" => &["--steps", "1", "--repeats", "1", "--leak-steps", "60"],
            "profile" => &["--steps", "1", "--warm-up", "1"],
            _ => &[],
        };
        arguments.extend(short.iter().map(|word| (*word).to_owned()));
        let mut command = Command::new(&program);
        let output =
            command.args(&arguments).env("FAULT", &fault).current_dir(place.path("")).output().expect("it starts");
        assert!(output.status.success(), "FAULT={fault} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
