//! Training, using and resuming a run on the command line.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::kiln::{SMALL, Workplace, copy_folder};

/// A trained run `runs/a` of 12 steps with a checkpoint in the middle.
fn trained() -> Workplace {
    let place = Workplace::new();
    let ran = place.train(&["--run", "runs/a", "--set", "train.steps=12", "--set", "train.save_every=6"]).ok();
    assert!(ran.stderr.contains("step 12/12") && ran.stderr.contains("tok/s (padding"), "{ran:#?}");
    assert!(ran.stdout.contains("exact match") && ran.stdout.contains("Next: echo"), "{ran:#?}");
    place
}

fn weights(place: &Workplace, run: &str, step: u64) -> Vec<u8> {
    let path = place.path(&format!("{run}/checkpoints/step-{step:08}/model.safetensors"));
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn a_run_can_be_used_and_its_folder_is_complete() {
    let place = trained();
    for file in ["config.toml", "metrics.jsonl", "tb", "checkpoints/last", "checkpoints/best", "cache/train.tokens"] {
        assert!(place.path("runs/a").join(file).exists(), "{file}");
    }
    let lines: Vec<Value> =
        place.read("runs/a/metrics.jsonl").lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let steps: Vec<_> = lines.iter().filter(|line| line["kind"] == "step").map(|line| &line["step"]).collect();
    assert_eq!(steps, (1..=12).collect::<Vec<_>>(), "every step has its line");

    let translated = place.run_with_input(&["translate", "runs/a", "--device", "cpu"], "12\n\n  \n90871\n7").ok();
    let output: Vec<_> = translated.stdout.split('\n').collect();
    assert_eq!(output.len(), 6, "five lines in, five lines out: {translated:#?}");
    assert_eq!((output[1], output[2], output[5]), ("", "", ""), "{translated:#?}");

    let foreign = place.run_with_input(&["translate", "runs/a", "--device", "cpu"], "7 \u{2713}\n").ok();
    assert!(foreign.stderr.contains("note: the vocabulary lacks \u{2713} (once); the model reads"), "{foreign:#?}");
    assert!(!translated.stderr.contains("lacks"), "{translated:#?}");

    let n_best = ["translate", "runs/a", "--device", "cpu", "--beam", "3", "--n-best", "2"];
    let scored = place.run_with_input(&n_best, "12\n90871\n").ok();
    let numbers: Vec<_> = scored.stdout.lines().map(|line| line.split('\t').next().expect("a column")).collect();
    assert_eq!(numbers, ["1", "1", "2", "2"], "{scored:#?}");

    place.write("two.jsonl", "{\"src\": \"12\", \"trg\": \"twelve\"}\n{\"src\": \"7\", \"trg\": \"seven\"}\n");
    let scores =
        place.run(&["evaluate", "runs/a", "--device", "cpu", "--data", "two.jsonl", "--hypotheses", "out.txt"]).ok();
    for part in ["loss ", "nll ", "perplexity ", "BLEU ", "chrF2 ", "tok:13a|smooth:exp", "exact match"] {
        assert!(scores.stdout.contains(part), "{part:?} is missing in {}", scores.stdout);
    }
    assert_eq!(place.read("out.txt").lines().count(), 2);
    let json = place.run(&["evaluate", "runs/a", "--device", "cpu", "--data", "two.jsonl", "--json"]).ok();
    let json: Value = serde_json::from_str(&json.stdout).expect("JSON");
    // "twelve" and "seven" are five tokens, and each line has an end token.
    assert_eq!((&json["step"], &json["target_tokens"]), (&12.into(), &7.into()));
}

#[test]
fn a_resumed_run_ends_with_the_same_weights_bit_for_bit() {
    let place = trained();
    copy_folder(&place.path("runs/a"), &place.path("runs/b"));
    fs::remove_dir_all(place.path("runs/b/checkpoints/step-00000012")).expect("there");
    fs::write(place.path("runs/b/checkpoints/last"), "step-00000006").expect("writable");
    let ran = place.run(&["train", "--device", "cpu", "--run", "runs/b", "--resume"]).ok();
    assert!(ran.stderr.contains("resuming from runs/b/checkpoints/step-00000006"), "{ran:#?}");
    assert_eq!(weights(&place, "runs/a", 12), weights(&place, "runs/b", 12));
    assert_ne!(weights(&place, "runs/a", 6), weights(&place, "runs/a", 12), "training changes weights");
    let metrics = |run: &str| -> Vec<(u64, String)> {
        let text = place.read(&format!("{run}/metrics.jsonl"));
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let steps = lines.filter(|line| line["kind"] == "step");
        steps.map(|line| (line["step"].as_u64().expect("a step"), line["loss"].to_string())).collect()
    };
    assert_eq!(
        metrics("runs/a"),
        metrics("runs/b"),
        "resuming removes the lines after the checkpoint and writes them again"
    );

    let again = place.run(&["train", "--device", "cpu", "--run", "runs/b", "--resume"]).ok();
    assert!(again.stderr.contains("this run is finished"), "{again:#?}");
}

/// Lines of `kind` in the metrics of a run.
fn lines(place: &Workplace, run: &str, kind: &str) -> Vec<Value> {
    let text = place.read(&format!("{run}/metrics.jsonl"));
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    all.filter(|line| line["kind"] == kind).collect()
}

#[test]
fn small_data_is_scored_at_every_validation_and_a_score_chooses_the_best_checkpoint() {
    let place = Workplace::new();
    let rows = |numbers: std::ops::Range<u64>| -> String {
        numbers.map(|n| format!("{{\"src\": \"{n}\", \"trg\": \"{}\"}}\n", n * 7)).collect()
    };
    place.write("train.jsonl", rows(100..400));
    place.write("valid.jsonl", rows(400..420));
    let data = ["data.train=train.jsonl", "data.valid=valid.jsonl", "tokenizer.vocab_size=290"];
    let train = [
        "train.steps=12",
        "train.validate_every=2",
        "train.save_every=6",
        "train.best_metric=chrf",
        "model.max_positions=64",
    ];
    let sets: Vec<&str> = data.iter().chain(&train).flat_map(|set| ["--set", *set]).collect();
    place.train(&[&sets[..], &["--run", "runs/a"]].concat()).ok();

    let validations = lines(&place, "runs/a", "validation");
    assert_eq!(validations.len(), 6);
    let score = |line: &Value, key: &str| line[key].as_f64().unwrap_or_else(|| panic!("no {key} in {line}"));
    assert!(validations.iter().all(|line| score(line, "bleu") >= 0.0 && score(line, "exact_match") >= 0.0));
    let rank = |line: &Value| (score(line, "chrf"), -score(line, "loss"));
    let best = validations.iter().reduce(|best, line| if rank(line) > rank(best) { line } else { best });
    let best = best.expect("six").clone();
    let pointer = |run: &str| place.read(&format!("{run}/checkpoints/best"));
    assert_eq!(pointer("runs/a"), format!("step-{:08}\n", best["step"].as_u64().expect("a step")));
    let state = |run: &str| -> Value {
        let text = place.read(&format!("{run}/checkpoints/step-00000012/trainer_state.json"));
        serde_json::from_str(&text).expect("JSON")
    };
    assert_eq!(state("runs/a")["best"]["score"]["value"], best["chrf"]);

    // A resumed run ends with the same best checkpoint, the same scores and the same count of tokens.
    copy_folder(&place.path("runs/a"), &place.path("runs/b"));
    for entry in fs::read_dir(place.path("runs/b/checkpoints")).expect("there") {
        let path = entry.expect("readable").path();
        if path.is_dir() && !path.ends_with("step-00000006") {
            fs::remove_dir_all(path).expect("ours");
        }
    }
    place.run(&["train", "--device", "cpu", "--run", "runs/b", "--resume"]).ok();
    assert_eq!(state("runs/a")["best"], state("runs/b")["best"]);
    assert_eq!(pointer("runs/a"), pointer("runs/b"));
    let scores = |run: &str| -> Vec<Value> {
        lines(&place, run, "validation").into_iter().map(|line| line["chrf"].clone()).collect()
    };
    assert_eq!(scores("runs/a"), scores("runs/b"));
    let ends = ["runs/a", "runs/b"].map(|run| lines(&place, run, "end").pop().expect("a closing record"));
    let tokens: u64 = lines(&place, "runs/a", "step").iter().map(|line| line["tokens"].as_u64().expect("tokens")).sum();
    for end in &ends {
        assert_eq!((&end["step"], &end["outcome"], &end["tokens"]), (&12.into(), &"steps".into(), &tokens.into()));
        assert!(score(end, "tokens_per_sec") > 0.0 && score(end, "train_secs") > 0.0, "{end}");
    }

    let averaged = place.run(&["average", "runs/a", "--best", "1", "--out", "runs/best"]).ok();
    assert!(averaged.stderr.contains(pointer("runs/a").trim()), "{averaged:#?}");
    place
        .run(&["train", "--device", "cpu", "--task", "lm", "--set", "train.best_metric=bleu", "--run", "runs/c"])
        .refused(2, &["train.best_metric = \"bleu\" scores translations", "task = \"lm\""]);
}

#[test]
fn translations_come_as_often_as_asked_for() {
    let place = Workplace::new();
    let sets = ["train.steps=8", "train.validate_every=4", "train.translate_every=6", "data.valid=valid.jsonl"];
    place.write(
        "train.jsonl",
        "{\"src\": \"uno\", \"trg\": \"one\"}\n{\"src\": \"due\", \"trg\": \"two\"}\n".repeat(40),
    );
    place.write("valid.jsonl", "{\"src\": \"uno\", \"trg\": \"one\"}\n");
    let sets = sets.iter().chain(&["data.train=train.jsonl", "tokenizer.vocab_size=290", "model.max_positions=64"]);
    let sets: Vec<&str> = sets.flat_map(|set| ["--set", *set]).collect();
    let ran = place.train(&[&sets[..], &["--run", "runs/a"]].concat()).ok();
    let found: Vec<(u64, bool)> = lines(&place, "runs/a", "validation")
        .iter()
        .map(|line| (line["step"].as_u64().expect("a step"), line.get("chrf").is_some()))
        .collect();
    assert_eq!(found, [(4, false), (6, true), (8, true)]);

    // One-word targets have no BLEU.
    assert!(ran.stdout.contains("BLEU 0.00 (needs four words"), "{ran:#?}");
    let scores = place.run(&["evaluate", "runs/a", "--device", "cpu"]).ok();
    assert!(scores.stdout.contains("0 because no translation has four words"), "{scores:#?}");
}

#[test]
fn a_run_is_resumed_only_with_its_own_configuration() {
    let place = trained();
    let resume = ["train", "--device", "cpu", "--run", "runs/a", "--resume", "--set", "optim.lr=0.5"];
    place.run(&resume).refused(2, &["optim.lr: 0.002 in the checkpoint, 0.5 now"]);
    place.run(&[resume.as_slice(), &["--allow", "optim.lr"]].concat()).ok();
}

#[test]
fn damaged_checkpoints_are_refused_or_skipped() {
    let place = trained();
    let newest = place.path("runs/a/checkpoints/step-00000012");
    let model = newest.join("model.safetensors");
    let whole = fs::read(&model).expect("written");
    fs::write(&model, &whole[..whole.len() - 10]).expect("writable");
    let last = ["translate", "runs/a", "--device", "cpu", "--checkpoint", "last"];
    place.run_with_input(&last, "1\n").refused(3, &["model.safetensors is damaged", "bytes"]);
    fs::write(&model, &whole).expect("writable");
    fs::write(newest.join("tokenizer.json"), "{}").expect("writable");
    place.run(&["evaluate", "runs/a", "--device", "cpu", "--checkpoint", "last"]).refused(3, &["tokenizer"]);
    place
        .run(&["tokenizer", "runs/a/cache/numbers.train.jsonl", "--set", "tokenizer.vocab_size=300", "--out", "other"])
        .ok();
    fs::copy(place.path("other/tokenizer.json"), newest.join("tokenizer.json")).expect("writable");
    place
        .run(&["evaluate", "runs/a", "--device", "cpu", "--checkpoint", "last"])
        .refused(3, &["tokenizer.json is damaged"]);
    place.run(&["evaluate", "runs/a", "--checkpoint", "step-00000099"]).refused(2, &["step-00000006, step-00000012"]);

    let ran = place.run(&["train", "--device", "cpu", "--run", "runs/a", "--resume"]).ok();
    assert!(ran.stderr.contains("skipped a damaged checkpoint"), "{ran:#?}");
    assert!(ran.stderr.contains("resuming from runs/a/checkpoints/step-00000006"), "{ran:#?}");
}

#[test]
fn lines_that_the_model_cannot_encode_are_named() {
    let place = trained();
    let translate = ["translate", "runs/a", "--device", "cpu"];
    place
        .run_with_input(&translate, format!("1\n2\n{}\n", "9".repeat(500)))
        .refused(3, &["line 3 has ", "at most 128"]);
    place.run_with_input(&translate, b"caf\xe9\n").refused(3, &["line 1 of stdin is not UTF-8"]);
    place.run(&["translate", "runs/a", "--beam", "2", "--n-best", "3"]).ok();
    place
        .run_with_input(&["translate", "runs/a", "--beam", "2", "--n-best", "3"], "1\n")
        .refused(2, &["3 results per line"]);
}

/// The model learns the built-in task: it spells nearly all unseen numbers correctly. (The preset's model is larger and more
/// accurate; this one takes a quarter of the time.)
#[test]
fn the_built_in_task_is_learned() {
    let place = Workplace::new();
    let mut arguments = vec!["train", "--device", "cpu", "--quiet", "--run", "runs/a"];
    let smaller = ["model.d_model=64", "model.d_ff=256", "optim.lr=4e-3", "optim.warmup_steps=60", "train.steps=600"];
    arguments.extend(smaller.iter().flat_map(|set| ["--set", *set]));
    let trained = place.run(&arguments).ok();
    assert_eq!(trained.stderr, "", "quiet");
    let scores = place.run(&["evaluate", "runs/a", "--json", "--device", "cpu"]).ok();
    let scores: Value = serde_json::from_str(&scores.stdout).expect("JSON");
    let exact_match = scores["exact_match"].as_f64().expect("a share");
    assert!(exact_match >= 0.95, "{exact_match} of the held-out numbers");
    let translated = place.run_with_input(&["translate", "runs/a", "--device", "cpu"], "742105\n").ok();
    assert_eq!(translated.stdout, "seven hundred forty two thousand one hundred five\n");
}

/// The command without arguments can be repeated. A folder that only `prepare` has used is still free.
#[test]
fn the_default_run_takes_the_next_folder() {
    let place = Workplace::new();
    place.run(&["prepare"]).ok();
    let dry = |place: &Workplace| place.run(&["train", "--dry-run"]).ok().stdout;
    assert!(dry(&place).contains("run folder runs/numbers,"));
    place.write("runs/numbers/config.toml", "seed = 1\n");
    assert!(dry(&place).contains("run folder runs/numbers-2,"));

    // Pairs of one's own are another run than the built-in ones, also in its name.
    place.write("own.tsv", "1\tone\n2\ttwo\n".repeat(50));
    let own = ["train", "--dry-run", "--device", "cpu", "--set", "data.train=own.tsv"];
    assert!(place.run(&own).ok().stdout.contains("run folder runs/few-pairs,"));
    place.write("runs/few-pairs/config.toml", "seed = 1\n");
    assert!(place.run(&own).ok().stdout.contains("run folder runs/few-pairs-2,"), "a dry run is not in the way");
    place
        .run(&["train", "--device", "cpu", "--set", "data.train=own.tsv"])
        .refused(2, &["runs/few-pairs", "exists already"]);
}

/// Ctrl-C saves and ends the run, which can be resumed from there.
#[cfg(unix)]
#[test]
fn an_interrupted_run_is_saved_and_can_be_resumed() {
    let place = Workplace::new();
    let mut arguments = vec!["train", "--device", "cpu", "--run", "runs/a", "--set", "train.steps=100000"];
    arguments.extend(SMALL.iter().flat_map(|set| ["--set", *set]));
    let child = place.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let started = Instant::now();
    let is_training =
        || fs::read_to_string(place.path("runs/a/metrics.jsonl")).is_ok_and(|text| text.contains("\"step\":2"));
    while !is_training() {
        assert!(started.elapsed() < Duration::from_secs(120), "no step in two minutes");
        std::thread::sleep(Duration::from_millis(20));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill is there");
    assert!(killed.success());
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("and saved; continue with:") && stderr.contains("--resume"), "{stderr}");
    assert_eq!(lines(&place, "runs/a", "end").pop().expect("a closing record")["outcome"], "stopped");

    // A process that is saving has such a folder.
    let save = place.path("runs/a/checkpoints/step-00099999.tmp");
    fs::create_dir(&save).expect("writable");
    let dry =
        place.run(&["train", "--device", "cpu", "--run", "runs/a", "--resume", "--dry-run", "--show-config"]).ok();
    assert!(dry.stdout.contains("steps = 100000"), "{dry:#?}");
    assert!(place.path("runs/a/checkpoints/last").exists());
    assert!(save.exists(), "a dry run deletes nothing");
}

/// Ctrl-C is acknowledged at once, and the step in progress ends as announced.
#[cfg(unix)]
#[test]
fn an_interrupted_first_step_is_acknowledged_finished_and_saved() {
    let place = Workplace::new();
    let mut arguments = vec!["train", "--device", "cpu", "--run", "runs/a", "--set", "train.grad_accum_steps=1500"];
    arguments.extend(SMALL.iter().flat_map(|set| ["--set", *set]));
    let child = place.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let started = Instant::now();
    while !fs::read_to_string(place.path("runs/a/metrics.jsonl")).is_ok_and(|text| text.contains("memory: about")) {
        assert!(started.elapsed() < Duration::from_secs(120), "no plan in two minutes");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(700));

    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill is there");
    assert!(killed.success());
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let acknowledged = stderr.find("again: now").expect("an acknowledgement");
    let stopped = stderr.find("continue with:").expect("the way on");
    assert!(acknowledged < stopped, "{stderr}");
    place.run(&["train", "--device", "cpu", "--run", "runs/a", "--resume", "--dry-run"]).ok();
}

#[test]
fn a_precision_is_audited_against_f32() {
    let place = Workplace::new();
    let mut arguments = vec!["check", "--precision", "fp16", "--device", "cpu", "--steps", "6", "--every", "2"];
    arguments.extend(crate::kiln::SMALL.iter().flat_map(|set| ["--set", *set]));
    let audit = place.run(&arguments).ok();
    for part in [
        "fp16 against f32: 6 steps",
        "loss f32",
        "largest difference",
        "tok/s",
        "loss scale: 65536 at first",
        "weights F16, gradients F16, master weights F32",
        "softmax: computed in f32",
        "token numbers: untouched",
        "sound: fp16",
    ] {
        assert!(audit.stdout.contains(part), "{part:?} is missing in {audit:#?}");
    }
    let strict = place.run(&[arguments.as_slice(), &["--tolerance", "0"]].concat());
    assert!(strict.code == 1 && strict.stdout.contains("WRONG  the loss of step"), "{strict:#?}");
    place.run(&["check"]).refused(2, &["RUN"]);
    place.run(&["check", "runs/a", "--precision", "fp16"]).refused(2, &["--precision"]);
    place.run(&["check", "runs/a", "--set", "optim.lr=1"]).refused(2, &["options of --precision"]);
    place.run(&["check", "--precision", "fp4"]).refused(2, &["fp16"]);
}

/// The plan of a run is in its notes, and its default warm-up follows the steps.
#[test]
fn a_run_says_what_it_is_going_to_do() {
    let place = Workplace::new();
    let ran = place
        .run(&["train", "--device", "cpu", "--run", "runs/a", "--set", "train.steps=4", "--set", "train.log_every=1"])
        .ok();
    for part in [
        "preset numbers, for the built-in task (--preset NAME takes another)",
        "optim.warmup_steps = 1 instead of 100, because train.steps = 4",
        "data: 50,000 pairs, 500 for validation; 4 steps are 0.0 epochs",
        "training 0.9 M parameters on CPU (",
        "memory: about ",
    ] {
        assert!(ran.stderr.contains(part), "{part:?} is missing in {ran:#?}");
        assert!(place.read("runs/a/metrics.jsonl").contains(part), "{part:?} is missing in metrics.jsonl");
    }
}

#[test]
fn a_finished_run_trains_longer() {
    let place = trained();
    let longer = ["train", "--device", "cpu", "--run", "runs/a", "--resume", "--set", "train.steps=16"];
    let ran = place.run(&longer).ok();
    let config = place.read("runs/a/config.toml");
    let fewer = [&longer[..7], &["train.steps=10"]].concat();
    place.run(&fewer).refused(2, &["has already taken 16 steps", "--set train.steps=32"]);
    assert_eq!(place.read("runs/a/config.toml"), config);
    let stretched = "train.steps: 16 instead of 12; the schedule stretches, so the learning rate of step 13 is";
    assert!(ran.stderr.contains(stretched), "{ran:#?}");
    assert!(ran.stderr.contains("step 16/16") && place.read("runs/a/config.toml").contains("steps = 16"), "{ran:#?}");
}

#[test]
fn a_run_that_starts_from_another_says_so_and_validates_first() {
    let place = trained();
    let ran =
        place.run(&["train", "--device", "cpu", "--from", "runs/a", "--run", "runs/b", "--set", "train.steps=3"]).ok();
    let start =
        "starting from the weights, the vocabulary and the configuration of runs/a/checkpoints/step-00000012 (step 12)";
    assert!(ran.stderr.contains(start), "{ran:#?}");
    let first = ran.stderr.find("step 0 | validation loss").expect("a validation before the first step");
    assert!(first < ran.stderr.find("step 3 | validation loss").expect("the last validation"), "{ran:#?}");
    assert!(ran.stderr.contains("optim.warmup_steps = 1 instead of 5, because train.steps = 3"), "{ran:#?}");
}
