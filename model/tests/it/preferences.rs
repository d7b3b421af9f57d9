//! Losses, rewards and gradients of preferences equal those of `trl` (`model/fixtures/make_preferences.py`).

use burn::module::Module;
use burn::tensor::{DType, Device};
use kiln_model::hf::{self, Imported};
use kiln_model::{Batch, NamedTensor, TextBatch, Transformer, TransformerConfig};
use serde_json::Value;

use crate::fixture::{Fixture, folder};
use crate::peft::{by_path, file_tensors, only_adapters, read_file};
use crate::support::{ByPath, assert_close, gradients, ids, scalar, train_device, with_weights};

const N_PAIRS: usize = 8;

fn json(name: &str) -> Value {
    serde_json::from_slice(&bytes(name)).expect("JSON")
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(folder().join("preferences").join(name)).expect("fixtures are committed")
}

/// The tensors of a file, with the values of `other` where it has any.
fn replaced(mut file: Vec<(String, Vec<usize>, Vec<u8>)>, other: &ByPath) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    for (name, _, bytes) in &mut file {
        if let Some(values) = other.get(name) {
            *bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        }
    }
    file
}

/// The base model, and tensors of the adapter by our names.
fn adapted(values: &ByPath) -> (TransformerConfig, Vec<NamedTensor>, Vec<NamedTensor>) {
    let base = read_file(&bytes("model.safetensors"));
    let Imported { family, config, weights, .. } =
        hf::import(&json("config.json"), &file_tensors(&base)).expect("a model");
    let adapter = replaced(read_file(&bytes("adapter_model.safetensors")), values);
    let settings = json("adapter_config.json");
    let adapter = hf::import_adapter(family, &config, &settings, &file_tensors(&adapter)).expect("an adapter");
    (TransformerConfig { dropout: 0.0, ..adapter.config }, weights, adapter.weights)
}

