//! Every setting of the tokenizer classes of `transformers`, and what Kiln does with it.

use serde_json::Value;

/// What Kiln does with a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// It changes ids as in `transformers`.
    Acts,
    /// It would change ids, and an import names it.
    Named,
    /// It changes no ids of a text, for this reason.
    Harmless(&'static str),
}

const OF_TRANSFORMERS: Effect = Effect::Harmless("an argument inside transformers, not a setting of the file");
const OF_FILES: Effect =
    Effect::Harmless("names a file or what was read from it; Kiln finds the files by their usual names");
const OF_BATCHES: Effect =
    Effect::Harmless("shapes batches in transformers; Kiln pads and cuts rows by its own settings");
const OF_DECODING: Effect = Effect::Harmless("changes the text of ids, not the ids of a text");
const OF_LANGUAGES: Effect = Effect::Harmless("read by the import of translators, which asks for the languages");
const OF_PROMPTS: Effect =
    Effect::Harmless("transformers ignores it next to a tokenizer.json, whose post-processor decides; import says so");

/// The settings of the classes of the families that Kiln imports, of their base classes and of the keys that their loader reads.
pub(super) const SETTINGS: &[(&str, Effect)] = &[
    ("_json_padding", OF_TRANSFORMERS),
    ("_json_truncation", OF_TRANSFORMERS),
    ("_spm_precompiled_charsmap", OF_TRANSFORMERS),
    ("add_bos_token", OF_PROMPTS),
    ("add_eos_token", OF_PROMPTS),
    ("add_prefix_space", Effect::Acts),
    ("added_tokens_decoder", Effect::Acts),
    ("additional_special_tokens", Effect::Acts),
    ("auto_map", Effect::Named),
    ("backend", OF_TRANSFORMERS),
    ("bos_token", Effect::Acts),
    ("chat_control_tokens", Effect::Harmless("reads answers back into messages")),
    ("chat_template", Effect::Harmless("read by the import of decoders")),
    ("clean_up_tokenization_spaces", OF_DECODING),
    ("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", OF_DECODING),
    ("cls_token", Effect::Acts),
    ("do_lower_case", Effect::Acts),
    ("eos_token", Effect::Acts),
    ("errors", OF_DECODING),
    ("extra_ids", Effect::Named),
    ("extra_special_tokens", Effect::Acts),
    ("files_loaded", OF_TRANSFORMERS),
    ("fix_mistral_regex", Effect::Named),
    ("gguf_file", OF_FILES),
    ("init_inputs", OF_TRANSFORMERS),
    ("is_local", OF_TRANSFORMERS),
    ("language_codes", OF_LANGUAGES),
    ("legacy", Effect::Acts),
    ("legacy_behaviour", Effect::Named),
    ("local_files_only", OF_TRANSFORMERS),
    ("mask_token", Effect::Acts),
    ("max_len", OF_BATCHES),
    ("max_length", OF_BATCHES),
    ("merges", OF_FILES),
    ("model_input_names", OF_BATCHES),
    ("model_max_length", OF_BATCHES),
    ("model_specific_special_tokens", OF_TRANSFORMERS),
    ("name_or_path", OF_TRANSFORMERS),
    ("num_madeup_words", Effect::Harmless("M2M-100 counts rows that have no text")),
    ("pad_to_multiple_of", OF_BATCHES),
    ("pad_token", Effect::Acts),
    ("pad_token_type_id", OF_BATCHES),
    ("padding_side", OF_BATCHES),
    ("post_processor", OF_TRANSFORMERS),
    ("processor_class", Effect::Harmless("for models of images and sounds")),
    ("response_schema", Effect::Harmless("reads answers back into messages")),
    ("response_template", Effect::Harmless("reads answers back into messages")),
    ("sep_token", Effect::Acts),
    ("separate_vocabs", Effect::Named),
    ("source_lang", OF_LANGUAGES),
    ("source_spm", OF_FILES),
    ("sp_model_kwargs", Effect::Named),
    ("split_special_tokens", Effect::Named),
    ("spm_file", OF_FILES),
    ("src_lang", OF_LANGUAGES),
    ("stride", OF_BATCHES),
    ("strip_accents", Effect::Acts),
    ("target_lang", OF_LANGUAGES),
    ("target_spm", OF_FILES),
    ("target_vocab_file", OF_FILES),
    ("tgt_lang", OF_LANGUAGES),
    ("tokenize_chinese_chars", Effect::Acts),
    ("tokenizer", OF_TRANSFORMERS),
    ("tokenizer_class", Effect::Acts),
    ("tokenizer_file", OF_FILES),
    ("tokenizer_object", OF_TRANSFORMERS),
    ("tokenizer_padding", OF_TRANSFORMERS),
    ("tokenizer_truncation", OF_TRANSFORMERS),
    ("trim_offsets", Effect::Harmless("places of tokens, not ids")),
    ("truncation_side", OF_BATCHES),
    ("truncation_strategy", OF_BATCHES),
    ("unk_id", OF_TRANSFORMERS),
    ("unk_token", Effect::Acts),
    ("use_default_system_prompt", Effect::Harmless("transformers 5 no longer acts on it")),
    ("verbose", OF_TRANSFORMERS),
    ("vocab", OF_FILES),
    ("vocab_file", OF_FILES),
];

/// Returns a sentence for each setting that would change ids in `transformers` and does not in Kiln.
pub(super) fn without_effect(config: &Value) -> Vec<String> {
    let is_set = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
        _ => true,
    };
    SETTINGS
        .iter()
        .filter(|(key, effect)| *effect == Effect::Named && is_set(&config[*key]))
        .map(|(key, _)| {
            format!(
                "tokenizer_config.json has {key} = {}, which Kiln does not act on: ids may differ from transformers",
                config[*key]
            )
        })
        .collect()
}
