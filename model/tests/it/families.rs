//! In f32, logits, loss, all gradients and fifty AdamW steps of each family equal Hugging Face's `transformers`.
//! `model/fixtures/make_family_parity.py` computes the reference numbers.

use burn::tensor::{DType, Device, Tensor, TensorData};
use kiln_kernels::optim::AdamWHyper;
use kiln_model::hf::{self, ElementType, FileTensor};
use kiln_model::{Batch, PairBatch, TextBatch, Transformer, TransformerConfig};
use serde::Deserialize;

use crate::fixture::{Fixture, Hyper, folder, without_key_bias};
use crate::support::{
    ByPath, Optimizer, assert_close, cuda, distance, gradients, scalar, train_device, values, weights, with_weights,
};

pub(crate) const NAMES: [&str; 16] = [
    "gpt2", "llama", "llama-3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "bert", "roberta", "bart", "marian",
    "t5", "t5-1.1", "m2m-100", "pegasus",
];

const RELATIVE: f32 = 1e-4;

/// Largest allowed difference of a training loss over the fifty steps, in nats per token.
const TRAJECTORY: f64 = 1e-3;

#[derive(Deserialize)]
pub(crate) struct Family {
    pub(crate) hyper: Hyper,
    pub(crate) kind: String,
    config: TransformerConfig,
    pub(crate) label_smoothing: f64,
    pub(crate) n_batches: usize,
    loss_sum: f64,
    nll_sum: f64,
    n_labels: f64,
    losses: Vec<f64>,
    bf16: Bf16,
}

/// Errors of PyTorch in bf16.
#[derive(Debug, Deserialize)]
struct Bf16 {
    loss_error: f64,
    gradient_error: f64,
}

pub(crate) fn read(name: &str) -> (Family, Fixture) {
    let folder = folder().join("families").join(name);
    let text = std::fs::read_to_string(folder.join("parity.json")).expect("fixtures are committed");
    let family = serde_json::from_str(&text).expect("parity.json");
    (family, Fixture::read(&folder.join("parity.safetensors")))
}

/// Batch `i` of the fixture.
pub(crate) fn batch(fixture: &Fixture, kind: &str, i: usize, device: &Device) -> Batch {
    let column = |part: &str| fixture.ints.get(&format!("batch.{i}.{part}")).cloned();
    let tensor = |values: Vec<i32>| {
        let n = values.len();
        Tensor::<1, burn::tensor::Int>::from_data(TensorData::new(values, [n]), (device, DType::I32))
    };
    let part = |name: &str| tensor(column(name).unwrap_or_else(|| panic!("batch {i} has no {name}")));

    if kind == "pairs" {
        let [source, target_input, labels] = ["source", "target_input", "labels"].map(part);
        let [source_lengths, target_lengths] = ["source_lengths", "target_lengths"].map(part);
        let [b] = source_lengths.dims();
        let (source_len, target_len) = (source.dims()[0] / b, labels.dims()[0] / b);
        return Batch::Pairs(PairBatch {
            source,
            target_input,
            labels,
            source_lengths,
            target_lengths,
            batch_size: b,
            source_len,
            target_len,
            source_tokens: 0,
            target_tokens: 0,
        });
    }

    let [input, labels, lengths] = ["input", "labels", "lengths"].map(part);
    let [batch_size] = lengths.dims();
    let seq_len = input.dims()[0] / batch_size;
    let token_types = column("token_types").map(tensor);
    let (positions, documents) = (None, None);
    Batch::Text(TextBatch {
        input,
        labels,
        positions,
        documents,
        token_types,
        preference: None,
        max_labels: None,
        lengths,
        batch_size,
        seq_len,
        tokens: 0,
    })
}

/// The non-padding rows of the logits. The other rows have no meaning, and differ: a padded query of a causal model sees
/// padded keys in Kiln, but not in PyTorch.
pub(crate) fn real_positions(batch: &Batch) -> Vec<bool> {
    let (lengths, len) = match batch {
        Batch::Pairs(batch) => (&batch.target_lengths, batch.target_len),
        Batch::Text(batch) => (&batch.lengths, batch.seq_len),
    };
    let lengths = lengths.to_data().convert::<i32>().try_to_vec::<i32>().expect("converted to i32");
    lengths.into_iter().flat_map(|length| (0..len).map(move |place| place < length as usize)).collect()
}

