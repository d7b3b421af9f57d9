//! Files of SentencePiece models: where they are, and how a vocabulary is loaded from them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::sentencepiece;
use super::vocabulary::Vocabulary;
use crate::error::{Error, Result};
use crate::files::{read_file, read_text, write_fresh};

/// Ends of names of SentencePiece models.
const EXTENSIONS: [&str; 2] = ["spm", "model"];
/// Larger than any published model (Gemma's has 4 MB).
const MAX_BYTES: u64 = 1 << 28;
/// Larger than any published vocabulary (M2M-100's 128,000 entries have 4 MB).
const MAX_VOCABULARY_BYTES: u64 = 1 << 26;

/// Reads a file of a SentencePiece model.
///
/// # Errors
///
/// If the file cannot be read, or has more than 256 MiB, which no model has.
pub fn read_sentencepiece(path: &Path) -> Result<Vec<u8>> {
    let length = std::fs::metadata(path).map_err(Error::io(path, "reading the tokenizer"))?.len();
    if length > MAX_BYTES {
        let problem = format!("has {length} bytes, and no SentencePiece model has more than {MAX_BYTES}");
        return Err(Error::tokenizer(Some(path), problem));
    }
    read_file(path).map_err(Error::io(path, "reading the tokenizer"))
}

/// Converts a SentencePiece model (unigram or BPE) to a `tokenizer.json`. With `ids`, its pieces get the ids of that
/// vocabulary (`vocab.json` of Marian); pieces that it lacks become the unknown token. Errors name `path`.
///
/// The result holds every id, and other programs can load it. `tokenizers` encodes some texts differently from
/// `sentencepiece` (combining marks, emoji, repeated letters). So the vocabularies of this crate keep the model next to
/// it, and encode exactly as `sentencepiece` does.
///
/// # Errors
///
/// If the bytes are not a SentencePiece model, its algorithm is neither unigram nor BPE, or the ids have gaps.
pub fn sentencepiece_json(model: &[u8], ids: Option<&BTreeMap<String, u32>>, path: &Path) -> Result<String> {
    sentencepiece::to_json(model, ids).map_err(|problem| Error::tokenizer(Some(path), problem))
}

/// Converts the model of the file `path` with the ids of the vocabulary of the file `of_ids`. An error names the file that it
/// is about.
pub(super) fn json_with_ids(model: &[u8], path: &Path, ids: &BTreeMap<String, u32>, of_ids: &Path) -> Result<String> {
    sentencepiece_json(model, None, path)?;
    sentencepiece_json(model, Some(ids), of_ids)
}

/// Reads a `vocab.json`: an object with the id of each piece.
pub(super) fn read_vocabulary(path: &Path) -> Result<BTreeMap<String, u32>> {
    let length = std::fs::metadata(path).map_err(Error::io(path, "reading the vocabulary"))?.len();
    if length > MAX_VOCABULARY_BYTES {
        let problem = format!("has {length} bytes, and no vocabulary has more than {MAX_VOCABULARY_BYTES}");
        return Err(Error::tokenizer(Some(path), problem));
    }
    let bytes = read_file(path).map_err(Error::io(path, "reading the vocabulary"))?;
    serde_json::from_slice(&bytes)
        .map_err(|e| Error::tokenizer(Some(path), format!("is not an object with the id of each piece: {e}")))
}

/// A vocabulary as it is stored: a `tokenizer.json`, and the SentencePiece model that it was made of.
pub(super) struct Stored {
    pub(super) json: String,
    pub(super) model: Option<Vec<u8>>,
}

impl Stored {
    /// Reads the file that the user names: a `tokenizer.json` or a SentencePiece model.
    pub(super) fn read(path: &Path) -> Result<Self> {
        if path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known)) {
            let model = read_sentencepiece(path)?;
            return Ok(Self { json: sentencepiece_json(&model, None, path)?, model: Some(model) });
        }
        let inside = path.join("tokenizer.json");
        if inside.is_file() {
            let found = format!("it is a folder, whose tokenizer is {}: name that file", inside.display());
            return Err(Error::tokenizer(Some(path), found));
        }
        let json = read_text(path).map_err(Error::io(path, "reading the tokenizer"))?;
        Ok(Self { json, model: None })
    }

    /// Reads a `tokenizer.json` of a run, and the model next to it if there is one.
    pub(super) fn read_of_run(json: &Path) -> Result<Self> {
        let model = model_next_to(json);
        let mut stored = Self::read(json)?;
        if model.is_file() {
            stored.model = Some(read_sentencepiece(&model)?);
        }
        Ok(stored)
    }

    /// Lets the vocabulary that was parsed from `json` encode with the model, which never finds `controls` in a text.
    pub(super) fn attach(
        model: Option<Vec<u8>>,
        vocabulary: Vocabulary,
        path: Option<&Path>,
        controls: &[u32],
    ) -> Result<Vocabulary> {
        match model {
            Some(model) => vocabulary.with_sentencepiece(model, path, controls),
            None => Ok(vocabulary),
        }
    }
}

/// Writes the model of a vocabulary next to its `tokenizer.json`.
pub(super) fn save_model(vocabulary: &Vocabulary, json: &Path) -> Result<()> {
    let Some(model) = &vocabulary.sentencepiece else { return Ok(()) };
    let path = model_next_to(json);
    write_fresh(&path, &model.bytes).map_err(Error::io(path, "writing the tokenizer"))
}

/// Returns the path of the model that belongs to a `tokenizer.json`: `tokenizer.model`, `source.spm` or `target.spm`.
fn model_next_to(json: &Path) -> PathBuf {
    let name = json.file_name().unwrap_or_default().to_string_lossy();
    match name.strip_suffix(".tokenizer.json") {
        Some(side) => json.with_file_name(format!("{side}.spm")),
        None => json.with_file_name("tokenizer.model"),
    }
}
