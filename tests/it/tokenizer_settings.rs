//! The settings in `tokenizer_config.json` that are about other programs go through an import, further training and an export.

use std::path::Path;

use serde_json::{Value, json};

use crate::kiln::{Ran, SMALL, Workplace, copy_folder};

/// Copies a family to `model/FAMILY` and changes its JSON files.
fn folder(place: &Workplace, family: &str, changes: &[(&str, &str, Value)]) {
    let dir = place.path("model").join(family);
    copy_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("model/fixtures/hf").join(family), &dir);
    for (file, key, value) in changes {
        let mut json = read(place, &format!("model/{family}/{file}"));
        json[*key] = value.clone();
        place.write(&format!("model/{family}/{file}"), json.to_string());
    }
}

fn read(place: &Workplace, file: &str) -> Value {
    serde_json::from_str(&place.read(file)).expect("JSON")
}

/// Imports `model/FAMILY` and exports it to `out/FAMILY`.
fn round_trip(place: &Workplace, family: &str) -> [Ran; 2] {
    let imported = place.run(&["import", &format!("model/{family}")]).ok();
    [imported, place.run(&["export", &format!("runs/{family}"), &format!("out/{family}")]).ok()]
}

#[test]
fn settings_for_other_programs_come_back() {
    let place = Workplace::new();
    let names = "tokenizer_config.json";
    let kept = [
        ("model_max_length", json!(17)),
        ("padding_side", json!("left")),
        ("truncation_side", json!("left")),
        ("extra_special_tokens", json!(["<unk>"])),
        ("clean_up_tokenization_spaces", json!(false)),
        ("chat_control_tokens", json!(["<s>"])),
    ];

    for family in ["llama", "gpt2", "bert", "roberta", "bart", "marian", "t5"] {
        let changes: Vec<_> = kept.iter().map(|(key, value)| (names, *key, value.clone())).collect();
        folder(&place, family, &changes);
        round_trip(&place, family);
        let (given, written) =
            (read(&place, &format!("model/{family}/{names}")), read(&place, &format!("out/{family}/{names}")));
        for (key, value) in given.as_object().expect("keys") {
            // The class reads tokenizer.json as it is.
            if !["backend", "tokenizer_class"].contains(&key.as_str()) {
                assert_eq!(&written[key], value, "{family}: {key}");
            }
        }
        assert_eq!(written["published"], Value::Null, "{family}: Kiln's own key");
    }
}

/// A class that pads in front of a text pads there after an export, which names another class.
#[test]
fn the_side_of_the_padding_comes_back_without_its_setting() {
    let place = Workplace::new();
    let names = "tokenizer_config.json";
    for (class, side) in [("LlamaTokenizerFast", json!("left")), ("PreTrainedTokenizerFast", Value::Null)] {
        folder(&place, "llama", &[(names, "tokenizer_class", json!(class)), (names, "padding_side", Value::Null)]);
        round_trip(&place, "llama");
        assert_eq!(read(&place, &format!("out/llama/{names}"))["padding_side"], side, "{class}");
        for made in ["model/llama", "runs/llama", "out/llama"] {
            std::fs::remove_dir_all(place.path(made)).expect("made above");
        }
    }
}

#[test]
fn a_choice_among_several_is_named() {
    let place = Workplace::new();
    let templates = json!([{"name": "tool_use", "template": "b"}, {"name": "default", "template": "{{ bos_token }}a"}]);
    folder(
        &place,
        "llama",
        &[("tokenizer_config.json", "chat_template", templates), ("config.json", "eos_token_id", json!([2, 1]))],
    );
    let [imported, _] = round_trip(&place, "llama");
    for said in ["chat templates tool_use, default: the run and its exports have one", "ends the texts of a training"] {
        assert!(imported.stderr.contains(said), "{said}: {}", imported.stderr);
    }
}

