//! `train.memory_limit`: a device stands for one with less memory.

use serde_json::Value;

use crate::kiln::{Ran, Workplace};

fn notes(place: &Workplace, run: &str) -> Vec<String> {
    let text = place.read(&format!("{run}/metrics.jsonl"));
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter_map(|line| line["note"].as_str().map(str::to_owned)).collect()
}

/// `kiln COMMAND` of a model whose activations are most of its memory, with a limit.
fn kiln(place: &Workplace, command: &str, limit: &str, more: &[&str]) -> Ran {
    let limit = format!("train.memory_limit={limit}");
    let mut all = vec![command, "--device", "cpu", "--preset", "gpt2-tiny"];
    for set in ["loader.batch_tokens=8192", "train.log_every=1", &limit] {
        all.extend(["--set", set]);
    }
    all.extend(more);
    place.run(&all)
}

/// The line that says how much memory a dry run needs, and of how much.
fn memory_line(ran: &Ran) -> String {
    let text = format!("{}{}", ran.stdout, ran.stderr);
    let line = text.lines().find(|line| line.contains("memory: about "));
    line.unwrap_or_else(|| panic!("no memory in {text}")).to_owned()
}

#[test]
fn estimates_and_choices_plan_for_the_limit() {
    let place = Workplace::new();
    let roomy = memory_line(&kiln(&place, "train", "100TiB", &["--dry-run"]).ok());
    assert!(!roomy.contains("train.memory_limit") && !roomy.contains("again"), "more than the machine has: {roomy}");

    // Automatic checkpointing keeps less on a smaller device, and a batch that does not fit is refused with the ways out.
    let close = memory_line(&kiln(&place, "train", "250MiB", &["--dry-run"]).ok());
    assert!(close.contains(" of 250 MiB (train.memory_limit)") && close.contains("again"), "{close}");
    let off = ["--dry-run", "--set", "train.activation_checkpointing=off"];
    kiln(&place, "train", "250MiB", &off).refused(
        2,
        &[
            "train.memory_limit allows 250 MiB",
            "loader.batch_tokens 8192",
            "train.activation_checkpointing to \"selective\" or \"layer\"",
        ],
    );
    kiln(&place, "train", "2MiB", &["--dry-run"]).refused(2, &["train.memory_limit allows 2 MiB", "--preset"]);

    // kiln memory finds the batch for the limit; its option names another memory.
    let of = |limit: &str, more: &[&str]| {
        let off = ["--set", "train.activation_checkpointing=off"];
        let ran = kiln(&place, "memory", limit, &[&off[..], more].concat()).ok();
        let line = ran.stdout.lines().find(|line| line.contains("the largest batch that fits")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{}", ran.stdout))
    };
    assert!(of("250MiB", &[]).contains("fits into 0.2 GiB"));
    assert_eq!(of("250MiB", &["--memory", "800MiB"]), of("800MiB", &[]));
    assert_ne!(of("250MiB", &[]), of("800MiB", &[]));
}

#[test]
fn a_limit_without_its_unit_is_refused() {
    let place = Workplace::new();
    kiln(&place, "train", "24", &["--dry-run"]).refused(2, &["train.memory_limit", "24 bytes", "24GiB"]);
    kiln(&place, "train", "lots", &["--dry-run"]).refused(2, &["train.memory_limit", "not a size"]);
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn a_run_that_holds_more_stops_and_goes_on_with_a_higher_limit() {
    let place = Workplace::new();
    // What was predicted fits; the heap has the program, the data and copies for checkpoints, too.
    let small = ["--set", "loader.batch_tokens=128", "--set", "train.activation_checkpointing=off"];
    let predicted = memory_line(&kiln(&place, "train", "100TiB", &[&small[..], &["--dry-run"]].concat()).ok());
    let mib = predicted.split("about ").nth(1).and_then(|rest| rest.split(" MiB").next()?.parse::<u64>().ok());
    let mib = mib.unwrap_or_else(|| panic!("MiB in {predicted}"));
    let (tight, wide) = (format!("{}MiB", mib + 1), format!("{}MiB", 20 * mib));
    let run = ["--run", "run", "--set", "train.steps=5", "--set", "train.save_every=1"];
    kiln(&place, "train", &tight, &[&small[..], &run].concat()).refused(
        1,
        &[
            &format!("train.memory_limit = \"{tight}\": the run holds "),
            " MiB on its heap by step ",
            "lower loader.batch_tokens",
            "\"selective\" or \"layer\"",
            "raise the limit",
        ],
    );
    let wider = format!("train.memory_limit={wide}");
    place.run(&["train", "--device", "cpu", "--run", "run", "--resume=auto", "--set", &wider]).ok();
    assert!(!notes(&place, "run").iter().any(|note| note.contains("memory_limit: ")), "{:?}", notes(&place, "run"));
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn smaller_micro_batches_are_found_for_the_limit() {
    let place = Workplace::new();
    let run = ["--set", "train.steps=2", "--auto-micro-batch", "--set", "train.activation_checkpointing=off"];
    kiln(&place, "train", "100TiB", &[&run[..], &["--run", "whole"]].concat()).ok();
    assert!(!notes(&place, "whole").iter().any(|note| note.contains("does not fit")), "{:?}", notes(&place, "whole"));
    kiln(&place, "train", "250MiB", &[&run[..], &["--run", "cut"]].concat()).ok();
    let found = notes(&place, "cut");
    assert!(
        found.iter().any(|note| note.contains("does not fit into memory: cutting every batch into 2")),
        "{found:?}"
    );
    assert!(place.read("cut/config.toml").contains("split_batches = "), "{found:?}");
    assert!(!place.read("cut/config.toml").contains("split_batches = 1\n"), "{found:?}");
}
