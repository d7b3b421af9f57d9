//! What the published tokenizer of an imported model said to other programs, which an export says again.

use std::path::Path;

use anyhow::Result;
use kiln_data::FolderTokenizer;
use kiln_interchange::hugging_face::{TOKENIZER_CONFIG_FILE, TOKENIZER_FILE};
use kiln_metrics::logging::print::stderr_line;
use kiln_train::dataset::Vocabulary;
use kiln_train::run::TrainedModel;
use serde_json::{Map, Value, json};

use super::super::import::tokenizer_settings::{PUBLISHED, TOKENS_OF_TEMPLATE};

/// The ids among them, which belong into `config.json`.
const IDS: [&str; 2] = ["bos_token_id", "pad_token_id"];

/// Takes the settings out of a run's `tokenizer_config.json`; none if the model was not imported. Of a translator (`pairs`), Kiln's
/// start token goes too: it starts the decoder, and the published one starts texts, if there is one.
pub(super) fn take(names: &mut Map<String, Value>, pairs: bool) -> Map<String, Value> {
    let Some(Value::Object(mut published)) = names.remove(PUBLISHED) else { return Map::new() };
    if pairs {
        names.remove("bos_token");
    }
    IDS.iter().chain([&TOKENS_OF_TEMPLATE]).for_each(|key| drop(published.remove(*key)));
    published
}

/// Gives `config.json` and `generation_config.json` the published ids of tokens that Kiln does not use as such: the start token of
/// texts of a translator, whose decoder may start with another token, and padding that is also the end token.
pub(super) fn restore_ids(run: &TrainedModel, config: &mut Value, generation: Option<&mut Value>) -> Result<()> {
    let path = run.path.join(TOKENIZER_CONFIG_FILE);
    if !path.is_file() {
        return Ok(());
    }
    let names = super::token_names(&path)?;
    let Some(published) = names.get(PUBLISHED) else { return Ok(()) };
    let pairs = matches!(run.vocabulary, Vocabulary::Pairs(_));
    let start = (pairs || !names.contains_key("bos_token")).then_some("bos_token_id");
    let padding = config["pad_token_id"].is_null().then_some("pad_token_id");
    let keys: Vec<&str> = start.into_iter().chain(padding).collect();
    for json in [Some(config), generation].into_iter().flatten() {
        keys.iter().for_each(|key| json[*key] = published[*key].clone());
    }
    Ok(())
}

/// Lets the tokenizer of a model with types of tokens return them, as BERT's own class does: the second text of a pair has
/// another type.
pub(super) fn name_inputs(model: &Value, names: &mut Map<String, Value>) {
    if model["model_type"] == "bert" && model["type_vocab_size"].as_u64().is_some_and(|types| types > 1) {
        let inputs = || json!(["input_ids", "token_type_ids", "attention_mask"]);
        names.entry("model_input_names").or_insert_with(inputs);
    }
}

/// Says that `AutoTokenizer` divides texts otherwise than the exported tokenizer, by the rules of the usual class of such models.
pub(super) fn note_class(folder: &Path) -> Result<()> {
    let path = folder.join(TOKENIZER_FILE);
    if path.is_file() {
        let parts = FolderTokenizer::read(&path, usize::MAX)?.by_class;
        if !parts.is_empty() {
            stderr_line!(
                "note: AutoTokenizer of transformers 5 replaces {} of {TOKENIZER_FILE} for models of this type, and ids differ then; load it with \
                 PreTrainedTokenizerFast.from_pretrained(...)",
                parts.join(" and ")
            );
        }
    }
    Ok(())
}

/// Says that `AutoTokenizer` loads no folder with two tokenizers.
pub(super) fn note_several(files: &[(String, Vec<u8>)]) {
    let several: Vec<&str> = files
        .iter()
        .map(|(name, _)| name.as_str())
        .filter(|name| name.ends_with(&format!(".{TOKENIZER_FILE}")))
        .collect();
    if !several.is_empty() {
        stderr_line!(
            "note: AutoTokenizer of transformers does not load this folder, because each language has its own vocabulary ({}); load \
             each with PreTrainedTokenizerFast(tokenizer_file=...), or train with tokenizer.joint = true",
            several.join(", ")
        );
    }
}
