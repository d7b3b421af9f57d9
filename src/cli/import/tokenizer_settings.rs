//! The settings in `tokenizer_config.json` that are about other programs: `kiln import` keeps them for an export, and names those
//! with which `transformers` reads or writes other texts.

use std::collections::BTreeMap;

use kiln_interchange::hugging_face::{TOKENIZER_CONFIG_FILE, TokenizerFile};
use kiln_metrics::logging::print::stderr_line;
use kiln_model::hf::TokenIds;
use serde_json::{Map, Value, json};

use super::generation_keys::is_off;
use super::tokenizers::Roles;

/// The key in a run's `tokenizer_config.json` under which they are kept.
pub(in crate::cli) const PUBLISHED: &str = "published";
/// The key there of the tokens that the chat template calls by names.
pub(in crate::cli) const TOKENS_OF_TEMPLATE: &str = "tokens_of_template";

/// From this length on, `transformers` takes `model_max_length` for no limit.
const NO_LIMIT: f64 = 1e20;

/// The special tokens that Kiln has names for.
const SPECIAL: [&str; 7] = ["bos_token", "cls_token", "eos_token", "mask_token", "pad_token", "sep_token", "unk_token"];

/// What an export repeats as it is.
const KEPT: [&str; 16] = [
    "additional_special_tokens",
    "chat_control_tokens",
    "clean_up_tokenization_spaces",
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
    "eot_token",
    "extra_special_tokens",
    "fill_token",
    "middle_token",
    "model_input_names",
    "model_max_length",
    "model_specific_special_tokens",
    "padding_side",
    "prefix_token",
    "response_template",
    "suffix_token",
    "truncation_side",
];

/// What `tokenizer.json`, other files, or other keys of the run say, and who reads it.
const SAID_ELSEWHERE: [(&str, &str); 36] = [
    ("_json_padding", "padding in tokenizer.json, which no program of Kiln's uses"),
    ("_json_truncation", "truncation in tokenizer.json: Kiln refuses texts that are too long"),
    ("_spm_precompiled_charsmap", "the normalizer in tokenizer.json"),
    ("add_bos_token", "the post-processor in tokenizer.json; import compares them"),
    ("add_eos_token", "the post-processor in tokenizer.json"),
    ("add_prefix_space", "the pre-tokenizer in tokenizer.json"),
    ("added_tokens_decoder", "added_tokens in tokenizer.json"),
    ("auto_map", "code, which Kiln never runs; an export has none"),
    ("chat_template", "the run's own key"),
    ("do_lower_case", "the normalizer in tokenizer.json"),
    ("extra_ids", "added_tokens in tokenizer.json"),
    ("language_codes", "added_tokens in tokenizer.json"),
    ("legacy", "the pre-tokenizer in tokenizer.json"),
    ("legacy_behaviour", "the post-processor in tokenizer.json"),
    ("merges", "the model in tokenizer.json"),
    ("num_madeup_words", "the rows of the embedding"),
    ("post_processor", "the post-processor in tokenizer.json"),
    ("separate_vocabs", "target_vocab.json, which import reads"),
    ("source_lang", "the run's own key"),
    ("source_spm", "the name of a file"),
    ("spm_file", "the name of a file"),
    ("src_lang", "the run's tokens_before_text"),
    ("strip_accents", "the normalizer in tokenizer.json"),
    ("target_lang", "the run's own key"),
    ("target_spm", "the name of a file"),
    ("target_vocab_file", "the name of a file"),
    ("tgt_lang", "the run's tokens_before_target"),
    ("tokenize_chinese_chars", "the normalizer in tokenizer.json"),
    ("tokenizer_class", "an export has the class that reads tokenizer.json as it is"),
    ("tokenizer_file", "the name of a file"),
    ("tokenizer_padding", "padding in tokenizer.json, which no program of Kiln's uses"),
    ("tokenizer_truncation", "truncation in tokenizer.json: Kiln refuses texts that are too long"),
    ("trim_offsets", "the post-processor in tokenizer.json"),
    ("unk_id", "the model in tokenizer.json"),
    ("vocab", "the model in tokenizer.json"),
    ("vocab_file", "the name of a file"),
];

/// What changes no ids and no text, and why.
const HARMLESS: [(&str, &str); 19] = [
    ("backend", "which library reads the files"),
    ("device_map", "where a model is loaded"),
    ("files_loaded", "which files were read"),
    ("gguf_file", "the name of a file"),
    ("init_inputs", "arguments of a class"),
    ("max_len", "the older name of model_max_length"),
    ("max_length", "an argument of programs that truncate or pad"),
    ("name_or_path", "where the files came from"),
    ("pad_to_multiple_of", "an argument of programs that pad"),
    ("pad_token_type_id", "an argument of programs that pad"),
    ("processor_class", "a class for pictures and sounds"),
    ("response_schema", "transformers drops it"),
    ("special_tokens_map_file", "the name of a file"),
    ("stride", "an argument of programs that truncate"),
    ("tokenizer", "an object of a program"),
    ("tokenizer_object", "an object of a program"),
    ("truncation_strategy", "an argument of programs that truncate"),
    ("use_default_system_prompt", "of chat templates that transformers no longer has"),
    ("verbose", "messages"),
];

/// What changes ids or texts, with the values that switch it off, and what Kiln does instead.
const NAMED: [(&str, &[&str], &str); 4] = [
    ("errors", &["\"replace\""], "bytes outside of UTF-8 are printed as U+FFFD"),
    ("fix_mistral_regex", &["false"], "texts are split as tokenizer.json says"),
    ("sp_model_kwargs", &["{}"], "SentencePiece splits texts without these arguments"),
    ("split_special_tokens", &["false"], "special tokens in texts are read as Kiln reads them everywhere"),
];

