//! What a run that goes on may change, what a dry run of it says, and the small things on the way.

use serde_json::Value;

use crate::kiln::Workplace;

/// A run of eight steps on the built-in task.
fn trained() -> Workplace {
    let place = Workplace::new();
    place.train(&["--run", "runs/a", "--set", "train.steps=8", "--set", "train.save_every=4"]).ok();
    place
}

const RESUME: [&str; 6] = ["train", "--device", "cpu", "--run", "runs/a", "--resume"];

#[test]
fn a_run_keeps_its_model_whatever_is_allowed() {
    let place = trained();
    let config = place.read("runs/a/config.toml");
    let wider = ["--set", "train.steps=12", "--set", "model.d_ff=96"];
    let ran = place.run(&[&RESUME[..], &wider].concat());
    let ran = ran.refused(2, &["model.d_ff: ", "Set these back", "a run keeps its model"]);
    assert!(!ran.stderr.contains("--allow"), "{ran:#?}");
    let ran = place.run(&[&RESUME[..], &wider, &["--allow", "model.d_ff"]].concat());
    ran.refused(2, &["a model of another shape", "whatever --allow names"]);
    assert_eq!(place.read("runs/a/config.toml"), config);

    // A checkpoint that says otherwise is not sound.
    let dropout = ["--set", "train.steps=9", "--set", "model.dropout=0.2", "--allow", "model.dropout"];
    place.run(&[&RESUME[..], &dropout].concat()).ok();
    place.run(&["check", "runs/a/checkpoints/best"]).ok();
    place.run(&["check", "runs/a"]).ok();
}

#[test]
fn a_dry_run_of_a_run_that_goes_on_refuses_what_the_run_refuses() {
    let place = trained();
    let dry = |more: &[&str]| place.run(&[&RESUME[..], &["--dry-run"], more].concat());
    dry(&["--set", "train.steps=6"]).refused(2, &["already taken 8 steps", "--set train.steps=16"]);
    dry(&["--set", "train.steps=12", "--set", "model.d_ff=96"]).refused(2, &["a run keeps its model"]);
    let ran = dry(&["--set", "train.steps=12"]).ok();
    assert!(ran.stderr.contains("resuming from runs/a/checkpoints/step-00000008, 4 of 12 steps left"), "{ran:#?}");
    assert!(ran.stderr.contains("the schedule stretches"), "{ran:#?}");

    let ran = place.run(&["train", "--device", "cpu", "--from", "runs/a", "--run", "runs/b", "--dry-run"]).ok();
    assert!(ran.stdout.contains("starting from the weights of runs/a/checkpoints/step-00000008"), "{ran:#?}");
}

#[test]
fn another_text_is_refused_and_the_caches_stay() {
    let place = Workplace::new();
    let rows = |word: &str| (0..60).map(|n| format!("{word} {n}\tparola {n}\n")).collect::<String>();
    place.write("a.tsv", rows("word"));
    place.write("b.tsv", rows("noun"));
    let run = ["train", "--device", "cpu", "--run", "runs/a", "--preset", "tiny", "--set", "tokenizer.vocab_size=300"];
    place.run(&[&run[..], &["--set", "data.train=a.tsv", "--set", "train.steps=2"]].concat()).ok();
    let cache = || std::fs::read(place.path("runs/a/cache/train.tokens")).expect("a cache");
    let before = cache();

    let ran = place.run(&[&RESUME[..], &["--set", "data.train=b.tsv", "--set", "train.steps=4"]].concat());
    ran.refused(
        2,
        &["data: contents ", "To train these weights on it: kiln train --from runs/a --set data.train=b.tsv"],
    );
    assert!(cache() == before, "the cache of the run was built again");
    place.run(&[&RESUME[..], &["--set", "train.steps=4"]].concat()).ok();
}

#[test]
fn a_refused_resume_leaves_the_rows_of_the_validation() {
    let place = Workplace::new();
    place.write("a.tsv", (0..200).map(|n| format!("word {n}\tparola {n}\n")).collect::<String>());
    let run = ["train", "--device", "cpu", "--run", "runs/a", "--preset", "tiny", "--set", "tokenizer.vocab_size=300"];
    place.run(&[&run[..], &["a.tsv", "--set", "data.split=0.1", "--set", "train.steps=2"]].concat()).ok();
    let files = || {
        ["split.valid.jsonl", "valid.tokens", "train.tokens", "split.json"]
            .map(|name| std::fs::read(place.path(&format!("runs/a/cache/{name}"))).expect("a cache"))
    };
    let before = files();

    for allowed in [&[][..], &["--allow", "data", "--allow", "data.split"]] {
        let ran = place.run(&[&RESUME[..], &["--set", "data.split=0.5", "--set", "train.steps=4"], allowed].concat());
        let ran = ran.refused(
            2,
            &["data.split: 0.1 in the checkpoint, 0.5 now", "data.split cannot be accepted", "--set data.valid=FILE"],
        );
        assert!(!ran.stderr.contains("--set data.split"), "rows that were trained on would be validated: {ran:#?}");
        assert!(ran.stderr.contains("kiln train --from runs/a --set data.train=a.tsv"), "{ran:#?}");
        assert!(files() == before, "the split was made again");
    }

    // More rows change the rows of the run, too.
    let more: String = (0..30).map(|n| format!("other {n}\taltro {n}\n")).collect();
    let appended = std::fs::read_to_string(place.path("a.tsv")).expect("written") + &more;
    place.write("a.tsv", appended);
    place.run(&[&RESUME[..], &["--set", "train.steps=4"]].concat()).refused(2, &["data: contents"]);
    assert!(files() == before);
    place.run(&["check", "runs/a"]).ok();

    let from = ["train", "--device", "cpu", "--from", "runs/a", "--run", "runs/b", "--set", "train.steps=1"];
    let warned = |split: &str| {
        let ran = place.run(&[&from[..], &["--dry-run", "--set", split]].concat()).ok();
        format!("{}{}", ran.stdout, ran.stderr).contains("sets rows aside that --from was trained on")
    };
    assert_eq!(["data.split=0.5", "data.split=0.1", "data.split=0.05"].map(warned), [true, false, false]);
}

