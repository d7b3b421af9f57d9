//! The keys of `generation_config.json`: which ones `kiln import` acts on, which ones it names because Kiln generates without them, and
//! which ones change no text.

use serde_json::Value;

/// What import reads for a model that continues texts.
pub(super) const OF_TEXT: [&str; 19] = [
    "bad_words_ids",
    "bos_token_id",
    "decoder_start_token_id",
    "do_sample",
    "early_stopping",
    "eos_token_id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "no_repeat_ngram_size",
    "num_beams",
    "pad_token_id",
    "renormalize_logits",
    "repetition_penalty",
    "stop_strings",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
];

/// What import reads for a model that translates.
pub(super) const OF_PAIRS: [&str; 20] = [
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
    "no_repeat_ngram_size",
    "num_beams",
    "pad_token_id",
    "renormalize_logits",
    "repetition_penalty",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
];

/// What changes the text, with the values that switch it off, and what Kiln does instead.
const CHANGES_TEXT: [(&str, &[&str], &str); 30] = [
    ("bad_words_ids", &[], "texts may contain these words"),
    ("begin_suppress_tokens", &[], "texts may begin with these tokens"),
    ("constraints", &[], "texts may lack what it demands"),
    ("diversity_penalty", &["0.0"], "beams may be alike"),
    ("dola_layers", &[], "the last layer alone chooses tokens"),
    ("encoder_no_repeat_ngram_size", &["0"], "texts may repeat n-grams of the source"),
    ("encoder_repetition_penalty", &["1.0"], "tokens of the source cost what others cost"),
    ("epsilon_cutoff", &["0.0"], "sampling may take less likely tokens"),
    ("eta_cutoff", &["0.0"], "sampling may take less likely tokens"),
    ("exponential_decay_length_penalty", &[], "texts may be longer"),
    ("force_words_ids", &[], "texts may lack these words"),
    ("forced_bos_token_id", &[], "the model chooses the first token"),
    ("forced_decoder_ids", &[], "the model chooses these tokens"),
    ("forced_eos_token_id", &[], "at the limit of tokens, the model chooses the last one"),
    ("guidance_scale", &["1.0"], "the prompt guides the text as it is"),
    ("max_time", &[], "no text ends early because of the time"),
    ("min_length", &["0"], "texts may be shorter"),
    ("min_new_tokens", &["0"], "texts may be shorter"),
    ("min_p", &["0.0"], "sampling may take less likely tokens"),
    ("no_repeat_ngram_size", &["0"], "texts may repeat n-grams"),
    ("num_beam_groups", &["1"], "beams search in one group"),
    ("num_return_sequences", &["1"], "each input gets one text"),
    ("penalty_alpha", &["0.0"], "tokens may resemble the ones before them"),
    ("remove_invalid_values", &["false"], "a logit that is not a number ends the generation with an error"),
    ("sequence_bias", &["{}"], "these sequences are as likely as the model finds them"),
    ("stop_strings", &[], "texts go on behind these strings"),
    ("token_healing", &["false"], "the last token of a prompt stays as it is"),
    ("top_h", &["1.0"], "sampling may take less likely tokens"),
    ("typical_p", &["1.0"], "sampling may take less typical tokens"),
    ("watermarking_config", &[], "texts carry no watermark"),
];

/// What changes no text, and why.
const CHANGES_NO_TEXT: [(&str, &str); 31] = [
    ("_from_model_config", "says where the settings come from"),
    ("assistant_confidence_threshold", "speculative decoding"),
    ("assistant_early_exit", "speculative decoding"),
    ("assistant_ensemble_weight", "speculative decoding"),
    ("assistant_lookbehind", "speculative decoding"),
    ("cache_config", "memory"),
    ("cache_implementation", "memory"),
    ("compile_config", "speed"),
    ("continuous_batching_config", "speed"),
    ("disable_compile", "speed"),
    ("is_assistant", "speculative decoding"),
    ("low_memory", "memory"),
    ("max_cache_len", "memory"),
    ("max_matching_ngram_size", "speculative decoding"),
    ("num_assistant_tokens", "speculative decoding"),
    ("num_assistant_tokens_schedule", "speculative decoding"),
    ("output_attentions", "what the program returns"),
    ("output_hidden_states", "what the program returns"),
    ("output_logits", "what the program returns"),
    ("output_scores", "what the program returns"),
    ("prefill_chunk_size", "memory"),
    ("prompt_lookup_num_tokens", "speculative decoding"),
    ("return_dict_in_generate", "what the program returns"),
    ("speculation_type", "speculative decoding"),
    ("target_lookbehind", "speculative decoding"),
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

/// Returns the settings of `json` that change the text and that are not in `acted`, each with what Kiln does instead, and the ones
/// that nobody knows. A `config.json` has other keys, so that only known ones are looked for.
pub(super) fn unsupported<'a>(
    json: &'a Value,
    acted: &[&str],
    of_model: bool,
) -> Vec<(&'a str, &'a Value, &'static str)> {
    let keys = json.as_object().into_iter().flatten();
    let effect = |key: &str, value: &Value| match CHANGES_TEXT.iter().find(|(known, ..)| *known == key) {
        _ if acted.contains(&key) => None,
        Some((_, off, effect)) => Some(*effect).filter(|_| !is_off(value, off)),
        None => {
            let known = of_model || CHANGES_NO_TEXT.iter().any(|(known, _)| *known == key);
            Some("Kiln does not know this setting").filter(|_| !known && !is_off(value, &["false"]))
        }
    };
    keys.filter_map(|(key, value)| Some((key.as_str(), value, effect(key, value)?))).collect()
}

