//! In f32, logits, loss, all gradients and ten AdamW steps equal PyTorch's own Transformer layers to a relative 1e-4.
//! `model/fixtures/make_parity.py` computes the reference numbers.

use std::collections::HashMap;

use burn::tensor::{DType, Tensor, TensorData};
use kiln_kernels::optim::AdamWHyper;
use kiln_model::{PairBatch, TransformerConfig};
use serde::Deserialize;

use crate::fixture::{Fixture, Hyper, folder, without_key_bias};
use crate::support::{ByPath, Optimizer, assert_close, gradients, scalar, train_device, values, weights, with_weights};

const RELATIVE: f32 = 1e-4;

#[derive(Deserialize)]
struct Document {
    hyper: Hyper,
    variants: HashMap<String, Variant>,
}

#[derive(Deserialize)]
struct Variant {
    config: TransformerConfig,
    label_smoothing: f64,
    shape: [usize; 3],
    source_tokens: u64,
    target_tokens: u64,
    loss_sum: f64,
    nll_sum: f64,
    losses: Vec<f64>,
    gradient_norms: Vec<f64>,
}

fn relative_error(found: f64, wanted: f64) -> f64 {
    ((found - wanted) / wanted).abs()
}

fn check(name: &str) {
    let text = std::fs::read_to_string(folder().join("parity.json")).expect("fixtures are committed");
    let Document { hyper, mut variants } = serde_json::from_str(&text).expect("parity.json");
    let variant = variants.remove(name).expect("the variant is in parity.json");
    let fixture = Fixture::read(&folder().join(format!("{name}.safetensors")));
    let device = train_device();

    let order = ["source", "target_input", "labels", "source_lengths", "target_lengths"];
    let ids: Vec<i32> = order.iter().flat_map(|part| fixture.ints[&format!("batch.{part}")].clone()).collect();
    let ids = Tensor::from_data(TensorData::new(ids.clone(), [ids.len()]), (&device, DType::I32));
    let batch = PairBatch::from_contiguous(ids, variant.shape, variant.source_tokens, variant.target_tokens);

    let theirs = fixture.group("weights.");
    let mut model = variant.config.init_encoder_decoder(1, DType::F32, &device);
    assert!(weights(&model).keys().eq(theirs.keys()), "paths: {:?}", weights(&model).keys());
    model = with_weights(model, &theirs);

    assert_close(&values(model.logits(&batch, None)), &fixture.floats["logits"], RELATIVE, 0.0, "logits");
    let loss = model.loss(&batch, variant.label_smoothing, None);
    assert!(relative_error(scalar(loss.loss_sum), variant.loss_sum) < f64::from(RELATIVE));
    assert!(relative_error(scalar(loss.nll_sum), variant.nll_sum) < f64::from(RELATIVE));

    let Hyper { lr, beta1, beta2, eps, weight_decay, max_grad_norm, steps } = hyper;
    let adamw = AdamWHyper { beta1, beta2, eps, weight_decay, n_decayed: 0 };
    let mut optimizer = Optimizer::new(&model, lr, adamw, max_grad_norm);
    for step in 0..steps {
        let loss = model.loss(&batch, variant.label_smoothing, None).loss_sum / variant.target_tokens as f64;
        let error = relative_error(scalar(loss.clone()), variant.losses[step]);
        assert!(error < f64::from(RELATIVE), "loss of step {step}: off by {error:e}");
        let found = gradients(&model, &loss.backward());
        if step == 0 {
            compare_gradients(&found, &fixture.group("gradients."));
        }
        let norm;
        (model, norm) = optimizer.step(model, &found);
        let error = relative_error(norm, variant.gradient_norms[step]);
        assert!(error < f64::from(RELATIVE), "gradient norm of step {step}: off by {error:e}");
    }
    let after = weights(&model);
    for (path, wanted) in fixture.group("after.") {
        let counts = without_key_bias(&path, variant.config.d_model);
        assert_close(&counts(&after[&path]), &counts(&wanted), RELATIVE, 0.0, &format!("{path} after {steps} steps"));
        assert_ne!(fixture.floats[&format!("weights.{path}")], wanted, "{path} was not trained");
    }
}

/// Compares gradients with a floor of a millionth of the largest one: gradients of key biases are zero in exact arithmetic,
/// because softmax ignores a constant, so both sides hold rounding errors.
fn compare_gradients(found: &ByPath, wanted: &ByPath) {
    let largest = wanted.values().flatten().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    for (path, wanted) in wanted {
        assert_close(&found[path], wanted, RELATIVE, 1e-6 * largest, &format!("gradient of {path}"));
    }
}

#[test]
fn pre_norm_relu_three_way() {
    check("pre_relu_three_way");
}

#[test]
fn post_norm_gelu_untied_learned_positions() {
    check("post_gelu_untied");
}

#[test]
fn pre_norm_gelu_tanh_tied_output() {
    check("pre_gelu_tanh_output");
}

#[test]
fn post_norm_relu_three_way() {
    check("post_relu_three_way");
}
