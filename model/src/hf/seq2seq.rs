//! BART, Marian, Pegasus and M2M-100, after the folders `bart`, `marian`, `pegasus` and `m2m_100` in `transformers/models`. They
//! differ only in positions, in the place of norms and in a bias on the logits.

use kiln_kernels::Activation;
use serde_json::{Map, Value, json};

use super::demands::{Demands, object};
use super::fields::Fields;
use super::table::{Layout, Line, OUTPUT, Skipped, Sublayer, Table};
use crate::config::{Architecture, InitScheme, NormKind, NormPlacement, Positions, TieEmbeddings, TransformerConfig};
use crate::named_tensor::{Elements, FloatType, LazyTensor};
use crate::position::sines_then_cosines;

/// The default of `nn.LayerNorm`: `transformers` has no field for it in these families.
const NORM_EPS: f64 = 1e-5;

/// BART's positions begin at 2. The rows before are never looked up.
const UNUSED_POSITIONS: usize = 2;

const BART_SKIPPED: &[Skipped] = &[
    // The number of a file format of fairseq, in files converted from it.
    Skipped { suffix: "encoder.version", lost: None },
    Skipped { suffix: "decoder.version", lost: None },
];

const MARIAN_SKIPPED: &[Skipped] = &[
    // Sines and cosines. `marian::move_start_back` reads what the first of the decoder's has beyond them.
    Skipped { suffix: "embed_positions.weight", lost: None },
    Skipped { suffix: "embed_positions.weights", lost: None },
    // The number of a file format of fairseq, in files converted from it.
    Skipped { suffix: "encoder.version", lost: None },
    Skipped { suffix: "decoder.version", lost: None },
];

pub(super) fn table(config: &TransformerConfig) -> Table {
    let (d, f) = (config.d_model, config.d_ff);
    let learned = config.positions == Positions::Learned;
    let skipped = if learned { BART_SKIPPED } else { MARIAN_SKIPPED };
    let mut table = Table { optional_prefix: "model.", skipped, ..Table::default() };
    add_embeddings(&mut table, config);

    for (ours, theirs) in [("source", "encoder"), ("target", "decoder")] {
        if learned {
            let (ours, theirs) = (format!("{ours}_positions.table"), format!("model.{theirs}.embed_positions.weight"));
            table.add_rows(&ours, &theirs, [config.max_positions, d], UNUSED_POSITIONS);
        }
        if config.embedding_norm {
            let line = [("embedding_norm", Sublayer::LayerNorm, d, &[("layernorm_embedding", d)][..])];
            table.add(&format!("{ours}_"), &format!("model.{theirs}."), &line);
        }
        if config.norm == NormPlacement::Pre {
            let line = [("norm", Sublayer::LayerNorm, d, &[("layer_norm", d)][..])];
            table.add(&format!("{theirs}."), &format!("model.{theirs}."), &line);
        }
    }

    let self_attention: [Line<'_>; 3] = [
        (
            "self_attention.qkv",
            Sublayer::Linear,
            d,
            &[("self_attn.q_proj", d), ("self_attn.k_proj", d), ("self_attn.v_proj", d)],
        ),
        ("self_attention.output", Sublayer::Linear, d, &[("self_attn.out_proj", d)]),
        ("self_attention_norm", Sublayer::LayerNorm, d, &[("self_attn_layer_norm", d)]),
    ];
    let cross_attention: [Line<'_>; 4] = [
        ("cross_attention.query", Sublayer::Linear, d, &[("encoder_attn.q_proj", d)]),
        ("cross_attention.key_value", Sublayer::Linear, d, &[("encoder_attn.k_proj", d), ("encoder_attn.v_proj", d)]),
        ("cross_attention.output", Sublayer::Linear, d, &[("encoder_attn.out_proj", d)]),
        ("cross_attention_norm", Sublayer::LayerNorm, d, &[("encoder_attn_layer_norm", d)]),
    ];
    let feed_forward: [Line<'_>; 3] = [
        ("feed_forward.input", Sublayer::Linear, d, &[("fc1", f)]),
        ("feed_forward.output", Sublayer::Linear, f, &[("fc2", d)]),
        ("feed_forward_norm", Sublayer::LayerNorm, d, &[("final_layer_norm", d)]),
    ];

    for i in 0..config.n_encoder_layers {
        let (ours, theirs) = (format!("encoder.layers.{i}."), format!("model.encoder.layers.{i}."));
        table.add(&ours, &theirs, &self_attention);
        table.add(&ours, &theirs, &feed_forward);
    }
    for i in 0..config.n_decoder_layers {
        let (ours, theirs) = (format!("decoder.layers.{i}."), format!("model.decoder.layers.{i}."));
        table.add(&ours, &theirs, &self_attention);
        table.add(&ours, &theirs, &cross_attention);
        table.add(&ours, &theirs, &feed_forward);
    }
    table
}

