//! Several processes train one model: the same bits as one, and one end for all whatever happens to one of them.

use std::fs;
use std::process::{Child, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::*;

/// Arguments of a run on `n` CPU ranks, begun or continued.
pub(super) fn on_ranks(run: &str, steps: usize, n: usize, more: &[&str]) -> Vec<String> {
    let mut all = arguments(run, steps);
    all.retain(|argument| argument != "--device" && argument != "cpu");
    all.extend(["--devices".into(), vec!["cpu"; n].join(",")]);
    all.extend(more.iter().map(|argument| (*argument).to_owned()));
    all
}

pub(super) fn start(place: &Workplace, arguments: &[String]) -> Child {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    place.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// Waits for a process that must end in time.
#[track_caller]
pub(super) fn end_within(mut child: Child, limit: Duration) -> Output {
    let started = Instant::now();
    while child.try_wait().expect("ours").is_none() {
        if started.elapsed() > limit {
            let _ = child.kill();
            panic!(
                "still alive after {limit:?}: {}",
                String::from_utf8_lossy(&child.wait_with_output().expect("ended").stderr)
            );
        }
        sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("ended")
}

/// The processes of the ranks, by rank: the launcher's children.
pub(super) fn ranks_of(launcher: &Child, n: usize) -> Option<Vec<u32>> {
    let mut ranks = vec![None; n];
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if !is_child(pid, launcher) {
            continue;
        }
        let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let rank = variables.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(b"KILN_RANK="));
        let rank = rank.and_then(|rank| std::str::from_utf8(rank).ok()?.parse::<usize>().ok());
        if let Some(slot) = rank.and_then(|rank| ranks.get_mut(rank)) {
            *slot = Some(pid);
        }
    }
    ranks.into_iter().collect()
}

fn is_child(pid: u32, launcher: &Child) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.split_whitespace().eq(["PPid:", &launcher.id().to_string()]))
}

#[track_caller]
pub(super) fn wait_for_step(place: &Workplace, run: &str, step: usize) {
    let line = format!("\"step\":{step},");
    let metrics = place.path(&format!("{run}/metrics.jsonl"));
    wait_until(&format!("step {step}"), || fs::read_to_string(&metrics).is_ok_and(|text| text.contains(&line)));
}

