//! What `kiln export` writes of a run that translates: the tokenizers in the layout of OPUS-MT, and a start that others read.

use std::path::Path;

use anyhow::{Context, Result};
use kiln_data::MarianFiles;
use kiln_data::files::read_file;
use kiln_interchange::hugging_face::{PADDING, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, TokenizerFile};
use kiln_metrics::logging::print::stderr_line;
use kiln_model::hf::{self, ExportPlan, Family, ZeroStart};
use kiln_train::run::TrainedModel;
use serde_json::{Map, Value, json};

use super::super::import::tokenizer_settings::PUBLISHED;

/// Names and contents of files.
pub(super) type Files = Vec<(String, Vec<u8>)>;

/// Returns the tokenizer's files as `MarianTokenizer` reads them, if each language of the checkpoint has its own SentencePiece
/// model: both models, `vocab.json` (and `target_vocab.json` if the ids differ) and `tokenizer_config.json`. `padding` is a token that
/// the model has got.
pub(super) fn marian_files(checkpoint: &Path, max_positions: usize, padding: Option<u32>) -> Result<Option<Files>> {
    if !MarianFiles::MODELS.iter().all(|name| checkpoint.join(name).is_file()) {
        return Ok(None);
    }
    let mut files = Files::new();
    for name in MarianFiles::MODELS {
        let path = checkpoint.join(name);
        files.push((name.to_owned(), read_file(&path).with_context(|| format!("{}: cannot be read", path.display()))?));
    }
    let [source, target] = ["source", "target"].map(|side| checkpoint.join(format!("{side}.{TOKENIZER_FILE}")));
    let (mut source, mut target) = (TokenizerFile::read(&source)?, TokenizerFile::read(&target)?);
    if let Some(id) = padding {
        source.add_padding(id);
        target.add_padding(id);
    }
    let (of_source, of_target) = (source.ids(), target.ids());
    let separate = of_source != of_target;
    files.push((MarianFiles::VOCABULARY.to_owned(), super::text(&json!(of_source))));
    if separate {
        files.push((MarianFiles::TARGET_VOCABULARY.to_owned(), super::text(&json!(of_target))));
    }

    let mut names = super::token_names(&checkpoint.join(TOKENIZER_CONFIG_FILE))?;
    let published = super::published::take(&mut names, true);
    let kept = ["pad_token", "eos_token", "unk_token", "source_lang", "target_lang"];
    let mut config: Map<String, Value> = names.into_iter().filter(|(key, _)| kept.contains(&key.as_str())).collect();
    config.insert("tokenizer_class".to_owned(), json!("MarianTokenizer"));
    config.insert("separate_vocabs".to_owned(), json!(separate));
    config.insert("model_max_length".to_owned(), json!(max_positions));
    config.extend(published);
    name_padding(&mut config, padding.is_some(), &Value::Null);
    files.push((TOKENIZER_CONFIG_FILE.to_owned(), super::text(&Value::Object(config))));
    Ok(Some(files))
}

/// Names the padding of the exported model in a `tokenizer_config.json`, if it is not the run's own: an `added` token, or the start of
/// a Pegasus `model`.
pub(super) fn name_padding(config: &mut Map<String, Value>, added: bool, model: &Value) {
    let name = match model["model_type"] == Family::Pegasus.name() {
        _ if added => Some(json!(PADDING)),
        true => config.get("bos_token").cloned(),
        false => None,
    };
    if let Some(name) = name {
        config.insert("pad_token".to_owned(), name);
    }
}

/// Lets the translations of a Marian model begin with zeros, unless its published vocabulary has another start.
pub(super) fn start_with_zeros<'a>(run: &TrainedModel, plan: ExportPlan<'a>) -> Result<ZeroStart<'a>> {
    let names = run.path.join(TOKENIZER_CONFIG_FILE);
    let is_published = names.is_file() && super::token_names(&names)?.contains_key(PUBLISHED);
    let start = hf::start_with_zeros(plan, !is_published);
    if start.plan.family == Family::Marian {
        note_start(&start.plan);
    }
    Ok(start)
}

/// Says that the decoder's start token has a vector that is not zero: CTranslate2 takes zeros for it, as Marian does.
fn note_start(plan: &ExportPlan<'_>) {
    let start = plan.config["decoder_start_token_id"].as_u64().unwrap_or_default() as usize;
    let is_table = |name: &str| name.ends_with(".shared.weight") || name.ends_with(".decoder.embed_tokens.weight");
    let Some(table) = plan.tensors.iter().find(|tensor| is_table(&tensor.name)) else { return };
    let table = table.read();
    let largest =
        table.values.chunks_exact(table.shape[1]).nth(start).into_iter().flatten().fold(0f32, |a, b| a.max(b.abs()));
    if largest > 0.0 {
        stderr_line!(
            "note: the start token of the decoder has a vector with elements up to {largest:.1e}; CTranslate2 and Marian begin with \
             zeros, so a conversion translates differently. Train with one vocabulary for both languages (tokenizer.joint = true) for \
             an export that they read"
        );
    }
}
