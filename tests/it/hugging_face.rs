//! Models of Hugging Face come in, are used, trained further, and go out again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::kiln::{SMALL, Workplace, copy_folder};

const FOLDERS: [&str; 14] = [
    "gpt2", "llama", "llama-3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "bert", "roberta", "bart", "marian",
    "t5", "t5-1.1",
];
const TEXT: &str = "the cat sat on the mat\n\na model reads a text and writes another text\n\none two three four\n";
const PAIRS: &str =
    "{\"src\": \"the cat sat\", \"trg\": \"the dog lay\"}\n{\"src\": \"one two\", \"trg\": \"three four\"}\n";

fn fixture(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("model/fixtures/hf").join(family)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain names")
}

/// The `model_type` of a folder.
fn model_type(folder: &str) -> &str {
    match folder {
        "llama-3" => "llama",
        "gemma3" => "gemma3_text",
        "t5-1.1" => "t5",
        _ => folder,
    }
}

/// Imports a family into `runs/FAMILY`.
fn import(place: &Workplace, family: &str) {
    let imported = place.run(&["import", text(&fixture(family))]).ok();
    assert_eq!(imported.stdout, format!("runs/{family}\n"));
    assert!(imported.stderr.contains(&format!("imported a {} model", model_type(family))), "{imported:#?}");
}

/// Name, shape and bytes of every tensor.
fn tensors(file: &Path) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let bytes = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let mut tensors: Vec<_> =
        file.tensors().into_iter().map(|(name, view)| (name, view.shape().to_vec(), view.data().to_vec())).collect();
    tensors.sort();
    tensors
}

#[test]
fn what_is_imported_and_exported_is_what_it_was() {
    let place = Workplace::new();
    for family in FOLDERS {
        import(&place, family);
        let exported = place.run(&["export", &format!("runs/{family}"), &format!("out/{family}")]);
        // The parent folder is made too.
        exported.ok();
        let written = tensors(&place.path("out").join(family).join("model.safetensors"));
        let mut original = tensors(&fixture(family).join("model.safetensors"));
        for (name, shape, bytes) in &mut original {
            if name.ends_with("embed_positions.weight") || name.starts_with("roberta.embeddings.position") {
                // BART and RoBERTa never look their first two positions up: Kiln does not keep them.
                let unused = 2 * shape[1] * 4;
                bytes[..unused].fill(0);
            }
        }

        // Gemma's norms scale by 1 more than their weights, and Kiln keeps the sum: it may round a weight's last bits away.
        let is_norm = |name: &str| family.starts_with("gemma") && name.ends_with("norm.weight");
        let (norms, others): (Vec<_>, Vec<_>) = written.into_iter().partition(|(name, ..)| is_norm(name));
        let (original_norms, originals): (Vec<_>, Vec<_>) = original.into_iter().partition(|(name, ..)| is_norm(name));
        assert!(others == originals, "{family}");
        for ((name, _, found), (wanted_name, _, wanted)) in norms.iter().zip(&original_norms) {
            let numbers = |bytes: &[u8]| -> Vec<f32> {
                bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
            };
            let same = numbers(found).into_iter().zip(numbers(wanted)).all(|(a, b)| (a - b).abs() <= f32::EPSILON);
            assert!(name == wanted_name && found.len() == wanted.len() && same, "{family}: {name}");
        }
        assert_eq!(norms.len(), original_norms.len(), "{family}");

        let again = place.run(&["import", &format!("out/{family}"), "--out", &format!("runs/again-{family}")]).ok();
        assert_eq!(again.stdout, format!("runs/again-{family}\n"));
        let weights = |run: &str| tensors(&place.path(run).join("checkpoints/step-00000000/model.safetensors"));
        assert_eq!(weights(&format!("runs/again-{family}")), weights(&format!("runs/{family}")), "{family}");
    }
}

