//! Prompts that `peft` made give the same logits, gradients and steps in Kiln, and survive a round trip unchanged.
//! `model/fixtures/make_prompt_tuning.py` computes the reference numbers.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, Tensor};
use kiln_kernels::optim::AdamWHyper;
use kiln_model::hf::{self, HfError, Imported};
use kiln_model::{
    ActivationCheckpointing, Architecture, Batch, NamedTensor, Prompts, TextBatch, Transformer, TransformerConfig,
    is_learned_prompt, prompt_of_tokens,
};
use serde_json::{Value, json};

use crate::families::{batch, read, real_positions};
use crate::fixture::{Fixture, Hyper, folder};
use crate::peft::{base, by_path, file_tensors, read_file};
use crate::support::{Optimizer, assert_close, gradients, ids, scalar, train_device, values, weights, with_weights};

const NAMES: [&str; 3] = ["gpt2", "llama", "gemma2"];
const PATH: &str = "learned_prompt.table";

fn bytes(name: &str, file: &str) -> Vec<u8> {
    std::fs::read(folder().join("prompt_tuning").join(name).join(file)).expect("fixtures are committed")
}

fn settings(name: &str) -> Value {
    serde_json::from_slice(&bytes(name, "adapter_config.json")).expect("JSON")
}

/// The model of a family with the prompt of the fixture.
fn prompted(name: &str) -> (TransformerConfig, Vec<NamedTensor>) {
    let Imported { family, config, mut weights, .. } = base(name);
    let file = read_file(&bytes(name, "adapter_model.safetensors"));
    let (prompt_tokens, prompt) =
        hf::import_prompt(family, &config, &settings(name), &file_tensors(&file)).expect("a prompt");
    weights.push(prompt);
    // As in the fixture, which has no dropout.
    let config =
        TransformerConfig { prompt_tokens, dropout: 0.0, activation_dropout: None, attention_dropout: 0.0, ..config };
    (config, weights)
}

/// Tracks the prompt alone.
struct OnlyPrompt(Vec<String>);

impl ModuleMapper for OnlyPrompt {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.0.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.0.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let trained = is_learned_prompt(&self.0.join("."));
        param.set_require_grad(trained)
    }
}

fn model(name: &str, device: &Device) -> Transformer {
    let (config, weights) = prompted(name);
    let model: Transformer = config.init(1, DType::F32, device);
    with_weights(model.map(&mut OnlyPrompt(Vec::new())), &by_path(&weights))
}

#[test]
fn logits_gradients_and_steps_equal_peft() {
    for name in NAMES {
        let device = train_device();
        let (reference, batches) = read(name);
        let expected = Fixture::read(&folder().join("prompt_tuning").join(name).join("expected.safetensors"));
        let losses: Value = serde_json::from_slice(&bytes(name, "expected.json")).expect("JSON");
        let mut model = model(name, &device);
        let before = weights(&model);

        let first = batch(&batches, &reference.kind, 0, &device);
        let real = real_positions(&first);
        let of_real = |logits: &[f32]| -> Vec<f32> {
            let rows = logits.chunks_exact(logits.len() / real.len()).zip(&real);
            rows.filter(|(_, real)| **real).flat_map(|(row, _)| row.iter().copied()).collect()
        };
        let logits = of_real(&values(model.logits(&first, None)));
        assert_close(&logits, &of_real(&expected.floats["logits"]), 1e-4, 0.0, &format!("{name}: logits"));

        let Hyper { lr, beta1, beta2, eps, weight_decay, max_grad_norm, .. } = reference.hyper;
        let adamw = AdamWHyper { beta1, beta2, eps, weight_decay, n_decayed: 0 };
        let mut optimizer = Optimizer::new(&model, lr, adamw, max_grad_norm);
        for (step, wanted) in losses["losses"].as_array().expect("losses").iter().enumerate() {
            let batch = batch(&batches, &reference.kind, step % reference.n_batches, &device);
            let sums = model.loss(&batch, reference.label_smoothing, None);
            let loss = sums.loss_sum / sums.n_labels;
            let difference = (scalar(loss.clone()) - wanted.as_f64().expect("a number")).abs();
            assert!(difference < 1e-4, "{name}: loss of step {step}: off by {difference:e}");

            let found = gradients(&model, &loss.backward());
            assert!(found.keys().eq([PATH]), "{name}: only the prompt has a gradient: {:?}", found.keys());
            if step == 0 {
                assert_close(&found[PATH], &expected.floats["gradient"], 1e-4, 1e-7, &format!("{name}: gradient"));
            }
            (model, _) = optimizer.step(model, &found);
        }
        for (path, after) in weights(&model) {
            match path == PATH {
                true => assert_close(&after, &expected.floats["after"], 1e-3, 1e-4, &format!("{name}: prompt")),
                false => assert_eq!(after, before[&path], "{name}: {path} is not trained"),
            }
        }
    }
}

