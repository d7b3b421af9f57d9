//! BERT and RoBERTa, after the folders of these names in `transformers/models`.

use kiln_kernels::Activation;
use serde_json::{Map, Value, json};

use super::Family;
use super::classes::{architectures, check_problem_type, n_classes};
use super::demands::{Demands, object};
use super::fields::Fields;
use super::table::{Layout, Line, Skipped, Sublayer, Table};
use crate::config::{
    Architecture, ClassHead, InitScheme, NormKind, NormPlacement, Positions, TieEmbeddings, TransformerConfig,
};

/// RoBERTa's padding id, if `config.json` names none.
pub(super) const ROBERTA_PAD: u32 = 1;

const SKIPPED: &[Skipped] = &[
    // Belongs to an untied head: see `add_head`. In a tied head it is a parameter, and parameters are looked up first.
    Skipped { suffix: "cls.predictions.bias", lost: None },
    Skipped { suffix: "lm_head.bias", lost: None },
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

/// Where the two families keep the same tensors.
struct Names {
    body: &'static str,
    head: &'static str,
    /// Below `head`.
    transform: &'static str,
    head_norm: &'static str,
}

const BERT: Names =
    Names { body: "bert.", head: "cls.predictions.", transform: "transform.dense", head_norm: "transform.LayerNorm" };
const ROBERTA: Names = Names { body: "roberta.", head: "lm_head.", transform: "dense", head_norm: "layer_norm" };

impl Names {
    fn of(family: Family) -> &'static Self {
        if family == Family::Roberta { &ROBERTA } else { &BERT }
    }
}

/// The family of an encoder. Both compute the same; RoBERTa has one type of tokens and always GELU in its head.
/// [`write`] reports what the family lacks.
pub(super) fn nearest(config: &TransformerConfig) -> Family {
    let is_roberta = config.n_token_types == 1 && config.activation == Activation::Gelu.into();
    if is_roberta { Family::Roberta } else { Family::Bert }
}

/// Rows of RoBERTa's table of positions that no token has: positions are counted from the id after padding.
fn unused_positions(config: &TransformerConfig, family: Family) -> usize {
    if family == Family::Roberta { config.pad_id as usize + 1 } else { 0 }
}

pub(super) fn table(config: &TransformerConfig, family: Family) -> Table {
    let (d, f, v) = (config.d_model, config.d_ff, config.source_vocab_size);
    let names = Names::of(family);
    let mut table = Table { optional_prefix: names.body, skipped: SKIPPED, ..Table::default() };
    let embeddings = format!("{}embeddings.", names.body);
    table.add_rows("embedding.table", &format!("{embeddings}word_embeddings.weight"), [v, d], 0);
    let (positions, unused) = ([config.max_positions, d], unused_positions(config, family));
    table.add_rows("positions.table", &format!("{embeddings}position_embeddings.weight"), positions, unused);
    let types = [config.n_token_types, d];
    table.add_rows("token_types.table", &format!("{embeddings}token_type_embeddings.weight"), types, 0);
    table.add("", &embeddings, &[("embedding_norm", Sublayer::LayerNorm, d, &[("LayerNorm", d)])]);

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
        table.add(&format!("encoder.layers.{i}."), &format!("{}encoder.layer.{i}.", names.body), &layer);
    }

    if config.pooler {
        table.add("", names.body, &[("pooler", Sublayer::Linear, d, &[("pooler.dense", d)])]);
    }
    if config.mlm_head {
        add_head(&mut table, config, names, [d, v]);
    }
    add_classifier(&mut table, config);
    table
}