#[test]
fn transformers_loads_what_kiln_exports() {
    let Some(python) = std::env::var_os("KILN_TRANSFORMERS_PYTHON") else {
        eprintln!("skipped: KILN_TRANSFORMERS_PYTHON is not set; name a Python that has torch and transformers 5.17");
        return;
    };
    let place = Workplace::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/transformers/check.py");
    let mut command = Command::new(python);
    command.arg(script);
    for family in FOLDERS {
        import(&place, family);
        place.run(&["export", &format!("runs/{family}"), &format!("out/{family}")]).ok();
        command.arg(place.path("out").join(family)).arg(fixture(family));
    }
    let output = command.output().expect("the interpreter starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    eprintln!("{stdout}");
}

#[test]
fn an_imported_model_is_evaluated_generates_and_translates() {
    let place = Workplace::new();
    let (lm, pairs) = (place.write("text.txt", TEXT), place.write("pairs.jsonl", PAIRS));
    let texts = ["gpt2", "llama", "llama-3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "bert", "roberta"]
        .map(|family| (family, &lm));
    for (family, data) in texts.into_iter().chain(["bart", "marian", "t5", "t5-1.1"].map(|family| (family, &pairs))) {
        import(&place, family);
        let run = format!("runs/{family}");
        let scores = place.run(&["evaluate", &run, "--data", text(data), "--json", "--device", "cpu"]).ok();
        let scores: serde_json::Value = serde_json::from_str(&scores.stdout).expect("JSON");
        assert!(scores["nll"].as_f64().is_some_and(|nll| nll > 0.5 && nll < 50.0), "{family}: {scores}");
    }

    let filled = place.run(&["fill", "runs/bert", "the [MASK] sat", "--json", "--device", "cpu"]).ok();
    let filled: serde_json::Value = serde_json::from_str(&filled.stdout).expect("JSON");
    assert_eq!(filled["masks"][0].as_array().map(Vec::len), Some(5), "{filled}");
    for family in ["gpt2", "llama", "llama-3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3"] {
        let run = format!("runs/{family}");
        let arguments = ["generate", &run, "--prompt", "the cat", "--max-new-tokens", "5", "--json", "--device", "cpu"];
        let generated = place.run(&arguments).ok();
        let generated: serde_json::Value = serde_json::from_str(&generated.stdout).expect("JSON");
        assert_eq!(generated["prompt"], "the cat", "{generated}");
    }
    for family in ["bart", "marian", "t5", "t5-1.1"] {
        let run = format!("runs/{family}");
        let translated = place.run_with_input(&["translate", &run, "--device", "cpu"], "the cat\n\none\n").ok();
        assert_eq!(translated.stdout.lines().count(), 3, "{translated:#?}");
    }
}

/// The settings of [`SMALL`] that are not about the model's shape.
fn settings() -> Vec<&'static str> {
    SMALL.into_iter().filter(|set| !set.starts_with("model.")).flat_map(|set| ["--set", set]).collect()
}

#[test]
fn an_imported_model_is_trained_further() {
    let place = Workplace::new();
    let (lm, pairs) = (place.write("text.txt", TEXT), place.write("pairs.jsonl", PAIRS));
    for (family, data) in [
        ("llama", &lm),
        ("mistral", &lm),
        ("qwen2", &lm),
        ("qwen3", &lm),
        ("gemma2", &lm),
        ("gemma3", &lm),
        ("bert", &lm),
        ("marian", &pairs),
        ("t5", &pairs),
        ("t5-1.1", &pairs),
    ] {
        import(&place, family);
        let run = format!("runs/{family}");
        let train = format!("data.train={:?}", [text(data)]);
        let mut arguments = vec!["train", "--from", &run, "--device", "cpu", "--set", &train, "--set", "train.steps=8"];
        arguments.extend(settings());

        let trained = place.run(&arguments).ok();
        let metrics = place.read(&format!("{run}-tuned/metrics.jsonl"));
        assert_eq!(metrics.matches("\"kind\":\"step\"").count(), 8, "{trained:#?}");
        let before = tensors(&place.path(&run).join("checkpoints/step-00000000/model.safetensors"));
        let after = tensors(&place.path(&format!("{run}-tuned")).join("checkpoints/step-00000008/model.safetensors"));
        assert_eq!(before.len(), after.len());
        assert!(before.iter().zip(&after).any(|(a, b)| a.2 != b.2), "{family} learned something");
        place.run(&["export", &format!("{run}-tuned"), &format!("out/{family}"), "--dtype", "bf16"]).ok();
    }
}

/// A bare encoder gives hidden states only; a head for masked tokens is drawn when it is trained with one.
#[test]
fn a_model_without_head_gets_one_when_it_is_trained() {
    let place = Workplace::new();
    let data = place.write("text.txt", TEXT);
    copy_folder(&fixture("bert"), &place.path("bare"));
    let config = fs::read_to_string(place.path("bare/config.json")).expect("text").replace("ForMaskedLM", "Model");
    place.write("bare/config.json", config);
    let tensors: Vec<_> = tensors(&fixture("bert").join("model.safetensors"));
    let bare = tensors.iter().filter(|(name, ..)| name.starts_with("bert."));
    let views = bare.map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).expect("whole");
        (name.strip_prefix("bert.").expect("filtered").to_owned(), view)
    });
    safetensors::serialize_to_file(views, None, &place.path("bare/model.safetensors")).expect("writable");
    place.run(&["import", "bare"]).ok();
    place
        .run(&["evaluate", "runs/bare", "--data", text(&data), "--device", "cpu"])
        .refused(2, &["has no head for masked tokens", "--set model.mlm_head=true"]);
    place.run(&["fill", "runs/bare", "the [MASK]", "--device", "cpu"]).refused(2, &["has no head for masked tokens"]);

    let train = format!("data.train={:?}", [text(&data)]);
    let mut arguments =
        vec!["train", "--from", "runs/bare", "--device", "cpu", "--set", &train, "--set", "train.steps=8"];
    arguments.extend(settings());
    place.run(&arguments).refused(2, &["model.mlm_head = false removes the head"]);
    let with_head = ["--set", "model.mlm_head=true"];
    let wider = ["--set", "model.d_model=64"];
    place
        .run(&[arguments.as_slice(), &with_head, &wider].concat())
        .refused(2, &["these weights belong to another model than model.* of the configuration"]);
    place.run(&[arguments.as_slice(), &with_head].concat()).ok();
    place.run(&["export", "runs/bare-tuned", "out"]).ok();
    assert!(place.read("out/config.json").contains("BertForMaskedLM"));
}

