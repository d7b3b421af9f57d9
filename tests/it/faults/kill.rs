//! `kill -9` at any instant, and signals that ask politely.

use std::fs;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::*;

/// Where a life of the training ends.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// Any time after its start: preparing, loading, training.
    Anywhere,
    /// While a checkpoint is being written.
    Saving,
    /// The same with the token caches taken away before, so that they are being built.
    Preparing,
}

fn spawn(place: &Workplace, run: &str, steps: usize) -> Child {
    let begun = place.path(run).join("config.toml").exists();
    let arguments = match begun {
        true => ["train", "--device", "cpu", "--run", run, "--resume"].map(String::from).into(),
        false => arguments(run, steps),
    };
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let log = fs::File::options().create(true).append(true).open(place.path("log")).expect("writable");
    place.command(&arguments).stdout(Stdio::null()).stderr(log).spawn().expect("it starts")
}

/// Waits until a save is under way, or the child has ended.
fn wait_for_save(place: &Workplace, run: &str, child: &mut Child) {
    let checkpoints = place.path(run).join("checkpoints");
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline && child.try_wait().expect("ours").is_none() {
        let mut entries = fs::read_dir(&checkpoints).into_iter().flatten().flatten();
        if entries.any(|entry| {
            entry.file_name().to_str().is_some_and(|name| name.starts_with("step-") && name.ends_with(".tmp"))
        }) {
            return;
        }
        sleep(Duration::from_micros(200));
    }
}

#[test]
fn a_training_killed_again_and_again_ends_with_the_same_bits() {
    let kills = count("KILN_FAULT_KILLS", 9);
    let place = workplace();
    let mut random = Random::new("kills");
    // Long enough that it cannot end before the last kill.
    let steps = 30 + 40 * kills;
    let started = Instant::now();
    begin(&place, "runs/a", steps).ok();
    let whole_run = started.elapsed();
    // One life to see how long preparing takes.
    let started = Instant::now();
    let mut child = spawn(&place, "runs/b", steps);
    while !place.path("runs/b/metrics.jsonl").exists() {
        assert!(child.try_wait().expect("ours").is_none() && started.elapsed() < Duration::from_secs(120), "it trains");
        sleep(Duration::from_millis(2));
    }
    let startup = started.elapsed();
    child.kill().expect("ours");
    child.wait().expect("ours");

    let (mut done, mut ended_early) = (1, 0);
    while done < kills {
        let moment = [Moment::Anywhere, Moment::Saving, Moment::Preparing][done % 3];
        if matches!(moment, Moment::Preparing) {
            let _ = fs::remove_dir_all(place.path("runs/b/cache"));
        }
        let mut child = spawn(&place, "runs/b", steps);
        match moment {
            Moment::Saving => {
                wait_for_save(&place, "runs/b", &mut child);
                sleep(Duration::from_micros(random.below(4_000)));
            }
            Moment::Anywhere => {
                sleep(startup.mul_f64(random.below(1000) as f64 / 1000.0) + Duration::from_millis(random.below(250)));
            }
            Moment::Preparing => sleep(Duration::from_micros(random.below(startup.as_micros() as u64))),
        }
        // SIGKILL.
        child.kill().expect("ours");
        if child.wait().expect("ours").success() {
            ended_early += 1;
            assert!(ended_early < 2, "the training is too short for {kills} kills: {} steps", steps);
        }
        done += 1;
    }
    let last = spawn(&place, "runs/b", steps).wait().expect("ours");
    assert!(last.success(), "{}", place.read("log"));
    println!("{done} kills, {steps} steps, undisturbed in {whole_run:.1?}, start in {startup:.1?}");
    assert!(!place.read("log").contains("panicked"), "{}", place.read("log"));
    assert_same_end(&place, "runs/a", "runs/b", steps);
}

