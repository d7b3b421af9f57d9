//! What newcomers do with data of their own in the first two hours.

use std::fmt::Write;

use serde_json::Value;

use crate::kiln::{Ran, SMALL, Workplace};

fn pairs(n: usize) -> String {
    (0..n).fold(String::new(), |mut text, i| {
        let (a, b) = (i * 7919 % 97, i * 31 % 89);
        writeln!(text, "the number {a} and {b}\til numero {a} e {b}").expect("text");
        text
    })
}

/// `--set` for each of the keys.
fn set<'a>(keys: &[&'a str]) -> Vec<&'a str> {
    keys.iter().flat_map(|key| ["--set", *key]).collect()
}

/// A translator of a few steps in runs/a, made of pairs.tsv.
fn translator() -> Workplace {
    let place = Workplace::new();
    place.write("pairs.tsv", pairs(120));
    place.write("dev.tsv", pairs(20));
    place
        .train(
            &[
                &set(&["data.valid=dev.tsv", "train.steps=20", "tokenizer.vocab_size=400", "optim.lr=5e-3"])[..],
                &["--run", "runs/a", "pairs.tsv"],
            ]
            .concat(),
        )
        .ok();
    place
}

/// A small language model in runs/lm.
fn language_model() -> Workplace {
    let place = Workplace::new();
    place.write("text.txt", pairs(200).replace(['\t', '\n'], "\n\n"));
    let keys = ["tokenizer.vocab_size=350", "train.steps=10", "data.text.seq_len=32", "data.train=text.txt"];
    place.train(&[&set(&keys)[..], &["--task", "lm", "--run", "runs/lm"]].concat()).ok();
    place
}

#[test]
fn text_is_named_without_a_flag_and_a_run_in_its_place_is_answered() {
    let place = translator();
    assert!(place.read("runs/a/config.toml").contains("train = [\"pairs.tsv\"]"));
    place.run(&["train", "runs/a"]).refused(2, &["this is a run", "--run runs/a --resume", "--from runs/a"]);
    place.run(&["train", "--resume", "runs/a"]).refused(2, &["--run runs/a --resume"]);
    let preset = ["train", "--run", "runs/a", "--resume", "--preset", "small"];
    place.run(&preset).refused(2, &["--resume continues the run", "--preset"]);
}

#[test]
fn other_text_is_scored_with_the_flags_that_messages_name() {
    let place = translator();
    place.write("named.jsonl", "{\"en\": \"the number 3\", \"it\": \"il numero 3\", \"id\": 4}\n".repeat(4));
    let evaluate = |more: &[&str]| {
        place.run(&[&["evaluate", "runs/a", "--device", "cpu", "--data", "named.jsonl"], more].concat())
    };
    let fields = ["data.corpus.source_field=en", "data.corpus.target_field=it"];
    evaluate(&[])
        .refused(3, &["its rows are pairs", "--set data.corpus.source_field=en --set data.corpus.target_field=it"]);
    evaluate(&set(&fields)).ok();
    evaluate(&set(&["generate.beam_size=4"])).refused(2, &["write --beam 4", "data.corpus"]);
    evaluate(&set(&["data.corpus.source_filed=en"])).refused(2, &["did you mean data.corpus.source_field?"]);
    place.write("named.jsonl", "{\"text\": \"a\", \"label\": \"b\"}\n".repeat(4));
    let other = evaluate(&[]);
    assert!(!other.stderr.contains("--task"), "evaluate has no such option: {other:#?}");
    other.refused(3, &["its rows are texts with labels", "this run has another task"]);
}

#[test]
fn a_model_is_scored_on_conversations() {
    let place = language_model();
    place.write("chats.jsonl", "{\"question\": \"the number 3\", \"answer\": \"il numero 3\"}\n".repeat(4));
    let evaluate = |more: &[&str]| {
        place.run(&[&["evaluate", "runs/lm", "--device", "cpu", "--data", "chats.jsonl"], more].concat())
    };
    evaluate(&[]).refused(3, &["its rows are questions and answers", "--set data.text.format=chat"]);
    assert!(evaluate(&set(&["data.text.format=chat", "data.text.seq_len=128"])).ok().stdout.contains("loss"));
}

#[test]
fn commands_that_look_at_a_run_take_its_vocabulary_and_its_caches() {
    let place = language_model();
    let lora = ["train", "--device", "cpu", "--from", "runs/lm", "--run", "runs/lora"];
    place
        .run(&[&lora[..], &set(&["model.lora.rank=2", "model.lora.targets=all-linear", "train.steps=2"])].concat())
        .ok();
    let cache = |run: &str| std::fs::read(place.path(run).join("cache/train.tokens")).expect("a cache");
    let before = cache("runs/lm");
    for run in ["runs/lm", "runs/lora"] {
        place.run(&["memory", "--device", "cpu", "--run", run]).ok();
        place.run(&["data", "stats", "--run", run]).ok();
        place.write("other.txt", "another text of words\n\n".repeat(50));
        place.run(&[&["data", "stats", "--run", run][..], &set(&["data.train=other.txt"])].concat()).ok();
    }
    let from = place
        .run(&[&["memory", "--device", "cpu", "--from", "runs/lm"][..], &set(&["model.lora.rank=2"])].concat())
        .ok();
    assert!(from.stdout.contains("sum"), "{from:#?}");
    assert_eq!(cache("runs/lm"), before, "other text leaves the caches of a run alone");
}

