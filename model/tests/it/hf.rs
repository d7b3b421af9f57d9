//! Models written by `transformers` give the same logits in Kiln, and survive a round trip unchanged.
//! `model/fixtures/hf/make.py` makes the folders.

use std::path::PathBuf;

use burn::tensor::{DType, Device, FloatDType};
use kiln_model::hf::{self, ElementType, Family, FileTensor, HfError, Imported};
use kiln_model::{
    Activation, Batch, NamedTensor, NormPlacement, PairBatch, Positions, RopeScaling, TextBatch, TieEmbeddings,
    Transformer, TransformerConfig,
};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::round_trip::round_trip;
use crate::support::{assert_close, batch, ids, shapes, small_config, train_device, values, weights, with_weights};

const FOLDERS: [&str; 16] = [
    "gpt2", "llama", "llama-3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "bert", "roberta", "bart", "marian",
    "pegasus", "m2m_100", "t5", "t5-1.1",
];

/// The family of a folder.
fn family_of(folder: &str) -> &str {
    match folder {
        "llama-3" => "llama",
        "gemma3" => "gemma3_text",
        "t5-1.1" => "t5",
        _ => folder,
    }
}

fn read(family: &str, file: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/hf").join(family);
    std::fs::read(folder.join(file)).expect("fixtures are committed")
}

fn config(family: &str) -> Value {
    serde_json::from_slice(&read(family, "config.json")).expect("JSON")
}

fn tensors(bytes: &[u8]) -> Vec<FileTensor<'_>> {
    let file = SafeTensors::deserialize(bytes).expect("a safetensors file");
    let tensor = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let start = view.data().as_ptr().addr() - bytes.as_ptr().addr();
        let bytes = &bytes[start..start + view.data().len()];
        FileTensor { name, shape: view.shape().to_vec(), element_type: ElementType::F32, bytes }
    };
    file.tensors().into_iter().map(tensor).collect()
}

pub(crate) fn import(family: &str) -> Imported {
    let bytes = read(family, "model.safetensors");
    hf::import(&config(family), &tensors(&bytes)).unwrap_or_else(|error| panic!("{family}: {error}"))
}

/// Elements of an exported tensor, as bytes of a file.
pub(crate) fn file_bytes(tensor: &NamedTensor) -> Vec<u8> {
    tensor.values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

pub(crate) fn file_tensors<'a>(tensors: &[NamedTensor], bytes: &'a [Vec<u8>]) -> Vec<FileTensor<'a>> {
    let tensor = |(tensor, bytes): (&NamedTensor, &'a Vec<u8>)| FileTensor {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        element_type: ElementType::F32,
        bytes,
    };
    tensors.iter().zip(bytes).map(tensor).collect()
}

pub(crate) fn sorted(mut weights: Vec<NamedTensor>) -> Vec<NamedTensor> {
    weights.sort_by(|a, b| a.name.cmp(&b.name));
    weights
}

struct Expected {
    input: Vec<i32>,
    lengths: Vec<i32>,
    target: Option<Vec<i32>>,
    logits: Vec<f32>,
}

fn expected(family: &str) -> Expected {
    let bytes = read(family, "expected.safetensors");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let words = |name: &str, dtype: Dtype| -> Option<Vec<[u8; 4]>> {
        let view = file.tensor(name).ok()?;
        assert_eq!(view.dtype(), dtype, "{name}");
        Some(view.data().chunks_exact(4).map(|word| word.try_into().expect("four bytes")).collect())
    };
    let integers = |name: &str| words(name, Dtype::I32).map(|all| all.into_iter().map(i32::from_le_bytes).collect());
    Expected {
        input: integers("input_ids").expect("input"),
        lengths: integers("lengths").expect("lengths"),
        target: integers("decoder_input_ids"),
        logits: words("logits", Dtype::F32).expect("logits").into_iter().map(f32::from_le_bytes).collect(),
    }
}

/// Logits of the expected inputs.
fn logits(model: &Transformer, expected: &Expected, device: &Device) -> Vec<f32> {
    let b = expected.lengths.len();

    let batch = match &expected.target {
        None => Batch::Text(TextBatch {
            input: ids(&expected.input, device),
            labels: ids(&expected.input, device),
            positions: None,
            documents: None,
            token_types: None,
            preference: None,
            max_labels: None,
            lengths: ids(&expected.lengths, device),
            batch_size: b,
            seq_len: expected.input.len() / b,
            tokens: 0,
        }),

        Some(target) => {
            let lengths = vec![(target.len() / b) as i32; b];
            let flat =
                [&expected.input, target, target, &expected.lengths, &lengths].map(|part| part.as_slice()).concat();
            let shape = [b, expected.input.len() / b, target.len() / b];
            Batch::Pairs(PairBatch::from_contiguous(ids(&flat, device), shape, 0, 0))
        }
    };
    values(model.logits(&batch, None))
}