/// A run that was interrupted before its first save begins again with the weights it was given, not with drawn ones.
#[test]
fn a_run_from_weights_can_be_resumed_before_its_first_checkpoint() {
    let place = Workplace::new();
    let data = place.write("text.txt", TEXT);
    import(&place, "gpt2");
    let train = format!("data.train={:?}", [text(&data)]);
    let mut arguments =
        vec!["train", "--from", "runs/gpt2", "--device", "cpu", "--set", &train, "--set", "train.steps=8"];
    arguments.extend(settings());
    place.run(&[arguments.as_slice(), &["--run", "runs/a"]].concat()).ok();
    copy_folder(&place.path("runs/a"), &place.path("runs/b"));
    fs::remove_dir_all(place.path("runs/b/checkpoints/step-00000008")).expect("there");
    let resumed = place.run(&["train", "--run", "runs/b", "--resume", "--device", "cpu"]).ok();
    assert!(resumed.stderr.contains("no checkpoint of its own yet"), "{resumed:#?}");
    let weights = |run: &str| tensors(&place.path(run).join("checkpoints/step-00000008/model.safetensors"));
    assert_eq!(weights("runs/a"), weights("runs/b"));
}

#[test]
fn checkpoints_are_averaged_into_a_run() {
    let place = Workplace::new();
    place.train(&["--run", "runs/a", "--set", "train.steps=6", "--set", "train.save_every=2"]).ok();
    let averaged = place.run(&["average", "runs/a", "--last", "3"]).ok();
    assert!(averaged.stdout.trim() == "runs/a-average", "{averaged:#?}");
    place.run_with_input(&["translate", "runs/a-average", "--device", "cpu"], "12\n").ok();
    let too_many = place.run(&["average", "runs/a", "--last", "9", "--out", "runs/b"]);
    too_many.refused(2, &["--last 9", "has 3 checkpoints to choose from"]);
    place.run(&["average", "runs/a", "--last", "2"]).refused(2, &["exists already", "--out"]);
    place.run(&["average", "runs/none", "--last", "2"]).refused(2, &["there is no run here"]);
    place
        .run(&["train", "--run", "runs/a-average", "--resume", "--device", "cpu"])
        .refused(3, &["weights only", "--from"]);
    place.train(&["--run", "runs/b", "--set", "train.steps=8", "--set", "model.norm_eps=1e-6"]).ok();
    place.run(&["export", "runs/b", "out"]).refused(2, &["cannot be exported as pegasus", "model.norm_eps is 1e-6"]);
}

