//! T5, T5 1.1, Flan-T5 and mT5, after the folders `t5` and `mt5` in `transformers/models`.
//!
//! T5 shares one matrix between both sides and the output, and scales hidden states in front of the output. The later ones have an
//! output of their own, no scale and a gated activation. In training, `transformers` also drops elements behind the last norm of each
//! stack; Kiln does not.

use kiln_kernels::Activation;
use serde_json::{Map, Value, json};

use super::demands::{Demands, object};
use super::fields::Fields;
use super::table::{Layout, Line, OUTPUT, Skipped, Sublayer, Table};
use crate::config::{
    Architecture, FeedForwardActivation, InitScheme, NormKind, NormPlacement, Positions, TieEmbeddings,
    TransformerConfig,
};

/// The `model_type` of a second folder of `transformers`.
pub(super) const MULTILINGUAL: &str = "mt5";

const SHARED: &str = "shared.weight";

const SKIPPED: &[Skipped] = &[
    // In older files; nothing ever read it.
    Skipped { suffix: "layer.1.EncDecAttention.relative_attention_bias.weight", lost: None },
];

/// Names of the gated activations. Where two mean the same, export writes the first.
const GATED: [(&str, FeedForwardActivation); 3] = [
    ("gated-gelu", FeedForwardActivation::GEGLU),
    ("gated-silu", FeedForwardActivation::SWIGLU),
    ("gated-gelu_new", FeedForwardActivation::GEGLU),
];

/// Names of all activations.
fn activations() -> Vec<(&'static str, FeedForwardActivation)> {
    let element_wise = Activation::ALL.map(|by| (by.names_in_transformers()[0], by.into()));
    element_wise.into_iter().chain(GATED).collect()
}

/// The name of the activation of a model whose file has none.
fn default_activation(is_multilingual: bool) -> &'static str {
    if is_multilingual { "gated-gelu" } else { "relu" }
}

pub(super) fn table(config: &TransformerConfig) -> Table {
    let (d, f, inner) = (config.d_model, config.d_ff, config.n_heads * config.head_dim());
    let (source, target) = (config.source_vocab_size, config.target_vocab_size);
    let mut table = Table { skipped: SKIPPED, ..Table::default() };
    table.add_rows("source_embedding.table", SHARED, [source, d], 0);
    for copy in ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"] {
        table.add_copy(copy, SHARED);
    }
    if config.tie_embeddings.ties_output() {
        table.add_copy(OUTPUT, SHARED);
    } else {
        table.add_one("output.weight", OUTPUT, Layout::Linear { n_in: d }, target);
    }

    let (norm, linear) = (Sublayer::RmsNorm, Sublayer::LinearWithoutBias);
    let self_attention: [Line<'_>; 3] = [
        ("self_attention_norm", norm, d, &[("layer.0.layer_norm", d)]),
        (
            "self_attention.qkv",
            linear,
            d,
            &[
                ("layer.0.SelfAttention.q", inner),
                ("layer.0.SelfAttention.k", inner),
                ("layer.0.SelfAttention.v", inner),
            ],
        ),
        ("self_attention.output", linear, inner, &[("layer.0.SelfAttention.o", d)]),
    ];

    let cross_attention: [Line<'_>; 4] = [
        ("cross_attention_norm", norm, d, &[("layer.1.layer_norm", d)]),
        ("cross_attention.query", linear, d, &[("layer.1.EncDecAttention.q", inner)]),
        (
            "cross_attention.key_value",
            linear,
            d,
            &[("layer.1.EncDecAttention.k", inner), ("layer.1.EncDecAttention.v", inner)],
        ),
        ("cross_attention.output", linear, inner, &[("layer.1.EncDecAttention.o", d)]),
    ];

    let feed_forward = |table: &mut Table, ours: &str, theirs: &str| {
        let wide = ("feed_forward.input", linear, d);
        let inputs: &[(&str, usize)] = match config.activation.is_gated() {
            true => &[("DenseReluDense.wi_0", f), ("DenseReluDense.wi_1", f)],
            false => &[("DenseReluDense.wi", f)],
        };
        table.add(ours, theirs, &[("feed_forward_norm", norm, d, &[("layer_norm", d)])]);
        table.add(ours, theirs, &[(wide.0, wide.1, wide.2, inputs)]);
        table.add(ours, theirs, &[("feed_forward.output", linear, f, &[("DenseReluDense.wo", d)])]);
    };

    for (stack, n_layers) in [("encoder", config.n_encoder_layers), ("decoder", config.n_decoder_layers)] {
        let is_decoder = stack == "decoder";
        let relative = format!("{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
        let shape = [config.relative_buckets, config.n_heads];
        table.add_rows(&format!("{stack}.relative_positions.table"), &relative, shape, 0);
        for i in 0..n_layers {
            let (ours, theirs) = (format!("{stack}.layers.{i}."), format!("{stack}.block.{i}."));
            table.add(&ours, &theirs, &self_attention);
            if is_decoder {
                table.add(&ours, &theirs, &cross_attention);
            }
            feed_forward(&mut table, &ours, &format!("{theirs}layer.{}.", 1 + usize::from(is_decoder)));
        }
        table.add(&format!("{stack}."), &format!("{stack}."), &[("norm", norm, d, &[("final_layer_norm", d)])]);
    }
    table
}

