//! What Gemma 2 and 3 have that other families lack. Their numbers are compared with `transformers` in `families` and `hf`.

use burn::tensor::{DType, Device};
use kiln_kernels::Settings;
use kiln_model::hf::{self, Imported};
use kiln_model::{
    Architecture, Batch, DecoderOnly, FeedForwardActivation, NormPlacement, RopeScaling, TieEmbeddings, Transformer,
    TransformerConfig, flops,
};
use serde_json::{Value, json};

use crate::hf::{changed, import};
use crate::round_trip::round_trip;
use crate::support::{
    assert_close, gradients, ids, llama_config, random_rows, scalar, text_batch, train_device, values,
};

/// The decoder-only model of Gemma's kind: a layer with a window, one without.
pub(crate) fn gemma_config() -> TransformerConfig {
    TransformerConfig {
        norm: NormPlacement::Sandwich,
        activation: FeedForwardActivation::GEGLU,
        head_dim: 6,
        scale_embedding: true,
        attention_window: 3,
        global_layer_every: 2,
        local_rope_theta: Some(100.0),
        attention_scale: Some(0.7),
        attention_softcap: 0.5,
        logits_softcap: 0.8,
        tie_embeddings: TieEmbeddings::Output,
        ..llama_config()
    }
}

fn refused(family: &str, change: Value, wanted: &str) {
    let error = changed(family, change.clone(), |_| ()).expect_err("refused").to_string();
    assert!(error.contains(wanted), "{family} {change}: {error}");
}

#[test]
fn unsupported_options_are_refused_by_name() {
    refused("gemma2", json!({"attention_bias": true}), "attention_bias true is not supported, only false");
    refused("gemma2", json!({"hidden_activation": "relu"}), "hidden_activation \"relu\" is not supported");
    refused(
        "gemma3",
        json!({"use_bidirectional_attention": true}),
        "use_bidirectional_attention true is not supported",
    );
    refused("gemma2", json!({"attn_logit_softcapping": -3.0}), "model.attention_softcap -3 is not a finite number");
    refused("gemma2", json!({"query_pre_attn_scalar": 0}), "model.attention_scale inf is not a finite number above 0");
    refused("gemma2", json!({"model_type": "gemma3"}), "model_type \"gemma3\" is not supported");
    let (full, sliding) = ("full_attention", "sliding_attention");
    let irregular = json!({"layer_types": [sliding, full, full, sliding]});
    refused("gemma2", irregular, "layer_types of 4 layers is not supported: after equally many layers");
    refused("gemma2", json!({"layer_types": [sliding, full]}), "layer_types of 2 layers is not supported");
    let ropes = |local: Value| json!({"rope_parameters": {full: {"rope_type": "default"}, sliding: local}});
    refused(
        "gemma3",
        ropes(json!({"rope_type": "linear", "factor": 2.0})),
        "rope_parameters.sliding_attention has a scaling",
    );
    refused("gemma3", ropes(json!({"rope_type": "yarn"})), "rope_parameters.sliding_attention of type \"yarn\"");
}

/// Files of version 4 of `transformers` have no `rope_parameters` and no `layer_types`.
#[test]
fn older_files_say_the_same_in_other_words() {
    let older = json!({"rope_parameters": null, "layer_types": null, "sliding_window_pattern": 3, "rope_theta": 5e5,
        "rope_local_base_freq": 2e3, "rope_scaling": {"rope_type": "linear", "factor": 4.0}});
    let config = changed("gemma3", older, |_| ()).expect("a model").config;
    assert_eq!((config.rope_theta, config.local_rope_theta, config.global_layer_every), (5e5, Some(2e3), 3));
    assert_eq!(config.rope_scaling, Some(RopeScaling::linear(4.0)));
    let default = json!({"rope_parameters": null, "layer_types": null});
    let config = changed("gemma3", default, |_| ()).expect("a model").config;
    assert_eq!((config.rope_theta, config.local_rope_theta, config.global_layer_every), (1e6, Some(1e4), 6));
    let config = changed("gemma2", json!({"layer_types": null}), |_| ()).expect("a model").config;
    assert_eq!((config.global_layer_every, config.local_rope_theta), (2, None));
    let config = changed("gemma2", json!({"sliding_window": null}), |_| ()).expect("a model").config;
    assert_eq!((config.attention_window, config.global_layer_every), (0, 0));
}

#[test]
fn every_exportable_variant_survives_a_round_trip() {
    type Change = fn(&mut TransformerConfig);
    let variants: [(&str, Change); 6] = [
        ("gemma2", |config| (config.attention_scale, config.attention_softcap) = (None, 0.0)),
        ("gemma2", |config| (config.attention_window, config.global_layer_every) = (0, 0)),
        ("gemma2", |config| config.global_layer_every = 0),
        ("gemma3", |config| config.tie_embeddings = TieEmbeddings::None),
        ("gemma3", |config| (config.rope_scaling, config.global_layer_every) = (None, 2)),
        ("gemma3", |config| config.logits_softcap = 20.0),
    ];
    for (i, (family, change)) in variants.into_iter().enumerate() {
        let Imported { mut config, tokens, .. } = import(family);
        change(&mut config);
        round_trip(&config, &tokens, &format!("variant {i}"));
    }
}

