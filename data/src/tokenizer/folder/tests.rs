use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::FolderTokenizer;
use super::settings::{Effect, SETTINGS};
use crate::tokenizer::{MaskedEncoder, SpecialEncoder, TextTokenizer};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("committed")).expect("JSON")
}

/// Writes the files of a folder; null for a file that it does not have.
fn folder(base: &str, config: &Value, map: &Value, added: &Value, model: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::copy(fixtures().join(format!("{base}.json")), folder.path().join("tokenizer.json")).expect("copied");
    let files = [("tokenizer_config", config), ("special_tokens_map", map), ("added_tokens", added), ("config", model)];
    for (name, content) in files.into_iter().filter(|(_, content)| !content.is_null()) {
        std::fs::write(folder.path().join(format!("{name}.json")), content.to_string()).expect("writable");
    }
    folder
}

/// What `transformers` makes of model folders: `fixtures/folders/make.py`.
#[test]
fn folders_give_the_ids_that_transformers_gives() {
    let expected = read(&fixtures().join("folders/folders.json"));
    let texts = expected["texts"].as_array().expect("texts");
    let cases = expected["cases"].as_array().expect("cases");
    assert!(cases.len() > 60, "{} cases", cases.len());
    let mut problems = Vec::new();
    for case in cases {
        let what = format!(
            "{} {} {} {} {} {}",
            case["base"], case["model_type"], case["config"], case["map"], case["added"], case["edit"]
        );
        let model = json!({ "model_type": case["model_type"] });
        let base = case["base"].as_str().expect("a name");
        let folder = folder(base, &case["config"], &case["map"], &case["added"], &model);
        let path = folder.path().join("tokenizer.json");
        if let Some(edit) = case["edit"].as_object() {
            let mut tokenizer = read(&path);
            for (key, part) in edit {
                match key.strip_prefix("model.") {
                    Some(key) => tokenizer["model"][key] = part.clone(),
                    None => tokenizer[key] = part.clone(),
                }
            }
            std::fs::write(&path, tokenizer.to_string()).expect("writable");
        }
        let found = FolderTokenizer::read(&path, usize::MAX).expect("a tokenizer");
        if case["class"] == "CamembertTokenizer" {
            assert!(
                found.notes[0].contains("the rules of CamembertTokenizer, which Kiln does not have"),
                "{:?}",
                found.notes
            );
            continue;
        }
        assert_eq!(found.pads_left, case["pads_left"] == true, "{what}");
        let encoder = SpecialEncoder::new(&found.json).expect("a tokenizer");
        let whole: tokenizers::Tokenizer = found.json.parse().expect("a tokenizer");
        for (n, text) in texts.iter().enumerate() {
            let text = text.as_str().expect("a text");
            let ids = encoder.encode(text).expect("encodes");
            let special = whole.encode(text, true).expect("encodes").get_ids().to_vec();
            if [json!(ids), json!(special)] != [&case["ids"][n], &case["special"][n]].map(Clone::clone) {
                let wanted = [&case["ids"][n], &case["special"][n]];
                problems.push(format!("{what}: {text} gives {ids:?} and {special:?}, wanted {wanted:?}"));
            }
        }
        let parts: Value = serde_json::from_str(&found.json).expect("JSON");
        for (token, id) in case["tokens"].as_object().expect("tokens") {
            let is_there = |added: &Value| added["content"] == **token && added["id"] == *id;
            if !parts["added_tokens"].as_array().expect("tokens").iter().any(is_there) {
                problems.push(format!("{what}: no token {token} with the id {id}"));
            }
        }

        // A text of a run is divided as the whole tokenizer divides it.
        std::fs::write(&path, &found.json).expect("writable");
        std::fs::write(path.with_file_name("tokenizer_config.json"), "{}").expect("writable");
        let tokenizer = TextTokenizer::load_dir(folder.path()).expect("loads");
        for text in ["Hello World", " the Éa b", "漢字 là", "  two  spaces", ""] {
            let (ids, wanted) = (tokenizer.encode(text).expect("encodes"), encoder.encode(text).expect("encodes"));
            if ids != wanted {
                problems.push(format!("{what}: as a run's vocabulary, {text:?} gives {ids:?}, wanted {wanted:?}"));
            }
        }
    }
    assert!(problems.is_empty(), "{} differences:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn roles_come_from_a_file_or_else_from_the_class() {
    let roles = |config: Value, map: Value| {
        let folder = folder("roberta", &config, &map, &Value::Null, &json!({"model_type": "roberta"}));
        let path = folder.path().join("tokenizer.json");
        FolderTokenizer::read(&path, usize::MAX).expect("a tokenizer").roles
    };
    let of = |config: Value, map: Value| roles(config, map).get("mask_token").cloned();
    assert_eq!(of(json!({}), Value::Null).as_deref(), Some("<mask>"));
    assert_eq!(of(json!({"mask_token": null}), Value::Null), None, "a file can say that there is none");
    assert_eq!(of(json!({"mask_token": "<unk>"}), Value::Null).as_deref(), Some("<unk>"));
    assert_eq!(of(json!({}), json!({"mask_token": {"content": "</s>"}})).as_deref(), Some("</s>"));
    assert!(roles(json!({"tokenizer_class": "PreTrainedTokenizerFast"}), Value::Null).is_empty());
}

#[test]
fn changes_are_said_and_a_file_that_agrees_stays_as_it_is() {
    let notes = |config: Value, rows: usize| {
        let folder = folder("bert", &config, &Value::Null, &Value::Null, &Value::Null);
        let path = folder.path().join("tokenizer.json");
        let found = FolderTokenizer::read(&path, rows).expect("a tokenizer");
        (found.notes.join("\n"), found.json == std::fs::read_to_string(path).expect("there"))
    };
    assert_eq!(notes(json!({"tokenizer_class": "BertTokenizer"}), usize::MAX), (String::new(), true));
    let (said, same) = notes(json!({"tokenizer_class": "BertTokenizer", "do_lower_case": false}), usize::MAX);
    assert!(said.contains("normalizer") && said.contains("do_lower_case") && !same, "{said}");
    let (said, same) = notes(json!({"additional_special_tokens": ["<x>"]}), usize::MAX);
    assert!(said.contains("<x>") && !same, "{said}");
    let (said, same) = notes(json!({"additional_special_tokens": ["<x>"]}), 900);
    assert!(said.contains("no rows for: <x>") && same, "{said}");
    let (said, same) = notes(json!({"split_special_tokens": true}), usize::MAX);
    assert!(said.contains("split_special_tokens = true") && same, "{said}");
}

/// The settings of the installed `transformers`, by `fixtures/folders/make.py`.
#[test]
fn every_setting_of_the_tokenizer_classes_is_known() {
    let expected = read(&fixtures().join("folders/settings.json"));
    let wanted: Vec<&str> = expected["settings"].as_array().expect("keys").iter().filter_map(Value::as_str).collect();
    let known: Vec<&str> = SETTINGS.iter().map(|(key, _)| *key).collect();
    assert_eq!(known, wanted, "settings of transformers {}", expected["version"]);
    let reasons = SETTINGS.iter().filter_map(|(_, effect)| match effect {
        Effect::Harmless(reason) => Some(*reason),
        Effect::Acts | Effect::Named => None,
    });
    assert!(reasons.into_iter().all(|reason| reason.split(' ').count() > 2));
}

/// The ids that the fill-mask pipeline of `transformers` gives to texts with masks: `fixtures/folders/make.py`.
#[test]
fn masks_of_published_tokenizers_are_found_as_they_say() {
    let expected = read(&fixtures().join("folders/masks.json"));
    let texts: Vec<&str> = expected["texts"].as_array().expect("texts").iter().filter_map(Value::as_str).collect();
    let mut problems = Vec::new();
    for case in expected["cases"].as_array().expect("cases") {
        let config = json!({"added_tokens_decoder": {"5000": case["settings"]}, "mask_token": case["settings"]});
        let base = case["base"].as_str().expect("a name");
        let folder = folder(base, &config, &Value::Null, &Value::Null, &Value::Null);
        let path = folder.path().join("tokenizer.json");
        let json = FolderTokenizer::read(&path, usize::MAX).expect("a tokenizer").json;
        std::fs::write(&path, json).expect("writable");
        let tokenizer = TextTokenizer::load_dir(folder.path()).expect("loads");
        tokenizer.save(folder.path()).expect("writable");
        let tokenizer = TextTokenizer::load_dir(folder.path()).expect("loads what it saved");
        assert_eq!(tokenizer.mask_settings(), Some(&case["settings"]), "{base}");

        let encoder = MaskedEncoder::new(&tokenizer).expect("it has a mask");
        assert_eq!(json!(encoder.mask()), case["id"], "{base}");
        let (before, behind) = tokenizer.around();
        for (text, wanted) in texts.iter().zip(case["ids"].as_array().expect("ids")) {
            let row = encoder.encode(text).expect("encodes");
            let ids = &row[before.len()..row.len() - behind.len()];
            if json!(ids) != *wanted {
                problems
                    .push(format!("{base} {}: {text:?} gives {ids:?}, wanted {wanted}", case["settings"]["lstrip"]));
            }
        }
    }
    assert!(problems.is_empty(), "{} differences:\n{}", problems.len(), problems.join("\n"));
}

/// A person writes a prompt: special tokens that it spells are these tokens. In other texts they are spelled in pieces.
#[test]
fn prompts_that_spell_special_tokens_have_the_ids_of_transformers() {
    let expected = read(&fixtures().join("folders/prompts.json"));
    let texts: Vec<&str> = expected["texts"].as_array().expect("texts").iter().filter_map(Value::as_str).collect();
    let mut problems = Vec::new();
    for case in expected["cases"].as_array().expect("cases") {
        let (base, model) = (case["base"].as_str().expect("a name"), json!({ "model_type": case["model_type"] }));
        let folder = folder(base, &case["config"], &Value::Null, &Value::Null, &model);
        let path = folder.path().join("tokenizer.json");
        let json = FolderTokenizer::read(&path, usize::MAX).expect("a tokenizer").json;
        std::fs::write(&path, json).expect("writable");
        let tokenizer = TextTokenizer::load_dir(folder.path()).expect("loads");
        let before = tokenizer.before_prompt().to_vec();
        for (text, wanted) in texts.iter().zip(case["ids"].as_array().expect("ids")) {
            let ids = tokenizer.encode_prompt(text).expect("encodes").split_off(before.len());
            if json!(ids) != *wanted {
                problems.push(format!("{base} {}: {text:?} gives {ids:?}, wanted {wanted}", case["model_type"]));
            }
        }

        let end = tokenizer.special().eos.expect("an end token");
        let text = format!("x{}y", if base == "llama" { "</s>" } else { "<|endoftext|>" });
        assert!(!tokenizer.encode(&text).expect("encodes").contains(&end), "{base}: {text} in a corpus");
    }
    assert!(problems.is_empty(), "{} differences:\n{}", problems.len(), problems.join("\n"));
}
