//! A translator as OPUS-MT publishes it: imported, used as by `transformers`, adapted, exported, converted to CTranslate2.
//! `tests/fixtures/opus-mt/make.py` makes the folder and stores what the real packages make of it.

mod export;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use kiln::checkpoint::named_tensors;
use kiln::hugging_face::Folder;
use kiln::optim::{FlatGradients, ParamTable};
use kiln_data::PairTokenizers;
use kiln_model::{Batch, NamedTensor, PairBatch, hf};
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

fn sources(rows: &[Value]) -> String {
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
fn translate(place: &Workplace, run: &str, options: &[&str], lines: &str) -> Vec<String> {
    let arguments = [&["translate", run, "--device", "cpu"], options].concat();
    place.run_with_input(&arguments, lines).ok().stdout.lines().map(str::to_owned).collect()
}

fn tokenizers(place: &Workplace, run: &str) -> PairTokenizers {
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

/// The batch of some pairs on `device`.
fn batch(tokenizers: &PairTokenizers, pairs: &[Value], device: &Device) -> PairBatch {
    let text = |key: &str| pairs.iter().map(|pair| pair[key].as_str().expect("a text")).collect::<Vec<_>>();
    let sources = tokenizers.encode_sources(&text("src")).expect("encodes");
    let labels = tokenizers.encode_targets(&text("trg")).expect("encodes");
    let special = tokenizers.special();
    let inputs: Vec<Vec<u32>> = labels.iter().map(|row| [&[special.bos], &row[..row.len() - 1]].concat()).collect();

    let longest = |rows: &[Vec<u32>]| rows.iter().map(Vec::len).max().expect("rows");
    let (source_len, target_len) = (longest(&sources), longest(&labels));
    let padded = |rows: &[Vec<u32>], len: usize| -> Vec<i32> {
        let pad = std::iter::repeat(special.pad);
        rows.iter().flat_map(|row| row.iter().copied().chain(pad.clone()).take(len)).map(|id| id as i32).collect()
    };
    let lengths = |rows: &[Vec<u32>]| rows.iter().map(|row| row.len() as i32).collect::<Vec<_>>();
    let flat = [
        padded(&sources, source_len),
        padded(&inputs, target_len),
        padded(&labels, target_len),
        lengths(&sources),
        lengths(&labels),
    ]
    .concat();
    let n = flat.len();
    let flat: Tensor<1, Int> = Tensor::from_data(TensorData::new(flat, [n]), device);
    let count = |rows: &[Vec<u32>]| rows.iter().map(|row| row.len() as u64).sum();
    PairBatch::from_contiguous(flat, [pairs.len(), source_len, target_len], count(&sources), count(&labels))
}

#[test]
fn logits_loss_and_gradients_are_those_of_transformers() {
    let place = Workplace::new();
    import(&place, &model_folder(), "opus");
    let expected = expected();
    let pairs = expected["pairs"].as_array().expect("pairs");
    let device = Device::flex().autodiff();
    let folder = Folder::open(&model_folder()).expect("a model");
    let imported = hf::import(folder.config(), &folder.tensors()).expect("imports");
    let (config, tokens) = (imported.config.clone(), imported.tokens);
    let model = imported.into_model(FloatDType::F32, &device);
    let batch = Batch::Pairs(batch(&tokenizers(&place, "runs/opus"), pairs, &device));

    let logits: Vec<f32> = model.logits(&batch, None).slice(2..3).into_data().try_into_vec().expect("f32");
    let wanted: Vec<f32> = serde_json::from_value(expected["logits"].clone()).expect("numbers");
    assert_eq!(logits.len(), wanted.len());
    for (token, (found, wanted)) in logits.iter().zip(&wanted).enumerate() {
        assert!((found - wanted).abs() < 2e-4, "logit of token {token}: {found} instead of {wanted}");
    }
    let sums = model.loss(&batch, 0.0, None);
    let loss = sums.loss_sum / sums.n_labels;
    let (found, wanted) = (f64::from(loss.clone().into_scalar::<f32>()), expected["loss"].as_f64().expect("a number"));
    assert!(wanted > 1.0 && ((found - wanted) / wanted).abs() < 1e-5, "{found} instead of {wanted}");

    let table = ParamTable::of(&model);
    let FlatGradients(flat) = table.flatten_gradients(&model, &mut loss.backward(), FloatDType::F32, None);
    let gradients = named_tensors(&table, &flat.values.into_data());
    let theirs = hf::export(&config, &gradients, &tokens).expect("the layout of the weights").tensors;
    let theirs: BTreeMap<String, NamedTensor> =
        theirs.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    let wanted = expected["gradients"].as_object().expect("by name");
    assert!(wanted.len() > 40);
    for (name, wanted) in wanted {
        let mut found = theirs[name].clone();
        if name == "model.shared.weight" {
            // `make.py` leaves the row of the start token out.
            let (start, d) = (tokens.decoder_start.expect("a start") as usize, found.shape[1]);
            found.values[start * d..][..d].fill(0.0);
        }
        let values = || found.values.iter().map(|x| f64::from(*x));
        let norm = values().map(|x| x * x).sum::<f64>().sqrt();
        let sum: f64 = values().enumerate().map(|(i, x)| x * (i as f64).sin()).sum();
        let [wanted_norm, wanted_sum] = [&wanted[0], &wanted[1]].map(|x| x.as_f64().expect("a number"));
        // A bias of keys changes no attention: its gradient is 0 up to rounding.
        let tolerance = 1e-4 * wanted_norm.max(1e-3);
        assert!((norm - wanted_norm).abs() < tolerance, "{name}: norm {norm} instead of {wanted_norm}");
        assert!((sum - wanted_sum).abs() < tolerance, "{name}: sum {sum} instead of {wanted_sum}");
    }

    // The command sees the same loss.
    let lines: String = pairs.iter().map(|pair| format!("{pair}\n")).collect();
    place.write("pairs.jsonl", lines);
    let scores = place.run(&["evaluate", "runs/opus", "--data", "pairs.jsonl", "--json", "--device", "cpu"]).ok();
    let scores: Value = serde_json::from_str(&scores.stdout).expect("JSON");
    let (found, wanted) = (scores["nll"].as_f64().expect("a number"), expected["loss"].as_f64().expect("a number"));
    assert!((found - wanted).abs() < 1e-4 * wanted, "{found} instead of {wanted}");
}
