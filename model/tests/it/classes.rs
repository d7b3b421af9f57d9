//! Classes of texts with decoders: loss and gradients equal `transformers`. `tests/fixtures/classes/make.py` computes the reference
//! numbers.

use std::path::{Path, PathBuf};

use burn::tensor::{DType, Device, FloatDType};
use kiln_model::flops::{TrainSetting, n_params, n_trained, train_bytes, train_flops_per_batch};
use kiln_model::hf::{self, HfError, Imported};
use kiln_model::{Batch, ClassHead, LoraConfig, TextBatch, Transformer, TransformerConfig, is_adapter};
use serde_json::{Value, json};

use crate::peft::{by_path, file_tensors, read_file};
use crate::support::{
    assert_close, gpt2_config, gradients, ids, llama_config, scalar, text_batch, train_device, values, weights,
};

const NAMES: [&str; 3] = ["gpt2-texts", "llama-texts", "qwen2-texts"];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/classes")
}

fn bytes(path: &str) -> Vec<u8> {
    std::fs::read(fixtures().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn json_of(path: &str) -> Value {
    serde_json::from_slice(&bytes(path)).expect("JSON")
}

/// Imports a file of a fixture's folder that has a tensor for each weight.
fn imported(name: &str, file: &str) -> Imported {
    let tensors = read_file(&bytes(&format!("{name}/{file}")));
    hf::import(&json_of(&format!("{name}/config.json")), &file_tensors(&tensors)).expect("a model")
}

/// Rows with their classes, padded to a common width and `more` positions.
fn labelled(rows: &[Vec<i32>], labels: &[i32], more: usize, device: &Device) -> TextBatch {
    let width = rows.iter().map(Vec::len).max().expect("rows") + more;
    let batch = text_batch(rows, width, device);
    let mut all = vec![TextBatch::NOT_COUNTED; batch.batch_size * batch.seq_len];
    labels.iter().enumerate().for_each(|(row, label)| all[row * batch.seq_len] = *label);
    TextBatch { labels: ids(&all, device), ..batch }
}

fn numbers(value: &Value) -> Vec<i32> {
    value.as_array().expect("a list").iter().map(|id| id.as_i64().expect("an id") as i32).collect()
}

#[test]
fn loss_and_gradients_are_those_of_transformers() {
    let device = train_device();
    for name in NAMES {
        let expected = json_of("expected.json")["batches"][name].clone();
        let rows: Vec<Vec<i32>> = expected["ids"].as_array().expect("rows").iter().map(numbers).collect();
        let batch = labelled(&rows, &numbers(&expected["labels"]), 2, &device);
        let model = imported(name, "model.safetensors").into_model(FloatDType::F32, &device);
        assert_eq!(model.config().class_head, ClassHead::Last, "{name}");

        let sums = model.loss(&Batch::Text(batch), 0.0, None);
        assert_eq!(scalar(sums.n_labels.clone()), 3.0);
        let loss = sums.loss_sum / sums.n_labels;
        let wanted = expected["loss"].as_f64().expect("a number");
        assert!((scalar(loss.clone()) / wanted - 1.0).abs() < 1e-5, "{name}: {}, wanted {wanted}", scalar(loss));

        let found = gradients(&model, &loss.backward());
        let wanted = by_path(&imported(name, "gradients.safetensors").weights);
        assert!(found.keys().eq(wanted.keys()), "{name}: gradients of {:?}", found.keys());
        let largest = wanted.values().flatten().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        for (path, wanted) in &wanted {
            assert_close(&found[path], wanted, 1e-4, 1e-6 * largest, &format!("{name}: gradient of {path}"));
        }
    }
}

fn classifying(config: TransformerConfig) -> TransformerConfig {
    TransformerConfig { class_head: ClassHead::Last, n_classes: 3, ..config }
}

#[test]
fn neither_padding_nor_other_rows_change_a_row() {
    let device = train_device();
    for config in [gpt2_config(), llama_config()] {
        let model: Transformer = classifying(config).init(1, DType::F32, &device);
        let rows = [vec![5, 6, 7, 8, 9], vec![4, 11], vec![6]];
        let together =
            values(model.class_logits(&Batch::Text(labelled(&rows, &[0, 1, 2], 3, &device))).expect("a head"));
        assert_eq!(together.len(), 9);
        for (row, found) in rows.iter().zip(together.chunks(3)) {
            let alone = labelled(std::slice::from_ref(row), &[0], 0, &device);
            let alone = values(model.class_logits(&Batch::Text(alone)).expect("a head"));
            assert_close(found, &alone, 1e-5, 1e-6, "a row alone and among others");
        }
    }
}

#[test]
#[should_panic(expected = "a row with a class is one document")]
fn packed_rows_are_refused() {
    let device = train_device();
    let model: Transformer = classifying(gpt2_config()).init(1, DType::F32, &device);
    let batch = labelled(&[vec![5, 6, 7]], &[1], 0, &device);
    let documents = Some(ids(&vec![0; batch.seq_len], &device));
    model.loss(&Batch::Text(TextBatch { documents, ..batch }), 0.0, None);
}

/// The head stands in place of the projection to the vocabulary, also in the estimates.
#[test]
fn the_projection_to_the_vocabulary_is_not_there() {
    for config in [gpt2_config(), llama_config()] {
        let config = classifying(config);
        let model: Transformer = config.init(1, DType::F32, &train_device());
        let all = weights(&model);
        assert!(all.contains_key("classifier.output.weight") && !all.contains_key("classifier.output.bias"));
        assert!(!all.contains_key("output.weight"));
        let n: usize = all.values().map(Vec::len).sum();
        assert_eq!(n_params(&config).total(), n as u64);

        let lora = LoraConfig { rank: 2, ..LoraConfig::default() };
        let adapted = TransformerConfig { lora, ..config.clone() };
        let model: Transformer = adapted.init(1, DType::F32, &train_device());
        let trained = |path: &str| is_adapter(path) || path.starts_with("classifier.");
        let n: usize = weights(&model).iter().filter(|(path, _)| trained(path)).map(|(_, values)| values.len()).sum();
        assert_eq!(n_trained(&adapted), n as u64);

        let many = TransformerConfig { target_vocab_size: 100_000, source_vocab_size: 100_000, ..config.clone() };
        assert_eq!(train_flops_per_batch(&many, [2, 0, 8], None), train_flops_per_batch(&config, [2, 0, 8], None));
        let activations =
            |config| train_bytes(config, &Device::flex(), [2, 0, 8], &TrainSetting::plain(DType::F32)).activations;
        assert_eq!(activations(&many), activations(&config));
    }
}

#[test]
fn heads_that_kiln_does_not_have_are_refused_by_name() {
    let tensors = read_file(&bytes("llama-texts/model.safetensors"));
    let refused = |key: &str, value: Value| {
        let mut config = json_of("llama-texts/config.json");
        config[key] = value;
        match hf::import(&config, &file_tensors(&tensors)).expect_err("refused") {
            HfError::Config { problems, .. } | HfError::Tensors { problems, .. } => problems.join("\n"),
            other => panic!("{other}"),
        }
    };
    assert!(
        refused("architectures", json!(["LlamaForTokenClassification"])).contains("has not read what follows a word")
    );
    assert!(refused("problem_type", json!("regression")).contains("problem_type \"regression\" is not supported"));
    assert!(refused("id2label", json!({"0": "score"})).contains("id2label names 1 classes"));
    let four = json!({"0": "a", "1": "b", "2": "c", "3": "d"});
    assert!(refused("id2label", four).contains("misshaped: score.weight is [3, 16], wanted [4, 16]"));
    assert!(refused("architectures", json!(["LlamaForCausalLM"])).contains("extra: score.weight [3, 16]"));

    let mut config = json_of("llama-texts/config.json");
    config["pad_token_id"] = Value::Null;
    let notes = hf::import(&config, &file_tensors(&tensors)).expect("a model").notes;
    assert!(notes.iter().any(|note| note.starts_with("pad_token_id is missing")), "{notes:?}");
}
