//! The tokenizer of a folder as M2M-100 is published: a SentencePiece model, a vocabulary, and the languages behind it.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::NAMES_FILE;
use super::special::read_names;
use super::spm_file::{json_with_ids, read_sentencepiece, read_vocabulary};
use crate::error::{Error, Result};

/// The languages of M2M-100 in the order of their ids, in fairseq's codes.
const M2M100: &str = "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy \
                      id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru \
                      sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu";
/// The languages of the models for the news of WMT 2021.
const WMT21: &str = "en ha is ja cs ru zh de";

/// The tokenizer that `M2M100Tokenizer` of `transformers` reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct M2m100Files {
    /// A `tokenizer.json` with the ids of `vocab.json`, and the languages as special tokens behind them (`__it__`).
    pub json: String,
    /// The SentencePiece model, which encodes.
    pub model: Vec<u8>,
    /// The token of the language of sources, if the folder names one.
    pub source_language: Option<String>,
}

impl M2m100Files {
    /// The SentencePiece model.
    pub const MODEL: &str = "sentencepiece.bpe.model";
    /// The vocabulary.
    pub const VOCABULARY: &str = "vocab.json";

    /// Reads the tokenizer of the folder `dir`; `None` if one of the two files is not there.
    ///
    /// # Errors
    ///
    /// If one of the files cannot be read or is too large, if ids have gaps, or if `tokenizer_config.json` has an unknown
    /// `language_codes`.
    pub fn read(dir: &Path) -> Result<Option<Self>> {
        let [path, vocabulary] = [Self::MODEL, Self::VOCABULARY].map(|name| dir.join(name));
        if !path.is_file() || !vocabulary.is_file() {
            return Ok(None);
        }
        let names_path = dir.join(NAMES_FILE);
        let names = read_names(&names_path)?;
        let languages = match &names["language_codes"] {
            Value::Null => M2M100,
            Value::String(name) if name == "m2m100" => M2M100,
            Value::String(name) if name == "wmt21" => WMT21,
            other => {
                let problem = format!("has language_codes = {other}; Kiln knows \"m2m100\" and \"wmt21\"");
                return Err(Error::tokenizer(Some(&names_path), problem));
            }
        };

        let model = read_sentencepiece(&path)?;
        let ids = with_languages(read_vocabulary(&vocabulary)?, languages, &vocabulary)?;
        let json = json_with_ids(&model, &path, &ids, &vocabulary)?;
        let json = with_special_tokens(&json, &ids, languages);
        let source_language = names["src_lang"].as_str().map(token_of);
        Ok(Some(Self { json, model, source_language }))
    }
}

/// Returns the token of a language.
fn token_of(code: &str) -> String {
    format!("__{code}__")
}

/// Appends the languages to a vocabulary.
fn with_languages(mut ids: BTreeMap<String, u32>, languages: &str, path: &Path) -> Result<BTreeMap<String, u32>> {
    let n = ids.len() as u32;
    for (id, code) in (n..).zip(languages.split_whitespace()) {
        if ids.insert(token_of(code), id).is_some() {
            let problem = format!("has the entry {:?}, but languages come behind the vocabulary", token_of(code));
            return Err(Error::tokenizer(Some(path), problem));
        }
    }
    Ok(ids)
}

