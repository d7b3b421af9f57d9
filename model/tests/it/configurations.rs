//! Odd but legal configurations mean in Kiln what they mean in `transformers`: logits, loss and gradients are equal.
//! `model/fixtures/configurations/make.py` computes the reference numbers.

use std::collections::BTreeMap;

use burn::tensor::{Device, FloatDType};
use kiln_model::hf::{self, ElementType, FileTensor, Imported};
use kiln_model::{Architecture, Batch, PairBatch, Transformer, flops};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::fixture::{Fixture, folder};
use crate::hf::{changed, file_bytes, file_tensors, sorted};
use crate::support::{assert_close, gradients, ids, scalar, text_batch, train_device, values};

const RELATIVE: f32 = 1e-4;

#[derive(Deserialize)]
struct Document {
    cases: Vec<Case>,
}

/// A changed `config.json`.
#[derive(Deserialize)]
struct Case {
    name: String,
    folder: String,
    change: Value,
    /// Shapes of tensors that only the changed model has.
    added: BTreeMap<String, Vec<usize>>,
    loss_sum: f64,
}

impl Case {
    fn import(&self) -> Imported {
        let with_values = |(i, (name, shape)): (usize, (&String, &Vec<usize>))| {
            (name.clone(), shape.clone(), fill(shape.iter().product(), 1 + 1000 * i))
        };
        let added: Vec<_> = self.added.iter().enumerate().map(with_values).collect();
        let add = |tensors: &mut Vec<FileTensor<'_>>| {
            tensors.retain(|tensor| !self.added.contains_key(&tensor.name));
            // The tensors borrow from files that outlive them; so may these few bytes.
            tensors.extend(added.iter().map(|(name, shape, bytes)| FileTensor {
                name: name.clone(),
                shape: shape.clone(),
                element_type: ElementType::F32,
                bytes: bytes.clone().leak(),
            }));
        };
        changed(&self.folder, self.change.clone(), add).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

/// The numbers of `fill` in `make.py`.
fn fill(n: usize, first: usize) -> Vec<u8> {
    (first..first + n).flat_map(|i| (((i as f64).sin() / 4.0) as f32).to_le_bytes()).collect()
}

fn read() -> (Vec<Case>, Fixture) {
    let folder = folder().join("configurations");
    let text = std::fs::read_to_string(folder.join("cases.json")).expect("fixtures are committed");
    let document: Document = serde_json::from_str(&text).expect("cases.json");
    (document.cases, Fixture::read(&folder.join("expected.safetensors")))
}

fn check(case: &Case, fixture: &Fixture, device: &Device) {
    let Imported { config, .. } = case.import();
    let n: usize = case.import().weights.iter().map(|weight| weight.values.len()).sum();
    assert_eq!(flops::n_params(&config).total(), n as u64, "parameters of {}", case.name);
    let model: Transformer = case.import().into_model(FloatDType::F32, device);
    let is_pair = config.architecture == Architecture::EncoderDecoder;
    let batch = if is_pair {
        let column = |name: &str| fixture.ints[name].clone();
        let flat = [column("source"), column("target"), column("labels"), vec![9, 9], vec![5, 5]].concat();
        Batch::Pairs(PairBatch::from_contiguous(ids(&flat, device), [2, 9, 5], 18, 10))
    } else {
        let rows: Vec<Vec<i32>> = fixture.ints["input_ids"].chunks(20).map(<[i32]>::to_vec).collect();
        Batch::Text(text_batch(&rows, 0, device))
    };

    let logits = values(model.logits(&batch, None));
    let last = &logits[logits.len() - config.vocab_size()..];
    assert_close(last, &fixture.floats[&format!("{}.logits", case.name)], RELATIVE, 0.0, &case.name);

    let loss = model.loss(&batch, 0.0, None).loss_sum;
    let found = scalar(loss.clone());
    assert!((found / case.loss_sum - 1.0).abs() < 1e-5, "{}: {found} instead of {}", case.name, case.loss_sum);

    let found = gradients(&model, &loss.backward());
    let stack = if is_pair { "encoder" } else { "decoder" };
    let found = &found[&format!("{stack}.layers.0.self_attention.qkv.weight")];
    let width = found.len() / config.d_model;
    let every_eighth: Vec<f32> = found.chunks(width).step_by(8).flatten().copied().collect();
    let wanted = &fixture.floats[&format!("{}.gradient", case.name)];
    let largest = wanted.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    assert_close(&every_eighth, wanted, RELATIVE, 1e-4 * largest, &format!("gradient of {}", case.name));
}

#[test]
fn logits_losses_and_gradients_equal_those_of_transformers() {
    let (cases, fixture) = read();
    let device = train_device();
    for case in &cases {
        check(case, &fixture, &device);
    }
}

#[test]
fn a_round_trip_changes_nothing() {
    for case in read().0 {
        let first = case.import();
        let exported = hf::export(&first.config, &first.weights, &first.tokens)
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let bytes: Vec<_> = exported.tensors.iter().map(file_bytes).collect();
        let again = hf::import(&exported.config, &file_tensors(&exported.tensors, &bytes))
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert_eq!(again.config, first.config, "{}", case.name);
        // This one says what Kiln does not compute.
        assert!(again.notes.iter().all(|note| note.starts_with("longrope")), "{}: {:?}", case.name, again.notes);
        assert_eq!(sorted(again.weights), sorted(first.weights), "{}", case.name);
    }
}

/// Beyond its first limit, longrope stretches otherwise, which Kiln does not compute.
#[test]
fn longrope_computes_short_texts_and_keeps_the_rest() {
    let (cases, _) = read();
    let case = cases.iter().find(|case| case.name == "longrope").expect("a case");
    let Imported { mut config, notes, weights, tokens, .. } = case.import();
    assert_eq!(config.max_positions, 22);
    assert!(notes[0].contains("long_factor, for 88, is kept for an export"), "{notes:?}");
    let exported = hf::export(&config, &weights, &tokens).expect("Llama").config;
    assert_eq!(
        (&exported["max_position_embeddings"], &exported["rope_parameters"]["factor"]),
        (&json!(88), &json!(4.0))
    );
    config.max_positions = 23;
    let problems = config.validate();
    assert!(problems.len() == 1 && problems[0].contains("set model.max_positions to 22 or less"), "{problems:?}");
}

#[test]
fn what_has_no_effect_or_no_meaning_is_named() {
    let note = |folder: &str, change: Value, wanted: &str| {
        let notes = changed(folder, change, |_| ()).expect("a model").notes;
        assert!(notes.len() == 1 && notes[0].contains(wanted), "{notes:?}");
    };
    note("gemma2", json!({"layer_types": null, "sliding_window_pattern": 3}), "sliding_window_pattern 3 has no effect");
    note("gemma3", json!({"attn_logit_softcapping": 50.0}), "attn_logit_softcapping 50 has no effect");
    let (linear, plain) = (json!({"rope_type": "linear", "factor": 2.0}), json!({"rope_type": "default"}));
    note(
        "llama",
        json!({"rope_parameters": plain, "rope_scaling": linear}),
        "rope_parameters and rope_scaling differ: as in transformers, rope_scaling counts",
    );

    let refused = |folder: &str, change: Value, wanted: &str| {
        let error = changed(folder, change, |_| ()).expect_err("refused").to_string();
        assert!(error.contains(wanted), "{error}");
    };
    let local = json!({"sliding_attention": plain});
    refused(
        "gemma3",
        json!({"rope_parameters": local, "rope_scaling": linear}),
        "rope_parameters has no full_attention, which rope_scaling is about",
    );
    refused("llama", json!({"rope_scaling": 2.0}), "rope_scaling is 2.0, not a table");
    refused("llama", json!({"rope_scaling": {"full_attention": plain}}), "rope_scaling.full_attention is a table");
    refused("llama", json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor 0.5 is not supported");
    let list = json!({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1, 1, 1, 1]});
    refused("llama", json!({"rope_scaling": list}), "has a short_factor of 1 numbers, wanted 4 finite numbers");
    let list = json!({"rope_type": "longrope", "short_factor": "all"});
    refused("llama", json!({"rope_scaling": list}), "rope_scaling.long_factor is missing or not a list of numbers");
    let yarn = json!({"rope_type": "yarn", "factor": 2.0, "truncate": false});
    refused(
        "gemma3",
        json!({"rope_parameters": {"full_attention": yarn}}),
        "rope_parameters.full_attention.truncate has no effect",
    );
    let yarn = json!({"rope_type": "yarn", "factor": 2.0, "beta_slow": 64});
    refused(
        "llama",
        json!({"rope_scaling": yarn}),
        "beta_slow 64 and beta_fast 32, which are not above 0 and ascending",
    );
    let yarn = json!({"rope_type": "yarn", "factor": 2.0, "attention_factor": -1});
    refused("llama", json!({"rope_scaling": yarn}), "attention_factor -1, which is not a finite number above 0");
}