#[test]
fn a_prompt_has_the_same_gradient_with_activation_checkpointing() {
    let device = train_device();
    let (reference, batches) = read("llama");
    let first = batch(&batches, &reference.kind, 0, &device);
    let gradient = |checkpointing| {
        let model = model("llama", &device).with_checkpointing(checkpointing);
        gradients(&model, &model.loss(&first, 0.0, None).loss_sum.backward()).remove(PATH).expect("a gradient")
    };
    let wanted = gradient(ActivationCheckpointing::Off);
    assert!(wanted.iter().any(|x| *x != 0.0));
    for checkpointing in [ActivationCheckpointing::Selective, ActivationCheckpointing::Layer] {
        assert_eq!(gradient(checkpointing), wanted, "{checkpointing:?}");
    }
}

#[test]
fn a_prompt_goes_before_cached_decoding_too() {
    for name in NAMES {
        let device = Device::flex();
        let Transformer::DecoderOnly(model) = model(name, &device) else { panic!("decoder-only") };
        let rows: Vec<Vec<i32>> = vec![vec![5, 6, 7, 8, 9], vec![4, 3]];
        let prompts = Prompts::new(&rows, model.config(), &device).expect("sound prompts");
        let (logits, mut cache) = model.prefill(prompts.ids, prompts.lengths);
        assert_eq!(cache.len(), 5 + 3, "the cache holds the prompt too");
        let found = [values(logits), values(model.decode_step(ids(&[10, 11], &device), &mut cache))];

        for (row, mut tokens) in rows.into_iter().enumerate() {
            tokens.push([10, 11][row]);
            let (n, v) = (tokens.len(), model.config().vocab_size());
            let batch = TextBatch {
                input: ids(&tokens, &device),
                labels: ids(&vec![0; n], &device),
                positions: None,
                documents: None,
                token_types: None,
                preference: None,
                max_labels: None,
                lengths: ids(&[n as i32], &device),
                batch_size: 1,
                seq_len: n,
                tokens: n as u64,
            };
            let wanted = values(Transformer::DecoderOnly(model.clone()).logits(&Batch::Text(batch), None));
            for (step, found) in found.iter().enumerate() {
                let wanted = &wanted[(n - 2 + step) * v..][..v];
                assert_close(&found[row * v..][..v], wanted, 1e-4, 1e-5, &format!("{name}: row {row}, step {step}"));
            }
        }
    }
}

#[test]
fn a_prompt_begins_as_vectors_of_the_vocabulary() {
    for name in NAMES {
        let Imported { config, weights, .. } = base(name);
        let config = TransformerConfig { prompt_tokens: 4, ..config };
        let prompt = prompt_of_tokens(&config, &weights, 3).expect("token vectors");
        assert_eq!((prompt.name.as_str(), &prompt.shape), (PATH, &vec![4, config.d_model]));
        assert_ne!(prompt.values, prompt_of_tokens(&config, &weights, 4).expect("token vectors").values);

        let plain = TransformerConfig { prompt_tokens: 0, ..config.clone() };
        let model = with_weights(plain.init(1, DType::F32, &Device::flex()), &by_path(&weights));
        let Transformer::DecoderOnly(model) = model else { panic!("decoder-only") };
        let all: Vec<i32> = (0..config.vocab_size() as i32).collect();
        let vectors = values(model.embedding.forward(ids(&all, &Device::flex())));
        for vector in prompt.values.chunks_exact(config.d_model) {
            let mut tokens = vectors.chunks_exact(config.d_model);
            let is_near = |token: &[f32]| token.iter().zip(vector).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(tokens.any(is_near), "{name}: a vector is of no token");
        }
    }
}

