//! Runs that are made at once: `kiln average` and `kiln import`, killed and repeated.

use super::*;

/// `runs/a`: a trained run; `model`: a Hugging Face folder to import.
fn place() -> Workplace {
    let place = workplace();
    begin(&place, "runs/a", 6).ok();
    let lm: Vec<_> = ["task=\"lm\"", "data.train=text.txt", "train.steps=6", "data.text.seq_len=16"]
        .map(|set| ["--set", set])
        .concat();
    place.write("text.txt", "one two three\n\nfour five six\n\n".repeat(40));
    place.train(&[&["--run", "runs/lm"], &lm[..]].concat()).ok();
    place.run(&["export", "runs/lm", "model"]).ok();
    place
}

const COMMANDS: [&[&str]; 2] =
    [&["average", "runs/a", "--last", "2", "--out", "new/made"], &["import", "model", "--out", "new/made"]];

#[test]
fn a_killed_average_or_import_is_repeated_as_if_nothing_had_been() {
    let place = place();
    let mut random = Random::new("killed while a run is made");
    for command in COMMANDS {
        let started = Instant::now();
        place.run(command).ok();
        let whole = started.elapsed();
        assert_eq!(files_below(&place.path("new/made")).len(), whole_files(&place), "nothing else is left");
        for _ in 0..count("KILN_FAULT_KILLS", 6) {
            fs::remove_dir_all(place.path("new")).expect("ours");
            let mut child =
                place.command(command).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
            sleep(whole.mul_f64(random.below(1000) as f64 / 1000.0));
            child.kill().expect("ours");
            child.wait().expect("ours");
            if !place.path("new/made").exists() {
                place.run(command).ok();
            }
            place.run(&["check", "new/made"]).ok();
            assert!(!place.path("new/made.partial").exists());
        }

        // Killed where the folder holds half a checkpoint, and prepared caches are at its place.
        fs::remove_dir_all(place.path("new")).expect("ours");
        for file in ["new/made.partial/checkpoints/step-00000006.tmp/model.safetensors", "new/made/cache/train.tokens"]
        {
            fs::create_dir_all(place.path(file).parent().expect("a folder")).expect("writable");
            place.write(file, "half");
        }
        place.run(command).ok();
        assert_eq!(place.read("new/made/cache/train.tokens"), "half");
        fs::remove_dir_all(place.path("new")).expect("ours");
    }
}

fn whole_files(place: &Workplace) -> usize {
    let checkpoints = files_below(&place.path("new/made/checkpoints"));
    assert!(checkpoints.iter().any(|file| file.ends_with("manifest.json")));
    checkpoints.len() + 1
}

#[test]
fn two_processes_that_make_the_same_run_say_so_and_a_failure_leaves_nothing() {
    let place = place();
    fs::create_dir_all(place.path("new/made.partial")).expect("writable");
    let lock = fs::File::create(place.path("new/made.partial/run.lock")).expect("writable");
    lock.try_lock().expect("nobody holds it");
    fs::write(place.path("new/made.partial/run.lock"), "4321\n").expect("writable");
    for command in COMMANDS {
        place.run(command).refused(2, &["new/made: process 4321 is making this run", "--out"]);
    }
    drop(lock);
    for command in COMMANDS {
        place.run(command).ok();
        place.run(command).refused(2, &["new/made: this run folder exists already"]);
        fs::remove_dir_all(place.path("new")).expect("ours");
    }
    place.write("model/model.safetensors", "damaged");
    let ran = place.run(COMMANDS[1]);
    assert!(ran.code == 3 && !place.path("new").exists(), "{ran:#?}");
}