/// What a setting that import acts on must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Number,
    Size,
    Flag,
    Id,
    Ids,
    Words,
    Strings,
    Stopping,
}

const KINDS: [(&str, Kind); 21] = [
    ("bad_words_ids", Kind::Words),
    ("bos_token_id", Kind::Ids),
    ("decoder_start_token_id", Kind::Ids),
    ("do_sample", Kind::Flag),
    ("early_stopping", Kind::Stopping),
    ("eos_token_id", Kind::Ids),
    ("forced_bos_token_id", Kind::Id),
    ("forced_eos_token_id", Kind::Ids),
    ("length_penalty", Kind::Number),
    ("max_length", Kind::Size),
    ("max_new_tokens", Kind::Size),
    ("no_repeat_ngram_size", Kind::Size),
    ("num_beams", Kind::Size),
    ("pad_token_id", Kind::Id),
    ("renormalize_logits", Kind::Flag),
    ("repetition_penalty", Kind::Number),
    ("stop_strings", Kind::Strings),
    ("suppress_tokens", Kind::Ids),
    ("temperature", Kind::Number),
    ("top_k", Kind::Size),
    ("top_p", Kind::Number),
];

/// Returns what is wrong with the first setting of another kind than it must be.
pub(super) fn malformed(json: &Value) -> Option<String> {
    let id = |value: &Value| value.as_i64().is_some_and(|id| (-1..=i64::from(u32::MAX)).contains(&id));
    let all = |value: &Value, each: &dyn Fn(&Value) -> bool| value.as_array().is_some_and(|all| all.iter().all(each));
    let wrong = |(key, kind): &(&str, Kind)| {
        let value = &json[*key];
        let (fits, wanted) = match kind {
            Kind::Number => (value.is_number(), "a number"),
            Kind::Size => (value.is_u64(), "a whole number"),
            Kind::Flag => (value.is_boolean(), "true or false"),
            Kind::Id => (id(value), "the id of a token"),
            Kind::Ids => (id(value) || all(value, &id), "the id of a token, or a list of ids"),
            Kind::Words => (all(value, &|word| all(word, &id)), "a list of lists of ids"),
            Kind::Strings => (value.is_string() || all(value, &Value::is_string), "a string, or a list of strings"),
            Kind::Stopping => (value.is_boolean() || value == "never", "true, false or \"never\""),
        };
        (!fits && !value.is_null()).then(|| format!("{key} is {value}, but must be {wanted}; correct or remove it"))
    };
    KINDS.iter().find_map(wrong)
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
                let changes_text = CHANGES_TEXT.iter().any(|(known, ..)| *known == key);
                let changes_none = CHANGES_NO_TEXT.iter().any(|(known, _)| *known == key);
                assert!(acted.contains(&key) || changes_text != changes_none, "{key} is in no list, or in two");
            }
            let acted = OF_TEXT.iter().chain(&OF_PAIRS).any(|acted| *acted == key);
            assert!(!acted || KINDS.iter().any(|(known, _)| *known == key), "{key} may be of any kind");
        }
    }

    #[test]
    fn what_is_off_is_not_named() {
        let off = json!({
            "typical_p": 1.0, "top_h": null, "bad_words_ids": [], "sequence_bias": {}, "min_length": 0,
            "some_new_key": false, "guidance_scale": 1, "use_cache": false, "max_new_tokens": 5,
        });
        assert_eq!(unsupported(&off, &OF_TEXT, false), []);
        let on = json!({"begin_suppress_tokens": [3], "some_new_key": 1, "sequence_bias": [[[1], -2.0]]});
        let named =
            |of_model| unsupported(&on, &OF_TEXT, of_model).into_iter().map(|(key, ..)| key).collect::<Vec<_>>();
        assert_eq!(named(false), ["begin_suppress_tokens", "sequence_bias", "some_new_key"]);
        assert_eq!(named(true), ["begin_suppress_tokens", "sequence_bias"], "keys of config.json");
    }
}
