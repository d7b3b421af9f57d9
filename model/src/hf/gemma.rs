//! Gemma 2 and the text models of Gemma 3, after the folders `gemma2` and `gemma3` in `transformers/models`. Their norms scale by
//! 1 more than their weights.
//!
//! | | norms of heads | bounds of scores and logits | layers with a window | wavelengths |
//! |---|---|---|---|---|
//! | Gemma 2 | no | 50 and 30 | every other one | one base |
//! | Gemma 3 | yes | none | five of six | two bases; stretched in layers without a window |

use serde_json::{Map, Value, json};

use super::Family;
use super::demands::{Demands, object};
use super::fields::Fields;
use super::rope::{Rope, computed_positions, written_positions};
use super::table::{Line, Skipped, Sublayer, Table};
use crate::config::{
    Architecture, FeedForwardActivation, InitScheme, NormKind, NormPlacement, Positions, RopeScaling, TieEmbeddings,
    TransformerConfig,
};

const EMBEDDING: &str = "model.embed_tokens.weight";
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

const SKIPPED: &[Skipped] = &[
    // Frequencies of the rotary positions, in files of older versions. Gemma 3 has a second set.
    Skipped { suffix: "rotary_emb.inv_freq", lost: None },
    Skipped { suffix: "rotary_emb_local.inv_freq", lost: None },
];

/// The version that a decoder-only model with sandwich norms is. [`write`] reports what it lacks.
pub(super) fn nearest(config: &TransformerConfig) -> Family {
    if config.qk_norm { Family::Gemma3 } else { Family::Gemma2 }
}

