//! A translator as OPUS-MT publishes it: imported, used as by `transformers`, adapted, exported, converted to CTranslate2.
//! `tests/fixtures/opus-mt/make.py` makes the folder and stores what the real packages make of it.

mod export;
pub(crate) mod numbers;

use std::fs;
use std::path::{Path, PathBuf};

use kiln_data::PairTokenizers;
use numbers::compare;
use serde_json::Value;

use crate::kiln::Workplace;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/opus-mt")
}

fn model_folder() -> PathBuf {
    fixtures().join("model")
}

fn expected() -> Value {
    serde_json::from_slice(&fs::read(fixtures().join("expected.json")).expect("committed")).expect("JSON")
}

fn rows(expected: &Value) -> &Vec<Value> {
    expected["rows"].as_array().expect("rows")
}

pub(crate) fn sources(rows: &[Value]) -> String {
    rows.iter().map(|row| format!("{}\n", row["source"].as_str().expect("a text"))).collect()
}

fn ids(json: &Value) -> Vec<u32> {
    serde_json::from_value(json.clone()).expect("ids")
}

/// Imports the folder `dir` into `runs/NAME`, and returns what was said.
fn import(place: &Workplace, dir: &Path, name: &str) -> String {
    let out = format!("runs/{name}");
    place.run(&["import", dir.to_str().expect("a plain name"), "--out", &out]).ok().stderr
}

/// Translates lines on the CPU.
pub(crate) fn translate(place: &Workplace, run: &str, options: &[&str], lines: &str) -> Vec<String> {
    let arguments = [&["translate", run, "--device", "cpu"], options].concat();
    place.run_with_input(&arguments, lines).ok().stdout.lines().map(str::to_owned).collect()
}

pub(crate) fn tokenizers(place: &Workplace, run: &str) -> PairTokenizers {
    PairTokenizers::load_dir(&place.path(run).join("checkpoints/step-00000000")).expect("tokenizers")
}

#[test]
fn a_published_folder_is_imported_with_its_settings_and_ids() {
    let place = Workplace::new();
    let said = import(&place, &model_folder(), "opus");
    assert!(said.contains("imported a marian model") && !said.contains("note:"), "{said}");
    let config = place.read("runs/opus/config.toml");
    for line in [
        "beam_size = 4",
        "length_penalty = 1.0",
        "length_normalization = \"power\"",
        "early_stopping = \"heuristic\"",
        "special_tokens = \"never\"",
        "max_len_ratio = 0.0",
        "max_len_offset = 63",
        "force_end = true",
        "positions = \"sinusoidal_halves\"",
        "activation = \"silu\"",
        "scale_embedding = true",
        "final_logits_bias = true",
        "tie_embeddings = \"three_way\"",
    ] {
        assert!(config.contains(&format!("\n{line}\n")), "{line} is missing in {config}");
    }

    let expected = expected();
    let tokenizers = tokenizers(&place, "runs/opus");
    for row in rows(&expected) {
        let source = row["source"].as_str().expect("a text");
        assert_eq!(tokenizers.encode_sources(&[source]).expect("encodes"), [ids(&row["source_ids"])], "{source:?}");
        assert_eq!(tokenizers.encode_targets(&[source]).expect("encodes"), [ids(&row["target_ids"])], "{source:?}");
    }
}

#[test]
fn greedy_and_beam_search_translate_as_transformers_does() {
    let place = Workplace::new();
    import(&place, &model_folder(), "opus");
    let expected = expected();
    let rows = rows(&expected);
    let input = sources(rows);

    let greedy = translate(&place, "runs/opus", &["--greedy"], &input);
    let usual = translate(&place, "runs/opus", &[], &input);
    for ((row, greedy), usual) in rows.iter().zip(&greedy).zip(&usual) {
        assert_eq!(row["greedy"], **greedy, "greedy, {}", row["source"]);
        assert_eq!(row["beams"][0][0][0], **usual, "beams, {}", row["source"]);
    }

    for (number, search) in expected["searches"].as_array().expect("settings").iter().enumerate() {
        let (beams, penalty) = (search[0].to_string(), search[1].to_string());
        let rule = match &search[2] {
            Value::Bool(false) => "heuristic",
            Value::Bool(true) => "first",
            _ => "never",
        };
        let options = ["--json", "--n-best", &beams, "--beam", &beams, "--length-penalty", &penalty];
        let found = translate(&place, "runs/opus", &[&options[..], &["--early-stopping", rule]].concat(), &input);
        for (row, found) in rows.iter().zip(&found) {
            let case = format!("{search}, {}", row["source"]);
            let found: Value = serde_json::from_str(found).expect("JSON");
            let found = found["translations"].as_array().expect("a list");
            let wanted = row["beams"][number].as_array().expect("a list");
            assert_eq!(found.len(), wanted.len(), "{case}");
            if rule == "never" {
                // Kiln drops each beam that cannot win, and follows greedy search too: it may find a better target.
                let scores = [&found[0]["score"], &wanted[0][1]].map(|score| score.as_f64().expect("a number"));
                assert!(scores[0] > scores[1] - 1e-4, "{case}: {scores:?}");
                continue;
            }
            for (found, wanted) in found.iter().zip(wanted) {
                assert_eq!(found["text"], wanted[0], "{case}");
                let scores = [&found["score"], &wanted[1]].map(|score| score.as_f64().expect("a number"));
                assert!((scores[0] - scores[1]).abs() < 1e-4 * scores[1].abs().max(1.0), "{case}: {scores:?}");
            }
        }
    }
}

#[test]
fn logits_loss_and_gradients_are_those_of_transformers() {
    let place = Workplace::new();
    import(&place, &model_folder(), "opus");
    let expected = expected();
    let pairs = expected["pairs"].as_array().expect("pairs");
    compare(&model_folder(), &tokenizers(&place, "runs/opus"), &expected, true);

    // The command sees the same loss.
    let lines: String = pairs.iter().map(|pair| format!("{pair}\n")).collect();
    place.write("pairs.jsonl", lines);
    let scores = place.run(&["evaluate", "runs/opus", "--data", "pairs.jsonl", "--json", "--device", "cpu"]).ok();
    let scores: Value = serde_json::from_str(&scores.stdout).expect("JSON");
    let (found, wanted) = (scores["nll"].as_f64().expect("a number"), expected["loss"].as_f64().expect("a number"));
    assert!((found - wanted).abs() < 1e-4 * wanted, "{found} instead of {wanted}");
}