fn assert_relative(found: f64, wanted: f64, what: &str) {
    let error = ((found - wanted) / wanted).abs();
    assert!(error < f64::from(RELATIVE), "{what} is {found}, wanted {wanted}: off by {error:e}");
}

fn check(name: &str) {
    let (family, fixture) = read(name);
    let device = train_device();

    let theirs = fixture.group("weights.");
    let model: Transformer = family.config.init(1, DType::F32, &device);
    assert!(weights(&model).keys().eq(theirs.keys()), "paths: {:?}", weights(&model).keys());
    let mut model = with_weights(model, &theirs);

    let first = batch(&fixture, &family.kind, 0, &device);
    let real = real_positions(&first);
    let of_real = |logits: &[f32]| -> Vec<f32> {
        let v = model.config().vocab_size();
        logits.chunks_exact(v).zip(&real).filter(|(_, real)| **real).flat_map(|(row, _)| row.iter().copied()).collect()
    };
    let (found, wanted) = (values(model.logits(&first, None)), &fixture.floats["logits"]);
    assert_eq!(found.len(), wanted.len());
    assert_close(&of_real(&found), &of_real(wanted), RELATIVE, 0.0, "logits");
    let sums = model.loss(&first, family.label_smoothing, None);
    assert_relative(scalar(sums.loss_sum), family.loss_sum, "loss");
    assert_relative(scalar(sums.nll_sum), family.nll_sum, "negative log-likelihood");
    assert_eq!(scalar(sums.n_labels), family.n_labels);

    let Hyper { lr, beta1, beta2, eps, weight_decay, max_grad_norm, steps } = family.hyper;
    let adamw = AdamWHyper { beta1, beta2, eps, weight_decay, n_decayed: 0 };
    let mut optimizer = Optimizer::new(&model, lr, adamw, max_grad_norm);
    for step in 0..steps {
        let batch = batch(&fixture, &family.kind, step % family.n_batches, &device);
        let sums = model.loss(&batch, family.label_smoothing, None);
        let loss = sums.loss_sum / sums.n_labels;
        let difference = (scalar(loss.clone()) - family.losses[step]).abs();
        assert!(difference < TRAJECTORY, "loss of step {step}: off by {difference:e}");
        let found = gradients(&model, &loss.backward());
        if step == 0 {
            let wanted = fixture.group("gradients.");
            assert!(found.keys().eq(wanted.keys()), "gradients of {:?}", found.keys());
            let largest = wanted.values().flatten().fold(0.0_f32, |largest, x| largest.max(x.abs()));
            for (path, wanted) in &wanted {
                // Gradients of key biases are rounding errors, hence the floor of a millionth of the largest gradient.
                assert_close(&found[path], wanted, RELATIVE, 1e-6 * largest, &format!("gradient of {path}"));
            }
        }
        (model, _) = optimizer.step(model, &found);
    }
    let after = weights(&model);
    for (path, before) in &theirs {
        let counts = without_key_bias(path, family.config.d_model);
        let moved = counts(&after[path]) != counts(before);
        assert_eq!(moved, path != "final_logits_bias", "{path} was trained: {moved}");
    }
}

/// Errors of loss and gradients of the first batch on `device`, in `dtype`.
fn errors(family: &Family, fixture: &Fixture, dtype: DType, device: &Device) -> (f64, f64) {
    let model = with_weights(family.config.init(1, dtype, device), &fixture.group("weights."));
    let sums = model.loss(&batch(fixture, &family.kind, 0, device), family.label_smoothing, None);
    let loss = sums.loss_sum / sums.n_labels;
    let error = (scalar(loss.clone()) * family.n_labels / family.loss_sum - 1.0).abs();
    (error, distance(&gradients(&model, &loss.backward()), &fixture.group("gradients.")))
}

