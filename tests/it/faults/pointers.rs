//! What is used in silence: pointers, checkpoints and caches that are not the run's own.

use super::*;
use crate::kiln::copy_folder;

#[test]
fn no_command_uses_another_checkpoint_than_the_one_that_was_meant() {
    let place = workplace();
    let all =
        [arguments("runs/a", 9), ["--set", "optim.warmup_steps=8", "--set", "optim.lr=3.0"].map(String::from).into()]
            .concat();
    place.run(&all.iter().map(String::as_str).collect::<Vec<_>>()).ok();
    let best = place.read("runs/a/checkpoints/best");
    assert_ne!(best, place.read("runs/a/checkpoints/last"), "the test needs two");

    let commands: [&[&str]; 5] = [
        &["evaluate", "runs/a", "--device", "cpu"],
        &["translate", "runs/a", "--device", "cpu"],
        &["translate", "runs/a", "--device", "cpu", "--checkpoint", "best"],
        &["export", "runs/a", "out"],
        &["check", "runs/a"],
    ];

    for content in [Some("step-00000099\n"), Some("step-0000000"), Some("step-00000009\n"), Some("\u{7f}"), None] {
        match content {
            Some(content) => drop(place.write("runs/a/checkpoints/best", content)),
            None => fs::remove_file(place.path("runs/a/checkpoints/best")).expect("there"),
        }
        for command in commands {
            let ran = place.run_with_input(command, b"1\n");
            assert!(matches!(ran.code, 1 | 3), "{content:?} {ran:#?}");
            let said = format!("{}{}", ran.stdout, ran.stderr);
            assert!(said.contains("checkpoints/best"), "{content:?} {ran:#?}");
        }
    }

    resume(&place, "runs/a").ok();
    assert_eq!(place.read("runs/a/checkpoints/best"), best, "the next start has set it again");
    place.run(&["check", "runs/a"]).ok();
}

#[test]
fn a_checkpoint_or_a_cache_of_another_run_is_not_vouched_for() {
    let place = workplace();
    begin(&place, "runs/a", 9).ok();
    let other = [arguments("runs/b", 9), ["--set", "seed=5"].map(String::from).into()].concat();
    place.run(&other.iter().map(String::as_str).collect::<Vec<_>>()).ok();
    let text = place.read("train.jsonl");
    place.write("train.jsonl", text.replacen("\"1\"", "\"2\"", 1));
    begin(&place, "runs/c", 9).ok();
    place.write("train.jsonl", text);

    let own = "runs/a/checkpoints/step-00000009";
    fs::rename(place.path(own), place.path("own")).expect("there");
    copy_folder(&place.path("runs/b/checkpoints/step-00000009"), &place.path(own));
    let translate = ["translate", "runs/a", "--device", "cpu", "--checkpoint", "last"];
    place.run_with_input(&translate, b"1\n").refused(3, &["step-00000009: it belongs to another run"]);
    place.run_with_input(&["translate", own, "--device", "cpu"], b"1\n").refused(3, &["belongs to another run"]);
    let checked = place.run(&["check", "runs/a"]);
    let line = "DAMAGED  checkpoints/step-00000009: ";
    assert!(checked.code == 1 && checked.stdout.contains(line), "{checked:#?}");
    fs::remove_dir_all(place.path(own)).expect("ours");
    fs::rename(place.path("own"), place.path(own)).expect("there");
    place.run(&["check", "runs/a"]).ok();

    let record = "cache/train.tokens.files.json";
    for files in [&["cache/train.tokens"][..], &["cache/train.tokens", record]] {
        copy_folder(&place.path("runs/a"), &place.path("put"));
        files.iter().for_each(|file| {
            fs::copy(place.path(&format!("runs/c/{file}")), place.path(&format!("put/{file}"))).expect("there");
        });
        let checked = place.run(&["check", "put"]);
        let has = |part| checked.stdout.contains(part);
        assert!(
            checked.code == 1 && has("DAMAGED  cache/train.tokens: ") && has("another t"),
            "{files:?} {checked:#?}"
        );
        fs::remove_dir_all(place.path("put")).expect("ours");
    }
    fs::remove_file(place.path(&format!("runs/a/{record}"))).expect("there");
    let checked = place.run(&["check", "runs/a"]);
    assert!(checked.code == 1 && checked.stdout.contains("train.tokens.files.json"), "{checked:#?}");
    resume(&place, "runs/a").ok();
    place.run(&["check", "runs/a"]).ok();
}
