//! Adapters that `peft` made give the same logits, gradients and steps in Kiln, and survive a round trip unchanged.
//! `model/fixtures/make_peft.py` computes the reference numbers.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, Tensor};
use kiln_kernels::optim::AdamWHyper;
use kiln_model::hf::{self, ElementType, Family, FileTensor, HfError, Imported};
use kiln_model::{
    LoraConfig, LoraTarget, NamedTensor, Positions, Transformer, TransformerConfig, is_adapter, merge_adapters,
};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::families::{NAMES, batch, read, real_positions};
use crate::fixture::{Fixture, Hyper, folder};
use crate::support::{ByPath, Optimizer, assert_close, gradients, scalar, train_device, values, weights, with_weights};

const RELATIVE: f32 = 1e-4;

fn bytes(of: &str, name: &str, file: &str) -> Vec<u8> {
    std::fs::read(folder().join(of).join(name).join(file)).expect("fixtures are committed")
}

fn json_of(of: &str, name: &str, file: &str) -> Value {
    serde_json::from_slice(&bytes(of, name, file)).expect("JSON")
}

/// The tensors of a file, or of what Kiln would write to one.
pub(crate) fn file_tensors<'a>(file: &'a [(String, Vec<usize>, Vec<u8>)]) -> Vec<FileTensor<'a>> {
    let tensor = |(name, shape, bytes): &'a (String, Vec<usize>, Vec<u8>)| FileTensor {
        name: name.clone(),
        shape: shape.clone(),
        element_type: ElementType::F32,
        bytes,
    };
    file.iter().map(tensor).collect()
}

pub(crate) fn read_file(bytes: &[u8]) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let file = SafeTensors::deserialize(bytes).expect("a safetensors file");
    file.tensors().into_iter().map(|(name, view)| (name, view.shape().to_vec(), view.data().to_vec())).collect()
}

fn written(tensors: &[NamedTensor]) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let bytes = |tensor: &NamedTensor| tensor.values.iter().flat_map(|x| x.to_le_bytes()).collect();
    tensors.iter().map(|it| (it.name.clone(), it.shape.clone(), bytes(it))).collect()
}

pub(crate) fn base(name: &str) -> Imported {
    let file = read_file(&bytes("families", name, "model.safetensors"));
    hf::import(&json_of("families", name, "config.json"), &file_tensors(&file)).expect("a model")
}

/// The model of a family with the adapter of the fixture.
fn adapted(name: &str) -> (TransformerConfig, Vec<NamedTensor>) {
    let mut model = base(name);
    let file = read_file(&bytes("peft", name, "adapter_model.safetensors"));
    let settings = json_of("peft", name, "adapter_config.json");
    let adapter = hf::import_adapter(model.family, &model.config, &settings, &file_tensors(&file)).expect("an adapter");
    adapter.add_to(&mut model);
    let Imported { config, weights, .. } = model;
    // As in the fixture, which has no dropout.
    let config = TransformerConfig { dropout: 0.0, activation_dropout: None, attention_dropout: 0.0, ..config };
    (config, weights)
}

pub(crate) fn by_path(weights: &[NamedTensor]) -> ByPath {
    weights.iter().map(|tensor| (tensor.name.clone(), tensor.values.clone())).collect()
}

/// The model, with only its adapters trained.
fn model(config: &TransformerConfig, weights: &[NamedTensor], device: &Device) -> Transformer {
    let model: Transformer = config.init(1, DType::F32, device);
    with_weights(only_adapters(model), &by_path(weights))
}

/// Tracks the parameters of adapters alone.
pub(crate) fn only_adapters(model: Transformer) -> Transformer {
    struct Freeze(Vec<String>);
    impl ModuleMapper for Freeze {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.0.push(name.to_owned());
        }
        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.0.pop();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let trained = is_adapter(&self.0.join("."));
            param.set_require_grad(trained)
        }
    }
    model.map(&mut Freeze(Vec::new()))
}