/// Refuses an activation that `feed_forward_proj` does not name: in `transformers` these two fields replace what it says.
fn check_activation(fields: &mut Fields<'_>) {
    let name = fields.get("feed_forward_proj").and_then(Value::as_str).map(str::to_owned);
    let is_multilingual = fields.get("model_type").is_some_and(|model_type| model_type == MULTILINGUAL);
    let name = name.unwrap_or_else(|| default_activation(is_multilingual).to_owned());
    let gated = name.strip_prefix("gated-");
    let function = if gated == Some("gelu") { "gelu_new" } else { gated.unwrap_or(&name) };
    let why = format!("it is what feed_forward_proj \"{name}\" means; remove this field");
    fields.only("dense_act_fn", function, &why);
    fields.only("is_gated_act", gated.is_some(), &why);
}

/// `has` looks for a tensor by the end of its name: version 5 of `transformers` no longer says whether the output is tied.
pub(super) fn read(fields: &mut Fields<'_>, has: &dyn Fn(&str) -> bool) -> TransformerConfig {
    let is_multilingual = fields.get("model_type").is_some_and(|model_type| model_type == MULTILINGUAL);
    check_activation(fields);
    let activations = activations();
    let default = activations.iter().position(|(name, _)| *name == default_activation(is_multilingual));
    let default = default.expect("one of the names");
    fields.only("is_decoder", false, "Kiln's model of this family has both sides");
    let (d_model, n_heads, n_layers) = (fields.size("d_model"), fields.size("num_heads"), fields.size("num_layers"));
    let (head_dim, evenly) = (fields.size("d_kv"), d_model / n_heads.max(1));

    // T5 scales where it ties, mT5 never; newer files say it.
    let is_tied = fields.flag_or("tie_word_embeddings", true);
    let scale_output = !is_multilingual && fields.flag_or("scale_decoder_outputs", is_tied);
    let ties_output = !has(OUTPUT) || scale_output;

    let dropout = fields.number_or("dropout_rate", 0.1);
    TransformerConfig {
        architecture: Architecture::EncoderDecoder,
        d_model,
        n_heads,
        // 0 stands for the usual size.
        head_dim: if head_dim == evenly && head_dim * n_heads == d_model { 0 } else { head_dim },
        d_ff: fields.size("d_ff"),
        n_encoder_layers: n_layers,
        n_decoder_layers: fields.size_or("num_decoder_layers", n_layers),
        max_positions: fields.size_or("n_positions", 512),
        norm: NormPlacement::Pre,
        norm_kind: NormKind::RmsNorm,
        norm_eps: fields.number_or("layer_norm_epsilon", 1e-6),
        scale_embedding: false,
        scale_output,
        positions: Positions::Relative,
        relative_buckets: fields.size_or("relative_attention_num_buckets", 32),
        relative_max_distance: fields.size_or("relative_attention_max_distance", 128),
        attention_scale: Some(1.0),
        activation: fields.choice("feed_forward_proj", &activations, default),
        bias: false,
        dropout,
        attention_dropout: dropout,
        tie_embeddings: if ties_output { TieEmbeddings::ThreeWay } else { TieEmbeddings::Inputs },
        init: InitScheme::SmallNormal,
        ..TransformerConfig::default()
    }
    .with_vocab_size(fields.size("vocab_size"))
}

pub(super) fn write(config: &TransformerConfig) -> (Map<String, Value>, Vec<String>) {
    let mut demands = Demands::new();
    demands.equal("norm", config.norm, NormPlacement::Pre);
    demands.equal("norm_kind", config.norm_kind, NormKind::RmsNorm);
    demands.equal("embedding_norm", config.embedding_norm, false);
    demands.equal("scale_embedding", config.scale_embedding, false);
    demands.equal("bias", config.bias, false);
    demands.equal("n_kv_heads", config.kv_heads(), config.n_heads);
    demands.equal("attention_scale", config.attention_scale, Some(1.0));
    demands.equal("attention_softcap", config.attention_softcap, 0.0);
    demands.equal("final_logits_bias", config.final_logits_bias, false);
    let ties_output = config.tie_embeddings.ties_output();
    let wanted = if ties_output { TieEmbeddings::ThreeWay } else { TieEmbeddings::Inputs };
    demands.equal("tie_embeddings", config.tie_embeddings, wanted);
    if !ties_output {
        demands.equal("scale_output", config.scale_output, false);
    }
    let activation = activations().into_iter().find(|(_, known)| *known == config.activation);

    let written = object(json!({
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": true,
        "vocab_size": config.source_vocab_size,
        "d_model": config.d_model,
        "d_kv": config.head_dim(),
        "d_ff": config.d_ff,
        "num_layers": config.n_encoder_layers,
        "num_decoder_layers": config.n_decoder_layers,
        "num_heads": config.n_heads,
        "n_positions": config.max_positions,
        "relative_attention_num_buckets": config.relative_buckets,
        "relative_attention_max_distance": config.relative_max_distance,
        "dropout_rate": config.dropout,
        "layer_norm_epsilon": config.norm_eps,
        "feed_forward_proj": activation.map_or("relu", |(name, _)| name),
        // Version 4 of transformers scales where it ties; version 5 ties where the output is missing, and scales unless this is false.
        "tie_word_embeddings": config.scale_output,
        "scale_decoder_outputs": config.scale_output,
    }));
    (written, demands.0)
}
