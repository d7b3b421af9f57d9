//! Llama, after `transformers/models/llama`.

use serde_json::{Map, Value, json};

use super::demands::{Demands, object};
use super::fields::Fields;
use super::table::{Line, Skipped, Sublayer, Table};
use crate::config::{
    Architecture, FeedForwardActivation, InitScheme, NormKind, NormPlacement, Positions, TieEmbeddings,
    TransformerConfig,
};

const SKIPPED: &[Skipped] = &[
    // Frequencies of the rotary positions, in files of older versions.
    Skipped { suffix: "rotary_emb.inv_freq", lost: None },
];

pub(super) fn table(config: &TransformerConfig) -> Table {
    let (d, f, v) = (config.d_model, config.d_ff, config.target_vocab_size);
    let kv = config.kv_heads() * config.head_dim();
    let mut table = Table { optional_prefix: "model.", skipped: SKIPPED, ..Table::default() };
    table.add_rows("embedding.table", "model.embed_tokens.weight", [v, d], 0);
    let linear = if config.bias { Sublayer::Linear } else { Sublayer::LinearWithoutBias };

    let layer: [Line<'_>; 6] = [
        ("self_attention_norm", Sublayer::RmsNorm, d, &[("input_layernorm", d)]),
        (
            "self_attention.qkv",
            linear,
            d,
            &[("self_attn.q_proj", d), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)],
        ),
        ("self_attention.output", linear, d, &[("self_attn.o_proj", d)]),
        ("feed_forward_norm", Sublayer::RmsNorm, d, &[("post_attention_layernorm", d)]),
        ("feed_forward.input", linear, d, &[("mlp.gate_proj", f), ("mlp.up_proj", f)]),
        ("feed_forward.output", linear, f, &[("mlp.down_proj", d)]),
    ];
    for i in 0..config.n_decoder_layers {
        table.add(&format!("decoder.layers.{i}."), &format!("model.layers.{i}."), &layer);
    }

    table.add("decoder.", "model.", &[("norm", Sublayer::RmsNorm, d, &[("norm", d)])]);
    table.add_output(config.tie_embeddings, [d, v], "model.embed_tokens.weight");
    table
}

pub(super) fn read(fields: &mut Fields<'_>) -> TransformerConfig {
    let (d_model, n_heads) = (fields.size("hidden_size"), fields.size("num_attention_heads"));
    fields.choice("hidden_act", &[("silu", ()), ("swish", ())], 0);
    fields.only("head_dim", d_model / n_heads.max(1), "Kiln divides hidden_size evenly among heads");
    fields.only("pretraining_tp", 1, "slices of tensor parallelism change the order of sums");
    let bias = fields.flag_or("attention_bias", false);
    let mlp_bias = fields.flag_or("mlp_bias", false);
    fields.same([("attention_bias", &bias), ("mlp_bias", &mlp_bias)], "Kiln's layers have all biases or none");

    TransformerConfig {
        architecture: Architecture::DecoderOnly,
        d_model,
        n_heads,
        n_kv_heads: fields.size_or("num_key_value_heads", n_heads),
        d_ff: fields.size("intermediate_size"),
        n_encoder_layers: 0,
        n_decoder_layers: fields.size("num_hidden_layers"),
        max_positions: fields.size_or("max_position_embeddings", 2048),
        norm: NormPlacement::Pre,
        norm_kind: NormKind::RmsNorm,
        norm_eps: fields.number_or("rms_norm_eps", 1e-6),
        scale_embedding: false,
        positions: Positions::Rotary,
        rope_theta: rope_theta(fields),
        activation: FeedForwardActivation::Swiglu,
        bias,
        dropout: 0.0,
        attention_dropout: fields.number_or("attention_dropout", 0.0),
        tie_embeddings: fields.tied_output_or(false),
        init: InitScheme::SmallNormal,
        ..TransformerConfig::default()
    }
    .with_vocab_size(fields.size("vocab_size"))
}

/// Reads the base of the wavelengths, from `rope_parameters` (version 5) or `rope_theta` and `rope_scaling` (version 4).
/// Scaled positions are refused.
fn rope_theta(fields: &mut Fields<'_>) -> f64 {
    let theta = fields.number_or("rope_theta", 10_000.0);
    let mut of_parameters = None;
    for key in ["rope_parameters", "rope_scaling"] {
        let Some(Value::Object(parameters)) = fields.get(key) else { continue };
        let kind = parameters.get("rope_type").or_else(|| parameters.get("type"));
        if let Some(kind) = kind.filter(|kind| kind.as_str() != Some("default")) {
            fields.problems.push(format!(
                "{key} of type {kind} is not supported; Kiln has unscaled rotary positions only (type \"default\")"
            ));
        }
        if let Some(factor) = parameters.get("partial_rotary_factor").filter(|factor| factor.as_f64() != Some(1.0)) {
            fields
                .problems
                .push(format!("{key}.partial_rotary_factor {factor} is not supported; Kiln rotates whole heads"));
        }
        of_parameters = of_parameters.or_else(|| parameters.get("rope_theta").and_then(Value::as_f64));
    }
    of_parameters.unwrap_or(theta)
}

pub(super) fn write(config: &TransformerConfig) -> (Map<String, Value>, Vec<String>) {
    let mut demands = Demands::new();
    demands.equal("norm", config.norm, NormPlacement::Pre);
    demands.equal("norm_kind", config.norm_kind, NormKind::RmsNorm);
    demands.equal("activation", config.activation, FeedForwardActivation::Swiglu);
    demands.equal("embedding_norm", config.embedding_norm, false);
    demands.equal("scale_embedding", config.scale_embedding, false);

    let written = object(json!({
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": config.target_vocab_size,
        "max_position_embeddings": config.max_positions,
        "hidden_size": config.d_model,
        "head_dim": config.head_dim(),
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_decoder_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.kv_heads(),
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "attention_bias": config.bias,
        "mlp_bias": config.bias,
        "attention_dropout": config.attention_dropout,
        // Version 5 of transformers reads the first of these, version 4 the second.
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_embeddings != TieEmbeddings::None,
    }));
    (written, demands.0)
}
