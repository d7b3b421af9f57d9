//! A learned prompt on a model of Hugging Face: trained, resumed, used, exported for `peft` and read back.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::kiln::{Ran, SMALL, Workplace, copy_folder};

const TEXT: &str = "the cat sat on the mat\n\na model reads a text and writes another text\n\none two three four\n";

fn llama() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("model/fixtures/hf/llama");
    path.to_str().expect("plain names").to_owned()
}

fn with_model() -> Workplace {
    let place = Workplace::new();
    place.write("text.txt", TEXT);
    place.run(&["import", &llama(), "--out", "runs/llama"]).ok();
    place
}

/// Trains a prompt of four vectors on the imported Llama.
fn train(place: &Workplace, run: &str, more: &[&str]) -> Ran {
    train_on(&["--device", "cpu"], place, run, more)
}

fn train_on(devices: &[&str], place: &Workplace, run: &str, more: &[&str]) -> Ran {
    let mut arguments = vec!["train", "--from", "runs/llama", "--run", run];
    arguments.extend(devices);
    let small = SMALL.into_iter().filter(|set| !set.starts_with("model.") && !set.starts_with("data.text."));
    arguments.extend(small.flat_map(|set| ["--set", set]));
    for set in ["data.train=text.txt", "model.prompt_tokens=4", "train.steps=6", "train.save_every=3", "optim.lr=0.05"]
    {
        arguments.extend(["--set", set]);
    }
    arguments.extend(["--set", "optim.warmup_steps=0"]);
    arguments.extend(more);
    place.run(&arguments)
}

fn nll(place: &Workplace, run: &str) -> f64 {
    let scores = place.run(&["evaluate", run, "--data", "text.txt", "--json", "--device", "cpu"]).ok();
    serde_json::from_str::<Value>(&scores.stdout).expect("JSON")["nll"].as_f64().expect("a number")
}

