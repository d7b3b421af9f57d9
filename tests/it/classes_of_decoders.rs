//! Classes of texts with decoders: trained from nothing, from a language model and with adapters; exported and read back.

use std::fs;
use std::path::Path;
use std::process::Command;

use safetensors::tensor::SafeTensors;
use serde_json::{Value, json};

use crate::classes::{fixtures, json_of, labelled, lines_of_the_repository, train};
use crate::kiln::{Ran, Workplace};

/// A decoder so small that a step takes milliseconds.
const DECODER: [&str; 10] = [
    "model.d_model=48",
    "model.n_heads=2",
    "model.d_ff=96",
    "model.n_decoder_layers=1",
    "model.max_positions=48",
    "tokenizer.vocab_size=600",
    "loader.batch_tokens=1024",
    "optim.warmup_steps=5",
    "train.log_every=20",
    "train.save_every=0",
];

const CLASSES: [&str; 5] = [
    "data.train=train.jsonl",
    "data.valid=dev.jsonl",
    "train.validate_every=40",
    "optim.warmup_steps=5",
    "optim.lr=3e-3",
];

/// A place with labelled lines of prose and code in `train.jsonl` and `dev.jsonl`, and the training texts in `train.txt`.
fn place() -> Workplace {
    let place = Workplace::new();
    let rows = lines_of_the_repository(120);
    let (valid, training) = rows.split_at(60);
    place.write("train.jsonl", labelled(training));
    place.write("dev.jsonl", labelled(valid));
    place.write("train.txt", training.iter().map(|(_, text)| format!("{text}\n\n")).collect::<String>());
    place
}

fn scores(place: &Workplace, run: &str) -> Value {
    json_of(&place.run(&["evaluate", run, "--json", "--device", "cpu"]).ok().stdout)
}

fn accuracy(place: &Workplace, run: &str) -> f64 {
    scores(place, run)["accuracy"].as_f64().expect("a number")
}

/// What `kiln classify` says of the texts of `dev.jsonl`.
fn classified(place: &Workplace, run: &str) -> Ran {
    place.run_with_input(&["classify", run, "--jsonl", "--device", "cpu"], place.read("dev.jsonl")).ok()
}

/// The probabilities of "code", one per text.
fn of_code(ran: &Ran) -> Vec<f64> {
    let of_line = |line: &str| {
        let found = json_of(line);
        let classes = found["classes"].as_array().expect("classes").clone();
        let code = classes.iter().find(|class| class["label"] == "code" || class["label"] == "LABEL_0");
        code.expect("a class")["probability"].as_f64().expect("a number")
    };
    ran.stdout.lines().map(of_line).collect()
}

fn assert_same(found: &[f64], wanted: &[f64], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    let off = found.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(off < 1e-4, "{what}: off by {off}");
}

fn names(file: &Path) -> Vec<String> {
    let bytes = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let mut names: Vec<String> = file.names().into_iter().map(ToString::to_string).collect();
    names.sort();
    names
}

/// Trains a small language model in `runs/lm`.
fn language_model(place: &Workplace, settings: &[&str]) {
    let lm = ["data.train=train.txt", "train.steps=20", "train.validate_every=0", "model.dropout=0.0"];
    train(place, &["--task", "lm", "--run", "runs/lm"], &[&DECODER[..], &lm, settings].concat()).ok();
}

