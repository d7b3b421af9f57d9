//! `train.lost_replicas = "go_on"`: the processes that are left train on, and the one that takes the place of a lost one joins them.

use std::time::Duration;

use super::ranks::{end_within, on_ranks, rank_with, ranks_of, start, stderr, variables, wait_for_step};
use super::*;

const STEPS: usize = 120;

/// A run on four CPU ranks that meet every 5 steps.
fn replicas(run: &str, steps: usize, more: &[&str]) -> Vec<String> {
    let sets = ["--set", "train.sync_every=5", "--set", "train.save_every=30", "--set", "train.validate_every=30"];
    on_ranks(run, steps, 4, &[&sets, more].concat())
}

const GO_ON: [&str; 2] = ["--set", "train.lost_replicas=go_on"];

/// The last line of a kind.
fn last(place: &Workplace, run: &str, kind: &str) -> serde_json::Value {
    let text = place.read(&format!("{run}/metrics.jsonl"));
    let lines = text.lines().rev().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    lines.into_iter().find(|line| line["kind"] == kind).unwrap_or_else(|| panic!("no {kind} in {text}"))
}

/// Batches that the run has read.
fn batches(place: &Workplace, run: &str, steps: usize) -> u64 {
    let state = place.read(&format!("{run}/checkpoints/step-{steps:08}/trainer_state.json"));
    let state: serde_json::Value = serde_json::from_str(&state).expect("JSON");
    let longer = format!("train.steps={}", 2 * steps);
    let shown = place.run(&["train", "--device", "cpu", "--run", run, "--resume", "--set", &longer, "--dry-run"]).ok();
    let per_epoch = shown.stdout.lines().find_map(|line| line.split_once(" batches per epoch")).expect("a line").0;
    let per_epoch: u64 = per_epoch.replace(',', "").parse().expect("a number");
    let (epoch, batch) = (state["position"]["epoch"].as_u64(), state["position"]["batch"].as_u64());
    epoch.expect("a number") * per_epoch + batch.expect("a number")
}

#[test]
fn a_run_survives_the_loss_of_any_replica_and_the_first_one_too() {
    let place = workplace();
    let whole = end_within(start(&place, &replicas("runs/whole", STEPS, &GO_ON)), Duration::from_secs(120));
    assert_eq!(whole.status.code(), Some(0), "{}", stderr(&whole));

    let launcher = start(&place, &replicas("runs/lost", STEPS, &GO_ON));
    wait_for_step(&place, "runs/lost", 12);
    let mut ranks = ranks_of(&launcher, 4).expect("four processes");
    for (lost, step) in [(2, 12), (0, 45), (3, 80)] {
        wait_for_step(&place, "runs/lost", step);
        assert!(signal(ranks[lost], "-KILL"), "rank {lost} trains");
        wait_until("another process", || {
            ranks_of(&launcher, 4)
                .is_some_and(|now| now[lost] != ranks[lost] && now.iter().all(|pid| *pid != ranks[lost]))
        });
        let now = ranks_of(&launcher, 4).expect("four processes");
        let others = |ranks: &[u32]| [&ranks[..lost], &ranks[lost + 1..]].concat();
        assert_eq!(others(&now), others(&ranks), "the processes of the others stay");
        ranks = now;
    }
    let ended = end_within(launcher, Duration::from_secs(120));
    let said = stderr(&ended);
    assert_eq!(ended.status.code(), Some(0), "{said}");
    for (lost, others) in [(2, "ranks 0, 1 and 3"), (0, "ranks 1, 2 and 3"), (3, "ranks 0, 1 and 2")] {
        let line = format!(
            "rank {lost} (cpu) ended with signal 9 (SIGKILL); it is started again, and the run continues with {others}"
        );
        assert!(said.contains(&line) && said.contains(&format!("rank {lost} (cpu) is back")), "{said}");
    }

    // Every step is written once, and the loss is about the loss of the undisturbed run.
    let steps: Vec<u64> = losses(&place, "runs/lost").into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, (1..=STEPS as u64).collect::<Vec<_>>());
    let loss = |run: &str| last(&place, run, "validation")["loss"].as_f64().expect("a loss");
    let (disturbed, undisturbed) = (loss("runs/lost"), loss("runs/whole"));
    println!("validation loss {disturbed:.4}, undisturbed {undisturbed:.4}");
    assert!((disturbed - undisturbed).abs() < 0.05 * undisturbed, "{disturbed} and {undisturbed}");

    // No batch is read twice, and those that are not read are counted.
    let (read, planned) = (batches(&place, "runs/lost", STEPS), batches(&place, "runs/whole", STEPS));
    assert_eq!(planned, 4 * STEPS as u64);
    let counted = said.contains(&format!(
        "the run has read {read} batches; with all 4 replicas in every step it would have read {planned}"
    ));
    assert!(
        if read == planned { !said.contains("the run has read") } else { read < planned && counted },
        "{read}: {said}"
    );
    let checked = place.run(&["check", "runs/lost"]).ok();
    assert!(!checked.stdout.contains("DAMAGED"), "{checked:#?}");
}

