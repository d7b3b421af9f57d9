//! The way back, conversions of it, and the way of docs/adapt-a-translator.md.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use kiln::hugging_face::Folder;
use serde_json::{Value, json};

use super::{expected, fixtures, import, model_folder, rows, sources, tokenizers, translate};
use crate::kiln::{Workplace, copy_folder};

/// `model.safetensors` and `vocab.json` instead of the older `pytorch_model.bin`, and otherwise the same.
#[test]
fn an_exported_folder_is_the_published_one() {
    let place = Workplace::new();
    import(&place, &model_folder(), "opus");
    let said = place.run(&["export", "runs/opus", "out/opus"]).ok().stderr;
    assert!(!said.contains("note:"), "the start token has a vector of zeros: {said}");

    let (published, exported) = (model_folder(), place.path("out/opus"));
    for name in ["source.spm", "target.spm"] {
        assert!(
            fs::read(exported.join(name)).expect("written") == fs::read(published.join(name)).expect("there"),
            "{name}"
        );
    }
    assert!(!exported.join("tokenizer.json").exists(), "it would be one language's");
    let json = |dir: &Path, name: &str| -> Value {
        serde_json::from_slice(&fs::read(dir.join(name)).expect("there")).expect("JSON")
    };
    assert_eq!(json(&exported, "vocab.json"), json(&published, "vocab.json"));
    for (name, left_out) in [
        ("generation_config.json", &["bos_token_id"][..]), // never read: the decoder has a start token of its own
        ("tokenizer_config.json", &["model_max_length"]),
        // "silu" is "swish"; how to generate is in generation_config.json.
        ("config.json", &["bos_token_id", "activation_function", "max_length", "num_beams", "bad_words_ids"]),
    ] {
        let (found, wanted) = (json(&exported, name), json(&published, name));
        let shared = wanted.as_object().expect("fields").iter().filter(|(key, _)| !left_out.contains(&key.as_str()));
        let differ: Vec<_> = shared.filter(|(key, wanted)| !found[*key].is_null() && found[*key] != **wanted).collect();
        assert!(differ.is_empty(), "{name}: {differ:?} in {found}");
    }
    let generation = json(&exported, "generation_config.json");
    assert_eq!(
        [&generation["num_beams"], &generation["max_length"], &generation["early_stopping"]],
        [&json!(4), &json!(64), &json!(false)]
    );
    let tokenizer = json(&exported, "tokenizer_config.json");
    assert_eq!([&tokenizer["tokenizer_class"], &tokenizer["target_lang"]], [&json!("MarianTokenizer"), &json!("it")]);

    let (before, after) = (Folder::open(&published).expect("a model"), Folder::open(&exported).expect("a model"));
    let before: BTreeMap<_, _> =
        before.tensors().into_iter().map(|it| (it.name.clone(), (it.shape, it.bytes.to_vec()))).collect();
    let written = after.tensors();
    assert!(written.len() > 40);
    for tensor in written {
        assert!(before[&tensor.name] == (tensor.shape, tensor.bytes.to_vec()), "{}", tensor.name);
    }

    import(&place, &exported, "again");
    let expected = expected();
    let rows = &rows(&expected)[..6];
    let found = translate(&place, "runs/again", &[], &sources(rows));
    assert!(rows.iter().zip(&found).all(|(row, found)| row["beams"][0][0][0] == **found), "{found:?}");
}

/// CTranslate2 stops beam search by another rule, so that it finds another target for some sources; greedy search has no rule.
#[test]
fn a_conversion_to_ctranslate2_translates_as_kiln_does() {
    let place = Workplace::new();
    import(&place, &model_folder(), "opus");
    let expected = expected();
    let rows = rows(&expected);
    let greedy = translate(&place, "runs/opus", &["--greedy"], &sources(rows));
    let beams = translate(&place, "runs/opus", &["--beam", "4"], &sources(rows));
    assert!(rows.iter().zip(&greedy).all(|(row, found)| row["ctranslate2"][0] == **found), "{greedy:?}");
    let alike = rows.iter().zip(&beams).filter(|(row, found)| row["ctranslate2"][1] == ***found).count();
    assert!(alike >= 33, "{alike} of {} alike with 4 beams", rows.len());
}

