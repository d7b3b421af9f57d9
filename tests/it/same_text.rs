//! One string gives the same ids and, greedily, the same text in Kiln and in `transformers`: for models that come from there,
//! and for models that go there. `tests/fixtures/transformers/make.sh` makes the runs and stores what `transformers` says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::kiln::{Workplace, copy_folder};

/// Folders of `transformers`.
const IMPORTED: [&str; 14] = [
    "gpt2", "llama", "llama-3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "bert", "roberta", "bart", "marian",
    "t5", "t5-1.1",
];
/// Runs of Kiln. Their vocabularies are of three kinds: with a start token in front of documents, with bytes, and WordPiece.
const EXPORTED: [&str; 5] = ["llama", "gpt2", "word-piece", "bert", "marian"];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/transformers")
}

fn model_folder(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("model/fixtures/hf").join(family)
}

fn stored(name: &str) -> Value {
    let text = fs::read_to_string(fixtures().join(name)).expect("committed");
    serde_json::from_str(&text).expect("JSON")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain names")
}

/// The text that a run makes of `expected`'s prompt, as far as `expected` says how; for a masked model, the likeliest tokens.
fn answer(place: &Workplace, run: &str, expected: &Value) -> String {
    let prompt = expected["prompt"].as_str().expect("a prompt");
    if expected["tokens"].is_array() {
        let filled = place.run(&["fill", run, prompt, "--json", "--device", "cpu"]).ok();
        let filled: Value = serde_json::from_str(&filled.stdout).expect("JSON");
        let tokens = filled["masks"][0].as_array().expect("a mask").iter();
        return tokens.map(|found| found["token"].as_str().expect("a token").trim()).collect::<Vec<_>>().join(" ");
    }
    if fs::read_to_string(place.path(run).join("config.toml")).expect("a run").contains("task = \"translation\"") {
        let translated = place.run_with_input(&["translate", run, "--greedy", "--device", "cpu"], prompt).ok();
        return translated.stdout.trim_end_matches('\n').to_owned();
    }
    let limit = expected["new_tokens"].to_string();
    let arguments = ["generate", run, "--prompt", prompt, "--greedy", "--json", "--device", "cpu", "--max-new-tokens"];
    let generated = place.run(&[&arguments[..], &[&limit]].concat()).ok();
    let generated: Value = serde_json::from_str(&generated.stdout).expect("JSON");
    format!("{prompt}{}", generated["text"].as_str().expect("text"))
}

/// Removes how long a translation may be: these weights never end one, and the fixtures name no limit either.
fn without_limit(folder: &Path) {
    let path = folder.join("generation_config.json");
    let Ok(text) = fs::read_to_string(&path) else { return };
    let mut generation: Value = serde_json::from_str(&text).expect("JSON");
    if generation.get("decoder_start_token_id").is_some() {
        generation.as_object_mut().expect("an object").remove("max_length");
        fs::write(&path, generation.to_string()).expect("writable");
    }
}

/// The same as `transformers` has it.
fn wanted(name: &str, expected: &Value) -> String {
    match expected["tokens"].as_array() {
        Some(tokens) => {
            tokens.iter().map(|token| token.as_str().expect("a token").trim()).collect::<Vec<_>>().join(" ")
        }
        // A translation is one line of output in Kiln.
        None if matches!(name, "bart" | "marian" | "t5" | "t5-1.1") => {
            expected["text"].as_str().expect("text").replace('\n', " ")
        }
        None => expected["text"].as_str().expect("text").to_owned(),
    }
}

/// The ids that the `tokenizer.json` of a folder gives, its post-processor included.
fn ids(folder: &Path, prompt: &str) -> Vec<u32> {
    let json = fs::read_to_string(folder.join("tokenizer.json")).expect("a tokenizer");
    let (before, behind) = kiln_data::tokens_around(&json).expect("a tokenizer").unwrap_or_default();
    let tokenizer = kiln_data::TextTokenizer::load_dir(folder).expect("a tokenizer");
    [before, tokenizer.encode(prompt).expect("a text"), behind].concat()
}

#[test]
fn an_imported_model_continues_as_in_transformers() {
    let place = Workplace::new();
    let expected = stored("imported.json");
    for family in IMPORTED {
        place.run(&["import", text(&model_folder(family))]).ok();
        let found = answer(&place, &format!("runs/{family}"), &expected[family]);
        assert_eq!(found, wanted(family, &expected[family]), "{family}");
    }
}

#[test]
fn an_exported_model_gives_transformers_the_ids_and_text_of_kiln() {
    let place = Workplace::new();
    copy_folder(&fixtures().join("runs"), &place.path("runs"));
    let expected = stored("exported.json");
    for name in EXPORTED {
        let (run, out) = (format!("runs/{name}"), format!("out/{name}"));
        assert_eq!(answer(&place, &run, &expected[name]), wanted(name, &expected[name]), "{name}");

        // The exported tokenizer gives the ids from which `transformers` wrote this text.
        place.run(&["export", &run, &out]).ok();
        if expected[name]["tokens"].is_null() {
            let wanted: Vec<u32> = serde_json::from_value(expected[name]["ids"].clone()).expect("ids");
            assert_eq!(ids(&place.path(&out), expected[name]["prompt"].as_str().expect("a prompt")), wanted, "{name}");
        }

        // And the model comes back as it went.
        without_limit(&place.path(&out));
        let back = format!("runs/back-{name}");
        place.run(&["import", &out, "--out", &back]).ok();
        assert_eq!(answer(&place, &back, &expected[name]), wanted(name, &expected[name]), "{name}, imported again");
    }
}