/// A decoder starts with `</s>` in BART, whose texts start with `<s>`; GPT-2 and Qwen pad with the end token.
#[test]
fn ids_of_tokens_come_back() {
    let place = Workplace::new();
    folder(
        &place,
        "llama",
        &[
            ("tokenizer_config.json", "pad_token", json!("</s>")),
            ("config.json", "pad_token_id", json!(2)),
            ("generation_config.json", "pad_token_id", json!(2)),
        ],
    );
    for family in ["bart", "qwen2", "marian", "t5"] {
        folder(&place, family, &[]);
    }

    for family in ["llama", "bart", "qwen2", "marian", "t5"] {
        round_trip(&place, family);
        for file in ["config.json", "generation_config.json"] {
            let [given, written] = ["model", "out"].map(|parent| read(&place, &format!("{parent}/{family}/{file}")));
            for key in ["bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"] {
                assert_eq!(written[key], given[key], "{family}/{file}: {key}");
            }
        }
        let [given, written] =
            ["model", "out"].map(|parent| read(&place, &format!("{parent}/{family}/tokenizer_config.json")));
        for key in ["bos_token", "pad_token", "eos_token", "unk_token", "mask_token"] {
            // All models of this type have the class of Qwen 2, which has an unknown token.
            let of_class = (family == "qwen2" && key == "unk_token").then(|| json!("<|endoftext|>"));
            assert_eq!(written[key], of_class.unwrap_or_else(|| given[key].clone()), "{family}: {key}");
        }
    }
}

#[test]
fn training_keeps_the_settings() {
    let place = Workplace::new();
    let text = place.write("text.txt", "the cat sat on the mat\n\none two three four\n");
    let pairs = place.write("pairs.jsonl", "{\"src\": \"the cat\", \"trg\": \"the dog\"}\n");
    for (family, data) in [("llama", text), ("bart", pairs)] {
        folder(&place, family, &[("tokenizer_config.json", "model_max_length", json!(17))]);
        place.run(&["import", &format!("model/{family}")]).ok();
        let (from, run, data) = (
            format!("runs/{family}"),
            format!("runs/{family}-2"),
            format!("data.train={:?}", [data.to_str().expect("plain")]),
        );
        let small = SMALL.into_iter().filter(|set| !set.starts_with("model.")).flat_map(|set| ["--set", set]);
        let arguments: Vec<&str> =
            ["train", "--from", &from, "--run", &run, "--device", "cpu", "--set", &data, "--set", "train.steps=8"]
                .into_iter()
                .chain(small)
                .collect();
        place.run(&arguments).ok();
        place.run(&["export", &run, &format!("out/{family}")]).ok();
        let written = read(&place, &format!("out/{family}/tokenizer_config.json"));
        assert_eq!(written["model_max_length"], json!(17), "{family}: {written}");
        assert_eq!(written["bos_token"], "<s>", "{family}: {written}");
    }
}

/// A template sees no start token that only `config.json` has, and sees tokens with names of their own.
#[test]
fn templates_see_the_tokens_that_the_files_name() {
    let place = Workplace::new();
    let names = "tokenizer_config.json";
    let template = "{{ bos_token }}{{ image_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}";
    folder(
        &place,
        "llama",
        &[
            (names, "bos_token", Value::Null),
            (names, "image_token", json!("<unk>")),
            (names, "chat_template", json!(template)),
        ],
    );
    assert_eq!(read(&place, "model/llama/config.json")["bos_token_id"], 1);
    round_trip(&place, "llama");
    let checkpoint = place.path("runs/llama/checkpoints/step-00000000");
    let tokenizer = kiln_data::TextTokenizer::load_dir(&checkpoint).expect("a tokenizer");
    let message = kiln_data::ChatMessage::new(kiln_data::Role::User, "hello");
    let text = tokenizer.chat_template().expect("valid").render(&[message], false).expect("one message");
    assert_eq!(text, "<unk>hello");
    let written = read(&place, &format!("out/llama/{names}"));
    assert_eq!(written["image_token"], "<unk>", "{written}");
    assert_eq!(written["tokens_of_template"], Value::Null, "{written}");
}

