//! Runs with SentencePiece models as their vocabularies.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::kiln::Workplace;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/fixtures/sentencepiece").join(name)
}

fn set(key: &str, path: &Path) -> String {
    format!("{key}={}", path.display())
}

/// The ids that the library gives for the text with this number.
fn expected(model: &str, number: usize) -> (String, Vec<u32>) {
    let json: Value = serde_json::from_slice(&fs::read(fixture("expected.json")).expect("committed")).expect("JSON");
    let text = json["texts"][number].as_str().expect("a text").to_owned();
    (text, serde_json::from_value(json["models"][model]["ids"][number].clone()).expect("ids"))
}

#[test]
fn a_run_keeps_the_model_of_its_vocabulary() {
    let place = Workplace::new();
    let text = place.write("text.txt", "The file was not found.\n\nAnother file was there.\n\n".repeat(20));
    let (data, model) = (set("data.train", &text), set("tokenizer.path", &fixture("bpe-llama.model")));
    let task = ["--task", "lm", "--run", "runs/lm", "--set", &data, "--set", &model];
    place
        .train(
            &[&task[..], &["--set", "data.text.seq_len=32", "--set", "train.steps=2", "--set", "optim.warmup_steps=0"]]
                .concat(),
        )
        .ok();
    let checkpoint = place.path("runs/lm/checkpoints/step-00000002");
    assert_eq!(
        fs::read(checkpoint.join("tokenizer.model")).expect("kept"),
        fs::read(fixture("bpe-llama.model")).expect("there")
    );

    let tokenizer = kiln_data::TextTokenizer::load_dir(&checkpoint).expect("loads");
    for number in 0..100 {
        let (text, ids) = expected("bpe-llama", number);
        assert_eq!(tokenizer.encode(&text).expect("encodes"), ids, "{text:?}");
    }
    place
        .run(&["generate", "runs/lm", "--prompt", "The file", "--greedy", "--max-new-tokens", "4", "--device", "cpu"])
        .ok();
}

#[test]
fn two_models_are_the_vocabularies_of_a_translator() {
    let place = Workplace::new();
    let rows = "{\"src\": \"the file\", \"trg\": \"a text\"}\n".repeat(40);
    let data = set("data.train", &place.write("pairs.jsonl", rows));
    let source = set("tokenizer.path", &fixture("unigram.model"));
    let target = set("tokenizer.target_path", &fixture("unigram-control.model"));
    let sides = [
        "--run",
        "runs/pairs",
        "--set",
        &data,
        "--set",
        &source,
        "--set",
        &target,
        "--set",
        "train.steps=2",
        "--set",
        "optim.warmup_steps=0",
    ];

    // The first model has no padding, and the second has it at another place.
    let refused = place.train(&sides);
    assert!(refused.code != 0 && refused.stderr.contains("unigram.model: has no \"<pad>\""), "{refused:#?}");
    assert!(refused.stderr.contains("tokenizer.add_missing_tokens = true"), "{refused:#?}");

    let target = set("tokenizer.target_path", &fixture("unigram.model"));
    let sides = [&sides[..6], &["--set", &target, "--set", "train.steps=2", "--set", "optim.warmup_steps=0"]].concat();
    let untied = ["--set", "tokenizer.add_missing_tokens=true", "--set", "model.tie_embeddings=output"];
    place.train(&[&sides[..], &untied].concat()).ok();
    for side in ["source.spm", "target.spm"] {
        assert!(place.path("runs/pairs/checkpoints/step-00000002").join(side).is_file(), "{side}");
    }
    place.run_with_input(&["translate", "runs/pairs", "--greedy", "--device", "cpu"], "the e\u{301} file").ok();
}

#[test]
fn a_file_that_is_not_a_model_is_refused_by_name() {
    let place = Workplace::new();
    let text = set("data.train", &place.write("text.txt", "a b c\n"));
    let model = set("tokenizer.path", &place.write("broken.model", "not a model"));
    let refused = place.train(&["--task", "lm", "--set", &text, "--set", &model]);
    assert!(refused.code != 0 && refused.stderr.contains("broken.model"), "{refused:#?}");
    assert!(refused.stderr.contains("is not a SentencePiece model"), "{refused:#?}");
}