fn bytes(place: &Workplace, file: &str) -> Vec<u8> {
    fs::read(place.path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn a_prompt_is_trained_resumed_used_exported_and_read_back() {
    let place = with_model();
    let trained = train(&place, "runs/tuned", &[]).ok();
    for part in ["tensors are frozen (model.prompt_tokens)", "128 of ", "a prompt of 4 vectors is new", "\"sentences\""]
    {
        assert!(trained.stderr.contains(part), "{part}: {trained:#?}");
    }
    assert!(nll(&place, "runs/tuned") < nll(&place, "runs/llama"));
    place
        .run(&["evaluate", "runs/tuned", "--data", "text.txt", "--packing", "documents", "--device", "cpu"])
        .refused(2, &["data.text.packing = \"documents\" puts several texts into one"]);

    // From the checkpoint in the middle, the same bits.
    copy_folder(&place.path("runs/tuned"), &place.path("runs/again"));
    fs::remove_dir_all(place.path("runs/again/checkpoints/step-00000006")).expect("saved");
    fs::write(place.path("runs/again/checkpoints/last"), "step-00000003\n").expect("writable");
    place.run(&["train", "--device", "cpu", "--run", "runs/again", "--resume"]).ok();
    let last = "checkpoints/step-00000006/model.safetensors";
    assert!(bytes(&place, &format!("runs/tuned/{last}")) == bytes(&place, &format!("runs/again/{last}")));

    // The prompt alone, under the names of peft, and back.
    place
        .run(&["export", "runs/tuned", "out/model"])
        .refused(2, &["model.prompt_tokens is 4", "kiln export --adapter"]);
    place.run(&["export", "runs/tuned", "out/prompt", "--adapter"]).ok();
    let settings: Value = serde_json::from_str(&place.read("out/prompt/adapter_config.json")).expect("JSON");
    assert_eq!((&settings["peft_type"], &settings["num_virtual_tokens"]), (&"PROMPT_TUNING".into(), &4.into()));
    place.run(&["import", &llama(), "--adapter", "out/prompt", "--out", "runs/back"]).ok();
    let difference = (nll(&place, "runs/back") - nll(&place, "runs/tuned")).abs();
    assert!(difference < 1e-6, "{difference}");
    let say = |run: &str| {
        let prompt = ["generate", run, "--device", "cpu", "--greedy", "--max-new-tokens", "8"];
        place.run_with_input(&prompt, "the cat\n").ok().stdout
    };
    assert_eq!(say("runs/back"), say("runs/tuned"));

    // Training goes on with the prompt, or without it.
    let from =
        ["train", "--from", "runs/back", "--device", "cpu", "--set", "data.train=text.txt", "--set", "train.steps=1"];
    let rest = ["--set", "optim.warmup_steps=0", "--set", "train.validate_every=0"];
    let more = place.run(&[&from[..], &rest, &["--run", "runs/more"]].concat()).ok();
    assert!(more.stderr.contains("(model.prompt_tokens)"), "{more:#?}");
    let without = ["--run", "runs/without", "--set", "model.prompt_tokens=0"];
    let without = place.run(&[&from[..], &rest, &without].concat()).ok();
    assert!(without.stderr.contains("the learned prompt is left out"), "{without:#?}");
}

/// Four vectors of 32 numbers are too few to share.
#[test]
fn ranks_train_a_prompt_as_one_process_does_over_as_many_micro_batches() {
    let place = with_model();
    let losses = |run: &str| {
        let steps = place.read(&format!("{run}/metrics.jsonl"));
        let steps = steps.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let losses = steps.filter(|line| line["kind"] == "step").map(|step| step["loss"].as_f64().expect("a loss"));
        losses.map(f64::to_bits).collect::<Vec<_>>()
    };
    for (devices, n) in [("cpu,cpu", "2"), ("cpu,cpu,cpu,cpu,cpu", "5")] {
        let (one, many) = (format!("runs/one-{n}"), format!("runs/many-{n}"));
        let log = ["--set", "train.log_every=1"];
        train(&place, &one, &[&log[..], &["--set", &format!("train.grad_accum_steps={n}")]].concat()).ok();
        train_on(&["--devices", devices], &place, &many, &log).ok();
        assert_eq!(losses(&many), losses(&one), "{n} ranks");
        let last = "checkpoints/step-00000006/model.safetensors";
        assert!(bytes(&place, &format!("{one}/{last}")) == bytes(&place, &format!("{many}/{last}")), "{n} ranks");
        let first = "checkpoints/step-00000003/model.safetensors";
        assert!(bytes(&place, &format!("{one}/{first}")) != bytes(&place, &format!("{one}/{last}")), "it learns");
    }
}

#[test]
fn prompts_that_cannot_be_trained_are_refused_with_the_way_out() {
    let place = with_model();
    let refused = |set: &str, parts: &[&str]| train(&place, "runs/x", &["--set", set]).refused(2, parts);
    refused("model.lora.rank=2", &["model.prompt_tokens 4 and model.lora.rank 2 are two ways"]);
    refused("data.text.packing=documents", &["stands in front of a row", "data.text.packing = \"sentences\""]);
    refused("model.prompt_tokens=1000000", &["model.prompt_tokens 1000000 leaves less than 2 of"]);
    place
        .run(&[
            "train",
            "--task",
            "lm",
            "--set",
            "data.train=text.txt",
            "--set",
            "model.prompt_tokens=4",
            "--device",
            "cpu",
        ])
        .refused(2, &["model.prompt_tokens = 4 trains a prompt of a model that exists"]);
}

#[test]
fn peft_continues_a_text_behind_a_prompt_as_kiln_does() {
    let Some(python) = std::env::var_os("KILN_PEFT_PYTHON") else {
        eprintln!("skipped: KILN_PEFT_PYTHON is not set; name a Python that has torch, transformers and peft");
        return;
    };
    let place = with_model();
    train(&place, "runs/tuned", &[]).ok();
    place.run(&["export", "runs/llama", "out/model"]).ok();
    place.run(&["export", "runs/tuned", "out/prompt", "--adapter"]).ok();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("model/fixtures/make_prompt_tuning.py");
    let mut command = Command::new(python);
    command.arg(script).arg("check").args(["out/model", "out/prompt"].map(|folder| place.path(folder))).arg("the cat");
    let output = command.output().expect("the interpreter starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let theirs: Value = serde_json::from_slice(&output.stdout).expect("JSON");

    let say = |run: &str| {
        let prompt = ["generate", run, "--device", "cpu", "--greedy", "--max-new-tokens", "12", "--json"];
        let said = place.run_with_input(&prompt, "the cat\n").ok().stdout;
        serde_json::from_str::<Value>(&said).expect("JSON")["text"].as_str().expect("text").to_owned()
    };
    let (prompted, plain) = (say("runs/tuned"), say("runs/llama"));
    assert_eq!((theirs["prompted"].as_str(), theirs["plain"].as_str()), (Some(&*prompted), Some(&*plain)));
    assert_ne!(prompted, plain, "the prompt changes the text");
}

#[test]
fn an_encoder_learns_classes_through_a_prompt_in_the_middle_of_its_rows() {
    let place = Workplace::new();
    let rows: String =
        (0..60).map(|n| format!("{{\"text\": \"word{} it\", \"label\": \"{}\"}}\n", n % 6, n % 2)).collect();
    place.write("rows.jsonl", rows);
    let settings =
        |keys: &[&'static str]| -> Vec<&'static str> { keys.iter().flat_map(|key| ["--set", *key]).collect() };
    let small = ["model.d_model=32", "model.d_ff=64", "model.n_heads=2", "optim.warmup_steps=0", "train.save_every=2"];
    let encoder = ["train", "--task", "mlm", "--preset", "bert-tiny", "--device", "cpu", "--run", "runs/mlm"];
    place.run(&[&encoder[..], &settings(&small), &settings(&["train.steps=2"])].concat()).ok();

    let train = |run: &'static str, more: &[&str]| {
        let fixed = ["train", "--from", "runs/mlm", "--task", "classification", "--device", "cpu", "--run", run];
        let keys =
            ["data.train=rows.jsonl", "model.prompt_tokens=4", "train.steps=4", "train.save_every=2", "optim.lr=0.05"];
        place.run(&[&fixed[..], &settings(&keys), more].concat())
    };
    let trained = train("runs/tuned", &[]).ok();
    assert!(trained.stderr.contains("tensors are frozen (model.prompt_tokens)"), "{}", trained.stderr);
    copy_folder(&place.path("runs/tuned"), &place.path("runs/again"));
    fs::remove_dir_all(place.path("runs/again/checkpoints/step-00000004")).expect("saved");
    fs::write(place.path("runs/again/checkpoints/last"), "step-00000002\n").expect("writable");
    place.run(&["train", "--device", "cpu", "--run", "runs/again", "--resume"]).ok();
    let last = "checkpoints/step-00000004/model.safetensors";
    assert!(bytes(&place, &format!("runs/tuned/{last}")) == bytes(&place, &format!("runs/again/{last}")));

    let scores = place.run(&["evaluate", "runs/tuned", "--data", "rows.jsonl", "--json", "--device", "cpu"]).ok();
    assert!(serde_json::from_str::<Value>(&scores.stdout).expect("JSON")["accuracy"].is_number());
    place.run(&["classify", "runs/tuned", "word1 it", "--device", "cpu"]).ok();
    place
        .run(&["export", "runs/tuned", "out/prompt", "--adapter"])
        .refused(2, &["behind the first token, and peft puts its prompts in front of it"]);
}