/// `AutoTokenizer` has one class for all models of the type Qwen 2, and follows the file for others.
#[test]
fn a_class_that_replaces_an_exported_tokenizer_is_named() {
    let place = Workplace::new();
    for (family, is_noted) in [("qwen2", true), ("qwen3", false)] {
        folder(&place, family, &[]);
        // Next to no other file, it is read as it is.
        let mut parts = read(&place, &format!("model/{family}/tokenizer.json"));
        parts["normalizer"] = json!({"type": "Lowercase"});
        place.write("own/tokenizer.json", parts.to_string());
        place.run(&["import", &format!("model/{family}"), "--tokenizer", "own/tokenizer.json"]).ok();
        let exported = place.run(&["export", &format!("runs/{family}"), &format!("out/{family}")]).ok();
        let said = "note: AutoTokenizer of transformers 5 replaces normalizer";
        assert_eq!(exported.stderr.contains(said), is_noted, "{family}: {exported:#?}");
    }
}

/// With the class that reads tokenizer.json as it is, `transformers` 5.24 gives the second text of a pair type 1 only if
/// `model_input_names` asks for types.
#[test]
fn a_bert_asks_for_the_types_of_its_tokens() {
    let place = Workplace::new();
    for (family, wanted) in
        [("bert", json!(["input_ids", "token_type_ids", "attention_mask"])), ("roberta", Value::Null)]
    {
        folder(&place, family, &[]);
        round_trip(&place, family);
        let written = read(&place, &format!("out/{family}/tokenizer_config.json"));
        assert_eq!(written["model_input_names"], wanted, "{family}");
    }
}

#[test]
fn settings_that_change_ids_are_named() {
    for (key, value) in [
        ("errors", json!("strict")),
        ("fix_mistral_regex", json!(true)),
        ("sp_model_kwargs", json!({"enable_sampling": true})),
        ("split_special_tokens", json!(true)),
    ] {
        let place = Workplace::new();
        folder(&place, "llama", &[("tokenizer_config.json", key, value.clone())]);
        let imported = place.run(&["import", "model/llama"]).ok();
        let note = format!("note: {key} = {value} in tokenizer_config.json is not supported: ");
        assert!(imported.stderr.contains(&note), "{imported:#?}");
    }
    let place = Workplace::new();
    let off = [
        ("tokenizer_config.json", "errors", json!("replace")),
        ("tokenizer_config.json", "split_special_tokens", json!(false)),
        ("tokenizer_config.json", "clean_up_tokenization_spaces", json!(true)), // transformers leaves it out of BPE
    ];
    folder(&place, "llama", &off);
    let imported = place.run(&["import", "model/llama"]).ok();
    assert!(!imported.stderr.contains("not supported"), "{imported:#?}");
}

#[test]
fn two_vocabularies_are_named() {
    let place = Workplace::new();
    let data: String = (0..40).map(|i| format!("{{\"src\": \"a{i} b\", \"trg\": \"c{i} d\"}}\n")).collect();
    let data = place.write("pairs.jsonl", data);
    let data = format!("data.train={:?}", [data.to_str().expect("plain")]);
    for (joint, noted) in [("false", true), ("true", false)] {
        let (run, joint) = (format!("runs/{joint}"), format!("tokenizer.joint={joint}"));
        let own =
            ["--run", &run, "--set", "task=translation", "--set", &data, "--set", &joint, "--set", "train.steps=8"];
        place.train(&[&own[..], &["--set", "tokenizer.vocab_size=80"]].concat()).ok();
        let exported = place.run(&["export", &run, &format!("out-{joint}")]).ok();
        assert_eq!(exported.stderr.contains("AutoTokenizer of transformers does not load"), noted, "{exported:#?}");
    }
}