#[test]
fn a_checkpoint_is_no_folder_for_a_run() {
    let place = trained();
    let checkpoint = "runs/a/checkpoints/step-00000008";
    let resume = place.run(&["train", "--device", "cpu", "--resume", checkpoint]);
    resume.refused(
        2,
        &["--run runs/a --resume continues from its newest checkpoint, --from runs/a/checkpoints/step-00000008"],
    );
    for more in [&["--resume"][..], &[], &["--dry-run"]] {
        let ran = place.run(&[&["train", "--device", "cpu", "--run", checkpoint], more].concat());
        ran.refused(2, &["this is a checkpoint of runs/a: --run runs/a --resume continues that run"]);
    }
    place.run(&["check", "runs/a"]).ok();
}

#[test]
fn options_that_are_keys_are_answered_with_the_flag() {
    let place = Workplace::new();
    place.run(&["train", "--steps", "5"]).refused(2, &["unexpected argument '--steps'", "--set train.steps=VALUE"]);
    place.run(&["train", "--batch-tokens=5"]).refused(2, &["--set loader.batch_tokens=VALUE"]);
    let ran = place.run(&["train", "--learning_rate", "1e-3"]);
    ran.refused(2, &["Usage: kiln train [OPTIONS]", "--set optim.lr=VALUE"]);
    let ran = place.run(&["generate", "x", "--max_new_tokens", "5"]);
    ran.refused(2, &["the option of this command is --max-new-tokens"]);
    let ran = place.run(&["train", "--device", "cpu", "--dry-run", "--set", "train.steps=1e2"]).ok();
    assert!(ran.stdout.contains("for 100 steps"), "{ran:#?}");
    place.run(&["train", "--from", "x", "--preset", "tiny"]).refused(2, &["--from takes model", "--set"]);
}

#[test]
fn a_finished_run_says_how_it_trains_longer() {
    let place = trained();
    let ran = place.run(&RESUME).ok();
    assert!(ran.stderr.contains("nothing to do; --set train.steps=16 trains longer"), "{ran:#?}");
}

#[test]
fn files_that_are_set_twice_add_up_and_other_keys_are_noted() {
    let place = Workplace::new();
    place.write("a.tsv", "one\tuno\n".repeat(30));
    place.write("b.tsv", "two\tdue\n".repeat(40));
    let twice = ["--set", "data.train=a.tsv", "--set", "data.train=b.tsv", "--set", "tokenizer.vocab_size=300"];
    let ran = place.run(&[&["train", "--device", "cpu", "--dry-run"], &twice[..]].concat()).ok();
    assert!(ran.stdout.contains("data: 70 pairs") && !ran.stdout.contains("replaces"), "{ran:#?}");
    let rates = ["--set", "optim.lr=1e-3", "--set", "optim.lr=2e-3"];
    let ran = place.run(&[&["train", "--device", "cpu", "--dry-run"], &twice[..], &rates].concat()).ok();
    assert!(ran.stdout.contains("--set optim.lr=2e-3 replaces --set optim.lr=1e-3"), "{ran:#?}");
}

#[test]
fn translations_are_printed_as_json_on_request() {
    let place = trained();
    let lines = |more: &[&str]| -> Vec<Value> {
        let ran =
            place.run_with_input(&[&["translate", "runs/a", "--device", "cpu", "--json"], more].concat(), "12\n\n7\n");
        ran.ok().stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let one = lines(&[]);
    assert_eq!((one.len(), &one[0]["line"], &one[2]["source"]), (3, &1.into(), &"7".into()));
    assert!(one[0]["translation"].is_string() && one[1]["translation"] == "", "{one:?}");
    let several = lines(&["--n-best", "2"]);
    let of = |line: &Value| line["translations"].as_array().map(Vec::len);
    assert_eq!(several.iter().map(of).collect::<Vec<_>>(), [Some(2), Some(0), Some(2)]);
    assert!(several[0]["translations"][0]["score"].as_f64() >= several[0]["translations"][1]["score"].as_f64());
}
