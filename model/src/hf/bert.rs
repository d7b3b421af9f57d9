//! BERT, after `transformers/models/bert`.

use serde_json::{Map, Value, json};

use super::demands::{ACTIVATIONS, Demands, GELU, object};
use super::fields::Fields;
use super::table::{Layout, Line, Skipped, Sublayer, Table};
use crate::config::{Architecture, InitScheme, NormKind, NormPlacement, Positions, TieEmbeddings, TransformerConfig};

const SKIPPED: &[Skipped] = &[
    // Belongs to an untied head: see `add_head`. In a tied head it is a parameter, and parameters are looked up first.
    Skipped { suffix: "cls.predictions.bias", lost: None },
    Skipped { suffix: "embeddings.position_ids", lost: None },
    Skipped { suffix: "embeddings.token_type_ids", lost: None },
    Skipped {
        suffix: "seq_relationship.weight",
        lost: Some("Kiln does not predict whether one sentence follows another"),
    },
    Skipped {
        suffix: "seq_relationship.bias",
        lost: Some("Kiln does not predict whether one sentence follows another"),
    },
];

pub(super) fn table(config: &TransformerConfig) -> Table {
    let (d, f, v) = (config.d_model, config.d_ff, config.source_vocab_size);
    let mut table = Table { optional_prefix: "bert.", skipped: SKIPPED, ..Table::default() };
    table.add_rows("embedding.table", "bert.embeddings.word_embeddings.weight", [v, d], 0);
    let positions = [config.max_positions, d];
    table.add_rows("positions.table", "bert.embeddings.position_embeddings.weight", positions, 0);
    let types = [config.n_token_types, d];
    table.add_rows("token_types.table", "bert.embeddings.token_type_embeddings.weight", types, 0);
    table.add("", "bert.embeddings.", &[("embedding_norm", Sublayer::LayerNorm, d, &[("LayerNorm", d)])]);

    let layer: [Line<'_>; 6] = [
        (
            "self_attention.qkv",
            Sublayer::Linear,
            d,
            &[("attention.self.query", d), ("attention.self.key", d), ("attention.self.value", d)],
        ),
        ("self_attention.output", Sublayer::Linear, d, &[("attention.output.dense", d)]),
        ("self_attention_norm", Sublayer::LayerNorm, d, &[("attention.output.LayerNorm", d)]),
        ("feed_forward.input", Sublayer::Linear, d, &[("intermediate.dense", f)]),
        ("feed_forward.output", Sublayer::Linear, f, &[("output.dense", d)]),
        ("feed_forward_norm", Sublayer::LayerNorm, d, &[("output.LayerNorm", d)]),
    ];
    for i in 0..config.n_encoder_layers {
        table.add(&format!("encoder.layers.{i}."), &format!("bert.encoder.layer.{i}."), &layer);
    }

    if config.pooler {
        table.add("", "bert.", &[("pooler", Sublayer::Linear, d, &[("pooler.dense", d)])]);
    }
    if config.mlm_head {
        add_head(&mut table, config, [d, v]);
    }
    table
}

/// Adds the head that predicts masked tokens.
fn add_head(table: &mut Table, config: &TransformerConfig, [d, v]: [usize; 2]) {
    let head: [Line<'_>; 2] = [
        ("transform", Sublayer::Linear, d, &[("transform.dense", d)]),
        ("norm", Sublayer::LayerNorm, d, &[("transform.LayerNorm", d)]),
    ];
    table.add("head.", "cls.predictions.", &head);
    if config.tie_embeddings == TieEmbeddings::None {
        table.add("", "cls.predictions.", &[("head.output", Sublayer::LinearWithoutBias, d, &[("decoder", v)])]);
        // transformers keeps two biases in this case, and adds this one.
        table.add_one("head.bias", "cls.predictions.decoder.bias", Layout::Vector, v);
    } else {
        table.add_one("head.bias", "cls.predictions.bias", Layout::Vector, v);
        table.add_copy("cls.predictions.decoder.bias", "cls.predictions.bias");
        table.add_copy("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight");
    }
}

/// `has` looks for a tensor by the end of its name: `config.json` mentions neither the pooler nor, for the bare model, the
/// head.
pub(super) fn read(fields: &mut Fields<'_>, has: &dyn Fn(&str) -> bool) -> TransformerConfig {
    fields.only("position_embedding_type", "absolute", "Kiln's encoder adds a vector per position");
    fields.only("is_decoder", false, "Kiln's BERT is an encoder");
    fields.only("add_cross_attention", false, "Kiln's BERT has no cross-attention");

    TransformerConfig {
        architecture: Architecture::EncoderOnly,
        d_model: fields.size("hidden_size"),
        n_heads: fields.size("num_attention_heads"),
        d_ff: fields.size("intermediate_size"),
        n_encoder_layers: fields.size("num_hidden_layers"),
        n_decoder_layers: 0,
        max_positions: fields.size("max_position_embeddings"),
        norm: NormPlacement::Post,
        norm_eps: fields.number_or("layer_norm_eps", 1e-12),
        embedding_norm: true,
        scale_embedding: false,
        positions: Positions::Learned,
        activation: fields.choice("hidden_act", &ACTIVATIONS, GELU),
        n_token_types: fields.size_or("type_vocab_size", 2),
        mlm_head: is_masked_lm(fields) || has("cls.predictions.transform.dense.weight"),
        pooler: has("pooler.dense.weight"),
        dropout: fields.number_or("hidden_dropout_prob", 0.1),
        activation_dropout: Some(0.0),
        attention_dropout: fields.number_or("attention_probs_dropout_prob", 0.1),
        tie_embeddings: fields.tied_output_or(true),
        init: InitScheme::SmallNormal,
        ..TransformerConfig::default()
    }
    .with_vocab_size(fields.size("vocab_size"))
}

/// Whether `config.json` promises the head, so that a missing one is an error.
fn is_masked_lm(fields: &Fields<'_>) -> bool {
    let names = fields.get("architectures").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    names.into_iter().any(|name| matches!(name, "BertForMaskedLM" | "BertForPreTraining"))
}

pub(super) fn write(config: &TransformerConfig) -> (Map<String, Value>, Vec<String>) {
    let mut demands = Demands::new();
    demands.equal("norm", config.norm, NormPlacement::Post);
    demands.equal("norm_kind", config.norm_kind, NormKind::LayerNorm);
    demands.equal("positions", config.positions, Positions::Learned);
    demands.equal("bias", config.bias, true);
    demands.equal("n_kv_heads", config.kv_heads(), config.n_heads);
    demands.equal("embedding_norm", config.embedding_norm, true);
    demands.equal("scale_embedding", config.scale_embedding, false);
    if config.n_token_types == 0 {
        demands.0.push("model.n_token_types is 0, but this family has at least 1".to_owned());
    }

    let activation = demands.activation(config.activation);
    let written = object(json!({
        "architectures": [if config.mlm_head { "BertForMaskedLM" } else { "BertModel" }],
        "vocab_size": config.source_vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_encoder_layers,
        "num_attention_heads": config.n_heads,
        "intermediate_size": config.d_ff,
        "hidden_act": activation,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.max_positions,
        "type_vocab_size": config.n_token_types,
        "layer_norm_eps": config.norm_eps,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": config.tie_embeddings != TieEmbeddings::None,
    }));
    (written, demands.0)
}