/// Returns what an export repeats of a folder's `tokenizer_config.json` and of its token ids: what Kiln's own `names` do not say.
/// `pads_left`: the class of its tokenizer pads in front of a text. `pairs` says whether the model translates.
pub(super) fn published(
    config: &Value,
    names: &Value,
    tokens: &TokenIds,
    (tokenizer, pads_left): (&TokenizerFile, bool),
    pairs: bool,
) -> Value {
    let mut kept = Map::new();
    for (key, value) in config.as_object().into_iter().flatten() {
        // A token is a string, or an object that contains it.
        let token = value["content"].as_str().or_else(|| value.as_str()).filter(|token| tokenizer.has(token));
        let unlimited = key == "model_max_length" && value.as_f64().is_some_and(|limit| limit >= NO_LIMIT);
        let of_model = key.ends_with("_token") && token.is_some();
        if SPECIAL.contains(&key.as_str()) {
            // Kiln's start token of a translator starts its decoder, and an export leaves it out.
            if let Some(token) = token.filter(|token| pairs && key == "bos_token" || names[key] != **token) {
                kept.insert(key.clone(), json!(token));
            }
        } else if !unlimited && !value.is_null() && (KEPT.contains(&key.as_str()) || of_model && !is_known(key)) {
            kept.insert(key.clone(), value.clone());
        }
    }

    if !kept.contains_key("model_max_length")
        && let Some(limit) = config["max_len"].as_u64()
    {
        kept.insert("model_max_length".to_owned(), json!(limit));
    }
    // An export has another class, which pads behind a text.
    if pads_left {
        kept.entry("padding_side").or_insert_with(|| json!("left"));
    }
    kept.insert("bos_token_id".to_owned(), json!(tokens.bos));
    kept.insert("pad_token_id".to_owned(), json!(tokens.pad));
    Value::Object(kept)
}

/// Keeps the tokens that the chat template calls by names, where the files of the folder name others than `names`, in which ids of
/// `config.json` name tokens, too.
pub(super) fn keep_tokens_of_template(names: &mut Value, roles: &Roles, named: BTreeMap<String, String>) {
    let Some(template) = names["chat_template"].as_str() else { return };
    let theirs: BTreeMap<String, String> =
        roles.iter().map(|(role, token)| ((*role).to_owned(), token.clone())).chain(named).collect();
    let ours = |key: &str| names[key].as_str().or(names[key]["content"].as_str());

    let of_names = names.as_object().into_iter().flatten().map(|(key, _)| key).filter(|key| key.ends_with("_token"));
    let mut keys = of_names.chain(theirs.keys());
    if keys.any(|key| template.contains(key.as_str()) && ours(key) != theirs.get(key).map(String::as_str)) {
        names[PUBLISHED][TOKENS_OF_TEMPLATE] = json!(theirs);
    }
}

/// Names the settings with which `transformers` reads or writes other texts, each with what Kiln does instead. `writes` says
/// whether the model writes texts.
pub(super) fn note_unsupported(config: &Value, tokenizer: &TokenizerFile, writes: bool) {
    let named = NAMED.iter().filter(|(key, off, _)| !is_off(&config[*key], off));
    let mut found: Vec<_> = named.map(|(key, _, effect)| (*key, *effect)).collect();
    let cleans = "clean_up_tokenization_spaces";
    if writes && config[cleans] == true && !tokenizer.is_bpe() {
        found.push((cleans, "texts keep the spaces in front of punctuation that the model writes"));
    }
    if let Some(templates) = config["chat_template"].as_array().filter(|templates| writes && templates.len() > 1) {
        let names: Vec<&str> = templates.iter().filter_map(|template| template["name"].as_str()).collect();
        stderr_line!(
            "note: {TOKENIZER_CONFIG_FILE} has the chat templates {}: the run and its exports have one, \"default\" or else the first",
            names.join(", ")
        );
    }
    for (key, effect) in found {
        stderr_line!("note: {key} = {} in {TOKENIZER_CONFIG_FILE} is not supported: {effect}", config[key]);
    }
}

fn is_known(key: &str) -> bool {
    let said = |(known, _): &(&str, &str)| *known == key;
    KEPT.contains(&key)
        || SPECIAL.contains(&key)
        || SAID_ELSEWHERE.iter().any(said)
        || HARMLESS.iter().any(said)
        || NAMED.iter().any(|(known, ..)| *known == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new version of transformers fails here until somebody decides what its new settings mean.
    #[test]
    fn every_setting_of_the_tokenizer_classes_is_in_a_list() {
        let text = include_str!("../../../model/fixtures/settings/tokenizers.json");
        let of_transformers: Value = serde_json::from_str(text).expect("written by make.py");
        let names = of_transformers["tokenizers"].as_array().expect("a list");
        assert!(names.len() > 60);
        let unknown: Vec<&str> = names.iter().filter_map(Value::as_str).filter(|key| !is_known(key)).collect();
        assert!(unknown.is_empty(), "in no list: {unknown:?}");
    }

    #[test]
    fn no_setting_is_in_two_lists() {
        let said = SAID_ELSEWHERE.iter().chain(&HARMLESS).map(|(key, _)| *key);
        let mut all: Vec<&str> =
            SPECIAL.into_iter().chain(KEPT).chain(said).chain(NAMED.iter().map(|(key, ..)| *key)).collect();
        let n = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), n);
    }
}