#[test]
fn a_language_model_learns_classes_of_real_text() {
    let place = place();
    // Not tied, so that the projection to the vocabulary is a tensor of its own.
    language_model(&place, &["model.tie_embeddings=none"]);
    let more = ["train.steps=80", "loader.batch_tokens=1024", "train.best_metric=accuracy"];
    let settings = [&CLASSES[..], &more].concat();
    let from = ["--from", "runs/lm", "--task", "classification", "--run", "runs/lines"];
    let ran = train(&place, &from, &settings).ok();
    for part in [
        "2 classes: ",
        "--from: the projection to the vocabulary is left out",
        "--from: the head for classes is new, 96 parameters, initialized at random: classifier.output.weight",
        "| accuracy ",
    ] {
        assert!(ran.stderr.contains(part), "{part:?} is missing in {ran:#?}");
    }
    assert!(ran.stdout.contains("classify runs/lines"), "{ran:#?}");
    let found = scores(&place, "runs/lines");
    assert!(found["accuracy"].as_f64().is_some_and(|accuracy| accuracy > 0.75), "half of the lines are code: {found}");
    assert!(found["macro_f1"].is_number() && found["classes"][1]["name"] == "prose", "{found}");
    place.run(&["generate", "runs/lines", "--prompt", "a"]).refused(2, &["use kiln classify"]);
    place.run(&["export", "runs/lines", "out/lines.gguf"]).refused(2, &["models that continue text"]);

    // Exported and read back, it predicts the same. It goes on, and resumes.
    place.run(&["export", "runs/lines", "out/lines"]).ok();
    let config = json_of(&place.read("out/lines/config.json"));
    assert_eq!(config["architectures"], json!(["GPT2ForSequenceClassification"]));
    assert_eq!((&config["id2label"]["1"], &config["num_labels"]), (&"prose".into(), &2.into()), "{config}");
    assert!(config["pad_token_id"].is_u64(), "{config}");
    assert!(!place.path("out/lines/generation_config.json").exists());
    assert!(names(&place.path("out/lines/model.safetensors")).contains(&"score.weight".to_owned()));
    place.run(&["import", "out/lines", "--out", "runs/again"]).ok();
    let wanted = of_code(&classified(&place, "runs/lines"));
    assert_same(&of_code(&classified(&place, "runs/again")), &wanted, "read back");
    let ran = train(
        &place,
        &["--from", "runs/again", "--run", "runs/further"],
        &[&settings[..], &["train.steps=10"]].concat(),
    )
    .ok();
    assert!(!ran.stderr.contains("--from: "), "{ran:#?}");
    let resumed = train(&place, &["--run", "runs/further", "--resume"], &["train.steps=12"]).ok();
    assert!(resumed.stderr.contains("step 12/12"), "{resumed:#?}");
}

#[test]
fn a_decoder_learns_classes_from_nothing() {
    let place = place();
    let settings = [&DECODER[..], &CLASSES, &["train.steps=80"]].concat();
    train(&place, &["--preset", "classify-decoder", "--run", "runs/lines"], &settings).ok();
    let found = accuracy(&place, "runs/lines");
    assert!(found > 0.8, "half of the lines are code: {found}");
    place.run(&["bench", "--run", "runs/lines", "--device", "cpu"]).refused(2, &["this one predicts classes"]);
    let measured = ["--only", "step,batch", "--steps", "1", "--repeats", "1", "--device", "cpu"];
    let measured = place.run(&[&["diagnose", "--run", "runs/lines"][..], &measured].concat()).ok();
    assert!(
        measured.stderr.contains("the test batch is left out") && measured.stdout.contains("whole step"),
        "{measured:#?}"
    );
    // Pairs, and the text that has no tokens.
    let pair = place.run(&["classify", "runs/lines", "let x = 1;", "--pair", "a text", "--device", "cpu"]).ok();
    assert_eq!(pair.stdout.lines().count(), 2, "{pair:#?}");
    place.run(&["classify", "runs/lines", "", "--device", "cpu"]).ok();
}