#[test]
fn a_replica_that_does_not_come_back_leaves_the_others_training() {
    let place = workplace();
    let launcher = start(&place, &replicas("runs/lost", STEPS, &GO_ON));
    wait_for_step(&place, "runs/lost", 7);
    let mut lost = ranks_of(&launcher, 4).expect("four processes")[1];
    for loss in 1..=3 {
        assert!(signal(lost, "-KILL"), "it is there");
        if loss < 3 {
            wait_until("another process", || ranks_of(&launcher, 4).is_some_and(|ranks| ranks[1] != lost));
            lost = ranks_of(&launcher, 4).expect("four processes")[1];
        }
    }
    let ended = end_within(launcher, Duration::from_secs(120));
    let said = stderr(&ended);
    assert_eq!(ended.status.code(), Some(0), "{said}");
    assert!(said.contains("once more soon after its start; the run continues with ranks 0, 2 and 3"), "{said}");
    let read = batches(&place, "runs/lost", STEPS);
    let counted =
        format!("the run has read {read} batches; with all 4 replicas in every step it would have read {}", 4 * STEPS);
    assert!(read < 4 * STEPS as u64 && said.contains(&counted), "{said}");

    // What is left can go on, also alone.
    let longer = format!("train.steps={}", STEPS + 20);
    place.run(&["train", "--device", "cpu", "--run", "runs/lost", "--resume", "--set", &longer]).ok();
    assert_eq!(losses(&place, "runs/lost").len(), STEPS + 20);
}

#[test]
fn a_replica_that_hangs_is_lost_and_one_that_fails_ends_the_run() {
    let place = workplace();
    let launcher = start(&place, &replicas("runs/hangs", STEPS, &GO_ON));
    wait_for_step(&place, "runs/hangs", 7);
    let stopped = ranks_of(&launcher, 4).expect("four processes")[3];
    assert!(signal(stopped, "-STOP"), "it trains");
    let ended = end_within(launcher, Duration::from_secs(120));
    let said = stderr(&ended);
    assert_eq!(ended.status.code(), Some(0), "{said}");
    assert!(said.contains("rank 3 (cpu) ended with signal 9 (SIGKILL); it is started again"), "{said}");

    let diverging = replicas(
        "runs/fails",
        STEPS,
        &[&GO_ON[..], &["--set", "optim.lr=1e30", "--set", "optim.warmup_steps=0"]].concat(),
    );
    let ended = end_within(start(&place, &diverging), Duration::from_secs(120));
    let said = stderr(&ended);
    assert!(ended.status.code() == Some(1) && !said.contains("it is started again"), "{said}");

    // Without the setting, a loss ends the run.
    let launcher = start(&place, &replicas("runs/ends", 100_000, &[]));
    wait_for_step(&place, "runs/ends", 7);
    assert!(signal(ranks_of(&launcher, 4).expect("four processes")[2], "-KILL"), "it trains");
    let ended = end_within(launcher, Duration::from_secs(30));
    assert!(
        ended.status.code() == Some(137) && stderr(&ended).contains("ending the other ranks"),
        "{}",
        stderr(&ended)
    );
}

#[test]
fn what_cannot_survive_a_loss_is_refused_in_words() {
    let place = workplace();
    let every_step = on_ranks("runs/a", 20, 2, &GO_ON);
    place
        .run(&every_step.iter().map(String::as_str).collect::<Vec<_>>())
        .refused(2, &["train.lost_replicas", "train.sync_every above 1"]);

    let port = kiln::distributed::free_port().expect("a port");
    let mut arguments = arguments("runs/b", 20);
    arguments.extend(GO_ON.into_iter().chain(["--set", "train.sync_every=5"]).map(String::from));
    let ranks: Vec<_> = (0..2).map(|rank| rank_with(&place, &variables("torchrun", rank, port), &arguments)).collect();
    for rank in ranks {
        let output = end_within(rank, Duration::from_secs(60));
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("train.lost_replicas = \"go_on\": the ranks were started by torchrun"), "{text}");
    }
}
