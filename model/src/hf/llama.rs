//! Llama and its relatives: Mistral, Qwen 2 and Qwen 3, after the folders of these names in `transformers/models`.
//!
//! | | biases of q, k and v | norms of heads | sliding window |
//! |---|---|---|---|
//! | Llama | with `attention_bias`; `mlp_bias` is of the feed-forward part | no | no |
//! | Mistral | no | no | `sliding_window` |
//! | Qwen 2 | yes | no | `sliding_window` if `use_sliding_window` |
//! | Qwen 3 | no | yes | `sliding_window` if `use_sliding_window` |

use serde_json::{Map, Value, json};

use super::demands::{Demands, object};
use super::fields::Fields;
use super::rope::{Rope, computed_positions, written_positions};
use super::table::{Line, Skipped, Sublayer, Table};
use super::{Family, gemma};
use crate::config::{
    Architecture, FeedForwardActivation, InitScheme, NormKind, NormPlacement, Positions, TieEmbeddings,
    TransformerConfig,
};

const SKIPPED: &[Skipped] = &[
    // Frequencies of the rotary positions, in files of older versions.
    Skipped { suffix: "rotary_emb.inv_freq", lost: None },
];

/// The relative that computes the same as a decoder-only model with rotary positions. [`write`] reports what it lacks.
pub(super) fn nearest(config: &TransformerConfig) -> Family {
    if config.norm == NormPlacement::Sandwich {
        return gemma::nearest(config);
    }
    match (config.qk_norm, config.has_qkv_bias() && !config.bias, config.window()) {
        (true, ..) => Family::Qwen3,
        (false, true, _) => Family::Qwen2,
        (false, false, Some(_)) => Family::Mistral,
        (false, false, None) => Family::Llama,
    }
}