#[test]
fn adapters_are_trained_with_the_whole_head() {
    let place = place();
    language_model(&place, &[]);
    let lora = [
        "model.lora.rank=4",
        "model.lora.targets=[\"qkv\", \"down\"]",
        "optim.lr=1e-2",
        "train.steps=400",
        "train.best_metric=accuracy",
    ];
    let settings = [&CLASSES[..4], &lora].concat();
    let from = ["--from", "runs/lm", "--task", "classification", "--run", "runs/lines"];
    let ran = train(&place, &from, &settings).ok();
    assert!(ran.stderr.contains("tensors are frozen (model.lora)"), "{ran:#?}");
    assert!(accuracy(&place, "runs/lines") > 0.75, "half of the lines are code");
    let wanted = of_code(&classified(&place, "runs/lines"));

    // The base is as it was.
    let tensor = |run: &str, name: &str| {
        let path =
            fs::read_dir(place.path(run).join("checkpoints")).expect("checkpoints").map(|it| it.expect("one").path());
        let file = path.filter(|dir| dir.is_dir()).max().expect("a checkpoint").join("model.safetensors");
        let bytes = fs::read(file).expect("weights");
        SafeTensors::deserialize(&bytes).expect("sound").tensor(name).expect(name).data().to_vec()
    };
    for name in ["embedding.table", "decoder.layers.0.self_attention.qkv.weight"] {
        assert_eq!(tensor("runs/lines", name), tensor("runs/lm", name), "{name} is frozen");
    }

    // Merged, and alone under the names of peft, next to the language model.
    place.run(&["export", "runs/lines", "out/merged"]).ok();
    place.run(&["import", "out/merged", "--out", "runs/merged"]).ok();
    assert_same(&of_code(&classified(&place, "runs/merged")), &wanted, "merged");
    let ran = place.run(&["export", "runs/lines", "out/adapter", "--adapter"]).ok();
    assert!(ran.stderr.contains("no place for the names of the 2 classes"), "{ran:#?}");
    let settings = json_of(&place.read("out/adapter/adapter_config.json"));
    assert_eq!((&settings["task_type"], &settings["modules_to_save"]), (&"SEQ_CLS".into(), &json!(["score"])));
    let all = names(&place.path("out/adapter/adapter_model.safetensors"));
    assert!(all.contains(&"base_model.model.score.weight".to_owned()), "{all:?}");
    place.run(&["export", "runs/lm", "out/lm"]).ok();
    place.run(&["import", "out/lm", "--adapter", "out/adapter", "--out", "runs/both"]).ok();
    place.run(&["export", "runs/both", "out/both", "--adapter"]).ok();
    let read = |path: &str| fs::read(place.path(path)).expect("written");
    assert_eq!(read("out/both/adapter_model.safetensors"), read("out/adapter/adapter_model.safetensors"));

    let Some(python) = std::env::var_os("KILN_PEFT_PYTHON") else {
        eprintln!("skipped: KILN_PEFT_PYTHON is not set; name a Python that has torch, transformers and peft");
        return;
    };
    let mut command = Command::new(python);
    command.arg(fixtures().join("make.py")).arg("peft");
    command.args(["out/lm", "out/adapter", "out/merged", "dev.jsonl"].map(|name| place.path(name)));
    let output = command.output().expect("the interpreter starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    eprintln!("{stdout}");
}

#[test]
fn wrong_heads_and_tasks_of_decoders_are_refused() {
    let place = place();
    let llama = fixtures().join("llama-texts").display().to_string();
    place.run(&["import", &llama, "--out", "runs/texts"]).ok();
    train(&place, &["--from", "runs/texts", "--task", "tagging"], &[])
        .refused(2, &["--task tagging needs an encoder", "it has not read what follows a word"]);
    train(&place, &["--preset", "classify-decoder"], &["model.class_head=tokens"])
        .refused(2, &["model.class_head = \"tokens\" is for model.architecture = \"encoder_only\""]);
    train(&place, &["--preset", "classify-decoder"], &["model.class_head=none"])
        .refused(2, &["model.class_head = \"none\" does not suit task = \"classification\", which needs \"last\""]);
    train(&place, &["--preset", "classify"], &["model.class_head=last"])
        .refused(2, &["an encoder has \"pooled\", \"dense\" or \"tokens\""]);
    train(&place, &["--preset", "classify-decoder"], &["model.lora.rank=2", "data.train=train.jsonl"])
        .refused(2, &["model.lora.rank = 2 trains adapters of a model that exists"]);

    let tagger = place.path("tagger");
    crate::kiln::copy_folder(&fixtures().join("llama-texts"), &tagger);
    let config = place.read("tagger/config.json").replace("LlamaForSequence", "LlamaForToken");
    place.write("tagger/config.json", config);
    place.run(&["import", "tagger"]).refused(3, &["LlamaForTokenClassification: a decoder that tags words"]);
    place.write(
        "adapter/adapter_config.json",
        r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "modules_to_save": ["classifier", "score"]}"#,
    );
    fs::write(place.path("adapter/adapter_model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").expect("writable");
    place
        .run(&["import", &llama, "--adapter", "adapter"])
        .refused(3, &["but the file has no base_model.model.score.weight"]);
}
