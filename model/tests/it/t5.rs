//! What T5 has that other families lack. Its numbers are compared with `transformers` in `families` and `hf`.

use burn::tensor::{Device, Tensor};
use kiln_kernels::{AttentionConfig, AttentionMask, Projected, attention};
use kiln_model::hf::{self, Family, Imported};
use kiln_model::{Activation, FeedForwardActivation, Positions, TieEmbeddings, TransformerConfig};
use serde_json::{Value, json};

use crate::hf::{changed, import};
use crate::round_trip::round_trip;
use crate::support::{assert_close, ids, t5_like_config, values};

/// The encoder-decoder of T5's kind. Its buckets are few, so that short rows reach the wide ones.
pub(crate) fn t5_config() -> TransformerConfig {
    TransformerConfig {
        positions: Positions::Relative,
        relative_buckets: 6,
        relative_max_distance: 5,
        attention_scale: Some(1.0),
        head_dim: 6,
        n_heads: 2,
        n_kv_heads: 0,
        activation: FeedForwardActivation::GEGLU,
        tie_embeddings: TieEmbeddings::Inputs,
        ..t5_like_config()
    }
}

#[test]
fn unsupported_options_are_refused_by_name() {
    let refused = |change: Value, wanted: &str| {
        let error = changed("t5", change.clone(), |_| ()).expect_err("refused").to_string();
        assert!(error.contains(wanted), "{change}: {error}");
    };
    refused(
        json!({"feed_forward_proj": "gated-relu"}),
        "feed_forward_proj \"gated-relu\" is not supported; supported: relu",
    );
    refused(json!({"is_encoder_decoder": false}), "is_encoder_decoder false is not supported, only true");
    refused(json!({"relative_attention_num_buckets": 3}), "model.relative_buckets 3 is not from 4 to 65536");
    refused(json!({"relative_attention_max_distance": 3}), "model.relative_max_distance 3 is not above half");
    refused(json!({"d_kv": null}), "d_kv is missing");
    refused(json!({"model_type": "umt5"}), "model_type \"umt5\" is not supported");
    let wider = json!({"relative_attention_num_buckets": 10});
    refused(wider, "relative_attention_bias.weight is [8, 4], wanted [10, 4]");
}

/// Files of version 4 of `transformers` scale where they tie, and mT5 does neither.
#[test]
fn older_files_and_mt5_say_the_same_in_other_words() {
    let read = |folder: &str, change: Value| {
        let Imported { family, config, tokens, .. } = changed(folder, change, |_| ()).expect("a model");
        assert_eq!((family, tokens.decoder_start), (Family::T5, Some(0)));
        (config.tie_embeddings, config.scale_output, config.activation)
    };
    let (gelu, relu) = (FeedForwardActivation::GEGLU, Activation::Relu.into());
    let without = json!({"scale_decoder_outputs": null, "decoder_start_token_id": null});
    assert_eq!(read("t5", without), (TieEmbeddings::ThreeWay, true, relu));
    let untied = json!({"scale_decoder_outputs": null, "tie_word_embeddings": false});
    assert_eq!(read("t5-1.1", untied), (TieEmbeddings::Inputs, false, gelu));
    let multilingual = json!({"model_type": "mt5", "feed_forward_proj": null, "scale_decoder_outputs": null});
    assert_eq!(read("t5-1.1", multilingual), (TieEmbeddings::Inputs, false, gelu));
}

#[test]
fn every_exportable_variant_survives_a_round_trip() {
    type Change = fn(&mut TransformerConfig);
    let variants: [(&str, Change); 5] = [
        // As mT5 of version 5, which ties the output and never scales it.
        ("t5", |config| config.scale_output = false),
        ("t5", |config| config.activation = Activation::GeluTanh.into()),
        ("t5", |config| (config.n_decoder_layers, config.relative_buckets) = (1, 10)),
        ("t5-1.1", |config| config.activation = FeedForwardActivation::SWIGLU),
        ("t5-1.1", |config| (config.head_dim, config.max_positions) = (0, 1000)),
    ];
    for (i, (family, change)) in variants.into_iter().enumerate() {
        let Imported { mut config, tokens, .. } = import(family);
        change(&mut config);
        round_trip(&config, &tokens, &format!("variant {i}"));
    }
}

#[test]
fn a_model_that_t5_does_not_compute_is_refused_with_the_reasons() {
    let refused = |change: fn(&mut TransformerConfig), wanted: &str| {
        let Imported { mut config, .. } = import("t5");
        change(&mut config);
        let error = hf::export_family(&config).expect_err("refused").to_string();
        assert!(error.contains(wanted), "{error}");
    };
    refused(|config| config.attention_scale = None, "model.attention_scale is null, but this family has 1.0");
    refused(
        |config| config.tie_embeddings = TieEmbeddings::Inputs,
        "model.scale_output is true, but this family has false",
    );
    refused(|config| config.tie_embeddings = TieEmbeddings::Output, "model.tie_embeddings is \"output\"");
    refused(|config| config.scale_embedding = true, "model.scale_embedding is true");
}

/// Numbers that are added to scores, one set for all rows or one for each, with padding.
#[test]
fn a_bias_is_added_to_the_scores() {
    let device = Device::flex();
    let (b, h, t, k) = (2, 2, 3, 2);
    let numbers = |n: usize, seed: f32| (0..n).map(|i| ((i as f32 + seed) * 1.7).sin()).collect::<Vec<f32>>();
    let qkv = numbers(b * t * 3 * h * k, 1.0);
    for rows in [1, b] {
        let bias = numbers(rows * h * t * t, 2.0);
        let mask = AttentionMask {
            bias: Some(Tensor::<1>::from_data(bias.as_slice(), &device).reshape([rows, h, t, t])),
            ..AttentionMask::key_lengths(ids(&[3, 2], &device))
        };
        let config = AttentionConfig {
            batch_size: b,
            n_heads: h,
            n_kv_heads: h,
            causal: false,
            window: None,
            scale: Some(1.0),
            softcap: None,
        };
        let projected = Tensor::<1>::from_data(qkv.as_slice(), &device).reshape([b * t, 3 * h * k]);
        let found = values(attention(Projected::SelfAttention { qkv: projected }, &mask, None, &config));

        let at = |row: usize, part: usize, head: usize, c: usize| qkv[row * 3 * h * k + (part * h + head) * k + c];
        let mut wanted = Vec::new();
        for (batch, query, head) in (0..b * t * h).map(|i| (i / h / t, i / h % t, i % h)) {
            let n_keys = [3, 2][batch];
            let score = |key: usize| {
                let dot: f32 =
                    (0..k).map(|c| at(batch * t + query, 0, head, c) * at(batch * t + key, 1, head, c)).sum();
                dot + bias[((batch % rows * h + head) * t + query) * t + key]
            };
            let weights: Vec<f32> = (0..n_keys).map(|key| score(key).exp()).collect();
            let total: f32 = weights.iter().sum();
            let of =
                |c: usize| (0..n_keys).map(|key| weights[key] / total * at(batch * t + key, 2, head, c)).sum::<f32>();
            wanted.extend((0..k).map(of));
        }
        assert_close(&found, &wanted, 1e-5, 0.0, &format!("{rows} sets"));
    }
}