#[test]
fn logits_equal_those_of_transformers() {
    let device = Device::flex();
    for family in FOLDERS {
        let imported = import(family);
        assert_eq!((imported.family.name(), imported.notes.len()), (family_of(family), 0), "{:?}", imported.notes);
        let expected = expected(family);
        let v = imported.config.vocab_size();
        let model = imported.into_model(FloatDType::F32, &device);
        let found = logits(&model, &expected, &device);
        // Padded positions of a text have no meaning.
        let t = found.len() / v / expected.lengths.len();
        let real = |values: &[f32]| -> Vec<f32> {
            let rows = values.chunks_exact(v).enumerate();
            let is_real = |i: usize| expected.target.is_some() || i % t < expected.lengths[i / t] as usize;
            rows.filter(|(i, _)| is_real(*i)).flat_map(|(_, row)| row.to_vec()).collect()
        };
        assert_close(&real(&found), &real(&expected.logits), 1e-5, 0.0, family);
    }
}

#[test]
fn each_table_names_the_parameters_of_its_model() {
    for family in FOLDERS {
        let Imported { config, weights, .. } = import(family);
        let mut wanted = shapes(&config.init(1, burn::tensor::DType::F32, &Device::flex()));
        wanted.sort();
        let found: Vec<_> = sorted(weights).into_iter().map(|weight| (weight.name, weight.shape)).collect();
        assert_eq!(found, wanted, "{family}");
    }
}

#[test]
fn a_round_trip_changes_nothing() {
    for family in FOLDERS {
        let first = import(family);
        let exported =
            hf::export(&first.config, &first.weights, &first.tokens).expect("an imported model can be exported");
        assert_eq!(exported.family, first.family);
        let bytes: Vec<_> = exported.tensors.iter().map(file_bytes).collect();
        let again = hf::import(&exported.config, &file_tensors(&exported.tensors, &bytes))
            .expect("an exported model can be imported");
        assert_eq!(again.config, first.config, "{family}");
        assert_eq!(again.tokens, first.tokens, "{family}");
        assert_eq!(sorted(again.weights), sorted(first.weights), "{family}");

        // The exported tensors have the names and shapes of the original file.
        let original = read(family, "model.safetensors");
        let mut original: Vec<_> = tensors(&original).into_iter().map(|t| (t.name, t.shape)).collect();
        let mut written: Vec<_> = exported.tensors.into_iter().map(|t| (t.name, t.shape)).collect();
        original.sort();
        written.sort();
        assert_eq!(written, original, "{family}");
    }
}

