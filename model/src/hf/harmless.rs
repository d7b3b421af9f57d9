//! Fields of `config.json` that Kiln does not read, because the model computes the same whatever they say, each with the reason.

use super::Family;

/// Of every family.
pub(super) const OF_ALL: &[(&str, &str)] = &[
    ("_name_or_path", "where the file came from"),
    ("transformers_version", "who wrote the file"),
    ("dtype", "the tensors say what type they have"),
    ("chunk_size_feed_forward", "parts of a product, with the same result"),
    ("output_attentions", "what Python's functions return"),
    ("output_hidden_states", "what Python's functions return"),
    ("return_dict", "what Python's functions return"),
    ("label2id", "id2label has the same names"),
    ("use_cache", "how fast text is generated"),
    ("initializer_range", "first values; the file has trained ones"),
    ("init_std", "first values; the file has trained ones"),
    ("initializer_factor", "first values; the file has trained ones"),
];

/// Of one family.
pub(super) const OF_FAMILY: &[(Family, &str, &str)] = &[
    (Family::Gpt2, "reorder_and_upcast_attn", "rounds scores in 16 bits otherwise; Kiln sums them in f32"),
    (Family::Gpt2, "summary_type", SUMMARY),
    (Family::Gpt2, "summary_use_proj", SUMMARY),
    (Family::Gpt2, "summary_activation", SUMMARY),
    (Family::Gpt2, "summary_proj_to_labels", SUMMARY),
    (Family::Gpt2, "summary_first_dropout", SUMMARY),
    (Family::Gemma3, "_sliding_window_pattern", "transformers writes it next to layer_types and does not read it"),
    (Family::Bart, "classifier_dropout", NO_CLASSES),
    (Family::Bart, "num_hidden_layers", LAYERS),
    (Family::Bart, "encoder_layerdrop", LAYERDROP),
    (Family::Bart, "decoder_layerdrop", LAYERDROP),
    (Family::Bart, "id2label", NO_CLASSES),
    (Family::Bart, "problem_type", NO_CLASSES),
    (Family::Bart, "architectures", TENSORS),
    (Family::Bart, "forced_eos_token_id", GENERATION),
    (Family::Marian, "num_hidden_layers", LAYERS),
    (Family::Marian, "encoder_layerdrop", LAYERDROP),
    (Family::Marian, "decoder_layerdrop", LAYERDROP),
    (Family::Marian, "id2label", NO_CLASSES),
    (Family::Marian, "problem_type", NO_CLASSES),
    (Family::Marian, "architectures", TENSORS),
    (Family::Marian, "forced_eos_token_id", GENERATION),
    (Family::Pegasus, "num_hidden_layers", LAYERS),
    (Family::Pegasus, "encoder_layerdrop", LAYERDROP),
    (Family::Pegasus, "decoder_layerdrop", LAYERDROP),
    (Family::Pegasus, "id2label", NO_CLASSES),
    (Family::Pegasus, "problem_type", NO_CLASSES),
    (Family::Pegasus, "architectures", TENSORS),
    (Family::Pegasus, "forced_eos_token_id", GENERATION),
    (Family::M2m100, "num_hidden_layers", LAYERS),
    (Family::M2m100, "encoder_layerdrop", LAYERDROP),
    (Family::M2m100, "decoder_layerdrop", LAYERDROP),
    (Family::M2m100, "id2label", NO_CLASSES),
    (Family::M2m100, "problem_type", NO_CLASSES),
    (Family::M2m100, "architectures", TENSORS),
    (Family::T5, "classifier_dropout", NO_CLASSES),
    (Family::T5, "id2label", NO_CLASSES),
    (Family::T5, "problem_type", NO_CLASSES),
    (Family::T5, "architectures", TENSORS),
];

const SUMMARY: &str = "of the head of GPT2DoubleHeadsModel, whose tensors are refused";
const NO_CLASSES: &str = "of heads for classes, whose tensors are refused";
/// Distilled models are published with the number of layers before.
const LAYERS: &str = "a second name of encoder_layers, which the tensors must agree with";
const LAYERDROP: &str = "leaves out layers in training; Kiln trains all of them";
const TENSORS: &str = "the tensors say which class it is";
const GENERATION: &str = "how text is generated; the importing program reads it";