#[test]
fn a_model_that_neither_version_computes_is_refused_with_the_reasons() {
    let refused = |change: fn(&mut TransformerConfig), wanted: &str| {
        let Imported { mut config, .. } = import("gemma2");
        change(&mut config);
        let error = hf::export_family(&config).expect_err("refused").to_string();
        assert!(error.contains(wanted), "{error}");
    };
    refused(|config| config.activation = FeedForwardActivation::SWIGLU, "model.activation is \"swiglu\"");
    refused(|config| config.local_rope_theta = Some(100.0), "model.local_rope_theta is 100.0");
    refused(|config| config.attention_scale = Some(0.3), "with a whole number n");
    // Gemma 3 of transformers does not bound scores, whatever config.json says.
    refused(
        |config| (config.qk_norm, config.attention_softcap) = (true, 30.0),
        "model.attention_softcap is 30.0, but this family has 0.0",
    );
    refused(|config| config.norm = NormPlacement::Pre, "cannot be exported as mistral");
}

fn model(config: &TransformerConfig, device: &Device) -> DecoderOnly {
    config.init_decoder_only(3, DType::F32, device)
}

/// Positions beyond the window, layers with and without it, bounds of scores and logits.
#[test]
fn decoding_with_a_cache_equals_the_full_forward() {
    let (device, config) = (Device::flex(), gemma_config());
    let (model, rows) = (model(&config, &device), random_rows(2, 12..=12, 5));
    let v = config.target_vocab_size;
    let wanted = values(model.logits(&text_batch(&rows, 0, &device), None));
    let row = |batch: usize, position: usize| &wanted[(batch * 12 + position) * v..][..v];

    let prompts: Vec<i32> = rows.iter().flat_map(|row| row[..5].to_vec()).collect();
    let (logits, mut cache) = model.prefill(ids(&prompts, &device), ids(&[5, 5], &device));
    assert_close(&values(logits), &[row(0, 4), row(1, 4)].concat(), 1e-5, 1e-5, "after the prompt");
    for (position, next) in rows[0].iter().zip(&rows[1]).enumerate().skip(5) {
        let next = ids(&[*next.0, *next.1], &device);
        let logits = values(model.decode_step(next, &mut cache));
        let wanted = [row(0, position), row(1, position)].concat();
        assert_close(&logits, &wanted, 1e-5, 1e-5, &format!("position {position}"));
    }
}

/// Bounded scores in the CPU's attention, gated GELU, and logits in chunks, with their reference operators.
#[test]
fn fused_operators_give_the_losses_and_gradients_of_their_references() {
    let device = train_device();
    let rows = random_rows(5, 2..=14, 8);
    let run = |chunk_rows: usize, reference_operators: bool| {
        let _guard = Settings { reference_operators, ..Settings::current() }.install();
        let config = TransformerConfig { logits_chunk_rows: Some(chunk_rows), ..gemma_config() };
        let model: Transformer = config.init(3, DType::F32, &device);
        let loss = model.loss(&Batch::Text(text_batch(&rows, 0, &device)), 0.1, None);
        let found = (scalar(loss.loss_sum.clone()), scalar(loss.nll_sum));
        (found, gradients(&model, &(loss.loss_sum * 3.0).backward()))
    };

    let (wanted, wanted_gradients) = run(0, true);
    for chunk_rows in [0, 1, 7, 1000] {
        let (found, gradients) = run(chunk_rows, false);
        for (found, wanted) in [(found.0, wanted.0), (found.1, wanted.1)] {
            assert!((found / wanted - 1.0).abs() < 1e-5, "{found} instead of {wanted}");
        }
        for (path, wanted) in &wanted_gradients {
            assert_close(&gradients[path], wanted, 1e-4, 1e-6, path);
        }
    }
}

#[test]
fn memory_counts_the_norms_of_results() {
    let sandwich = TransformerConfig { architecture: Architecture::DecoderOnly, ..gemma_config() };
    let pre = TransformerConfig { norm: NormPlacement::Pre, ..sandwich.clone() };
    let norms = |config: &TransformerConfig| {
        let setting = flops::TrainSetting::plain(DType::F32);
        flops::train_bytes(config, &Device::flex(), [2, 0, 8], &setting).activations.norms
    };
    let (layers, d) = (sandwich.n_decoder_layers as u64, sandwich.d_model as u64);
    assert_eq!(norms(&sandwich) - norms(&pre), layers * 2 * 8 * 4 * 4 * d);
}