/// The first batch, with both answers to a prompt in adjacent rows.
fn batch(fixture: &Fixture, device: &Device) -> TextBatch {
    let rows = 2 * N_PAIRS;
    let seq_len = fixture.ints["input_ids"].len() / rows;
    let (mut input, mut labels, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
    for row in (0..N_PAIRS).flat_map(|pair| [pair, N_PAIRS + pair]) {
        let of = |name: &str| &fixture.ints[name][row * seq_len..(row + 1) * seq_len];
        let (ids, counts) = (of("input_ids"), of("completion_mask"));
        input.extend_from_slice(ids);
        labels.extend((1..seq_len).map(|t| if counts[t] == 1 { ids[t] } else { TextBatch::NOT_COUNTED }));
        labels.push(TextBatch::NOT_COUNTED);
        lengths.push(of("attention_mask").iter().sum());
    }

    TextBatch {
        input: ids(&input, device),
        labels: ids(&labels, device),
        positions: None,
        documents: None,
        token_types: None,
        preference: Some(0.1),
        max_labels: None,
        lengths: ids(&lengths, device),
        batch_size: rows,
        seq_len,
        tokens: 0,
    }
}

#[test]
fn losses_and_gradients_equal_trl() {
    let device = train_device();
    let (fixture, expected) =
        (Fixture::read(&folder().join("preferences/expected.safetensors")), json("expected.json"));
    let (config, base, after) = adapted(&fixture.group("after."));
    let gradient = adapted(&fixture.group("gradient.")).2;
    for logits_chunk_rows in [Some(0), Some(32)] {
        let config = TransformerConfig { logits_chunk_rows, ..config.clone() };
        let weights = by_path(&[base.clone(), after.clone()].concat());
        let model = only_adapters(with_weights(config.init(1, DType::F32, &device), &weights));
        let batch = Batch::Text(batch(&fixture, &device));

        let sums = model.loss(&batch, 0.0, None);
        let loss = sums.loss_sum / sums.n_labels;
        let wanted = expected["loss_after"].as_f64().expect("a number");
        assert!((scalar(loss.clone()) - wanted).abs() < 1e-5, "{} instead of {wanted}", scalar(loss));
        let found = gradients(&model, &loss.backward());
        assert_eq!(found.len(), gradient.len(), "only adapters have gradients");
        let largest = gradient.iter().flat_map(|it| &it.values).fold(0.0_f32, |largest, x| largest.max(x.abs()));
        for NamedTensor { name, values, .. } in &gradient {
            assert_close(&found[name], values, 1e-4, 1e-6 * largest, &format!("gradient of {name}"));
        }

        // Without autodiff, as in validation.
        let measured = model.valid().prefer(&batch, 0.0).expect("preferences");
        assert!((scalar(measured.losses.loss_sum) / N_PAIRS as f64 - wanted).abs() < 1e-5);
        assert_eq!(scalar(measured.n_preferred), N_PAIRS as f64, "each pair was learned");
        assert!(scalar(measured.margin_sum) > 0.0);
    }
}

#[test]
fn a_new_adapter_prefers_nothing_and_smoothing_pulls_back() {
    let device = train_device();
    let fixture = Fixture::read(&folder().join("preferences/expected.safetensors"));
    let (config, base, new) = adapted(&ByPath::new());
    let batch = Batch::Text(batch(&fixture, &device));
    let model = |adapter: &[NamedTensor]| -> Transformer {
        with_weights(config.init(1, DType::F32, &device), &by_path(&[base.clone(), adapter.to_vec()].concat()))
    };
    let found = model(&new).prefer(&batch, 0.0).expect("preferences");
    assert!((scalar(found.losses.loss_sum) / N_PAIRS as f64 - 2_f64.ln()).abs() < 1e-6);
    assert_eq!(scalar(found.margin_sum), 0.0);

    let after = model(&adapted(&fixture.group("after.")).2);
    let loss = |smoothing| scalar(after.prefer(&batch, smoothing).expect("preferences").losses.loss_sum);
    let (plain, half) = (loss(0.0), loss(0.5));
    let margin = scalar(after.prefer(&batch, 0.0).expect("preferences").margin_sum);
    // -log sigmoid(-z) = -log sigmoid(z) + z.
    assert!((half - (plain + 0.5 * margin)).abs() < 1e-4, "{half} {plain} {margin}");
}

#[test]
fn losses_and_gradients_of_a_whole_model_equal_trl() {
    let device = train_device();
    let fixture = Fixture::read(&folder().join("preferences/expected.safetensors"));
    let whole = Fixture::read(&folder().join("preferences/expected_whole.safetensors"));
    let wanted = json("expected_whole.json")["loss_after"].as_f64().expect("a number");
    let group = |prefix: &str| {
        let file = replaced(read_file(&bytes("model.safetensors")), &whole.group(prefix));
        hf::import(&json("config.json"), &file_tensors(&file)).expect("a model")
    };
    let Imported { config, weights: base, .. } = group("none.");
    let config = TransformerConfig { dropout: 0.0, ..config };
    let model = |weights: &[NamedTensor]| -> Transformer {
        with_weights(config.init(1, DType::F32, &device), &by_path(weights))
    };
    let model = model(&group("after.").weights).with_reference(model(&base).valid()).expect("a language model");
    let batch = Batch::Text(batch(&fixture, &device));

    let sums = model.loss(&batch, 0.0, None);
    let loss = sums.loss_sum / sums.n_labels;
    assert!((scalar(loss.clone()) - wanted).abs() < 1e-5, "{} instead of {wanted}", scalar(loss));
    let (found, gradient) = (gradients(&model, &loss.backward()), group("gradient.").weights);
    assert_eq!(found.len(), gradient.len());
    let largest = gradient.iter().flat_map(|it| &it.values).fold(0.0_f32, |largest, x| largest.max(x.abs()));
    for NamedTensor { name, values, .. } in &gradient {
        assert_close(&found[name], values, 1e-4, 1e-6 * largest, &format!("gradient of {name}"));
    }
    let measured = model.valid().prefer(&batch, 0.0).expect("preferences");
    assert!((scalar(measured.losses.loss_sum) / N_PAIRS as f64 - wanted).abs() < 1e-5, "without autodiff");
}