#[test]
fn folders_that_do_not_fit_are_refused() {
    let place = Workplace::new();
    let change = |name: &str, family: &str, change: &dyn Fn(&Path)| {
        let dir = place.path(name);
        copy_folder(&fixture(family), &dir);
        change(&dir);
        place.run(&["import", name, "--out", "runs/x"])
    };
    let replace = |file: &Path, from: &str, to: &str| {
        let before = fs::read_to_string(file).expect("text");
        assert!(before.contains(from), "{from} in {before}");
        fs::write(file, before.replace(from, to)).expect("writable");
    };
    let config = |dir: &Path, from: &str, to: &str| replace(&dir.join("config.json"), from, to);

    place.run(&["import", "nowhere"]).refused(2, &["nowhere: no such folder"]);
    change("family", "gpt2", &|dir| config(dir, "\"model_type\": \"gpt2\"", "\"model_type\": \"mamba\"")).refused(
        3,
        &["model_type \"mamba\" is not supported; Kiln reads gpt2, llama, mistral, qwen2, qwen3, gemma2, gemma3_text, bert, roberta, bart, marian, pegasus, m2m_100 and t5"],
    );
    change("activation", "bert", &|dir| config(dir, "\"gelu\"", "\"quick_gelu\""))
        .refused(3, &["hidden_act \"quick_gelu\" is not supported; supported: relu, gelu, gelu_python, gelu_new"]);
    change("rope", "llama", &|dir| config(dir, "\"rope_type\": \"default\"", "\"rope_type\": \"yarn\""))
        .refused(3, &["rope_parameters.factor is missing or not a number; rotary positions of type yarn need it"]);
    change("layers", "bert", &|dir| config(dir, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1")).refused(
        3,
        &["extra: bert.encoder.layer.1.attention.output.dense.bias [32]", "extra: bert.encoder.layer.1.output"],
    );
    change("short", "marian", &|dir| {
        let bytes = fs::read(dir.join("model.safetensors")).expect("there");
        fs::write(dir.join("model.safetensors"), &bytes[..bytes.len() / 2]).expect("writable");
    })
    .refused(3, &["model.safetensors: is cut short", "download it again"]);
    change("no-tokenizer", "gpt2", &|dir| fs::remove_file(dir.join("tokenizer.json")).expect("there"))
        .refused(2, &["has no tokenizer.json; name one with --tokenizer"]);
    change("other-tokenizer", "bert", &|dir| {
        fs::copy(fixture("llama").join("tokenizer.json"), dir.join("tokenizer.json")).expect("copied");
    })
    .refused(3, &["has ids up to 319, but the embedding of the model has 120 rows"]);
    change("index", "gpt2", &|dir| {
        fs::remove_file(dir.join("model.safetensors")).expect("there");
        fs::write(dir.join("model.safetensors.index.json"), "{\"weight_map\": {\"a\": \"a.safetensors\"}}")
            .expect("ok");
    })
    .refused(3, &["lists shards that are not here: a.safetensors"]);
    assert!(!place.path("runs/x").exists(), "nothing is left of a refused import");

    // Rows that no token has are kept.
    let padded = place.run(&["import", text(&fixture("gpt2")), "--out", "runs/gpt2"]).ok();
    assert!(padded.stderr.contains("the embedding has 296 rows and the tokenizer 290 ids"), "{padded:#?}");
    place.run(&["import", text(&fixture("gpt2")), "--out", "runs/gpt2"]).refused(2, &["exists already", "--out"]);
    place.run(&["export", "runs/gpt2", "runs"]).refused(2, &["exists already and is not empty"]);
}