/// `tokenizer.json` decides, as in version 5 of `transformers`; `tokenizer_config.json` only gives reason for a note.
#[test]
fn prompts_follow_the_post_processor_of_the_tokenizer() {
    let place = Workplace::new();
    let import = |name: &str, with_template: bool, adds_bos: Option<bool>| {
        let dir = place.path(name);
        copy_folder(&model_folder("llama"), &dir);
        let change = |file: &str, key: &str, value: Value| {
            let path = dir.join(file);
            let mut json: Value = serde_json::from_slice(&fs::read(&path).expect("there")).expect("JSON");
            json[key] = value;
            fs::write(path, json.to_string()).expect("writable");
        };
        if !with_template {
            change("tokenizer.json", "post_processor", Value::Null);
        }
        adds_bos.into_iter().for_each(|adds| change("tokenizer_config.json", "add_bos_token", adds.into()));
        let imported = place.run(&["import", name]).ok();
        let tokenizer =
            kiln_data::TextTokenizer::load_dir(&place.path(&format!("runs/{name}/checkpoints/step-00000000")));
        (tokenizer.expect("a tokenizer").encode_prompt("the cat").expect("a text"), imported.stderr)
    };

    let (with, without) = (vec![1, 288, 262, 260, 276], vec![288, 262, 260, 276]);
    for (i, (template, adds_bos, wanted, note)) in [
        (true, None, &with, None),
        (true, Some(true), &with, None),
        (true, Some(false), &with, Some("add_bos_token = false, but tokenizer.json puts <s> in front")),
        (false, None, &without, None),
        (false, Some(false), &without, None),
        (false, Some(true), &without, Some("add_bos_token = true, but tokenizer.json puts nothing in front")),
    ]
    .into_iter()
    .enumerate()
    {
        let (found, stderr) = import(&format!("case-{i}"), template, adds_bos);
        assert_eq!(found, *wanted, "case {i}");
        assert_eq!(stderr.contains("add_bos_token"), note.is_some(), "case {i}: {stderr}");
        assert!(note.is_none_or(|note| stderr.contains(note)), "case {i}: {stderr}");
    }
}

/// What a folder says about generation becomes the run's settings, or is named.
#[test]
fn settings_of_generation_are_imported_and_exported() {
    let place = Workplace::new();
    let dir = place.path("model");
    copy_folder(&model_folder("llama"), &dir);
    let generation = r#"{"eos_token_id": [2, 270], "do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8,
        "repetition_penalty": 1.1, "no_repeat_ngram_size": 3}"#;
    place.write("model/generation_config.json", generation);
    let imported = place.run(&["import", "model"]).ok();
    assert!(!imported.stderr.contains("not supported"), "{imported:#?}");
    let config = place.read("runs/model/config.toml");
    for line in [
        "sample = true",
        "temperature = 0.7",
        "top_k = 20",
        "top_p = 0.8",
        "repetition_penalty = 1.1",
        "no_repeat_ngram_size = 3",
        "special_tokens = \"allowed\"",
    ] {
        assert!(config.contains(&format!("\n{line}\n")), "{line} is missing in {config}");
    }
    assert!(config.contains("stop_tokens = [\""), "{config}");
    place.run(&["export", "runs/model", "out"]).ok();
    let generation: Value = serde_json::from_str(&place.read("out/generation_config.json")).expect("JSON");
    assert_eq!(generation["eos_token_id"], serde_json::json!([2, 270]), "{generation}");
    assert_eq!(generation["suppress_tokens"], Value::Null, "{generation}");

    // A language model of the tokenizer's own choice of the first token is refused rather than mistranslated.
    copy_folder(&model_folder("bart"), &place.path("bart"));
    place.write("bart/generation_config.json", r#"{"forced_bos_token_id": 7}"#);
    place.run(&["import", "bart"]).refused(
        3,
        &["puts the ids [0] in front of a text", "forced_bos_token_id makes every translation begin with 7"],
    );
}

#[test]
fn transformers_itself_agrees() {
    let Some(python) = std::env::var_os("KILN_TRANSFORMERS_PYTHON") else {
        eprintln!("skipped: KILN_TRANSFORMERS_PYTHON is not set; name a Python that has torch and transformers 5");
        return;
    };
    let place = Workplace::new();
    copy_folder(&fixtures().join("runs"), &place.path("runs"));
    let mut command = Command::new(python);
    command.arg(fixtures().join("greedy.py"));
    for name in EXPORTED {
        place.run(&["export", &format!("runs/{name}"), &format!("out/{name}")]).ok();
        command.arg(place.path("out").join(name));
    }
    let output = command.output().expect("the interpreter starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for name in EXPORTED {
        assert_eq!(answer(&place, &format!("runs/{name}"), &found[name]), wanted(name, &found[name]), "{name}");
    }
}