#[test]
fn transformers_and_ctranslate2_translate_what_kiln_exports() {
    let Some(python) = std::env::var_os("KILN_TRANSFORMERS_PYTHON") else {
        eprintln!(
            "skipped: KILN_TRANSFORMERS_PYTHON is not set; name a Python that has torch, transformers 5, sentencepiece and ctranslate2"
        );
        return;
    };
    let place = Workplace::new();
    adapt(&place);
    let lines: String = NEW.iter().map(|(source, _)| format!("{source}\n")).collect();
    place.run(&["export", "runs/adapted", "out/adapted"]).ok();
    let mut command = Command::new(python);
    command.arg(fixtures().join("converted.py")).arg(place.path("out/adapted"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the interpreter starts");
    child.stdin.take().expect("piped").write_all(lines.as_bytes()).expect("read");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    let greedy = translate(&place, "runs/adapted", &["--greedy"], &lines);
    for (line, greedy) in String::from_utf8(output.stdout).expect("UTF-8").lines().zip(&greedy) {
        let found: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!([&found["transformers"][0], &found["ctranslate2"][0]], [greedy; 2]);
    }
}

/// Pairs that the published model translates otherwise.
const NEW: [(&str, &str); 4] = [
    (">>ita<< Nothing is the default.", "Il valore predefinito."),
    (">>ita<< Print the page", "Stampa la pagina"),
    (">>ita<< Open a file", "Apri un file"),
    (">>ita<< Now you can print.", "Ora puoi stampare."),
];

/// The way of docs/adapt-a-translator.md, as far as `runs/adapted`.
fn adapt(place: &Workplace) -> Vec<String> {
    import(place, &model_folder(), "base");
    let pairs: String =
        NEW.iter().map(|(source, target)| format!("{}\n", json!({"src": source, "trg": target}))).collect();
    place.write("pairs.jsonl", pairs);
    let settings = [
        "data.train=pairs.jsonl",
        "train.freeze=[\"source_embedding\"]",
        "optim.lr=0.01",
        "optim.warmup_steps=5",
        "optim.schedule=\"constant\"",
        "train.steps=150",
        "train.label_smoothing=0.0",
        "train.validate_every=0",
        "train.save_every=0",
        "train.log_every=50",
        "model.dropout=0.0",
        "loader.num_workers=1",
        "loader.batch_tokens=256",
    ];

    let begin = ["train", "--from", "runs/base", "--run", "runs/adapted", "--device", "cpu"];
    let settings: Vec<&str> = settings.into_iter().flat_map(|set| ["--set", set]).collect();
    place.run(&[&begin[..], &settings].concat()).ok();
    let lines: String = NEW.iter().map(|(source, _)| format!("{source}\n")).collect();
    translate(place, "runs/adapted", &[], &lines)
}

#[test]
fn a_published_translator_is_adapted_to_pairs_of_ones_own() {
    let place = Workplace::new();
    let adapted = adapt(&place);
    let wanted: Vec<&str> = NEW.iter().map(|(_, target)| *target).collect();
    assert_eq!(adapted, wanted);
    let lines: String = NEW.iter().map(|(source, _)| format!("{source}\n")).collect();
    let before = translate(&place, "runs/base", &[], &lines);
    assert!(before.iter().zip(&wanted).all(|(before, wanted)| before != wanted), "{before:?}");

    // With frozen embeddings the decoder still begins with zeros, and the export says nothing of it.
    let said = place.run(&["export", "runs/adapted", "out/adapted"]).ok().stderr;
    assert!(!said.contains("note:"), "{said}");
    import(&place, &place.path("out/adapted"), "back");
    assert_eq!(translate(&place, "runs/back", &[], &lines), wanted);

    // Otherwise it begins with something else, which goes into the positions.
    let begin = ["train", "--from", "runs/adapted", "--run", "runs/all", "--device", "cpu"];
    let settings = ["data.train=pairs.jsonl", "train.freeze=[]", "train.steps=2", "optim.warmup_steps=0"];
    let settings: Vec<&str> = settings.into_iter().flat_map(|set| ["--set", set]).collect();
    place.run(&[&begin[..], &settings].concat()).ok();
    let said = place.run(&["export", "runs/all", "out/all"]).ok().stderr;
    assert!(!said.contains("note:"), "{said}");
    let written = Folder::open(&place.path("out/all")).expect("a model");
    assert!(written.tensors().iter().any(|tensor| tensor.name == "model.decoder.embed_positions.weight"));
    import(&place, &place.path("out/all"), "all-back");
    assert_eq!(translate(&place, "runs/all-back", &[], &lines), translate(&place, "runs/all", &[], &lines));

    // Adapters leave it alone too.
    let settings =
        ["data.train=pairs.jsonl", "model.lora.rank=4", "optim.lr=0.02", "train.steps=4", "optim.warmup_steps=0"];
    let settings: Vec<&str> = settings.into_iter().flat_map(|set| ["--set", set]).collect();
    let begin = ["train", "--from", "runs/base", "--run", "runs/lora", "--device", "cpu"];
    place.run(&[&begin[..], &settings].concat()).ok();
    let said = place.run(&["export", "runs/lora", "out/lora"]).ok().stderr;
    assert!(!said.contains("note:"), "{said}");
}

#[test]
fn languages_may_have_vocabularies_of_their_own() {
    let place = Workplace::new();
    let dir = place.path("separate");
    copy_folder(&model_folder(), &dir);
    let change = |name: &str, key: &str, value: Value| {
        let mut json: Value = serde_json::from_slice(&fs::read(dir.join(name)).expect("there")).expect("JSON");
        json[key] = value;
        fs::write(dir.join(name), json.to_string()).expect("writable");
    };
    change("tokenizer_config.json", "separate_vocabs", json!(true));
    // Two pieces of the targets exchange their ids.
    let mut ids: Value = serde_json::from_slice(&fs::read(dir.join("vocab.json")).expect("there")).expect("JSON");
    let [e, a] = ["e", "a"].map(|piece| ids[piece].as_u64().expect("a piece") as u32);
    (ids["e"], ids["a"]) = (json!(a), json!(e));
    fs::write(dir.join("target_vocab.json"), ids.to_string()).expect("writable");
    import(&place, &dir, "separate");
    import(&place, &model_folder(), "shared");

    let (separate, shared) = (tokenizers(&place, "runs/separate"), tokenizers(&place, "runs/shared"));
    let text = ["jeae xeya"];
    let exchanged = |id: u32| {
        if id == e {
            a
        } else if id == a {
            e
        } else {
            id
        }
    };
    let wanted: Vec<u32> = shared.encode_targets(&text).expect("encodes")[0].iter().map(|id| exchanged(*id)).collect();
    assert!(wanted.contains(&e) && wanted.contains(&a), "{wanted:?}");
    assert_eq!(separate.encode_targets(&text).expect("encodes")[0], wanted);
    assert_eq!(separate.encode_sources(&text).expect("encodes"), shared.encode_sources(&text).expect("encodes"));
    assert_eq!(separate.decode(&wanted).expect("decodes"), text[0]);

    place.run(&["export", "runs/separate", "out/separate"]).ok();
    let written =
        |name: &str| -> Value { serde_json::from_str(&place.read(&format!("out/separate/{name}"))).expect("JSON") };
    assert_eq!(written("target_vocab.json"), ids);
    assert_eq!(written("tokenizer_config.json")["separate_vocabs"], json!(true));
}

#[test]
fn folders_that_lack_or_contradict_something_are_refused() {
    let place = Workplace::new();
    let change = |name: &str, change: &dyn Fn(&Path)| {
        let dir = place.path(name);
        copy_folder(&model_folder(), &dir);
        change(&dir);
        place.run(&["import", name, "--out", "runs/x"])
    };
    change("half", &|dir| fs::remove_file(dir.join("target.spm")).expect("there"))
        .refused(3, &["half/target.spm: is missing", "source.spm, target.spm and vocab.json"]);
    change("no-ids", &|dir| fs::write(dir.join("vocab.json"), "[]").expect("writable"))
        .refused(3, &["no-ids/vocab.json: is not an object with the id of each piece"]);
    change("not-a-model", &|dir| fs::write(dir.join("source.spm"), "text").expect("writable"))
        .refused(3, &["not-a-model/source.spm: is not a SentencePiece model"]);

    change("more-ids", &|dir| {
        let mut ids: BTreeMap<String, u32> =
            serde_json::from_slice(&fs::read(dir.join("vocab.json")).expect("there")).expect("JSON");
        ids.insert("one more".into(), ids.len() as u32);
        fs::write(dir.join("vocab.json"), json!(ids).to_string()).expect("writable");
    })
    .refused(3, &["has ids up to", "it belongs to another model"]);
    change("no-tokenizer", &|dir| {
        ["source.spm", "target.spm"].iter().for_each(|name| fs::remove_file(dir.join(name)).expect("there"))
    })
    .refused(2, &["has no tokenizer.json", "source.spm, target.spm and vocab.json"]);
    assert!(!place.path("runs/x").exists(), "nothing is left of a refused import");
}