/// Tensors with the names of peft, under the paths of Kiln.
fn under_our_names(
    fixture: &Fixture,
    group: &str,
    (name, family): (&str, Family),
    config: &TransformerConfig,
) -> ByPath {
    let base = TransformerConfig { lora: LoraConfig::default(), ..config.clone() };
    let shapes = read_file(&bytes("peft", name, "adapter_model.safetensors"));
    let theirs = fixture.group(group);
    let file: Vec<_> = shapes
        .into_iter()
        .map(|(name, shape, _)| {
            let bytes = theirs[&name].iter().flat_map(|x| x.to_le_bytes()).collect();
            (name, shape, bytes)
        })
        .collect();
    let settings = json_of("peft", name, "adapter_config.json");
    let adapter = hf::import_adapter(family, &base, &settings, &file_tensors(&file)).expect("an adapter");
    by_path(&adapter.weights)
}

fn check(name: &str) {
    let device = train_device();
    let (reference, batches) = read(name);
    let family = base(name).family;
    let expected = Fixture::read(&folder().join("peft").join(name).join("expected.safetensors"));
    let losses = json_of("peft", name, "expected.json")["losses"].clone();
    let (config, tensors) = adapted(name);
    let mut model = model(&config, &tensors, &device);

    let first = batch(&batches, &reference.kind, 0, &device);
    let real = real_positions(&first);
    let of_real = |logits: &[f32]| -> Vec<f32> {
        let rows = logits.chunks_exact(config.vocab_size()).zip(&real);
        rows.filter(|(_, real)| **real).flat_map(|(row, _)| row.iter().copied()).collect()
    };
    let logits = of_real(&values(model.logits(&first, None)));
    assert_close(&logits, &of_real(&expected.floats["logits"]), RELATIVE, 0.0, &format!("{name}: logits"));

    let Hyper { lr, beta1, beta2, eps, weight_decay, max_grad_norm, .. } = reference.hyper;
    let adamw = AdamWHyper { beta1, beta2, eps, weight_decay, n_decayed: 0 };
    let mut optimizer = Optimizer::new(&model, lr, adamw, max_grad_norm);
    for (step, wanted) in losses.as_array().expect("losses").iter().enumerate() {
        let batch = batch(&batches, &reference.kind, step % reference.n_batches, &device);
        let sums = model.loss(&batch, reference.label_smoothing, None);
        let loss = sums.loss_sum / sums.n_labels;
        let difference = (scalar(loss.clone()) - wanted.as_f64().expect("a number")).abs();
        assert!(difference < 1e-4, "{name}: loss of step {step}: off by {difference:e}");

        let found = gradients(&model, &loss.backward());
        assert!(found.keys().all(|path| is_adapter(path)), "only adapters have gradients");
        if step == 0 {
            let wanted = under_our_names(&expected, "gradients.", (name, family), &config);
            assert!(found.keys().eq(wanted.keys()), "gradients of {:?}", found.keys());
            let largest = wanted.values().flatten().fold(0.0_f32, |largest, x| largest.max(x.abs()));
            for (path, wanted) in &wanted {
                assert_close(&found[path], wanted, RELATIVE, 1e-6 * largest, &format!("{name}: gradient of {path}"));
            }
        }
        (model, _) = optimizer.step(model, &found);
    }

    // The adapters after ten steps, alone and merged.
    let after = weights(&model);
    let (before, wanted) = (by_path(&tensors), under_our_names(&expected, "after.", (name, family), &config));
    for (path, values) in &after {
        match wanted.get(path) {
            Some(wanted) => assert_close(values, wanted, 1e-3, 1e-4, path),
            None => assert_eq!(values, &before[path], "{path} is not trained"),
        }
    }
    let after: Vec<NamedTensor> =
        tensors.iter().map(|it| NamedTensor { values: after[&it.name].clone(), ..it.clone() }).collect();
    let (plain, merged) = merge_adapters(&config, &after).expect("all adapters are there");
    assert!(!plain.has_adapters() && merged.iter().all(|tensor| !is_adapter(&tensor.name)));
    let merged = with_weights(plain.init(1, DType::F32, &device), &by_path(&merged));
    let logits = of_real(&values(merged.logits(&first, None)));
    assert_close(&logits, &of_real(&expected.floats["merged_logits"]), 1e-3, 0.0, "logits of the merged model");
}

#[test]
fn every_family_with_adapters() {
    NAMES.into_iter().for_each(check);
}