pub(super) fn table(config: &TransformerConfig) -> Table {
    let (d, f, v) = (config.d_model, config.d_ff, config.target_vocab_size);
    let (k, q, kv) = (config.head_dim(), config.n_heads * config.head_dim(), config.kv_heads() * config.head_dim());
    let mut table = Table { optional_prefix: "model.", skipped: SKIPPED, ..Table::default() };
    table.add_rows("embedding.table", "model.embed_tokens.weight", [v, d], 0);
    let with_bias = |bias: bool| if bias { Sublayer::Linear } else { Sublayer::LinearWithoutBias };
    let (linear, inner) = (with_bias(config.bias), with_bias(config.has_feed_forward_bias()));

    let attention: [Line<'_>; 2] = [
        ("self_attention_norm", Sublayer::RmsNorm, d, &[("input_layernorm", d)]),
        (
            "self_attention.qkv",
            with_bias(config.has_qkv_bias()),
            d,
            &[("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)],
        ),
    ];
    let head_norms: [Line<'_>; 2] = [
        ("self_attention.query_norm", Sublayer::RmsNorm, k, &[("self_attn.q_norm", k)]),
        ("self_attention.key_norm", Sublayer::RmsNorm, k, &[("self_attn.k_norm", k)]),
    ];
    let rest: [Line<'_>; 4] = [
        ("self_attention.output", linear, q, &[("self_attn.o_proj", d)]),
        ("feed_forward_norm", Sublayer::RmsNorm, d, &[("post_attention_layernorm", d)]),
        ("feed_forward.input", inner, d, &[("mlp.gate_proj", f), ("mlp.up_proj", f)]),
        ("feed_forward.output", inner, f, &[("mlp.down_proj", d)]),
    ];
    for i in 0..config.n_decoder_layers {
        let (ours, theirs) = (format!("decoder.layers.{i}."), format!("model.layers.{i}."));
        table.add(&ours, &theirs, &attention);
        if config.qk_norm {
            table.add(&ours, &theirs, &head_norms);
        }
        table.add(&ours, &theirs, &rest);
    }

    table.add("decoder.", "model.", &[("norm", Sublayer::RmsNorm, d, &[("norm", d)])]);
    table.add_output(config.tie_embeddings, [d, v], "model.embed_tokens.weight");
    table
}

pub(super) fn read(fields: &mut Fields<'_>, family: Family) -> TransformerConfig {
    let (d_model, n_heads) = (fields.size("hidden_size"), fields.size("num_attention_heads"));
    fields.choice("hidden_act", &[("silu", ()), ("swish", ())], 0);
    fields.only("pretraining_tp", 1, "slices of tensor parallelism change the order of sums");
    check_layer_types(fields);
    let evenly = d_model / n_heads.max(1);
    let head_dim = fields.size_or("head_dim", if family == Family::Qwen3 { 128 } else { evenly });

    let has_bias = fields.flag_or("attention_bias", false);
    let mlp_bias = fields.flag_or("mlp_bias", false);
    let bias = match family {
        Family::Llama => has_bias,
        _ => {
            fields.only("attention_bias", false, "Kiln's model of this family has no such biases");
            fields.only("mlp_bias", false, "Kiln's model of this family has no such biases");
            false
        }
    };

    let n_layers = fields.size("num_hidden_layers");
    let usual_positions = match family {
        Family::Mistral => 131_072,
        Family::Qwen2 | Family::Qwen3 => 32_768,
        _ => 2048,
    };
    let max_positions = fields.size_or("max_position_embeddings", usual_positions);
    fields.only("partial_rotary_factor", 1, "Kiln rotates whole heads");
    let Rope { theta: rope_theta, scaling: rope_scaling } = Rope::read(fields, 10_000.0, max_positions);
    TransformerConfig {
        architecture: Architecture::DecoderOnly,
        d_model,
        n_heads,
        n_kv_heads: fields.size_or("num_key_value_heads", n_heads),
        // 0 stands for the usual size.
        head_dim: if head_dim == evenly && head_dim * n_heads == d_model { 0 } else { head_dim },
        d_ff: fields.size("intermediate_size"),
        n_encoder_layers: 0,
        n_decoder_layers: n_layers,
        max_positions: computed_positions(max_positions, rope_scaling.as_ref(), fields),
        norm: NormPlacement::Pre,
        norm_kind: NormKind::RmsNorm,
        norm_eps: fields.number_or("rms_norm_eps", 1e-6),
        scale_embedding: false,
        positions: Positions::Rotary,
        rope_theta,
        rope_scaling,
        attention_window: window(fields, family, n_layers),
        qk_norm: family == Family::Qwen3,
        activation: FeedForwardActivation::SWIGLU,
        bias,
        qkv_bias: (family == Family::Qwen2).then_some(true),
        feed_forward_bias: (family == Family::Llama && mlp_bias != bias).then_some(mlp_bias),
        dropout: 0.0,
        attention_dropout: fields.number_or("attention_dropout", 0.0),
        tie_embeddings: fields.tied_output_or(false),
        init: InitScheme::SmallNormal,
        ..TransformerConfig::default()
    }
    .with_vocab_size(fields.size("vocab_size"))
}

/// Reads the sliding window, 0 for none. Qwen's upper layers may have one while the others have none; Kiln's layers are
/// alike.
fn window(fields: &mut Fields<'_>, family: Family, n_layers: usize) -> usize {
    let slides = match family {
        Family::Mistral => true,
        Family::Qwen2 | Family::Qwen3 => fields.flag_or("use_sliding_window", false),
        _ => false,
    };
    // `null` means none, and an absent field the default of `transformers`.
    if !slides || fields.is_null("sliding_window") {
        return 0;
    }
    let window = fields.size_or("sliding_window", 4096);

    let n_full = match (family, fields.get("layer_types")) {
        (_, Some(Value::Array(types))) => types.iter().filter(|kind| **kind == "full_attention").count(),
        (Family::Mistral, _) => 0,
        _ => fields.size_or("max_window_layers", 28),
    };
    match n_full {
        0 => window,
        n if n >= n_layers => 0,
        n => {
            fields.problems.push(format!(
                "{n} of {n_layers} layers without a sliding window (layer_types, max_window_layers) are not supported: Kiln's \
                 layers all have a window, or none"
            ));
            0
        }
    }
}

/// Refuses layers of a kind that Kiln does not have.
fn check_layer_types(fields: &mut Fields<'_>) {
    let Some(types) = fields.get("layer_types").and_then(Value::as_array) else { return };
    let known = |kind: &&Value| matches!(kind.as_str(), Some("full_attention" | "sliding_attention"));
    if let Some(other) = types.iter().find(|kind| !known(kind)) {
        fields.problems.push(format!(
            "layer_types has {other}, which is not supported; supported: \"full_attention\", \"sliding_attention\""
        ));
    }
}

pub(super) fn write(config: &TransformerConfig, family: Family) -> (Map<String, Value>, Vec<String>) {
    let mut demands = Demands::new();
    demands.equal("norm", config.norm, NormPlacement::Pre);
    demands.equal("norm_kind", config.norm_kind, NormKind::RmsNorm);
    demands.equal("activation", config.activation, FeedForwardActivation::SWIGLU);
    demands.equal("embedding_norm", config.embedding_norm, false);
    demands.equal("scale_embedding", config.scale_embedding, false);
    demands.plain_scores(config);
    demands.equal("global_layer_every", config.global_layer_every, 0);
    demands.equal("local_rope_theta", config.local_rope_theta, None);
    demands.equal("qk_norm", config.qk_norm, family == Family::Qwen3);
    if family == Family::Llama {
        demands.equal("qkv_bias", config.has_qkv_bias(), config.bias);
    } else {
        demands.equal("bias", config.bias, false);
        demands.equal("feed_forward_bias", config.has_feed_forward_bias(), false);
        demands.equal("qkv_bias", config.has_qkv_bias(), family == Family::Qwen2);
    }

    let rope = Rope { theta: config.rope_theta, scaling: config.rope_scaling.clone() }.table();
    let architecture = match family {
        Family::Mistral => "MistralForCausalLM",
        Family::Qwen2 => "Qwen2ForCausalLM",
        Family::Qwen3 => "Qwen3ForCausalLM",
        _ => "LlamaForCausalLM",
    };
    let mut written = object(json!({
        "architectures": [architecture],
        "vocab_size": config.target_vocab_size,
        "max_position_embeddings": written_positions(config),
        "hidden_size": config.d_model,
        "head_dim": config.head_dim(),
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_decoder_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.kv_heads(),
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "attention_dropout": config.attention_dropout,
        // Version 5 of transformers reads the first of these, version 4 the others.
        "rope_parameters": rope.clone(),
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_embeddings != TieEmbeddings::None,
    }));
    if config.rope_scaling.is_some() {
        written.insert("rope_scaling".to_owned(), Value::Object(rope));
    }
    match family {
        Family::Llama => {
            written.extend(object(json!({"attention_bias": config.bias, "mlp_bias": config.has_feed_forward_bias()})));
        }
        Family::Mistral => written.extend(object(json!({"sliding_window": config.window()}))),
        _ => written.extend(object(json!({
            "use_sliding_window": config.window().is_some(),
            "sliding_window": config.window(),
            "max_window_layers": if config.window().is_some() { 0 } else { config.n_decoder_layers },
        }))),
    }
    if family == Family::Qwen3 {
        written.insert("attention_bias".to_owned(), json!(false));
    }
    (written, demands.0)
}