/// Makes the start token and the languages special tokens of a `tokenizer.json`.
fn with_special_tokens(json: &str, ids: &BTreeMap<String, u32>, languages: &str) -> String {
    let mut json: Value = serde_json::from_str(json).expect("made here");
    let added = json["added_tokens"].as_array_mut().expect("made here");
    for token in std::iter::once("<s>".to_owned()).chain(languages.split_whitespace().map(token_of)) {
        if let Some(id) = ids.get(&token) {
            added.push(json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}));
        }
    }
    added.sort_by_key(|token| token["id"].as_u64());
    format!("{json:#}\n")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::TextTokenizer;
    use super::super::spm_file::sentencepiece_json;
    use super::*;
    use crate::tokenizer::TokenizerConfig;

    fn model() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/sentencepiece/bpe.model")
    }

    /// A folder whose vocabulary begins as fairseq's do.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let bytes = std::fs::read(model()).expect("committed");
        let json: Value =
            serde_json::from_str(&sentencepiece_json(&bytes, None, &model()).expect("a model")).expect("JSON");
        let special = ["<s>", "<pad>", "</s>", "<unk>"];
        let pieces = json["model"]["vocab"].as_object().expect("pieces").keys().map(String::as_str);
        let pieces = pieces.filter(|piece| !special.contains(piece));
        let vocabulary: BTreeMap<&str, u32> = special.into_iter().chain(pieces).zip(0u32..).collect();
        let vocabulary = serde_json::to_vec(&vocabulary).expect("JSON");
        std::fs::write(folder.path().join(M2m100Files::VOCABULARY), vocabulary).expect("writable");
        std::fs::write(folder.path().join(M2m100Files::MODEL), &bytes).expect("writable");
        folder
    }

    #[test]
    fn languages_stand_behind_the_vocabulary_and_texts_have_no_codes() {
        let folder = folder();
        let names = folder.path().join(NAMES_FILE);
        std::fs::write(&names, r#"{"src_lang": "fr"}"#).expect("writable");
        let files = M2m100Files::read(folder.path()).expect("sound").expect("there");
        assert_eq!(files.source_language.as_deref(), Some("__fr__"));

        let json: Value = serde_json::from_str(&files.json).expect("JSON");
        let n = json["model"]["vocab"].as_object().expect("pieces").len() - 100;
        for (code, place) in [("af", 0), ("it", 41), ("zu", 99)] {
            assert_eq!(json["model"]["vocab"][token_of(code)], json!(n + place));
        }
        let added = json["added_tokens"].as_array().expect("tokens");
        assert!(added.iter().filter(|token| token["special"] == true).count() >= 104, "{added:?}");

        let run = tempfile::tempdir().expect("a folder");
        let path = run.path().join("tokenizer.json");
        std::fs::write(&path, &files.json).expect("writable");
        std::fs::write(run.path().join("tokenizer.model"), &files.model).expect("writable");
        let tokenizer = TextTokenizer::load(&TokenizerConfig { path: Some(path), ..TokenizerConfig::default() });
        let tokenizer = tokenizer.expect("loads");
        for text in ["the file", ">>the<< file"] {
            let ids = tokenizer.encode(text).expect("encodes");
            // The signs are unknown; of a code, nothing would be left.
            assert_eq!(tokenizer.decode(&ids).expect("decodes"), "the file", "{text}");
        }
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let folder_without = |name: &str| {
            let folder = folder();
            std::fs::remove_file(folder.path().join(name)).expect("there");
            folder
        };
        for name in [M2m100Files::MODEL, M2m100Files::VOCABULARY] {
            assert_eq!(M2m100Files::read(folder_without(name).path()).expect("no error"), None);
        }

        for (name, content, wanted) in [
            (M2m100Files::MODEL, "not a model", "sentencepiece.bpe.model: is not a SentencePiece model"),
            (M2m100Files::VOCABULARY, "[1]", "vocab.json: is not an object with the id of each piece"),
            (M2m100Files::VOCABULARY, r#"{"<unk>": 0, "b": 2}"#, "vocab.json: gives"),
            (M2m100Files::VOCABULARY, r#"{"<unk>": 0, "__it__": 1}"#, "has the entry \"__it__\""),
            (NAMES_FILE, r#"{"language_codes": "m3m"}"#, "has language_codes = \"m3m\""),
        ] {
            let folder = folder();
            std::fs::write(folder.path().join(name), content).expect("writable");
            let message = M2m100Files::read(folder.path()).expect_err("refused").to_string();
            assert!(message.contains(wanted), "{wanted:?} is missing in {message:?}");
        }
    }
}