pub(super) fn table(config: &TransformerConfig) -> Table {
    let (d, f, v) = (config.d_model, config.d_ff, config.target_vocab_size);
    let (k, q, kv) = (config.head_dim(), config.n_heads * config.head_dim(), config.kv_heads() * config.head_dim());
    let mut table = Table { optional_prefix: "model.", skipped: SKIPPED, ..Table::default() };
    table.add_rows("embedding.table", EMBEDDING, [v, d], 0);

    let norm = Sublayer::RmsNormLessOne;
    let linear = if config.bias { Sublayer::Linear } else { Sublayer::LinearWithoutBias };
    let attention: [Line<'_>; 4] = [
        ("self_attention_norm", norm, d, &[("input_layernorm", d)]),
        ("self_attention_result_norm", norm, d, &[("post_attention_layernorm", d)]),
        (
            "self_attention.qkv",
            linear,
            d,
            &[("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)],
        ),
        ("self_attention.output", linear, q, &[("self_attn.o_proj", d)]),
    ];

    let head_norms: [Line<'_>; 2] = [
        ("self_attention.query_norm", norm, k, &[("self_attn.q_norm", k)]),
        ("self_attention.key_norm", norm, k, &[("self_attn.k_norm", k)]),
    ];
    let feed_forward: [Line<'_>; 4] = [
        ("feed_forward_norm", norm, d, &[("pre_feedforward_layernorm", d)]),
        ("feed_forward_result_norm", norm, d, &[("post_feedforward_layernorm", d)]),
        ("feed_forward.input", Sublayer::LinearWithoutBias, d, &[("mlp.gate_proj", f), ("mlp.up_proj", f)]),
        ("feed_forward.output", Sublayer::LinearWithoutBias, f, &[("mlp.down_proj", d)]),
    ];

    for i in 0..config.n_decoder_layers {
        let (ours, theirs) = (format!("decoder.layers.{i}."), format!("model.layers.{i}."));
        table.add(&ours, &theirs, &attention);
        if config.qk_norm {
            table.add(&ours, &theirs, &head_norms);
        }
        table.add(&ours, &theirs, &feed_forward);
    }

    table.add("decoder.", "model.", &[("norm", norm, d, &[("norm", d)])]);
    table.add_output(config.tie_embeddings, [d, v], EMBEDDING);
    table
}

pub(super) fn read(fields: &mut Fields<'_>, family: Family) -> TransformerConfig {
    let is_gemma3 = family == Family::Gemma3;
    let activations = [("gelu_pytorch_tanh", FeedForwardActivation::GEGLU), ("gelu_new", FeedForwardActivation::GEGLU)];
    // Older files call it hidden_act, which version 5 of transformers does not read.
    let activation = fields.choice("hidden_activation", &activations, 0);
    fields.only("attention_bias", false, "Kiln's model of this family has no biases");
    fields.only("use_bidirectional_attention", false, "Kiln's model of this family writes from left to right");

    let n_layers = fields.size("num_hidden_layers");
    let (attention_window, global_layer_every) = windows(fields, family, n_layers);
    let max_positions = fields.size_or("max_position_embeddings", if is_gemma3 { 131_072 } else { 8192 });
    fields.only("partial_rotary_factor", 1, "Kiln rotates whole heads");
    let (global, local) = if is_gemma3 {
        let global = Rope::read_global(fields, FULL, 1e6, max_positions);
        let local = Rope::read_local(fields, SLIDING, ("rope_local_base_freq", 1e4));
        (global, Some(local).filter(|_| attention_window > 0))
    } else {
        (Rope::read(fields, 1e4, max_positions), None)
    };

    let (d_model, n_heads) = (fields.size("hidden_size"), fields.size("num_attention_heads"));
    let (head_dim, evenly) = (fields.size_or("head_dim", 256), d_model / n_heads.max(1));
    let scale = fields.number_or("query_pre_attn_scalar", 256.0);
    let attention_softcap = softcap(fields, "attn_logit_softcapping", if is_gemma3 { 0.0 } else { 50.0 });
    if is_gemma3 && attention_softcap > 0.0 {
        fields.notes.push(format!(
            "attn_logit_softcapping {attention_softcap} has no effect: Gemma 3 of transformers does not bound scores"
        ));
    }
    TransformerConfig {
        architecture: Architecture::DecoderOnly,
        d_model,
        n_heads,
        n_kv_heads: fields.size_or("num_key_value_heads", 4),
        // 0 stands for the usual size.
        head_dim: if head_dim == evenly && head_dim * n_heads == d_model { 0 } else { head_dim },
        d_ff: fields.size("intermediate_size"),
        n_encoder_layers: 0,
        n_decoder_layers: n_layers,
        max_positions: computed_positions(max_positions, global.scaling.as_ref(), fields),
        norm: NormPlacement::Sandwich,
        norm_kind: NormKind::RmsNorm,
        norm_eps: fields.number_or("rms_norm_eps", 1e-6),
        scale_embedding: true,
        positions: Positions::Rotary,
        rope_theta: global.theta,
        rope_scaling: global.scaling,
        local_rope_theta: local,
        attention_window,
        global_layer_every,
        // The usual factor has a fused kernel.
        attention_scale: (scale != head_dim as f64).then(|| scale.powf(-0.5)),
        attention_softcap: if is_gemma3 { 0.0 } else { attention_softcap },
        logits_softcap: softcap(fields, "final_logit_softcapping", if is_gemma3 { 0.0 } else { 30.0 }),
        qk_norm: is_gemma3,
        activation,
        bias: false,
        dropout: 0.0,
        attention_dropout: fields.number_or("attention_dropout", 0.0),
        tie_embeddings: fields.tied_output_or(true),
        init: InitScheme::SmallNormal,
        ..TransformerConfig::default()
    }
    .with_vocab_size(fields.size("vocab_size"))
}

/// Reads a bound, 0 for none.
fn softcap(fields: &mut Fields<'_>, key: &str, default: f64) -> f64 {
    if fields.is_null(key) { 0.0 } else { fields.number_or(key, default) }
}

/// Reads the window, and the number of which every layer has none (0: all layers have it). `sliding_window_pattern` is of Gemma 3.
fn windows(fields: &mut Fields<'_>, family: Family, n_layers: usize) -> (usize, usize) {
    if fields.is_null("sliding_window") {
        return (0, 0);
    }
    let window = fields.size_or("sliding_window", 4096);
    let Some(types) = fields.get("layer_types").and_then(Value::as_array) else {
        let given = fields.size_or("sliding_window_pattern", if family == Family::Gemma3 { 6 } else { 2 });
        let pattern = if family == Family::Gemma3 { given } else { 2 };
        if given != pattern {
            fields.notes.push(format!(
                "sliding_window_pattern {given} has no effect: in Gemma 2 of transformers every second layer has no window"
            ));
        }
        return if pattern == 1 { (0, 0) } else { (window, if pattern > n_layers { 0 } else { pattern }) };
    };

    let every = types.iter().position(|kind| *kind == FULL).map_or(0, |first| first + 1);
    let regular = (1..=types.len()).map(|layer| every > 0 && layer.is_multiple_of(every));
    let known = types.iter().all(|kind| *kind == FULL || *kind == SLIDING);
    if types.len() != n_layers || !known || !types.iter().map(|kind| *kind == FULL).eq(regular) {
        fields.problems.push(format!(
            "layer_types of {} layers is not supported: after equally many layers of type {SLIDING} comes one of type {FULL}, in \
             {n_layers} layers",
            types.len()
        ));
    }
    match every {
        1 => (0, 0),
        every => (window, every),
    }
}

pub(super) fn write(config: &TransformerConfig, family: Family) -> (Map<String, Value>, Vec<String>) {
    let is_gemma3 = family == Family::Gemma3;
    let mut demands = Demands::new();
    demands.equal("norm", config.norm, NormPlacement::Sandwich);
    demands.equal("norm_kind", config.norm_kind, NormKind::RmsNorm);
    demands.equal("activation", config.activation, FeedForwardActivation::GEGLU);
    demands.equal("embedding_norm", config.embedding_norm, false);
    demands.equal("scale_embedding", config.scale_embedding, true);
    demands.equal("bias", config.bias, false);
    demands.equal("qkv_bias", config.has_qkv_bias(), false);
    demands.equal("feed_forward_bias", config.has_feed_forward_bias(), false);
    demands.equal("qk_norm", config.qk_norm, is_gemma3);
    if is_gemma3 {
        // transformers reads the field and does nothing with it.
        demands.equal("attention_softcap", config.attention_softcap, 0.0);
        let truncate = !matches!(config.rope_scaling, Some(RopeScaling::Yarn { truncate: false, .. }));
        demands.equal("rope_scaling.truncate", truncate, true);
    } else {
        demands.equal("local_rope_theta", config.local_rope_theta, None);
    }

    let kind = |layer| if config.is_global(layer) { FULL } else { SLIDING };
    let cap = |cap: f64| (cap > 0.0).then_some(cap);
    let global = Rope { theta: config.rope_theta, scaling: config.rope_scaling.clone() };
    let local = config.local_rope_theta.map_or_else(|| global.clone(), |theta| Rope { theta, scaling: None });
    let rope = match is_gemma3 {
        true => json!({FULL: global.table(), SLIDING: local.table()}),
        false => Value::Object(global.table()),
    };

    let scalar = config.attention_scale.map_or(config.head_dim() as f64, |scale| scale.powi(-2));
    let mut written = object(json!({
        "architectures": [if is_gemma3 { "Gemma3ForCausalLM" } else { "Gemma2ForCausalLM" }],
        "vocab_size": config.target_vocab_size,
        "max_position_embeddings": written_positions(config),
        "hidden_size": config.d_model,
        "head_dim": config.head_dim(),
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_decoder_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.kv_heads(),
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": config.norm_eps,
        "attention_bias": false,
        "attention_dropout": config.attention_dropout,
        "query_pre_attn_scalar": whole(scalar, &mut demands),
        "attn_logit_softcapping": cap(config.attention_softcap),
        "final_logit_softcapping": cap(config.logits_softcap),
        "sliding_window": config.window().unwrap_or(config.max_positions),
        "layer_types": (0..config.n_decoder_layers).map(kind).collect::<Vec<_>>(),
        // Version 5 of transformers reads the first of these, version 4 the others.
        "rope_parameters": rope,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_embeddings != TieEmbeddings::None,
    }));
    if is_gemma3 {
        written.insert("rope_local_base_freq".to_owned(), json!(local.theta));
        written.insert("use_bidirectional_attention".to_owned(), json!(false));
    }
    if config.rope_scaling.is_some() {
        written.insert("rope_scaling".to_owned(), Value::Object(global.table()));
    }
    (written, demands.0)
}

/// The whole number that `transformers` derives the factor of the scores from.
fn whole(scalar: f64, demands: &mut Demands) -> u64 {
    if (scalar - scalar.round()).abs() > 1e-9 * scalar {
        demands.0.push(format!(
            "model.attention_scale is 1 / sqrt({scalar}), but this family has 1 / sqrt(n) with a whole number n"
        ));
    }
    scalar.round() as u64
}
