//! GPT-2, after `transformers/models/gpt2`.

use kiln_kernels::Activation;
use serde_json::{Map, Value, json};

use super::demands::{Demands, object};
use super::fields::Fields;
use super::table::{Line, Skipped, Sublayer, Table};
use crate::config::{Architecture, InitScheme, NormKind, NormPlacement, Positions, TieEmbeddings, TransformerConfig};

const SKIPPED: &[Skipped] = &[
    // The causal mask and its fill value, in files of older versions.
    Skipped { suffix: ".attn.bias", lost: None },
    Skipped { suffix: ".attn.masked_bias", lost: None },
    Skipped { suffix: ".crossattention.bias", lost: None },
];

pub(super) fn table(config: &TransformerConfig) -> Table {
    let (d, f, v) = (config.d_model, config.d_ff, config.target_vocab_size);
    let mut table = Table { optional_prefix: "transformer.", skipped: SKIPPED, ..Table::default() };
    table.add_rows("embedding.table", "transformer.wte.weight", [v, d], 0);
    table.add_rows("positions.table", "transformer.wpe.weight", [config.max_positions, d], 0);

    let layer: [Line<'_>; 6] = [
        ("self_attention_norm", Sublayer::LayerNorm, d, &[("ln_1", d)]),
        ("self_attention.qkv", Sublayer::Conv1d, d, &[("attn.c_attn", 3 * d)]),
        ("self_attention.output", Sublayer::Conv1d, d, &[("attn.c_proj", d)]),
        ("feed_forward_norm", Sublayer::LayerNorm, d, &[("ln_2", d)]),
        ("feed_forward.input", Sublayer::Conv1d, d, &[("mlp.c_fc", f)]),
        ("feed_forward.output", Sublayer::Conv1d, f, &[("mlp.c_proj", d)]),
    ];
    for i in 0..config.n_decoder_layers {
        table.add(&format!("decoder.layers.{i}."), &format!("transformer.h.{i}."), &layer);
    }

    table.add("decoder.", "transformer.", &[("norm", Sublayer::LayerNorm, d, &[("ln_f", d)])]);
    table.add_output(config.tie_embeddings, [d, v], "transformer.wte.weight");
    table
}

pub(super) fn read(fields: &mut Fields<'_>) -> TransformerConfig {
    let d_model = fields.size("n_embd");
    fields.only("scale_attn_weights", true, "Kiln divides scores by the square root of the head dimension");
    fields.only("scale_attn_by_inverse_layer_idx", false, "Kiln scales all layers alike");
    fields.only("add_cross_attention", false, "Kiln's GPT-2 has no cross-attention");

    TransformerConfig {
        architecture: Architecture::DecoderOnly,
        d_model,
        n_heads: fields.size("n_head"),
        d_ff: fields.size_or("n_inner", 4 * d_model),
        n_encoder_layers: 0,
        n_decoder_layers: fields.size("n_layer"),
        max_positions: fields.size("n_positions"),
        norm: NormPlacement::Pre,
        norm_eps: fields.number_or("layer_norm_epsilon", 1e-5),
        scale_embedding: false,
        positions: Positions::Learned,
        activation: fields.activation_or("activation_function", Activation::GeluTanh),
        dropout: fields.one_dropout([("resid_pdrop", 0.1), ("embd_pdrop", 0.1)]),
        activation_dropout: Some(0.0),
        attention_dropout: fields.number_or("attn_pdrop", 0.1),
        tie_embeddings: fields.tied_output_or(true),
        init: InitScheme::SmallNormal,
        ..TransformerConfig::default()
    }
    .with_vocab_size(fields.size("vocab_size"))
}

pub(super) fn write(config: &TransformerConfig) -> (Map<String, Value>, Vec<String>) {
    let mut demands = Demands::new();
    demands.equal("norm", config.norm, NormPlacement::Pre);
    demands.equal("norm_kind", config.norm_kind, NormKind::LayerNorm);
    demands.equal("positions", config.positions, Positions::Learned);
    demands.equal("bias", config.bias, true);
    demands.equal("n_kv_heads", config.kv_heads(), config.n_heads);
    demands.plain_attention(config);
    demands.equal("embedding_norm", config.embedding_norm, false);
    demands.equal("scale_embedding", config.scale_embedding, false);

    let activation = demands.activation(config.activation);
    let written = object(json!({
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.target_vocab_size,
        "n_positions": config.max_positions,
        "n_embd": config.d_model,
        "n_layer": config.n_decoder_layers,
        "n_head": config.n_heads,
        "n_inner": config.d_ff,
        "activation_function": activation,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings != TieEmbeddings::None,
    }));
    (written, demands.0)
}
