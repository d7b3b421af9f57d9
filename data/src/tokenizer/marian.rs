//! The tokenizers of a folder as the OPUS-MT project publishes it: a SentencePiece model for each language, and one vocabulary.

use std::path::Path;

use serde_json::Value;

use super::special::read_names;
use super::spm_file::{json_with_ids, read_sentencepiece, read_vocabulary};
use super::{NAMES_FILE, SOURCE_FILE, TARGET_FILE};
use crate::error::{Error, Result};

const SOURCE_MODEL: &str = MarianFiles::MODELS[0];
const TARGET_MODEL: &str = MarianFiles::MODELS[1];
const VOCABULARY: &str = MarianFiles::VOCABULARY;
const TARGET_VOCABULARY: &str = MarianFiles::TARGET_VOCABULARY;

/// The tokenizers of both languages, which `MarianTokenizer` of `transformers` reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarianFiles {
    /// A `tokenizer.json` for the sources, with the ids of `vocab.json`.
    pub source_json: String,
    /// The same for the targets, with the ids of `target_vocab.json` if the languages have separate vocabularies.
    pub target_json: String,
    /// The SentencePiece model of the sources, which encodes them.
    pub source_model: Vec<u8>,
    /// The same for the targets.
    pub target_model: Vec<u8>,
}

impl MarianFiles {
    /// The SentencePiece models of sources and targets.
    pub const MODELS: [&str; 2] = ["source.spm", "target.spm"];
    /// The vocabulary.
    pub const VOCABULARY: &str = "vocab.json";
    /// The vocabulary of the targets, if the languages share none.
    pub const TARGET_VOCABULARY: &str = "target_vocab.json";

    /// Reads the tokenizers of the folder `dir`; `None` if it has no SentencePiece model of a language.
    ///
    /// # Errors
    ///
    /// If one of the files is missing, cannot be read or is too large, or if ids have gaps.
    pub fn read(dir: &Path) -> Result<Option<Self>> {
        let [source, target, vocabulary] = [SOURCE_MODEL, TARGET_MODEL, VOCABULARY].map(|name| dir.join(name));
        if !source.is_file() && !target.is_file() {
            return Ok(None);
        }
        let names = dir.join(NAMES_FILE);
        let separate = match &read_names(&names)?["separate_vocabs"] {
            Value::Null => false,
            Value::Bool(separate) => *separate,
            other => {
                let problem = format!("has separate_vocabs = {other}, which is neither true nor false");
                return Err(Error::tokenizer(Some(&names), problem));
            }
        };
        let target_vocabulary = if separate { dir.join(TARGET_VOCABULARY) } else { vocabulary.clone() };
        if let Some(path) = [&source, &target, &vocabulary, &target_vocabulary].into_iter().find(|it| !it.is_file()) {
            let wanted = match separate {
                true => {
                    format!("{SOURCE_MODEL}, {TARGET_MODEL}, {VOCABULARY} and {TARGET_VOCABULARY} (separate_vocabs)")
                }
                false => format!("{SOURCE_MODEL}, {TARGET_MODEL} and {VOCABULARY}"),
            };
            let problem = format!("is missing; the tokenizers of a Marian model are {wanted}: copy it here too");
            return Err(Error::tokenizer(Some(path), problem));
        }

        let (source_model, target_model) = (read_sentencepiece(&source)?, read_sentencepiece(&target)?);
        let of_source = read_vocabulary(&vocabulary)?;
        let source_json = json_with_ids(&source_model, &source, &of_source, &vocabulary)?;
        let of_target = if separate { read_vocabulary(&target_vocabulary)? } else { of_source };
        let target_json = json_with_ids(&target_model, &target, &of_target, &target_vocabulary)?;
        Ok(Some(Self { source_json, target_json, source_model, target_model }))
    }

    /// Returns names and contents of the files that [`PairTokenizers::load_dir`](super::PairTokenizers::load_dir) reads, next
    /// to the spellings of the special tokens.
    pub fn into_files(self) -> [(&'static str, Vec<u8>); 4] {
        [
            (SOURCE_FILE, self.source_json.into_bytes()),
            (TARGET_FILE, self.target_json.into_bytes()),
            (SOURCE_MODEL, self.source_model),
            (TARGET_MODEL, self.target_model),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use super::super::PairTokenizers;
    use super::super::spm_file::sentencepiece_json;
    use super::*;

    fn model() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/sentencepiece/unigram.model")
    }

    /// A folder with the same model for both languages.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let bytes = std::fs::read(model()).expect("committed");
        let json: Value =
            serde_json::from_str(&sentencepiece_json(&bytes, None, &model()).expect("a model")).expect("JSON");
        let pieces =
            json["model"]["vocab"].as_array().expect("pieces").iter().map(|piece| piece[0].as_str().expect("text"));
        let tokens = pieces.chain(["<pad>"]).zip(0u32..);
        let vocabulary: BTreeMap<&str, u32> = tokens.collect();
        std::fs::write(folder.path().join(VOCABULARY), serde_json::to_vec(&vocabulary).expect("JSON"))
            .expect("writable");
        for name in [SOURCE_MODEL, TARGET_MODEL] {
            std::fs::write(folder.path().join(name), &bytes).expect("writable");
        }
        folder
    }

    #[test]
    fn the_files_are_the_tokenizers_of_pairs() {
        let folder = folder();
        let files = MarianFiles::read(folder.path()).expect("sound").expect("there");
        let run = tempfile::tempdir().expect("a folder");
        for (name, content) in files.into_files() {
            std::fs::write(run.path().join(name), content).expect("writable");
        }
        let names = r#"{"pad_token": "<pad>", "bos_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}"#;
        std::fs::write(run.path().join(NAMES_FILE), names).expect("writable");
        let pairs = PairTokenizers::load_dir(run.path()).expect("loads");
        let rows = pairs.encode_sources(&["the file"]).expect("encodes");
        assert_eq!(pairs.decode(&rows[0]).expect("decodes"), "the file");
        assert_eq!(MarianFiles::read(run.path().parent().expect("a folder")).expect("no error"), None);
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let refusal = |name: &str, content: Option<&str>| {
            let folder = folder();
            let path = folder.path().join(name);
            match content {
                Some(content) => std::fs::write(path, content).expect("writable"),
                None => std::fs::remove_file(path).expect("there"),
            }
            MarianFiles::read(folder.path()).expect_err("refused").to_string()
        };

        for (name, content, wanted) in [
            (
                TARGET_MODEL,
                None,
                "target.spm: is missing; the tokenizers of a Marian model are source.spm, target.spm and vocab.json",
            ),
            (VOCABULARY, None, "vocab.json: is missing"),
            (NAMES_FILE, Some(r#"{"separate_vocabs": true}"#), "target_vocab.json: is missing"),
            (NAMES_FILE, Some(r#"{"separate_vocabs": 1}"#), "has separate_vocabs = 1, which is neither true nor false"),
            (SOURCE_MODEL, Some("not a model"), "source.spm: is not a SentencePiece model"),
            (VOCABULARY, Some("[1]"), "vocab.json: is not an object with the id of each piece"),
            (VOCABULARY, Some(r#"{"a": -1}"#), "vocab.json: is not an object with the id of each piece"),
            (VOCABULARY, Some(r#"{"a": 0, "b": 2}"#), "vocab.json: gives \"b\" the id 2, but has 2 entries"),
            (VOCABULARY, Some(r#"{"a": 0}"#), "vocab.json: has no \"<unk>\""),
        ] {
            let message = refusal(name, content);
            assert!(message.contains(wanted), "{wanted:?} is missing in {message:?}");
        }
    }
}