#[test]
fn a_prompt_survives_a_round_trip_bit_for_bit_and_no_family_has_it() {
    for name in NAMES {
        let (config, tensors) = prompted(name);
        let exported = hf::export_prompt(&config, &tensors).expect("a prompt");
        let [prompt] = exported.tensors.as_slice() else { panic!("one tensor") };
        let found: Vec<u8> = prompt.values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let wanted = read_file(&bytes(name, "adapter_model.safetensors"));
        assert_eq!((&prompt.name, &prompt.shape, &found), (&wanted[0].0, &wanted[0].1, &wanted[0].2), "{name}");
        let theirs = settings(name);
        let ours = exported.config.as_object().expect("an object");
        for (key, value) in ours.iter().filter(|(key, _)| *key != "base_model_name_or_path") {
            assert_eq!(*value, theirs[key], "{name}: {key}");
        }

        let error = hf::export(&config, &tensors, &hf::TokenIds::default()).expect_err("refused").to_string();
        assert!(error.contains("model.prompt_tokens is 3") && error.contains("kiln export --adapter"), "{error}");
        let (plain, without) = (base(name).config, base(name).weights);
        let error = hf::export_prompt(&plain, &without).expect_err("refused").to_string();
        assert!(error.contains("model.prompt_tokens is 0"), "{error}");
    }
}

#[test]
fn prompts_that_do_not_fit_are_refused_by_name() {
    let Imported { family, config, .. } = base("llama");
    let file = read_file(&bytes("llama", "adapter_model.safetensors"));
    let refused = |change: &dyn Fn(&mut Value), file: &[(String, Vec<usize>, Vec<u8>)]| {
        let mut settings = settings("llama");
        change(&mut settings);
        match hf::import_prompt(family, &config, &settings, &file_tensors(file)).expect_err("refused") {
            HfError::Adapter { problems, .. } | HfError::Tensors { problems, .. } => problems.join("; "),
            other => panic!("{other}"),
        }
    };
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 6] = [
        (|it| it["num_virtual_tokens"] = json!(0), "num_virtual_tokens is 0; a model of 16 positions takes 1 to 14"),
        (|it| it["num_virtual_tokens"] = json!(u64::MAX), "takes 1 to 14"),
        (|it| it["num_virtual_tokens"] = Value::Null, "num_virtual_tokens is null"),
        (|it| it["num_virtual_tokens"] = json!(4), "prompt_embeddings is [3, 16], wanted prompt_embeddings of [4, 16]"),
        (|it| it["token_dim"] = json!(8), "token_dim is 8; this model has 16"),
        (|it| it["modules_to_save"] = json!(["lm_head"]), "Kiln reads the prompt alone"),
    ];
    for (change, wanted) in changes {
        let found = refused(&change, &file);
        assert!(found.contains(wanted), "{found}");
    }
    assert!(refused(&|_| (), &[]).contains("the file has 0 tensors"));
    let other = vec![("prompt".to_owned(), file[0].1.clone(), file[0].2.clone())];
    assert!(refused(&|_| (), &other).contains("wanted prompt_embeddings"));

    let encoder = TransformerConfig { architecture: Architecture::EncoderOnly, ..config.clone() };
    let error = hf::import_prompt(family, &encoder, &settings("llama"), &file_tensors(&file)).expect_err("refused");
    assert!(error.to_string().contains("for models that continue text alone"), "{error}");
    let wrong = hf::import_adapter(family, &config, &settings("llama"), &file_tensors(&file)).expect_err("refused");
    assert!(wrong.to_string().contains("peft_type is \"PROMPT_TUNING\""), "{wrong}");
}
