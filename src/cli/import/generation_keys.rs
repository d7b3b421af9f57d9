//! The keys of `generation_config.json`: which ones `kiln import` acts on, which ones it names because Kiln generates without them, and
//! which ones change no text.

use serde_json::Value;

/// What import reads for a model that continues texts.
pub(super) const OF_TEXT: [&str; 13] = [
    "bos_token_id",
    "do_sample",
    "eos_token_id",
    "max_length",
    "max_new_tokens",
    "pad_token_id",
    "repetition_penalty",
    "stop_strings",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "decoder_start_token_id",
];

/// What import reads for a model that translates.
pub(super) const OF_PAIRS: [&str; 18] = [
    "bad_words_ids",
    "bos_token_id",
    "decoder_start_token_id",
    "do_sample",
    "early_stopping",
    "eos_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "num_beams",
    "pad_token_id",
    "renormalize_logits",
    "repetition_penalty",
    "temperature",
    "top_k",
    "top_p",
];

/// What changes the text, with the values that switch it off.
const CHANGES_TEXT: [(&str, &[&str]); 33] = [
    ("bad_words_ids", &[]),
    ("begin_suppress_tokens", &[]),
    ("constraints", &[]),
    ("diversity_penalty", &["0.0"]),
    ("dola_layers", &[]),
    ("encoder_no_repeat_ngram_size", &["0"]),
    ("encoder_repetition_penalty", &["1.0"]),
    ("epsilon_cutoff", &["0.0"]),
    ("eta_cutoff", &["0.0"]),
    ("exponential_decay_length_penalty", &[]),
    ("force_words_ids", &[]),
    ("forced_bos_token_id", &[]),
    ("forced_decoder_ids", &[]),
    ("forced_eos_token_id", &[]),
    ("guidance_scale", &["1.0"]),
    ("max_time", &[]),
    ("min_length", &["0"]),
    ("min_new_tokens", &["0"]),
    ("min_p", &["0.0"]),
    ("no_repeat_ngram_size", &["0"]),
    ("num_beam_groups", &["1"]),
    ("num_beams", &["1"]),
    ("num_return_sequences", &["1"]),
    ("penalty_alpha", &["0.0"]),
    ("remove_invalid_values", &["false"]),
    ("repetition_penalty", &["1.0"]),
    ("sequence_bias", &["{}"]),
    ("stop_strings", &[]),
    ("suppress_tokens", &[]),
    ("token_healing", &["false"]),
    ("top_h", &["1.0"]),
    ("typical_p", &["1.0"]),
    ("watermarking_config", &[]),
];

/// What changes no text, and why.
const CHANGES_NO_TEXT: [(&str, &str); 40] = [
    ("_from_model_config", "says where the settings come from"),
    ("assistant_confidence_threshold", "speculative decoding"),
    ("assistant_early_exit", "speculative decoding"),
    ("assistant_ensemble_weight", "speculative decoding"),
    ("assistant_lookbehind", "speculative decoding"),
    ("bos_token_id", "the tokenizer names it"),
    ("cache_config", "memory"),
    ("cache_implementation", "memory"),
    ("compile_config", "speed"),
    ("continuous_batching_config", "speed"),
    ("decoder_start_token_id", "of models that translate, which read it"),
    ("disable_compile", "speed"),
    ("early_stopping", "of beams, which num_beams asks for"),
    ("is_assistant", "speculative decoding"),
    ("length_penalty", "of beams, which num_beams asks for"),
    ("low_memory", "memory"),
    ("max_cache_len", "memory"),
    ("max_matching_ngram_size", "speculative decoding"),
    ("num_assistant_tokens", "speculative decoding"),
    ("num_assistant_tokens_schedule", "speculative decoding"),
    ("output_attentions", "what the program returns"),
    ("output_hidden_states", "what the program returns"),
    ("output_logits", "what the program returns"),
    ("output_scores", "what the program returns"),
    ("pad_token_id", "the tokenizer names it"),
    ("prefill_chunk_size", "memory"),
    ("prompt_lookup_num_tokens", "speculative decoding"),
    ("renormalize_logits", "of beams, which num_beams asks for"),
    ("return_dict_in_generate", "what the program returns"),
    ("speculation_type", "speculative decoding"),
    ("target_lookbehind", "speculative decoding"),
    ("temperature", "of sampling, which do_sample asks for"),
    ("top_k", "of sampling, which do_sample asks for"),
    ("top_p", "of sampling, which do_sample asks for"),
    ("transformers_version", "a version"),
    ("trust_remote_code", "about code, which Kiln never runs"),
    ("use_cache", "speed"),
    ("use_mtp", "speculative decoding"),
    ("use_model_defaults", "where settings come from"),
    ("generation_kwargs", "arguments of other programs"),
];

/// Whether a setting has no effect: it is absent, empty, or one of the values `off`.
pub(super) fn is_off(value: &Value, off: &[&str]) -> bool {
    let (text, number) = (value.to_string(), value.as_f64());
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        _ => off.iter().any(|off| *off == text || number.is_some() && off.parse().ok() == number),
    }
}

/// Returns the settings of `json` that change the text and that are not in `acted`, and the ones that nobody knows. A `config.json`
/// has other keys, so that only known ones are looked for.
pub(super) fn unsupported<'a>(json: &'a Value, acted: &[&str], of_model: bool) -> Vec<(&'a str, &'a Value)> {
    let keys = json.as_object().into_iter().flatten();
    let counts = |key: &str, value: &Value| match CHANGES_TEXT.iter().find(|(known, _)| *known == key) {
        _ if acted.contains(&key) => false,
        Some((_, off)) => !is_off(value, off),
        None => !of_model && !CHANGES_NO_TEXT.iter().any(|(known, _)| *known == key) && !is_off(value, &["false"]),
    };
    keys.filter(|(key, value)| counts(key, value)).map(|(key, value)| (key.as_str(), value)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A new version of transformers fails here until somebody decides what its new settings mean.
    #[test]
    fn every_setting_of_transformers_is_in_a_list() {
        let text = include_str!("../../../model/fixtures/settings/generation.json");
        let of_transformers: Value = serde_json::from_str(text).expect("written by make.py");
        let names = of_transformers["GenerationConfig"].as_array().expect("a list");
        assert!(names.len() > 60);
        for key in names.iter().map(|key| key.as_str().expect("a name")) {
            for acted in [&OF_TEXT[..], &OF_PAIRS] {
                let changes_text = CHANGES_TEXT.iter().any(|(known, _)| *known == key);
                let changes_none = CHANGES_NO_TEXT.iter().any(|(known, _)| *known == key);
                assert!(acted.contains(&key) || changes_text != changes_none, "{key} is in no list, or in two");
            }
        }
    }

    #[test]
    fn what_is_off_is_not_named() {
        let off = json!({
            "num_beams": 1, "typical_p": 1.0, "top_h": null, "bad_words_ids": [], "sequence_bias": {}, "min_length": 0,
            "some_new_key": false, "guidance_scale": 1, "use_cache": false, "max_new_tokens": 5,
        });
        assert_eq!(unsupported(&off, &OF_TEXT, false), []);
        let on =
            json!({"num_beams": 4, "begin_suppress_tokens": [3], "some_new_key": 1, "sequence_bias": [[[1], -2.0]]});
        let named = |of_model| unsupported(&on, &OF_TEXT, of_model).into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        assert_eq!(named(false), ["begin_suppress_tokens", "num_beams", "sequence_bias", "some_new_key"]);
        assert_eq!(named(true), ["begin_suppress_tokens", "num_beams", "sequence_bias"], "keys of config.json");
    }
}