/// Adds the token tables, the output projection and the bias on the logits.
fn add_embeddings(table: &mut Table, config: &TransformerConfig) {
    const ENCODER: &str = "model.encoder.embed_tokens.weight";
    const DECODER: &str = "model.decoder.embed_tokens.weight";
    let (d, source, target) = (config.d_model, config.source_vocab_size, config.target_vocab_size);
    if config.tie_embeddings == TieEmbeddings::ThreeWay {
        table.add_rows("source_embedding.table", "model.shared.weight", [source, d], 0);
        for copy in [ENCODER, DECODER, OUTPUT] {
            table.add_copy(copy, "model.shared.weight");
        }
    } else {
        table.add_rows("source_embedding.table", ENCODER, [source, d], 0);
        table.add_rows("target_embedding.table", DECODER, [target, d], 0);
        table.add_output(config.tie_embeddings, [d, target], DECODER);
    }
    if config.final_logits_bias {
        table.add_one("final_logits_bias", "final_logits_bias", Layout::OneRow, target);
        table.zeros_if_absent();
    }
}

/// Sines and cosines, which Pegasus alone has in its files.
pub(super) fn stored_positions(config: &TransformerConfig) -> [LazyTensor<'static>; 2] {
    let (n, d) = (config.max_positions, config.d_model);
    ["encoder", "decoder"].map(|side| {
        let name = format!("model.{side}.embed_positions.weight");
        LazyTensor::new(name, vec![n, d], FloatType::F32, move || Elements::F32(sines_then_cosines(n, d)))
    })
}

pub(super) fn read_bart(fields: &mut Fields<'_>) -> TransformerConfig {
    fields.only("normalize_embedding", true, "transformers' BART always has this norm");
    fields.only("static_position_embeddings", false, "BART's positions are learned; Marian's are not");
    fields.only("extra_pos_embeddings", UNUSED_POSITIONS, "BART's positions begin at 2");
    fields.only("tie_word_embeddings", true, "BART shares one matrix between both sides and the output");
    let vocab_size = fields.size("vocab_size");
    TransformerConfig { positions: Positions::Learned, embedding_norm: true, ..read(fields) }
        .with_vocab_size(vocab_size)
}

pub(super) fn read_marian(fields: &mut Fields<'_>) -> TransformerConfig {
    fields.only("normalize_embedding", false, "transformers' Marian never has this norm");
    fields.only("static_position_embeddings", true, "Marian's positions are sines and cosines; BART's are learned");
    let source_vocab_size = fields.size("vocab_size");
    let target_vocab_size = fields.size_or("decoder_vocab_size", source_vocab_size);
    let shared = fields.flag_or("share_encoder_decoder_embeddings", true);
    let tied = fields.flag_or("tie_word_embeddings", true);
    let tie_embeddings = match (shared, tied) {
        (true, true) => TieEmbeddings::ThreeWay,
        (false, true) => TieEmbeddings::Output,
        (false, false) => TieEmbeddings::None,
        (true, false) => {
            fields.problems.push(
                "share_encoder_decoder_embeddings true with tie_word_embeddings false is not supported: Kiln shares all three \
                 matrices, target and output, or none"
                    .to_owned(),
            );
            TieEmbeddings::None
        }
    };
    let positions = Positions::SinusoidalHalves;
    TransformerConfig { positions, tie_embeddings, source_vocab_size, target_vocab_size, ..read(fields) }
}

