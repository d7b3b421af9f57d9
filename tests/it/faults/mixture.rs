//! A mixture of five sources over two ranks that are killed at any instant.

use std::fmt::Write;
use std::thread::sleep;
use std::time::Duration;

use super::ranks::{end_within, on_ranks, ranks_of, start, stderr};
use super::*;

/// Five sources of very different sizes, with weights, tags and validation text.
fn place_with_sources() -> Workplace {
    let place = workplace();
    let (rows, valid) = (place.read("train.jsonl"), place.read("valid.jsonl"));
    let rows: Vec<&str> = rows.lines().collect();
    let mut config = String::new();
    for (i, (n, weight)) in [(200, 3.0), (100, 3.0), (60, 2.0), (20, 1.0), (5, 1.0)].into_iter().enumerate() {
        place.write(&format!("s{i}.jsonl"), rows[i * 40..i * 40 + n].join("\n"));
        writeln!(config, "[[data.mix]]\nname = \"s{i}\"\ntrain = \"s{i}.jsonl\"\nweight = {weight}").expect("text");
        if i % 2 == 1 {
            writeln!(config, "tag = \"<odd>\"\nvalid = \"valid.jsonl\"").expect("text");
        }
    }
    place.write("valid.jsonl", valid);
    place.write("mix.toml", config);
    place
}

/// Arguments of a run on the mixture and `n` ranks, begun or continued.
fn mixed(run: &str, steps: usize, n: usize, more: &[&str]) -> Vec<String> {
    let mut all = on_ranks(run, steps, n, &[]);
    while let Some(at) = all.iter().position(|word| word.starts_with("data.train=") || word.starts_with("data.valid="))
    {
        all.drain(at - 1..=at);
    }
    all.extend(["--config", "mix.toml"].iter().chain(more).map(|word| (*word).to_owned()));
    all
}

#[test]
fn a_mixture_over_two_ranks_ends_with_the_same_bits_whatever_is_killed() {
    let kills = count("KILN_FAULT_MIX_KILLS", 4);
    let place = place_with_sources();
    let mut random = Random::new("mixture");
    let steps = 40 + 15 * kills;
    let started = Instant::now();
    let whole = end_within(start(&place, &mixed("runs/a", steps, 2, &[])), Duration::from_secs(300));
    assert_eq!(whole.status.code(), Some(0), "{}", stderr(&whole));
    assert!(stderr(&whole).contains("trained on s0 "), "{}", stderr(&whole));
    let whole_run = started.elapsed();

    // A run that ends before its kill says that this machine has become faster: another one is killed sooner.
    let mut latest = (whole_run.as_micros() as u64 / 2).min(1_500_000);
    let mut killed = 0;
    for _ in 0..4 * kills {
        let launcher = start(&place, &mixed("runs/b", steps, 2, &["--resume", "auto"]));
        sleep(Duration::from_micros(random.below(latest)));
        match ranks_of(&launcher, 2) {
            Some(ranks) => signal(ranks[killed % 2], "-KILL"),
            None => signal(launcher.id(), "-KILL"),
        };
        let output = end_within(launcher, Duration::from_secs(20));
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
        if output.status.success() {
            latest = latest / 2 + 1;
            std::fs::remove_dir_all(place.path("runs/b")).expect("the run that ended");
        } else {
            killed += 1;
        }
        if killed == kills {
            break;
        }
    }
    assert_eq!(killed, kills, "the training is too short");
    let last = end_within(start(&place, &mixed("runs/b", steps, 2, &["--resume", "auto"])), Duration::from_secs(300));
    assert_eq!(last.status.code(), Some(0), "{}", stderr(&last));
    assert_same_end(&place, "runs/a", "runs/b", steps);

    // The counts of the sources go on, too, and are as the shares say.
    let end = |run: &str| {
        let metrics = place.read(&format!("{run}/metrics.jsonl"));
        let line = metrics.lines().rfind(|line| line.contains("\"kind\":\"end\"")).expect("an end").to_owned();
        serde_json::from_str::<serde_json::Value>(&line).expect("JSON")["sources"].clone()
    };
    assert_eq!(end("runs/a"), end("runs/b"));
    let samples: Vec<f64> = (0..5).map(|i| end("runs/b")[format!("s{i}")]["samples"].as_f64().expect("rows")).collect();
    let all: f64 = samples.iter().sum();
    for (share, wanted) in samples.iter().map(|n| n / all).zip([0.3, 0.3, 0.2, 0.1, 0.1]) {
        assert!((share - wanted).abs() < 0.04, "{samples:?}");
    }
}

#[test]
fn two_ranks_train_on_a_mixture_as_one_does() {
    let place = place_with_sources();
    let mut alone = mixed("runs/one", 12, 1, &["--set", "train.grad_accum_steps=2", "--set", "loader.num_workers=0"]);
    let at = alone.iter().position(|word| word == "--devices").expect("devices");
    alone.splice(at..at + 2, ["--device".to_owned(), "cpu".to_owned()]);
    place.run(&alone.iter().map(String::as_str).collect::<Vec<_>>()).ok();
    let both = end_within(
        start(&place, &mixed("runs/two", 12, 2, &["--set", "loader.num_workers=4"])),
        Duration::from_secs(120),
    );
    assert_eq!(both.status.code(), Some(0), "{}", stderr(&both));
    assert_same_end(&place, "runs/one", "runs/two", 12);
}