#[test]
fn prepare_and_train_choose_the_same_folder_and_leave_other_runs_alone() {
    let place = Workplace::new();
    place.write("pairs.tsv", pairs(300));
    let prepared = place.run(&["prepare", "pairs.tsv"]).ok();
    assert!(prepared.stdout.starts_with("runs/few-pairs/cache: ready"), "{prepared:#?}");
    let steps = ["train.steps=2", "train.validate_every=0"];
    let trained = place.run(&[&["train", "--device", "cpu", "pairs.tsv"][..], &set(&steps)].concat()).ok();
    assert!(!trained.stderr.contains("built in"), "the caches are used: {trained:#?}");
    place.write("more.tsv", pairs(400));
    place
        .run(&["prepare", "more.tsv"])
        .refused(2, &["runs/few-pairs: this folder has a run with other text", "--cache"]);
}

#[test]
fn a_run_that_only_made_a_model_worse_keeps_the_model_and_says_so() {
    let place = translator();
    let tune = |lr: &str, run: &str| -> Ran {
        let keys = ["train.steps=3", "optim.warmup_steps=0", lr];
        let keys = &keys[..if lr.is_empty() { 2 } else { 3 }];
        place.run(&[&["train", "--device", "cpu", "--from", "runs/a", "--run", run][..], &set(keys)].concat()).ok()
    };
    let usual = tune("", "runs/tuned");
    assert!(usual.stderr.contains("optim.lr 0.0012, a rate for trained weights, instead of 0.005"), "{usual:#?}");
    let worse = tune("optim.lr=1.0", "runs/worse");
    assert!(worse.stderr.contains("warning: training made the model worse"), "{worse:#?}");
    assert!(place.read("runs/worse/checkpoints/best").contains("step-00000000"));
    place.run(&["evaluate", "runs/worse", "--device", "cpu"]).ok();
}

#[test]
fn printed_commands_survive_a_folder_with_a_space() {
    let place = Workplace::new();
    place.write("pairs.tsv", pairs(60));
    let keys = ["train.steps=10", "tokenizer.vocab_size=400"];
    let ran = place.train(&[&set(&keys)[..], &["--run", "runs/my pairs", "pairs.tsv"]].concat()).ok();
    let next = ran.stdout.lines().find(|line| line.starts_with("Next: ")).expect("a command");
    assert!(next.ends_with("translate 'runs/my pairs'"), "{next}");
}

#[test]
fn validation_rows_are_split_off_and_epochs_are_counted() {
    let place = Workplace::new();
    place.write("pairs.tsv", pairs(300));
    let keys = [
        "data.split=30",
        "train.epochs=2",
        "optim.warmup_ratio=0.1",
        "tokenizer.vocab_size=400",
        "loader.batch_rows=27",
    ];
    let small: Vec<&str> = SMALL.iter().copied().filter(|key| !key.starts_with("optim.warmup")).collect();
    let ran = place
        .run(&[&["train", "--device", "cpu", "--run", "runs/a", "pairs.tsv"][..], &set(&small), &set(&keys)].concat())
        .ok();
    assert!(ran.stderr.contains("data: 270 pairs, 30 for validation; 20 steps are 2"), "{ran:#?}");
    assert!(place.read("runs/a/config.toml").contains("warmup_steps = 2\n"));
    assert!(place.run(&["evaluate", "runs/a", "--device", "cpu"]).ok().stderr.contains("on 30 pairs"));
    place.run(&["train", "--device", "cpu", "--run", "runs/a", "--resume", "--set", "train.epochs=3"]).ok();
    assert!(place.read("runs/a/config.toml").contains("steps = 30\n"));
}

#[test]
fn a_shorter_run_adapts_its_warm_up_when_it_is_resumed() {
    let place = Workplace::new();
    place.write("pairs.tsv", pairs(120));
    let keys = [
        "train.steps=40",
        "optim.warmup_steps=20",
        "train.save_every=5",
        "tokenizer.vocab_size=400",
        "train.max_minutes=0.000001",
    ];
    place.train(&[&set(&keys)[..], &["--run", "runs/a", "pairs.tsv"]].concat()).ok();
    let resume = ["train", "--device", "cpu", "--run", "runs/a", "--resume"];
    place.run(&[&resume[..], &set(&["train.steps=10", "train.max_minutes=0"])].concat()).ok();
    assert!(place.read("runs/a/config.toml").contains("warmup_steps = 1\n"));
}