#[test]
fn sigterm_saves_and_ends_with_0_sigusr1_saves_and_a_second_process_is_sent_away() {
    let place = workplace();
    let mut arguments = arguments("runs/a", 1_000_000);
    arguments.extend(["--set", "train.save_every=0", "--set", "train.validate_every=0"].map(String::from));
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let mut child = place.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_until("a step", || {
        fs::read_to_string(place.path("runs/a/metrics.jsonl")).is_ok_and(|text| text.contains("\"step\":2"))
    });
    let n_checkpoints = || {
        fs::read_dir(place.path("runs/a/checkpoints")).map_or(0, |dir| {
            dir.flatten()
                .filter(|entry| {
                    entry.file_name().to_str().is_some_and(|name| name.starts_with("step-") && !name.contains('.'))
                })
                .count()
        })
    };
    assert_eq!(n_checkpoints(), 0);

    assert!(signal(child.id(), "-USR1"));
    wait_until("a checkpoint on request", || n_checkpoints() == 1);
    let steps = || losses(&place, "runs/a").len();
    // A line may be in the making while it is read.
    let before = std::panic::catch_unwind(steps).unwrap_or_default();
    wait_until("steps after it", || std::panic::catch_unwind(steps).is_ok_and(|now| now > before + 2));
    let second = resume(&place, "runs/a");
    let pid = format!("process {} is training", child.id());
    assert!(second.code == 1 && second.stderr.contains(&pid) && second.stderr.contains("--run"), "{second:#?}");
    assert!(child.try_wait().expect("ours").is_none(), "it goes on");

    // `timeout` sends two: to its child, and to the group of the child.
    assert!(signal(child.id(), "-TERM"));
    signal(child.id(), "-TERM");
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("and saved; continue with:") && stderr.contains("--resume"), "{stderr}");
    assert_eq!(n_checkpoints(), 2);
    place.run(&["check", "runs/a"]).ok();
}

#[cfg(target_os = "linux")]
#[test]
fn a_terminal_that_closes_saves_and_ends_with_0_unless_nohup_was_asked_for() {
    use std::os::unix::process::CommandExt;
    let place = workplace();
    for (run, devices) in [("runs/a", None), ("runs/b", Some("cpu,cpu"))] {
        let mut arguments = arguments(run, 1_000_000);
        arguments.extend(["--set", "train.save_every=0", "--set", "train.validate_every=0"].map(String::from));
        if let Some(devices) = devices {
            arguments.retain(|argument| argument != "--device" && argument != "cpu");
            arguments.extend(["--devices", devices].map(String::from));
        }
        let kiln = env!("CARGO_BIN_EXE_kiln");
        let start = |script: &str| {
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", script, "sh", kiln]).args(&arguments).current_dir(place.path("")).process_group(0);
            shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("sh is there")
        };
        let steps = || std::panic::catch_unwind(|| losses(&place, run).len()).unwrap_or_default();
        // The tests themselves may run under nohup.
        let mut child = start("exec env --default-signal=HUP \"$@\"");
        wait_until("steps", || steps() > 2);
        // Nobody reads what it writes any more, and both the shell and the terminal send the signal.
        drop((child.stdout.take(), child.stderr.take()));
        assert!(signal(child.id(), "-HUP"));
        signal(child.id(), "-HUP");
        assert_eq!(child.wait().expect("it ends").code(), Some(0), "{run}");
        place.run(&["check", run]).ok();
        assert!(place.path(&format!("{run}/checkpoints/last")).exists(), "{run}");

        fs::remove_dir_all(place.path(run)).expect("ours");
        let mut child = start("trap '' HUP; exec \"$@\"");
        wait_until("steps", || steps() > 2);
        assert!(signal(child.id(), "-HUP"));
        let before = steps();
        wait_until("steps after it", || steps() > before + 5);
        assert!(child.try_wait().expect("ours").is_none(), "{run}: it goes on");
        assert!(signal(child.id(), "-TERM"));
        assert_eq!(child.wait().expect("it ends").code(), Some(0), "{run}");
    }
}