pub(super) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn two_processes_end_with_the_bits_of_one_that_accumulates() {
    let place = workplace();
    let mut alone = arguments("runs/one", 20);
    alone.extend(["--set".into(), "train.grad_accum_steps=2".into()]);
    place.run(&alone.iter().map(String::as_str).collect::<Vec<_>>()).ok();

    let both = end_within(start(&place, &on_ranks("runs/two", 20, 2, &[])), Duration::from_secs(120));
    assert_eq!(both.status.code(), Some(0), "{}", stderr(&both));
    assert_same_end(&place, "runs/one", "runs/two", 20);

    // The steps keep their batches on one device: twice as many a step there.
    let longer = ["train", "--device", "cpu", "--run", "runs/two", "--resume", "--set", "train.steps=24"];
    let longer = place.run(&longer).ok();
    assert!(longer.stderr.contains("train.grad_accum_steps = 2 instead of 1 on 1 device(s)"), "{longer:#?}");
    let three = on_ranks("runs/two", 30, 3, &["--resume"]);
    let three = place.run(&three.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(three.code != 0 && three.stderr.contains("3 devices cannot share evenly"), "{three:#?}");
}

#[test]
fn any_rank_may_die_at_any_instant() {
    let kills = count("KILN_FAULT_RANK_KILLS", 4);
    let place = workplace();
    let mut random = Random::new("ranks");
    let steps = 30 + 10 * kills;
    let started = Instant::now();
    let whole = end_within(start(&place, &on_ranks("runs/a", steps, 2, &[])), Duration::from_secs(300));
    assert_eq!(whole.status.code(), Some(0), "{}", stderr(&whole));
    let whole_run = started.elapsed();

    let (mut ended_early, mut slowest) = (0, Duration::ZERO);
    for kill in 0..kills {
        let launcher = start(&place, &on_ranks("runs/b", steps, 2, &["--resume", "auto"]));
        sleep(Duration::from_micros(random.below((whole_run.as_micros() as u64 / 2).min(1_500_000))));
        let Some(ranks) = ranks_of(&launcher, 2) else {
            // Killed before it has started its ranks: the same as a rank that dies.
            signal(launcher.id(), "-KILL");
            drop(end_within(launcher, Duration::from_secs(10)));
            continue;
        };
        let victim = kill % 2;
        signal(ranks[victim], "-KILL");
        let killed = Instant::now();
        let output = end_within(launcher, Duration::from_secs(20));
        slowest = slowest.max(killed.elapsed());
        if output.status.success() {
            ended_early += 1;
            continue;
        }
        let text = stderr(&output);
        assert!(text.contains(&format!("rank {victim}")), "its name: {text}");
        assert!(!text.contains("panicked"), "{text}");
    }
    assert!(ended_early < 2, "the training is too short for {kills} kills");
    let last =
        end_within(start(&place, &on_ranks("runs/b", steps, 2, &["--resume", "auto"])), Duration::from_secs(300));
    assert_eq!(last.status.code(), Some(0), "{}", stderr(&last));
    println!("{kills} kills of a rank, {steps} steps, undisturbed in {whole_run:.1?}, slowest end {slowest:.1?}");
    assert!(slowest < Duration::from_secs(10), "{slowest:?}");
    assert_same_end(&place, "runs/a", "runs/b", steps);
}

#[test]
fn replicas_that_take_steps_alone_may_die_at_any_instant() {
    let place = workplace();
    let local = |run: &str, n: usize, more: &[&str]| {
        on_ranks(run, 60, n, &[&["--set", "train.sync_every=7", "--set", "train.save_every=5"], more].concat())
    };
    let whole = end_within(start(&place, &local("runs/a", 2, &[])), Duration::from_secs(120));
    assert_eq!(whole.status.code(), Some(0), "{}", stderr(&whole));
    assert!(stderr(&whole).contains("takes a step after every 7 steps"), "{}", stderr(&whole));

    let mut random = Random::new("replicas");
    for kill in 0..3 {
        let launcher = start(&place, &local("runs/b", 2, &["--resume", "auto"]));
        sleep(Duration::from_millis(300 + random.below(700)));
        if let Some(ranks) = ranks_of(&launcher, 2) {
            signal(ranks[kill % 2], "-KILL");
        }
        drop(end_within(launcher, Duration::from_secs(20)));
    }
    let last = end_within(start(&place, &local("runs/b", 2, &["--resume", "auto"])), Duration::from_secs(120));
    assert_eq!(last.status.code(), Some(0), "{}", stderr(&last));
    assert_same_end(&place, "runs/a", "runs/b", 60);
    for file in ["outer.safetensors", "replica-1.safetensors"] {
        let of = |run: &str| fs::read(place.path(&format!("{run}/checkpoints/step-00000060/{file}"))).expect("saved");
        assert!(of("runs/a") == of("runs/b"), "{file} differs");
    }

    // Each replica has moments of its own.
    let three = place.run(&local("runs/a", 3, &["--resume"]).iter().map(String::as_str).collect::<Vec<_>>());
    assert!(three.code != 0 && three.stderr.contains("resume it on 2 devices, not on 3"), "{three:#?}");
    let alone = place.run(&["train", "--device", "cpu", "--run", "runs/a", "--resume"]);
    assert!(alone.code != 0 && alone.stderr.contains("resume it on 2 devices, not on 1"), "{alone:#?}");
}

#[test]
fn a_rank_that_is_stopped_ends_the_run_with_its_name_within_ten_seconds() {
    let place = workplace();
    let launcher = start(&place, &on_ranks("runs/a", 1_000_000, 2, &[]));
    wait_for_step(&place, "runs/a", 3);
    let ranks = ranks_of(&launcher, 2).expect("two ranks");
    signal(ranks[1], "-STOP");
    let stopped = Instant::now();
    let output = end_within(launcher, Duration::from_secs(20));
    let took = stopped.elapsed();
    signal(ranks[1], "-KILL");
    let text = stderr(&output);
    assert!(!output.status.success() && text.contains("rank 1"), "{text}");
    assert!(took < Duration::from_secs(11), "{took:?}: {text}");
    place.run(&["check", "runs/a"]).ok();
}

#[test]
fn sigterm_to_the_launcher_or_to_any_rank_saves_once_and_ends_all_with_0() {
    for to_rank in [None, Some(1)] {
        let place = workplace();
        // A validation would save its best checkpoint, too.
        let quiet = ["--set", "train.save_every=0", "--set", "train.validate_every=0"];
        let launcher = start(&place, &on_ranks("runs/a", 1_000_000, 2, &quiet));
        wait_for_step(&place, "runs/a", 3);
        let ranks = ranks_of(&launcher, 2).expect("two ranks");
        signal(to_rank.map_or(launcher.id(), |rank: usize| ranks[rank]), "-TERM");
        let output = end_within(launcher, Duration::from_secs(60));
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert_eq!(text.matches("and saved; continue with:").count(), 1, "{text}");
        assert!(text.contains("--resume --devices cpu,cpu"), "{text}");
        let saved = fs::read_dir(place.path("runs/a/checkpoints")).expect("there").flatten();
        let saved = saved.filter(|entry| entry.file_name().to_string_lossy().starts_with("step-")).count();
        assert_eq!(saved, 1, "{text}");
    }
}

/// Starts a rank as a launcher would that sets these variables.
pub(super) fn rank_with(place: &Workplace, variables: &[(&str, String)], arguments: &[String]) -> Child {
    let mut command = place.command(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    command.envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// The variables that a launcher sets for one of two ranks on this machine.
pub(super) fn variables(launcher: &str, rank: usize, port: u16) -> Vec<(&'static str, String)> {
    let names: &[(&str, &str)] = match launcher {
        "torchrun" => &[
            ("RANK", "rank"),
            ("LOCAL_RANK", "rank"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
        ],
        "slurm" => &[
            ("SLURM_PROCID", "rank"),
            ("SLURM_LOCALID", "rank"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_NUM_NODES", "1"),
            ("SLURM_STEP_NODELIST", "localhost"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "0"),
        ],
        _ => &[
            ("OMPI_COMM_WORLD_RANK", "rank"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "rank"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
        ],
    };

    let value = |value: &str| if value == "rank" { rank.to_string() } else { value.to_owned() };
    let port = ("MASTER_PORT", port.to_string());
    names.iter().map(|(name, of)| (*name, value(of))).chain([port]).collect()
}

#[test]
fn the_launchers_that_people_have_set_all_that_a_rank_needs() {
    let place = workplace();
    let free_port = || kiln::distributed::free_port().expect("a port");
    for name in ["torchrun", "slurm", "mpirun"] {
        let (run, port) = (format!("runs/{name}"), free_port());
        let ranks: Vec<_> =
            (0..2).map(|rank| rank_with(&place, &variables(name, rank, port), &arguments(&run, 6))).collect();
        for rank in ranks {
            let output = end_within(rank, Duration::from_secs(120));
            assert_eq!(output.status.code(), Some(0), "{name}: {}", stderr(&output));
        }
        assert_eq!(losses(&place, &run).len(), 6, "{name}: one of them writes");
    }

    // Unequal ranks are refused with each difference.
    let port = free_port();
    let ranks: Vec<_> = (0..2)
        .map(|rank| {
            let mut all = arguments("runs/unequal", 6);
            if rank == 1 {
                all.extend(["--set", "optim.lr=0.5", "--set", "seed=7"].map(String::from));
            }
            rank_with(&place, &variables("torchrun", rank, port), &all)
        })
        .collect();
    for (rank, child) in ranks.into_iter().enumerate() {
        let output = end_within(child, Duration::from_secs(60));
        let text = stderr(&output);
        assert!(!output.status.success(), "{text}");
        assert!(text.contains("optim.lr") && text.contains("seed"), "rank {rank}: {text}");
    }
    assert!(!place.path("runs/unequal/config.toml").exists(), "nothing was begun");
}

/// Any child of the launcher, once there is one that is none of `before`.
#[track_caller]
fn new_child(launcher: &Child, before: &[u32]) -> u32 {
    let mut found = None;
    wait_until("a new process", || {
        let entries = fs::read_dir("/proc").expect("Linux").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        found = pids.into_iter().find(|pid| !before.contains(pid) && is_child(*pid, launcher));
        found.is_some()
    });
    found.expect("waited for")
}

#[test]
fn a_run_with_restarts_ends_with_the_same_bits_whatever_is_killed() {
    let place = workplace();
    let (steps, kills) = (120, count("KILN_FAULT_RESTARTS", 3));
    let mut random = Random::new("restarts");
    let cases: [(usize, &str, &[&str]); 3] =
        [(2, "two", &[]), (1, "one", &["--preset", "numbers"]), (1, "another", &["--from", "runs/one"])];
    for (n, name, more) in cases {
        let arguments = |run: &str| {
            let all = match n {
                1 => arguments(run, steps),
                n => on_ranks(run, steps, n, &[]),
            };
            all.into_iter().chain(more.iter().map(|argument| (*argument).to_owned())).collect::<Vec<_>>()
        };
        let undisturbed = format!("runs/undisturbed-{name}");
        end_within(start(&place, &arguments(&undisturbed)), Duration::from_secs(120));

        let run = format!("runs/{name}");
        let mut with_restarts = arguments(&run);
        with_restarts.extend(["--restarts".into(), kills.to_string()]);
        let launcher = start(&place, &with_restarts);
        let mut killed = Vec::new();
        for kill in 0..kills {
            if n == 1 {
                let pid = new_child(&launcher, &killed);
                wait_for_step(&place, &run, 5 + 20 * kill);
                assert!(signal(pid, "-KILL"), "it trains");
                killed.push(pid);
            } else {
                wait_for_step(&place, &run, 5 + 20 * kill);
                let mut ranks = None;
                wait_until("its ranks", || {
                    ranks = ranks_of(&launcher, n).filter(|ranks| ranks.iter().all(|pid| !killed.contains(pid)));
                    ranks.is_some()
                });
                let ranks = ranks.expect("waited for");
                assert!(signal(ranks[random.below(n as u64) as usize], "-KILL"), "it trains");
                killed.extend(ranks);
            }
        }
        let ended = end_within(launcher, Duration::from_secs(180));
        assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
        let said = stderr(&ended);
        assert_eq!(said.matches("it continues from its newest checkpoint").count(), kills, "{said}");
        assert_same_end(&place, &undisturbed, &run, steps);
    }
}

#[test]
fn restarts_end_where_another_one_would_not_help() {
    let place = workplace();
    let mut diverging = arguments("runs/diverging", 40);
    diverging.extend(["--restarts", "9", "--set", "optim.lr=1e30", "--set", "optim.warmup_steps=0"].map(String::from));
    let ended = end_within(start(&place, &diverging), Duration::from_secs(120));
    let said = stderr(&ended);
    assert!(said.contains("restart 1 of 9") && !said.contains("restart 4 of 9"), "{said}");
    assert!(said.contains("is not started again: it has failed twice after step"), "{said}");
    assert_eq!(ended.status.code(), Some(1), "{said}");

    let mut wrong = arguments("runs/wrong", 40);
    wrong.extend(["--restarts", "9", "--set", "model.n_heads=3"].map(String::from));
    let ended = end_within(start(&place, &wrong), Duration::from_secs(60));
    assert!(!stderr(&ended).contains("restart"), "{}", stderr(&ended));
    assert_eq!(ended.status.code(), Some(2), "{}", stderr(&ended));
    place.run(&["train", "--restarts", "2"]).refused(2, &["--run"]);

    // The newest checkpoint has all steps: nothing is left to do, and nothing fails.
    place.run(&["train", "--run", "runs/none", "--restarts", "2", "--resume"]).refused(2, &["no run to resume here"]);
}

/// A process that dies while it saves its last checkpoint must not begin to train again.
#[test]
fn a_run_that_was_asked_to_end_is_not_started_again() {
    let place = workplace();
    let mut arguments = arguments("runs/asked", 100_000);
    arguments.extend(["--restarts", "9"].map(String::from));
    let launcher = start(&place, &arguments);
    let pid = new_child(&launcher, &[]);
    wait_for_step(&place, "runs/asked", 5);
    // Halted, so that it dies before it can end.
    assert!(signal(pid, "-STOP") && signal(launcher.id(), "-TERM"), "both run");
    std::thread::sleep(Duration::from_millis(500));
    assert!(signal(pid, "-KILL"), "it is halted");
    let ended = end_within(launcher, Duration::from_secs(60));
    let said = stderr(&ended);
    assert!(said.contains("is not started again: it was asked to end") && !said.contains("restart 1"), "{said}");
    assert_eq!(ended.status.code(), Some(137), "{said}");
}
