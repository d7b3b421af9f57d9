//! Adapters (LoRA) on a model of Hugging Face: trained, exported for `peft`, read back, and merged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::tensor::SafeTensors;
use serde_json::Value;

use crate::kiln::{SMALL, Workplace};

const TEXT: &str = "the cat sat on the mat\n\na model reads a text and writes another text\n\none two three four\n";

fn llama() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("model/fixtures/hf/llama");
    path.to_str().expect("plain names").to_owned()
}

/// Names and bytes of every tensor, sorted by name.
fn tensors(file: &Path) -> Vec<(String, Vec<u8>)> {
    let bytes = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let mut tensors: Vec<_> = file.tensors().into_iter().map(|(name, view)| (name, view.data().to_vec())).collect();
    tensors.sort();
    tensors
}

/// Trains adapters on an imported Llama, in `runs/tuned`.
fn train(place: &Workplace) {
    let text = place.write("text.txt", TEXT);
    place.run(&["import", &llama(), "--out", "runs/llama"]).ok();
    let data = format!("data.train={}", text.display());
    let mut arguments = vec!["train", "--from", "runs/llama", "--run", "runs/tuned", "--device", "cpu", "--set", &data];
    let small = SMALL.into_iter().filter(|set| !set.starts_with("model."));
    arguments.extend(small.flat_map(|set| ["--set", set]));
    for set in [
        "model.lora.rank=2",
        "model.lora.targets=[\"query\", \"value\", \"down\"]",
        "train.steps=6",
        "train.save_every=3",
        "optim.lr=0.05",
        "optim.warmup_steps=0",
    ] {
        arguments.extend(["--set", set]);
    }
    let trained = place.run(&arguments).ok();
    assert!(trained.stderr.contains("tensors are frozen (model.lora)"), "{trained:#?}");
}

#[test]
fn adapters_are_trained_exported_read_back_and_merged() {
    let place = Workplace::new();
    train(&place);

    // The adapters alone, under the names of peft.
    place.run(&["export", "runs/tuned", "out/adapter", "--adapter"]).ok();
    let settings: Value =
        serde_json::from_slice(&fs::read(place.path("out/adapter/adapter_config.json")).expect("written"))
            .expect("JSON");
    assert_eq!((&settings["r"], &settings["lora_alpha"]), (&2.into(), &16.into()), "{settings}");
    let adapter = tensors(&place.path("out/adapter/adapter_model.safetensors"));
    assert!(adapter.iter().any(|(name, _)| name.ends_with("layers.0.self_attn.q_proj.lora_B.weight")), "{adapter:?}");
    assert!(adapter.iter().all(|(_, bytes)| bytes.iter().any(|byte| *byte != 0)), "every matrix was trained");

    // Read back, they are the same; training goes on from there.
    place.run(&["import", &llama(), "--adapter", "out/adapter", "--out", "runs/again"]).ok();
    place.run(&["export", "runs/again", "out/again", "--adapter"]).ok();
    assert_eq!(tensors(&place.path("out/again/adapter_model.safetensors")), adapter);
    let data = format!("data.train={}", place.path("text.txt").display());
    let more =
        ["train.steps=2", "optim.warmup_steps=0", "train.validate_every=0", &data].map(|set| ["--set", set]).concat();
    let from = ["train", "--from", "runs/again", "--run", "runs/more", "--device", "cpu"];
    let more = place.run(&[&from[..], &more].concat()).ok();
    assert!(more.stderr.contains("tensors are frozen (model.lora)"), "{more:#?}");

    // Merged, the model is a Llama as before.
    place.run(&["export", "runs/tuned", "out/merged"]).ok();
    let names = |file: PathBuf| tensors(&file).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(place.path("out/merged/model.safetensors")), names(Path::new(&llama()).join("model.safetensors")));
    place.run(&["import", "out/merged", "--out", "runs/merged"]).ok();
    let text = place.path("text.txt").display().to_string();
    let nll = |run: &str| {
        let scores = place.run(&["evaluate", run, "--data", &text, "--json", "--device", "cpu"]).ok();
        let scores: Value = serde_json::from_str(&scores.stdout).expect("JSON");
        scores["nll"].as_f64().expect("a number")
    };
    let (tuned, merged, before) = (nll("runs/tuned"), nll("runs/merged"), nll("runs/llama"));
    assert!((tuned - merged).abs() < 1e-4 && tuned < before, "{tuned} and {merged}, before {before}");
}

#[test]
fn adapters_need_a_model_and_a_sound_folder() {
    let place = Workplace::new();
    let text = place.write("text.txt", TEXT);
    let data = format!("data.train={}", text.display());
    let train = ["train", "--task", "lm", "--set", &data, "--set", "model.lora.rank=2", "--device", "cpu"];
    for more in [&[][..], &["--dry-run"]] {
        let ran = place.run(&[&train[..], more].concat());
        assert!(!ran.stderr.contains("cache"), "the data was prepared first: {ran:#?}");
        ran.refused(2, &["model.lora.rank = 2 trains adapters of a model that exists"]);
    }

    let llama = llama();
    place.run(&["import", &llama, "--adapter", &llama]).refused(2, &["it holds no adapter_config.json"]);
    place.write("dora/adapter_config.json", r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_dora": true}"#);
    place.write("dora/adapter_model.bin", "x");
    place.run(&["import", &llama, "--adapter", "dora"]).refused(2, &["only a Python pickle"]);
    fs::write(place.path("dora/adapter_model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").expect("writable");
    place.run(&["import", &llama, "--adapter", "dora"]).refused(3, &["use_dora is true; Kiln's adapters have false"]);

    place.run(&["import", &llama, "--out", "runs/llama"]).ok();
    place
        .run(&["export", "runs/llama", "out", "--adapter"])
        .refused(2, &["model.lora.rank is 0: the model has no adapters"]);
}

#[test]
fn peft_loads_what_kiln_exports() {
    let Some(python) = std::env::var_os("KILN_PEFT_PYTHON") else {
        eprintln!("skipped: KILN_PEFT_PYTHON is not set; name a Python that has torch, transformers and peft");
        return;
    };
    let place = Workplace::new();
    train(&place);
    place.run(&["export", "runs/llama", "out/model"]).ok();
    place.run(&["export", "runs/tuned", "out/adapter", "--adapter"]).ok();
    place.run(&["export", "runs/tuned", "out/merged"]).ok();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("model/fixtures/make_peft.py");
    let mut command = Command::new(python);
    command.arg(script).arg("check").args(["out/model", "out/adapter", "out/merged"].map(|folder| place.path(folder)));
    let output = command.output().expect("the interpreter starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    eprintln!("{stdout}");
}