pub(super) fn read_pegasus(fields: &mut Fields<'_>) -> TransformerConfig {
    // Published files have two fields more, which say what this family always is.
    fields.only("normalize_before", true, "transformers normalizes before each part in this family");
    fields.only("normalize_embedding", false, "Pegasus never has this norm");
    fields.only("add_final_layer_norm", true, "Pegasus always has a norm after the stacks");
    fields.only("static_position_embeddings", true, "Pegasus' positions are sines and cosines");
    fields.only("extra_pos_embeddings", 1, "Pegasus' positions begin at 0");
    fields.only("tie_word_embeddings", true, "Pegasus shares one matrix between both sides and the output");
    let vocab_size = fields.size("vocab_size");
    let (norm, positions) = (NormPlacement::Pre, Positions::SinusoidalHalves);
    TransformerConfig { norm, positions, ..read_shapes(fields) }.with_vocab_size(vocab_size)
}

pub(super) fn read_m2m_100(fields: &mut Fields<'_>) -> TransformerConfig {
    fields.only("tie_word_embeddings", true, "M2M-100 shares one matrix between both sides and the output");
    let vocab_size = fields.size("vocab_size");
    let activation = fields.activation_or("activation_function", Activation::Relu);
    let scale_embedding = fields.flag_or("scale_embedding", true);
    let attention_dropout = fields.number_or("attention_dropout", 0.1);
    let (norm, positions) = (NormPlacement::Pre, Positions::SinusoidalFairseq);
    let shared = read_shapes(fields);
    TransformerConfig {
        norm,
        positions,
        activation,
        scale_embedding,
        attention_dropout,
        final_logits_bias: false,
        ..shared
    }
    .with_vocab_size(vocab_size)
}

/// Reads the fields that BART and Marian have.
fn read(fields: &mut Fields<'_>) -> TransformerConfig {
    fields.only("normalize_before", false, "transformers normalizes after the sum in this family");
    fields.only("add_final_layer_norm", false, "transformers has no norm after the stacks in this family");
    read_shapes(fields)
}

/// Reads the fields that all families of this file have.
fn read_shapes(fields: &mut Fields<'_>) -> TransformerConfig {
    let n_heads = fields.size("encoder_attention_heads");
    let decoder_heads = fields.size("decoder_attention_heads");
    fields.same(
        [("encoder_attention_heads", &n_heads), ("decoder_attention_heads", &decoder_heads)],
        "Kiln's encoder and decoder have the same number of heads",
    );
    let d_ff = fields.size("encoder_ffn_dim");
    let decoder_ffn = fields.size("decoder_ffn_dim");
    fields.same(
        [("encoder_ffn_dim", &d_ff), ("decoder_ffn_dim", &decoder_ffn)],
        "Kiln's encoder and decoder have the same d_ff",
    );

    fields.only("is_decoder", false, "Kiln's model of this family has both sides");

    TransformerConfig {
        architecture: Architecture::EncoderDecoder,
        d_model: fields.size("d_model"),
        n_heads,
        d_ff,
        n_encoder_layers: fields.size("encoder_layers"),
        n_decoder_layers: fields.size("decoder_layers"),
        max_positions: fields.size("max_position_embeddings"),
        norm: NormPlacement::Post,
        norm_eps: NORM_EPS,
        scale_embedding: fields.flag_or("scale_embedding", false),
        activation: fields.activation_or("activation_function", Activation::Gelu),
        final_logits_bias: true,
        dropout: fields.number_or("dropout", 0.1),
        activation_dropout: Some(fields.number_or("activation_dropout", 0.0)),
        attention_dropout: fields.number_or("attention_dropout", 0.0),
        tie_embeddings: TieEmbeddings::ThreeWay,
        init: InitScheme::SmallNormal,
        ..TransformerConfig::default()
    }
}