/// Imports a fixture after changes to its `config.json` and tensors.
pub(crate) fn changed(
    family: &str,
    config_change: Value,
    tensor_change: impl FnOnce(&mut Vec<FileTensor<'_>>),
) -> Result<Imported, HfError> {
    let mut config = config(family);
    let changes = config_change.as_object().expect("an object").clone();
    config.as_object_mut().expect("an object").extend(changes);
    let bytes = read(family, "model.safetensors");
    let mut tensors = tensors(&bytes);
    tensor_change(&mut tensors);
    hf::import(&config, &tensors)
}

#[test]
fn unsupported_options_are_refused_by_name() {
    let cases = [
        (
            "gpt2",
            json!({"model_type": "mamba"}),
            "model_type \"mamba\" is not supported; Kiln reads gpt2, llama, mistral",
        ),
        ("gpt2", json!({"model_type": null}), "model_type null is not supported"),
        (
            "gpt2",
            json!({"activation_function": "mish"}),
            "activation_function \"mish\" is not supported; supported: relu, gelu",
        ),
        ("gpt2", json!({"scale_attn_by_inverse_layer_idx": true}), "scale_attn_by_inverse_layer_idx true"),
        ("gpt2", json!({"n_embd": null}), "n_embd is missing"),
        ("llama", json!({"hidden_act": "gelu"}), "hidden_act \"gelu\" is not supported; supported: silu"),
        (
            "llama",
            json!({"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 500000.0}}),
            "rope_parameters.low_freq_factor is missing or not a number",
        ),
        (
            "llama",
            json!({"rope_scaling": {"rope_type": "proportional"}}),
            "rope_scaling of type \"proportional\" is not supported; supported",
        ),
        ("llama", json!({"rope_scaling": {"type": "dynamic"}}), "rope_scaling.factor is missing or not a number"),
        ("llama", json!({"rope_scaling": {"rope_type": "yarn"}}), "rope_scaling.factor is missing or not a number"),
        (
            "llama",
            json!({"head_dim": 16}),
            "misshaped: model.layers.0.self_attn.q_proj.weight is [32, 32], wanted [64, 32]",
        ),
        ("llama", json!({"head_dim": 7}), "make heads of 7 dimensions"),
        ("llama", json!({"layer_types": ["chunked_attention"]}), "layer_types has \"chunked_attention\""),
        (
            "llama-3",
            json!({"rope_parameters": {"rope_type": "llama3", "factor": 0.5, "low_freq_factor": 4,
            "high_freq_factor": 1, "original_max_position_embeddings": 0}}),
            "model.rope_scaling has factor 0.5, which is below 1",
        ),
        ("mistral", json!({"sliding_window": "x"}), "sliding_window is \"x\", not a whole number"),
        ("mistral", json!({"attention_bias": true}), "attention_bias true is not supported, only false"),
        (
            "qwen2",
            json!({"use_sliding_window": true, "sliding_window": 8, "layer_types": null, "max_window_layers": 1}),
            "1 of 2 layers without a sliding window",
        ),
        ("qwen2", json!({"mlp_bias": true}), "mlp_bias true is not supported"),
        ("qwen3", json!({"attention_bias": true}), "attention_bias true is not supported"),
        ("qwen3", json!({"head_dim": null}), "misshaped: model.layers.0.self_attn.k_norm.weight is [16], wanted [128]"),
        ("llama", json!({"mlp_bias": true}), "missing: model.layers.0.mlp.gate_proj.bias [48]"),
        ("bert", json!({"position_embedding_type": "relative_key"}), "position_embedding_type \"relative_key\""),
        ("bert", json!({"is_decoder": true}), "is_decoder true"),
        ("roberta", json!({"hidden_act": "relu"}), "hidden_act \"relu\" is not supported, only \"gelu\""),
        ("roberta", json!({"type_vocab_size": 2}), "type_vocab_size 2 is not supported, only 1"),
        ("roberta", json!({"pad_token_id": 25}), "model.max_positions 0"),
        ("bart", json!({"normalize_before": true}), "normalize_before true is not supported, only false"),
        ("bart", json!({"decoder_ffn_dim": 64}), "encoder_ffn_dim 48 and decoder_ffn_dim 64 differ"),
        ("marian", json!({"static_position_embeddings": false}), "static_position_embeddings false"),
        ("marian", json!({"tie_word_embeddings": false}), "share_encoder_decoder_embeddings true with"),
        (
            "marian",
            json!({"n_heads": 3, "encoder_attention_heads": 5, "decoder_attention_heads": 5}),
            "model.n_heads 5",
        ),
    ];

    for (family, change, wanted) in cases {
        let error = changed(family, change.clone(), |_| ()).expect_err("refused").to_string();
        assert!(error.contains(wanted), "{family} {change}: {error}");
    }
}

#[test]
fn every_tensor_that_does_not_fit_is_listed() {
    let error = changed("bert", json!({}), |tensors| {
        tensors.retain(|tensor| !tensor.name.ends_with("layer.1.intermediate.dense.bias"));
        for tensor in tensors {
            match tensor.name.as_str() {
                "cls.predictions.transform.dense.bias" => tensor.name = "cls.other".into(),
                "bert.encoder.layer.0.output.dense.weight" => tensor.shape.reverse(),
                "bert.embeddings.LayerNorm.bias" => tensor.element_type = ElementType::Other("I64".into()),
                _ => {}
            }
        }
    });
    assert_eq!(
        error.expect_err("refused").to_string(),
        "the weights do not fit the bert model of config.json:\n  \
         extra: cls.other [32]\n  \
         misshaped: bert.encoder.layer.0.output.dense.weight is [48, 32], wanted [32, 48]\n  \
         missing: bert.encoder.layer.1.intermediate.dense.bias [48]\n  \
         missing: cls.predictions.transform.dense.bias [32]\n  \
         unreadable: bert.embeddings.LayerNorm.bias is I64; supported: F64, F32, F16 and BF16"
    );
}

#[test]
fn a_bert_without_head_is_an_encoder() {
    let imported = changed("bert", json!({"architectures": ["BertModel"]}), |tensors| {
        tensors.retain(|tensor| !tensor.name.starts_with("cls."));
        for tensor in tensors {
            tensor.name = tensor.name.strip_prefix("bert.").expect("the base model's prefix").to_owned();
        }
    });
    let imported = imported.expect("a base model");
    assert!(!imported.config.mlm_head);
    let exported = hf::export(&imported.config, &imported.weights, &imported.tokens).expect("expressible");
    assert_eq!(exported.config["architectures"], json!(["BertModel"]));
    assert_eq!(exported.generation_config, None);
    // But a file that should have a head and lacks it is refused.
    let error = changed("bert", json!({}), |tensors| tensors.retain(|tensor| !tensor.name.starts_with("cls.")));
    assert!(error.expect_err("refused").to_string().contains("missing: cls.predictions.bias [120]"));
}

const SCALING: RopeScaling =
    RopeScaling::Llama3 { factor: 2.5, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_positions: 16 };

/// Variants that the fixtures lack: tied and untied matrices, biases, two vocabularies, heads.
#[test]
fn every_exportable_variant_survives_a_round_trip() {
    type Change = fn(&mut TransformerConfig);
    let variants: [(&str, Change); 16] = [
        ("gpt2", |config| config.tie_embeddings = TieEmbeddings::None),
        ("llama", |config| (config.tie_embeddings, config.bias) = (TieEmbeddings::Output, true)),
        ("llama", |config| config.n_kv_heads = 1),
        ("llama", |config| config.head_dim = 6),
        ("mistral", |config| config.attention_window = 100),
        ("qwen2", |config| config.attention_window = 5),
        ("qwen2", |config| (config.rope_scaling, config.tie_embeddings) = (Some(SCALING), TieEmbeddings::None)),
        ("qwen3", |config| config.attention_window = 5),
        ("qwen3", |config| config.head_dim = 0),
        ("bert", |config| config.tie_embeddings = TieEmbeddings::None),
        ("bert", |config| (config.mlm_head, config.pooler) = (false, true)),
        ("roberta", |config| config.tie_embeddings = TieEmbeddings::None),
        ("roberta", |config| (config.mlm_head, config.pooler) = (false, true)),
        ("bart", |config| config.activation = Activation::Silu.into()),
        ("marian", |config| (config.tie_embeddings, config.source_vocab_size) = (TieEmbeddings::Output, 60)),
        ("marian", |config| (config.tie_embeddings, config.source_vocab_size) = (TieEmbeddings::None, 60)),
    ];

    for (i, (family, change)) in variants.into_iter().enumerate() {
        let Imported { mut config, tokens, .. } = import(family);
        change(&mut config);
        assert_eq!(round_trip(&config, &tokens, &format!("variant {i}")).name(), family_of(family));
    }
}

/// Kiln's own encoder-decoder alternates sines and cosines. Exported as Marian or Pegasus, it computes the same.
#[test]
fn features_are_reordered_with_the_positions() {
    let device = train_device();
    let (post, pre) = (NormPlacement::Post, NormPlacement::Pre);
    for (norm, tie_embeddings) in
        [(post, TieEmbeddings::ThreeWay), (post, TieEmbeddings::None), (pre, TieEmbeddings::ThreeWay)]
    {
        let config = TransformerConfig { norm, tie_embeddings, ..small_config() };
        let model = config.init(5, DType::F32, &device);
        let shapes = shapes(&model);
        let mut values = weights(&model);
        // Biases and norms start as constants, whose order would not matter.
        for (i, value) in values.values_mut().flatten().enumerate() {
            *value += (i as f32).sin() / 8.0;
        }
        let model = with_weights(model, &values);
        let named: Vec<_> = shapes
            .into_iter()
            .map(|(name, shape)| NamedTensor { values: values[&name].clone(), name, shape })
            .collect();

        let ids = hf::TokenIds { pad: Some(0), ..hf::TokenIds::default() };
        let exported = hf::export(&config, &named, &ids).expect("expressible");
        assert_eq!(exported.family == Family::Pegasus, norm == pre);
        let bytes: Vec<_> = exported.tensors.iter().map(file_bytes).collect();
        let again = hf::import(&exported.config, &file_tensors(&exported.tensors, &bytes)).expect("the family");
        assert_eq!(again.config.positions, Positions::SinusoidalHalves);
        let again = again.into_model(FloatDType::F32, &device);
        let batch = Batch::Pairs(batch(&[(vec![3, 4, 5, 6], vec![7, 8]), (vec![9], vec![10, 11, 3])], [0, 0], &device));
        let logits = |model: &Transformer| crate::support::values(model.logits(&batch, None));
        assert_close(&logits(&again), &logits(&model), 1e-5, 0.0, "logits");
    }
}

#[test]
fn a_model_that_no_family_computes_is_refused() {
    let sizes = TransformerConfig { source_vocab_size: 9, target_vocab_size: 9, ..TransformerConfig::tiny() };
    let config = TransformerConfig { norm_eps: 1e-6, tie_embeddings: TieEmbeddings::None, ..sizes };
    let error = hf::export(&config, &[], &hf::TokenIds::default()).expect_err("another epsilon").to_string();
    assert!(error.starts_with("this model cannot be exported as pegasus:\n"), "{error}");
    assert!(error.contains("model.norm_eps is 1e-6, but this family has 0.00001"), "{error}");
    let mut names = FOLDERS.map(family_of).to_vec();
    names.dedup();
    assert_eq!(Family::ALL.map(Family::name).to_vec(), names);
}