#[test]
fn a_dry_run_refuses_what_the_training_refuses_and_says_how_long_it_takes() {
    let place = translator();
    let dry = |keys: &[&str]| {
        place.run(&[&["train", "--device", "cpu", "--dry-run", "--from", "runs/a"][..], &set(keys)].concat())
    };
    dry(&["train.freeze=decoder.layer.0"]).refused(2, &["matches no parameter; did you mean \"decoder.layers.0\"?"]);
    dry(&["model.n_decoder_layers=3"]).refused(2, &["these weights belong to another model"]);
    let long = dry(&["train.steps=100000", "model.lora.rank=2"]).ok();
    assert!(long.stdout.contains("\ntime: about ") && long.stdout.contains("trains "), "{long:#?}");
}

#[test]
fn a_run_shows_what_it_used() {
    let place = translator();
    let shown = place.run(&["config", "--run", "runs/a"]).ok();
    assert_eq!(shown.stdout, place.read("runs/a/config.toml"));
    place.run(&["config", "--run", "runs/b"]).refused(2, &["runs/b: there is no run here"]);
}

#[test]
fn a_pipe_of_conversations_gets_an_answer_each() {
    let place = language_model();
    let row = r#"{"id": 7, "messages": [{"role": "user", "content": "the number 3"}]}"#;
    let chat = ["chat", "runs/lm", "--device", "cpu", "--greedy", "--max-new-tokens", "3"];
    let ran = place.run_with_input(&chat, format!("{row}\n{row}\n")).ok();
    let rows: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((rows.len(), rows[0]["id"].as_i64()), (2, Some(7)));
    assert!(rows.iter().all(|row| row["messages"][1]["role"] == "assistant"), "{rows:?}");
    place.run(&["chat", "runs/lm", "hello there"]).refused(2, &["echo 'hello there' | kiln chat runs/lm"]);
}

#[test]
fn a_language_model_shows_what_it_writes_while_it_trains() {
    let place = Workplace::new();
    place.write("text.txt", pairs(200).replace(['\t', '\n'], "\n\n"));
    let train = |run: &str, more: &[&str]| {
        let keys = ["tokenizer.vocab_size=350", "train.steps=8", "data.text.seq_len=32", "data.split=20"];
        let task = ["--task", "lm", "--run", run, "text.txt", "--set", "train.validate_every=4"];
        place.train(&[&task[..], &set(&keys), &set(more)].concat()).ok()
    };
    let samples = |run: &str| -> Vec<Value> {
        let lines = place.read(&format!("{run}/metrics.jsonl"));
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.filter(|line| line["kind"] == "sample").collect()
    };
    let shown = train("runs/lm", &[]);
    let found = samples("runs/lm");
    assert_eq!(found.iter().map(|line| line["step"].as_u64()).collect::<Vec<_>>(), [Some(4), Some(8)]);
    let prompt = found[0]["source"].as_str().expect("a prompt");
    assert!(found[0]["output"].is_string() && found[0].get("reference").is_none() && !prompt.is_empty(), "{found:?}");
    assert_eq!(shown.stderr.matches(&format!("  {prompt} -> ")).count(), 2, "{shown:#?}");
    place.run(&["report", "runs/lm"]).ok();
    assert!(place.read("runs/lm/report.html").contains("<section id=\"samples\""));

    // They may be rarer than validations.
    train("runs/rare", &["train.translate_every=100"]);
    assert_eq!(samples("runs/rare").len(), 1, "after the last step");
}

#[test]
fn a_dry_run_shows_one_conversation_and_both_answers_of_a_preference() {
    let place = language_model();
    let chat = |i: usize| format!("{{\"question\": \"the number {i}\", \"answer\": \"il numero {i}\"}}\n");
    place.write("chats.jsonl", (0..9).map(chat).collect::<String>());
    place.write("prefer.jsonl", r#"{"prompt": "3", "chosen": "yes", "rejected": "no"}"#.to_owned() + "\n");
    let dry = |file: &str, format: &str| {
        let train = ["train", "--device", "cpu", "--from", "runs/lm", "--dry-run", file, "--set", "train.steps=1"];
        place.run(&[&train[..], &set(&[format, "data.text.seq_len=128"])].concat()).ok().stdout
    };
    let shown = dry("chats.jsonl", "data.text.format=chat");
    let learned = shown.lines().find_map(|line| line.trim().strip_prefix("learned: ")).expect("an example");
    assert_eq!(learned.matches("numero").count(), 1, "{shown}");
    let shown = dry("prefer.jsonl", "data.text.format=preferences");
    assert!(shown.contains("  preferred: yes") && shown.contains("  rejected: no"), "{shown}");
    assert!(shown.contains("1 batch per epoch of 1 shape\n"), "{shown}");
    assert!(shown.contains("warning: the training text is 1 row"), "{shown}");
}

#[cfg(unix)]
#[test]
fn an_argument_in_another_encoding_is_named() {
    use std::os::unix::ffi::OsStrExt;
    let place = Workplace::new();
    let file = std::ffi::OsStr::from_bytes(b"data.train=caf\xe9.tsv");
    let output = place.command(&["train", "--set"]).arg(file).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains(r"'data.train=caf\xe9.tsv' is not UTF-8") && text.contains("rename the file"), "{text}");
}