#[test]
fn adapters_survive_a_round_trip_bit_for_bit() {
    for name in NAMES {
        let (config, tensors) = adapted(name);
        let exported = hf::export_adapter(&config, &tensors).expect("an adapter");
        let mut found = written(&exported.tensors);
        let mut wanted = read_file(&bytes("peft", name, "adapter_model.safetensors"));
        found.sort();
        wanted.sort();
        assert!(found == wanted, "{name}: {:?}", found.iter().map(|it| &it.0).collect::<Vec<_>>());
        let theirs = json_of("peft", name, "adapter_config.json");
        for key in ["r", "lora_alpha", "lora_dropout", "bias", "fan_in_fan_out", "peft_type", "use_rslora"] {
            assert_eq!(exported.config[key], theirs[key], "{name}: {key}");
        }

        let base = base(name);
        let again = hf::import_adapter(base.family, &base.config, &exported.config, &file_tensors(&found));
        assert_eq!(again.expect("an adapter").config.lora, config.lora, "{name}");
        // The whole model is exported with the adapters merged.
        let whole = hf::export(&config, &tensors, &hf::TokenIds::default()).expect("a model");
        assert!(whole.tensors.iter().all(|tensor| !tensor.name.contains("lora")));
    }
}

#[test]
fn adapters_that_kiln_does_not_compute_with_are_refused_by_name() {
    let Imported { family, config, .. } = base("llama");
    let file = read_file(&bytes("peft", "llama", "adapter_model.safetensors"));
    let settings = json_of("peft", "llama", "adapter_config.json");
    let refused = |change: &dyn Fn(&mut Value), file: &[(String, Vec<usize>, Vec<u8>)]| {
        let mut settings = settings.clone();
        change(&mut settings);
        let error = hf::import_adapter(family, &config, &settings, &file_tensors(file)).expect_err("refused");
        error.to_string()
    };

    for (key, value) in [
        ("use_dora", json!(true)),
        ("use_rslora", json!(true)),
        ("bias", json!("all")),
        ("rank_pattern", json!({"q_proj": 8})),
        ("modules_to_save", json!(["lm_head"])),
        ("peft_type", json!("IA3")),
        ("r", json!(-1)),
        ("lora_alpha", json!("much")),
    ] {
        let error = refused(&|settings| settings[key] = value.clone(), &file);
        assert!(error.contains(&format!("\n  {key} is ")), "{key}: {error}");
    }

    let error = refused(&|settings| settings["r"] = json!(1_000_000), &file);
    assert!(error.contains("model.lora.rank 1000000 is above model.d_model 16"), "{error}");
    let error = refused(&|settings| settings["r"] = json!(5), &file);
    assert!(
        error.contains("misshaped: model.layers.0.mlp.down_proj.lora_A.weight is [3, 24], wanted [5, 24]"),
        "{error}"
    );
    let error = refused(&|_| (), &file[1..]);
    assert!(error.contains("missing: "), "{error}");
    assert!(refused(&|_| (), &[]).contains("no adapter of a projection of a llama model"));
    assert!(refused(&|settings| *settings = json!([]), &file).contains("not a JSON object"));
}

#[test]
fn adapters_without_a_module_of_their_own_are_not_exported_alone() {
    let refused = |config: &TransformerConfig| {
        let model: Transformer = config.init(1, DType::F32, &Device::flex());
        let tensors: Vec<_> = weights(&model)
            .into_iter()
            .map(|(name, values)| NamedTensor { name, shape: vec![values.len()], values })
            .collect();
        match hf::export_adapter(config, &tensors).expect_err("refused") {
            HfError::NotExpressible { problems, .. } => problems.join("\n"),
            other => panic!("{other}"),
        }
    };
    let (mut gpt2, _) = adapted("gpt2");
    assert_eq!(gpt2.lora.targets, [LoraTarget::Qkv, LoraTarget::Output, LoraTarget::Up, LoraTarget::Down]);
    gpt2.lora.targets = vec![LoraTarget::Query, LoraTarget::Down];
    assert!(refused(&gpt2).contains("\"query\", but this family has one module for queries, keys and values"));
    let (mut llama, _) = adapted("llama");
    llama.lora.targets = vec![LoraTarget::Qkv];
    assert!(refused(&llama).contains("\"qkv\", but this family keeps queries, keys and values apart"));
    llama.lora = LoraConfig::default();
    assert!(refused(&llama).contains("model.lora.rank is 0"));
    let (mut marian, _) = adapted("marian");
    marian.positions = Positions::Sinusoidal;
    assert!(refused(&marian).contains("model.positions"));
}
