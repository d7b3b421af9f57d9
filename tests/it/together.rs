//! Several processes score and translate: the same digits as one.

use serde_json::Value;

use crate::kiln::{SMALL, Workplace};

const DEVICES: [&str; 2] = ["--devices", "cpu,cpu,cpu"];

/// A folder with a trained run, `runs/a`.
fn trained(task: &[&str]) -> Workplace {
    let place = Workplace::new();
    let mut all = vec!["train", "--run", "runs/a", "--device", "cpu", "--quiet", "--set", "train.steps=20"];
    all.extend(task);
    all.extend(SMALL.iter().flat_map(|set| ["--set", set]));
    place.run(&all).ok();
    place
}

/// Scores without the time that they took.
fn scores(place: &Workplace, more: &[&str]) -> Value {
    let ran = place.run(&[&["evaluate", "runs/a", "--json"], more].concat()).ok();
    let mut scores: Value = serde_json::from_str(&ran.stdout).expect("one object on stdout");
    scores.as_object_mut().expect("an object").remove("generate_secs");
    scores
}

#[test]
fn ranks_score_to_the_same_digits_as_one_process() {
    for task in [&[][..], &["--task", "lm"], &["--task", "mlm", "--set", "data.text.seq_len=16"]] {
        let place = trained(task);
        let alone = scores(&place, &["--device", "cpu"]);
        assert!(alone["nll"].as_f64().expect("a loss") > 0.0, "{alone}");
        assert_eq!(scores(&place, &DEVICES), alone, "{task:?}");
    }

    let place = trained(&[]);
    let with_lines = |name: &str, more: &[&str]| {
        let found = scores(&place, &[&["--beam", "2", "--hypotheses", name], more].concat());
        (found, place.read(name))
    };
    assert_eq!(with_lines("three.txt", &DEVICES), with_lines("one.txt", &["--device", "cpu"]));
}

#[test]
fn ranks_translate_the_same_lines_in_order() {
    let place = trained(&[]);
    let input: String = (0..2100).map(|n| if n % 97 == 5 { "\n".into() } else { format!("{}\n", n * 7919) }).collect();
    for options in [&[][..], &["--json"], &["--n-best", "2"], &["--temperature", "1.5", "--seed", "3"]] {
        let translate = |more: &[&str]| {
            let ran = place.run_with_input(&[&["translate", "runs/a"], options, more].concat(), &input).ok();
            (ran.stdout, ran.stderr)
        };
        let (alone, _) = translate(&["--device", "cpu"]);
        assert_eq!(alone.lines().count(), if options.contains(&"--n-best") { 2 * 2100 - 22 } else { 2100 });
        assert!(translate(&DEVICES).0 == alone, "{options:?}");
    }
}

#[test]
fn a_mistake_is_told_once_and_ends_all_ranks() {
    let place = trained(&[]);
    let ran = place.run(&[&["evaluate", "runs/b"], &DEVICES[..]].concat());
    let ran = ran.refused(2, &["runs/b: there is no run here"]);
    assert_eq!(ran.stderr.matches("there is no run here").count(), 1, "{}", ran.stderr);

    let ran = place.run_with_input(&[&["translate", "runs/a"], &DEVICES[..]].concat(), b"12\ncaf\xe9\n");
    let ran = ran.refused(3, &["line 2 of stdin is not UTF-8"]);
    assert_eq!(ran.stderr.matches("is not UTF-8").count(), 1, "{}", ran.stderr);
}

#[test]
fn a_dry_run_on_several_devices_shows_what_each_would_do() {
    let place = Workplace::new();
    let alone = place.run(&["train", "--dry-run", "--device", "cpu"]).ok();
    let ran = place.run(&[&["train", "--dry-run"], &DEVICES[..]].concat()).ok();
    assert_eq!(ran.stdout.lines().count(), alone.stdout.lines().count(), "{ran:#?}");
    assert!(!ran.stderr.contains("ended before"), "{ran:#?}");
    let ran = place.run(&[&["train", "--dry-run", "--set", "data.train=nothing.txt"], &DEVICES[..]].concat());
    assert!(ran.code == 2 && ran.stderr.matches("error: ").count() == 1, "{ran:#?}");
}