pub(super) fn write_bart(config: &TransformerConfig) -> (Map<String, Value>, Vec<String>) {
    let mut demands = Demands::new();
    demands.equal("embedding_norm", config.embedding_norm, true);
    demands.equal("tie_embeddings", config.tie_embeddings, TieEmbeddings::ThreeWay);
    let mut written = write(config, &mut demands);
    written.insert("architectures".to_owned(), json!(["BartForConditionalGeneration"]));
    (written, demands.0)
}

pub(super) fn write_marian(config: &TransformerConfig) -> (Map<String, Value>, Vec<String>) {
    let mut demands = Demands::new();
    demands.equal("positions", config.positions, Positions::SinusoidalHalves);
    demands.equal("embedding_norm", config.embedding_norm, false);
    let mut written = write(config, &mut demands);
    let (shared, tied) = match config.tie_embeddings {
        TieEmbeddings::ThreeWay => (true, true),
        TieEmbeddings::Output => (false, true),
        TieEmbeddings::Inputs => {
            demands.0.push("model.tie_embeddings is \"inputs\", which this family does not have".to_owned());
            (true, false)
        }
        TieEmbeddings::None => (false, false),
    };
    written.extend(object(json!({
        "architectures": ["MarianMTModel"],
        "decoder_vocab_size": config.target_vocab_size,
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": tied,
        "static_position_embeddings": true,
    })));
    (written, demands.0)
}

pub(super) fn write_pegasus(config: &TransformerConfig) -> (Map<String, Value>, Vec<String>) {
    let mut demands = Demands::new();
    demands.equal("norm", config.norm, NormPlacement::Pre);
    demands.equal("positions", config.positions, Positions::SinusoidalHalves);
    demands.equal("embedding_norm", config.embedding_norm, false);
    demands.equal("tie_embeddings", config.tie_embeddings, TieEmbeddings::ThreeWay);
    let mut written = write_shapes(config, &mut demands);
    written.extend(object(json!({
        "architectures": ["PegasusForConditionalGeneration"],
        // Read by CTranslate2.
        "normalize_before": true,
        "normalize_embedding": false,
    })));
    (written, demands.0)
}

pub(super) fn write_m2m_100(config: &TransformerConfig) -> (Map<String, Value>, Vec<String>) {
    let mut demands = Demands::new();
    demands.equal("norm", config.norm, NormPlacement::Pre);
    demands.equal("embedding_norm", config.embedding_norm, false);
    demands.equal("tie_embeddings", config.tie_embeddings, TieEmbeddings::ThreeWay);
    demands.equal("final_logits_bias", config.final_logits_bias, false);
    let mut written = write_shapes(config, &mut demands);
    written.insert("architectures".to_owned(), json!(["M2M100ForConditionalGeneration"]));
    (written, demands.0)
}

fn write(config: &TransformerConfig, demands: &mut Demands) -> Map<String, Value> {
    demands.equal("norm", config.norm, NormPlacement::Post);
    write_shapes(config, demands)
}

fn write_shapes(config: &TransformerConfig, demands: &mut Demands) -> Map<String, Value> {
    demands.equal("norm_kind", config.norm_kind, NormKind::LayerNorm);
    demands.equal("norm_eps", config.norm_eps, NORM_EPS);
    demands.equal("bias", config.bias, true);
    demands.equal("n_kv_heads", config.kv_heads(), config.n_heads);
    demands.plain_attention(config);
    demands.equal("scale_output", config.scale_output, false);

    object(json!({
        "is_encoder_decoder": true,
        "vocab_size": config.source_vocab_size,
        "d_model": config.d_model,
        "encoder_layers": config.n_encoder_layers,
        "decoder_layers": config.n_decoder_layers,
        "encoder_attention_heads": config.n_heads,
        "decoder_attention_heads": config.n_heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "max_position_embeddings": config.max_positions,
        "activation_function": demands.activation(config.activation),
        "scale_embedding": config.scale_embedding,
        "dropout": config.dropout,
        "activation_dropout": config.activation_dropout.unwrap_or(config.dropout),
        "attention_dropout": config.attention_dropout,
        "tie_word_embeddings": true,
    }))
}
