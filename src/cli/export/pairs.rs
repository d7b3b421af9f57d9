//! What `kiln export` writes of a run that translates: the tokenizers in the layout of OPUS-MT.

use std::path::Path;

use anyhow::{Context, Result};
use kiln_data::files::read_file;
use kiln_data::{MarianFiles, PairTokenizers};
use kiln_interchange::hugging_face::{TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, TokenizerFile};
use kiln_model::LazyTensor;
use kiln_train::logging::print::stderr_line;
use serde_json::{Map, Value, json};

/// Names and contents of files.
pub(super) type Files = Vec<(String, Vec<u8>)>;

/// Returns the tokenizer's files as `MarianTokenizer` reads them, if each language of the checkpoint has its own SentencePiece
/// model: both models, `vocab.json` (and `target_vocab.json` if the ids differ) and `tokenizer_config.json`.
pub(super) fn marian_files(checkpoint: &Path, max_positions: usize) -> Result<Option<Files>> {
    if !MarianFiles::MODELS.iter().all(|name| checkpoint.join(name).is_file()) {
        return Ok(None);
    }
    let mut files = Files::new();
    for name in MarianFiles::MODELS {
        let path = checkpoint.join(name);
        files.push((name.to_owned(), read_file(&path).with_context(|| format!("{}: cannot be read", path.display()))?));
    }
    let [source, target] = ["source", "target"].map(|side| checkpoint.join(format!("{side}.{TOKENIZER_FILE}")));
    let (source, target) = (TokenizerFile::read(&source)?, TokenizerFile::read(&target)?);
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
    files.push((TOKENIZER_CONFIG_FILE.to_owned(), super::text(&Value::Object(config))));
    Ok(Some(files))
}

/// Says that the decoder's start token has a vector that is not zero: CTranslate2 takes zeros for it, as Marian does.
pub(super) fn note_start(tokenizers: &PairTokenizers, tensors: &[LazyTensor<'_>]) {
    let start = tokenizers.special().bos as usize;
    let is_table = |name: &str| name.ends_with(".shared.weight") || name.ends_with(".decoder.embed_tokens.weight");
    let Some(table) = tensors.iter().find(|tensor| is_table(&tensor.name)) else { return };
    let table = table.read();
    let largest =
        table.values.chunks_exact(table.shape[1]).nth(start).into_iter().flatten().fold(0f32, |a, b| a.max(b.abs()));
    if largest > 0.0 {
        stderr_line!(
            "note: the start token of the decoder has a vector with elements up to {largest:.1e}; CTranslate2 and Marian begin with \
             zeros, so a conversion translates differently. Train adapters or freeze the embeddings (train.freeze) of a \
             published model to keep its zeros"
        );
    }
}