/// Adds the head that predicts classes.
fn add_classifier(table: &mut Table, config: &TransformerConfig) {
    let (d, c) = (config.d_model, config.n_classes);
    match config.class_head {
        ClassHead::None | ClassHead::Last => (),
        ClassHead::Pooled | ClassHead::Tokens => {
            table.add("", "", &[("classifier.output", Sublayer::Linear, d, &[("classifier", c)])]);
        }
        ClassHead::Dense => {
            let head: [Line<'_>; 2] =
                [("dense", Sublayer::Linear, d, &[("dense", d)]), ("output", Sublayer::Linear, d, &[("out_proj", c)])];
            table.add("classifier.", "classifier.", &head);
        }
    }
}

/// Adds the head that predicts masked tokens.
fn add_head(table: &mut Table, config: &TransformerConfig, names: &Names, [d, v]: [usize; 2]) {
    let head: [Line<'_>; 2] = [
        ("transform", Sublayer::Linear, d, &[(names.transform, d)]),
        ("norm", Sublayer::LayerNorm, d, &[(names.head_norm, d)]),
    ];
    table.add("head.", names.head, &head);
    let theirs = |name: &str| format!("{}{name}", names.head);
    if config.tie_embeddings == TieEmbeddings::None {
        table.add("", names.head, &[("head.output", Sublayer::LinearWithoutBias, d, &[("decoder", v)])]);
        // transformers keeps two biases in this case, and adds this one.
        table.add_one("head.bias", &theirs("decoder.bias"), Layout::Vector, v);
    } else {
        table.add_one("head.bias", &theirs("bias"), Layout::Vector, v);
        table.add_copy(&theirs("decoder.bias"), &theirs("bias"));
        table.add_copy(&theirs("decoder.weight"), &format!("{}embeddings.word_embeddings.weight", names.body));
    }
}

/// `has` looks for a tensor by the end of its name: `config.json` mentions neither the pooler nor, for the bare model, the
/// head.
pub(super) fn read(fields: &mut Fields<'_>, family: Family, has: &dyn Fn(&str) -> bool) -> TransformerConfig {
    let (is_roberta, names) = (family == Family::Roberta, Names::of(family));
    let mut max_positions = fields.size("max_position_embeddings");
    if is_roberta {
        fields.only("hidden_act", "gelu", "the head of this family has GELU, and Kiln's has the layers' activation");
        fields.only("type_vocab_size", 1, "Kiln's model of this family has one type of tokens");
        max_positions =
            max_positions.saturating_sub(fields.size_or("pad_token_id", ROBERTA_PAD as usize).saturating_add(1));
    }
    let class_head = class_head(fields);
    let n_classes = if class_head == ClassHead::None { 0 } else { n_classes(fields) };
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
        max_positions,
        norm: NormPlacement::Post,
        norm_eps: fields.number_or("layer_norm_eps", 1e-12),
        embedding_norm: true,
        scale_embedding: false,
        positions: Positions::Learned,
        activation: fields.activation_or("hidden_act", Activation::Gelu),
        n_token_types: if is_roberta { 1 } else { fields.size_or("type_vocab_size", 2) },

        class_head,
        n_classes,
        mlm_head: is_masked_lm(fields) || has(&format!("{}{}.weight", names.head, names.transform)),
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
    architectures(fields).any(|name| matches!(name, "BertForMaskedLM" | "BertForPreTraining" | "RobertaForMaskedLM"))
}

/// The head for classes that `config.json` promises.
fn class_head(fields: &mut Fields<'_>) -> ClassHead {
    let head = architectures(fields).find_map(|name| match name {
        "BertForSequenceClassification" => Some(ClassHead::Pooled),
        "RobertaForSequenceClassification" => Some(ClassHead::Dense),
        "BertForTokenClassification" | "RobertaForTokenClassification" => Some(ClassHead::Tokens),
        _ => None,
    });
    if head.is_some() {
        check_problem_type(fields);
        if let Some(dropout) = fields.get("classifier_dropout")
            && Some(dropout) != fields.get("hidden_dropout_prob")
        {
            fields.notes.push(format!("classifier_dropout {dropout}: Kiln's head trains with hidden_dropout_prob"));
        }
    }
    head.unwrap_or_default()
}

pub(super) fn write(config: &TransformerConfig, family: Family) -> (Map<String, Value>, Vec<String>) {
    let mut demands = Demands::new();
    demands.equal("norm", config.norm, NormPlacement::Post);
    demands.equal("norm_kind", config.norm_kind, NormKind::LayerNorm);
    demands.equal("positions", config.positions, Positions::Learned);
    demands.equal("bias", config.bias, true);
    demands.equal("n_kv_heads", config.kv_heads(), config.n_heads);
    demands.plain_attention(config);
    demands.equal("embedding_norm", config.embedding_norm, true);
    demands.equal("scale_embedding", config.scale_embedding, false);
    if config.n_token_types == 0 {
        demands.0.push("model.n_token_types is 0, but this family has at least 1".to_owned());
    }

    let activation = demands.activation(config.activation);
    match (family, config.class_head) {
        (Family::Roberta, ClassHead::Pooled) => demands.equal("class_head", config.class_head, ClassHead::Dense),
        (Family::Bert, ClassHead::Dense) => demands.equal("class_head", config.class_head, ClassHead::Pooled),
        _ => (),
    }

    let stem = if family == Family::Roberta { "Roberta" } else { "Bert" };
    let architecture = match (config.class_head, config.mlm_head) {
        (ClassHead::Tokens, _) => format!("{stem}ForTokenClassification"),
        (ClassHead::Pooled | ClassHead::Dense | ClassHead::Last, _) => format!("{stem}ForSequenceClassification"),
        (ClassHead::None, true) => format!("{stem}ForMaskedLM"),
        (ClassHead::None, false) => format!("{stem}Model"),
    };
    let written = object(json!({
        "architectures": [architecture],
        "vocab_size": config.source_vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_encoder_layers,
        "num_attention_heads": config.n_heads,
        "intermediate_size": config.d_ff,
        "hidden_act": activation,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.max_positions + unused_positions(config, family),
        "type_vocab_size": config.n_token_types,
        "layer_norm_eps": config.norm_eps,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": config.tie_embeddings != TieEmbeddings::None,
    }));
    (written, demands.0)
}
