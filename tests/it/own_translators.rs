//! Translators of Kiln's own, post-norm and pre-norm, in `transformers`, in CTranslate2 and back in Kiln.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use kiln::hugging_face::Folder;
use serde_json::{Value, json};

use crate::kiln::Workplace;
use crate::opus_mt::translate;

const LINES: &str = "12\n345\n7\n9876\n50\n8\n";

/// Trains a small translator of numbers, and exports it.
fn export(place: &Workplace, name: &str, norm: &str) -> String {
    let run = format!("runs/{name}");
    let norm = format!("model.norm={norm}");
    place.train(&["--run", &run, "--set", &norm, "--set", "train.steps=150", "--set", "optim.lr=5e-3"]).ok();
    place.run(&["export", &run, &format!("models/{name}")]).ok().stderr
}

fn json_of(place: &Workplace, name: &str, file: &str) -> Value {
    serde_json::from_str(&place.read(&format!("models/{name}/{file}"))).expect("JSON")
}

/// What `transformers` and CTranslate2 make of the lines, if a Python is named that has them.
fn by_others(folder: &Path) -> Option<Vec<Value>> {
    let Some(python) = std::env::var_os("KILN_TRANSFORMERS_PYTHON") else {
        eprintln!(
            "not compared with others: KILN_TRANSFORMERS_PYTHON names no Python with transformers 5 and ctranslate2"
        );
        return None;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/opus-mt/converted.py");
    let mut command = Command::new(python);
    command.arg(script).arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the interpreter starts");
    child.stdin.take().expect("piped").write_all(LINES.as_bytes()).expect("read");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    Some(lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
}

#[test]
fn every_program_translates_an_export_as_kiln_does() {
    let place = Workplace::new();
    for (name, family) in [("post", "marian"), ("pre", "pegasus")] {
        let said = export(&place, name, name);
        // Beams follow another rule there, which is said.
        let is_other = |line: &&str| line.starts_with("note:") && !line.contains("generate.length_normalization");
        assert!(said.contains(&format!("as a {family} model")) && said.lines().find(is_other).is_none(), "{said}");
        let wanted = translate(&place, &format!("runs/{name}"), &["--greedy"], LINES);
        assert!(wanted.iter().any(|line| !line.is_empty()));

        let folder = format!("models/{name}");
        for (found, wanted) in by_others(&place.path(&folder)).iter().flatten().zip(&wanted) {
            assert_eq!([&found["transformers"][0], &found["ctranslate2"][0]], [wanted; 2], "{family}");
        }

        let back = format!("runs/{name}-back");
        place.run(&["import", &folder, "--out", &back]).ok();
        assert_eq!(translate(&place, &back, &["--greedy"], LINES), wanted, "{family}");
        place.run(&["export", &back, &format!("models/{name}-again")]).ok();
        for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
            assert_eq!(json_of(&place, name, file), json_of(&place, &format!("{name}-again"), file), "{file}");
        }
    }

    // Marian: the last token is the padding, and the output begins with its vector, which is zero.
    let config = json_of(&place, "post", "config.json");
    let last = config["vocab_size"].as_u64().expect("a size") - 1;
    assert_eq!([&config["pad_token_id"], &config["decoder_start_token_id"]], [&json!(last); 2]);
    let tokenizer = json_of(&place, "post", "tokenizer.json");
    let added = tokenizer["added_tokens"].as_array().expect("a list");
    let named = |name: &str| added.iter().filter(|token| token["content"] == name).collect::<Vec<_>>();
    assert_eq!((named("<pad>").len(), &named("<pad>")[0]["id"]), (1, &json!(last)));
    assert_eq!(named("<unused-pad-0>").len(), 1);
    let folder = Folder::open(&place.path("models/post")).expect("a model");
    let tensors = folder.tensors();
    let shared = tensors.iter().find(|tensor| tensor.name == "model.shared.weight").expect("one table");
    let row = shared.bytes.len() / shared.shape[0];
    assert!(shared.bytes[last as usize * row..].iter().all(|byte| *byte == 0));

    // Pegasus: it begins with the padding, whose vector is trained.
    let names = json_of(&place, "pre", "tokenizer_config.json");
    assert_eq!([&names["pad_token"], &names["bos_token"]], [&json!("<s>"); 2]);
}

/// Both languages have one padding in `transformers`, so that vocabularies of different sizes keep their start.
#[test]
fn separate_vocabularies_are_exported_with_a_note() {
    let place = Workplace::new();
    let separate = ["--set", "tokenizer.joint=false", "--set", "model.tie_embeddings=output"];
    let other = ["--set", "model.norm=post", "--set", "train.steps=8"];
    place.train(&[&["--run", "runs/two"], &separate[..], &other[..]].concat()).ok();
    let said = place.run(&["export", "runs/two", "models/two"]).ok().stderr;
    for part in ["note: the start token of the decoder has a vector", "tokenizer.joint = true"] {
        assert!(said.contains(part), "{said}");
    }
}