/// Checks that errors in bf16 are at most three times the errors of PyTorch. They differ because rounding happens in other
/// places and sixteen features average out little of it. Norms, softmax and losses compute in f32 on both sides.
fn assert_near_in_bf16(name: &str, device: &Device) {
    let (family, fixture) = read(name);
    let (loss, gradient) = errors(&family, &fixture, DType::BF16, device);
    println!("{name}: loss off by {loss:.4}, gradients by {gradient:.4}; PyTorch {:?}", family.bf16);
    assert!(gradient < 3.0 * family.bf16.gradient_error, "{name}: gradients are off by {gradient}");
    // A single number of PyTorch may be accurate by chance, hence a floor.
    assert!(loss < 3.0 * family.bf16.loss_error.max(4e-3), "{name}: the loss is off by {loss}");
}

#[test]
fn bf16_errors_are_like_those_of_pytorch() {
    for name in NAMES {
        assert_near_in_bf16(name, &train_device());
    }
}

/// Tensor cores round the factors of f32 products to ten bits.
#[test]
fn a_gpu_gives_the_same_losses_and_gradients() {
    let Some(device) = cuda() else { return };
    let device = device.autodiff();
    for name in NAMES {
        let (family, fixture) = read(name);
        let (loss, gradient) = errors(&family, &fixture, DType::F32, &device);
        assert!(loss < 5e-3 && gradient < 1e-2, "{name}: the loss is off by {loss:e}, gradients by {gradient:e}");
        assert_near_in_bf16(name, &device);
    }
}

/// The folder that `transformers` wrote next to the fixture holds, read through the tables of `hf`, exactly the weights that
/// the fixture has under Kiln's names.
#[test]
fn imported_folders_are_the_fixtures_weights() {
    for name in NAMES {
        let folder = folder().join("families").join(name);
        let bytes = |file: &str| std::fs::read(folder.join(file)).expect("fixtures are committed");
        let (config, bytes) = (bytes("config.json"), bytes("model.safetensors"));
        let config = serde_json::from_slice(&config).expect("config.json");

        let file = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let views = file.tensors();
        let tensors: Vec<FileTensor<'_>> = views
            .iter()
            .map(|(name, view)| FileTensor {
                name: name.clone(),
                shape: view.shape().to_vec(),
                element_type: ElementType::F32,
                bytes: view.data(),
            })
            .collect();

        let imported = hf::import(&config, &tensors).unwrap_or_else(|error| panic!("{name}: {error}"));
        let wanted = read(name).1.group("weights.");
        let found: ByPath = imported.weights.into_iter().map(|tensor| (tensor.name, tensor.values)).collect();
        assert!(found.keys().eq(wanted.keys()), "{name}: {:?}", found.keys());
        for (path, wanted) in &wanted {
            assert!(found[path] == *wanted, "{name}: {path} differs");
        }
    }
}

#[test]
fn gpt2() {
    check("gpt2");
}

#[test]
fn llama_with_grouped_queries() {
    check("llama");
}

#[test]
fn llama_3_with_scaled_positions_and_wide_heads() {
    check("llama-3");
}

#[test]
fn mistral_with_a_window_shorter_than_the_rows() {
    check("mistral");
}

#[test]
fn qwen2_with_biases() {
    check("qwen2");
}

#[test]
fn qwen3_with_norms_of_heads() {
    check("qwen3");
}

#[test]
fn gemma2_with_bounded_scores_and_logits() {
    check("gemma2");
}

#[test]
fn gemma3_with_two_bases_of_rotary_positions() {
    check("gemma3");
}

#[test]
fn bert() {
    check("bert");
}

#[test]
fn roberta() {
    check("roberta");
}

#[test]
fn t5_with_relative_positions() {
    check("t5");
}

#[test]
fn t5_with_gates_and_an_output_of_its_own() {
    check("t5-1.1");
}

#[test]
fn bart() {
    check("bart");
}

#[test]
fn marian() {
    check("marian");
}
