//! Tokens that steer a model: their spellings and ids.

use std::collections::HashSet;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokenizers::{AddedToken, Tokenizer};

use super::guard;
use super::vocabulary::{Vocabulary, not_a_tokenizer};
use super::{NAMES_FILE, PUBLISHED, TokenizerConfig};
use crate::error::{Error, Result};
use crate::files::read_file;

/// Ids of the tokens that steer a sequence-to-sequence model; the same in the source and the target vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SpecialIds {
    /// Pads rows to the padded length; the loss ignores it.
    pub pad: u32,
    /// Starts the decoder.
    pub bos: u32,
    /// Ends every row.
    pub eos: u32,
    /// Replaces text that the vocabulary cannot spell.
    pub unk: u32,
}

/// Spellings of the special tokens. Saved as `tokenizer_config.json`, where Hugging Face libraries look for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SpecialNames {
    pad_token: String,
    bos_token: String,
    eos_token: String,
    pub(super) unk_token: String,
    /// Tokens in front of every source and target.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tokens_before_text: Vec<String>,
    /// Tokens in front of every target, if they are others (a language).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokens_before_target: Option<Vec<String>>,
    /// The languages of a published translator, for the programs that read its tokenizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source_lang: Option<String>,
    /// See `source_lang`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_lang: Option<String>,
    /// What a published tokenizer says to other programs, for an export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    published: Option<Value>,
}

impl From<&TokenizerConfig> for SpecialNames {
    fn from(config: &TokenizerConfig) -> Self {
        Self {
            pad_token: config.pad_token.clone(),
            bos_token: config.bos_token.clone(),
            eos_token: config.eos_token.clone(),
            unk_token: config.unk_token.clone(),
            tokens_before_text: Vec::new(),
            tokens_before_target: None,
            source_lang: None,
            target_lang: None,
            published: None,
        }
    }
}

impl SpecialNames {
    pub(super) fn all(&self) -> [&str; 4] {
        [&self.pad_token, &self.bos_token, &self.eos_token, &self.unk_token]
    }

    /// Returns their ids in a vocabulary that has all of them.
    pub(super) fn ids(&self, vocabulary: &Vocabulary, path: Option<&Path>) -> Result<SpecialIds> {
        let [pad, bos, eos, unk] =
            self.all().map(|token| vocabulary.id(token).expect("present, trained or added before"));
        if pad == eos {
            return Err(Error::tokenizer(
                path,
                "gives padding and end of sequence the same id: set tokenizer.pad_token and tokenizer.eos_token to two tokens",
            ));
        }
        Ok(SpecialIds { pad, bos, eos, unk })
    }

    /// Returns what decides about ids.
    pub(super) fn unpublished(&self) -> Self {
        Self { published: None, ..self.clone() }
    }

    /// Returns the ids of the tokens in front of every source.
    pub(super) fn before_source(&self, vocabulary: &Vocabulary, path: Option<&Path>) -> Result<Vec<u32>> {
        Self::before(&self.tokens_before_text, vocabulary, path)
    }

    /// Returns the ids of the tokens in front of every target.
    pub(super) fn before_target(&self, vocabulary: &Vocabulary, path: Option<&Path>) -> Result<Vec<u32>> {
        Self::before(self.tokens_before_target.as_ref().unwrap_or(&self.tokens_before_text), vocabulary, path)
    }

    fn before(tokens: &[String], vocabulary: &Vocabulary, path: Option<&Path>) -> Result<Vec<u32>> {
        let id = |token: &String| {
            vocabulary.id(token).ok_or_else(|| {
                let why = format!(
                    "has no \"{token}\", which {NAMES_FILE} puts in front of texts (tokens_before_text or tokens_before_target)"
                );
                Error::tokenizer(path, why)
            })
        };
        tokens.iter().map(id).collect()
    }
}

/// Appends special tokens that a `tokenizer.json` lacks, or refuses the file. Returns the appended tokens.
pub(super) fn add_missing_tokens(
    json: String,
    path: &Path,
    names: &SpecialNames,
    add_missing: bool,
) -> Result<(String, Vec<String>)> {
    let loaded: Tokenizer = guard::read(&json).map_err(|e| not_a_tokenizer(Some(path), &e))?;
    let missing: Vec<String> =
        names.all().iter().filter(|t| loaded.token_to_id(t).is_none()).map(|t| (*t).to_owned()).collect();
    if missing.is_empty() {
        return Ok((json, missing));
    }

    if !add_missing {
        let message = format!(
            "has no {}; its special tokens are {}: set tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token and \
             tokenizer.unk_token to their spellings, or append missing ones with tokenizer.add_missing_tokens = true",
            quoted(missing.iter()),
            special_tokens_of(&loaded)
        );
        return Err(Error::tokenizer(Some(path), message));
    }

    let mut extended = loaded;
    extended.add_special_tokens(&missing.iter().map(|t| AddedToken::from(t, true)).collect::<Vec<_>>());
    let json = extended.to_string(true).map_err(|e| not_a_tokenizer(Some(path), &e))?;
    Ok((json, missing))
}

/// Returns the spellings of a tokenizer's special tokens, for messages.
pub(super) fn special_tokens_of(tokenizer: &Tokenizer) -> String {
    let mut special: Vec<_> = tokenizer.get_added_tokens_decoder().into_iter().filter(|(_, t)| t.special).collect();
    special.sort_by_key(|(id, _)| *id);
    if special.is_empty() { "none".into() } else { quoted(special.iter().take(12).map(|(_, t)| &t.content)) }
}

fn quoted<'a>(tokens: impl Iterator<Item = &'a String>) -> String {
    tokens.map(|t| format!("\"{t}\"")).collect::<Vec<_>>().join(", ")
}

/// Reads a file of spellings; null if it does not exist.
pub(super) fn read_names(path: &Path) -> Result<Value> {
    match read_file(path) {
        Ok(json) => serde_json::from_slice(&json)
            .map_err(|e| Error::tokenizer(Some(path), format!("has no valid special tokens: {e}"))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Value::Null),
        Err(e) => Err(Error::io(path, "reading")(e)),
    }
}

/// Ids of the tokens that steer a language model. `None` for a token that the vocabulary does not have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TextSpecialIds {
    /// Pads rows. Never the same as `eos` or `sep`, which are not padding.
    pub pad: Option<u32>,
    /// Stands in front of a document.
    pub bos: Option<u32>,
    /// Stands behind a document (end of text).
    pub eos: Option<u32>,
    /// Replaces text that the vocabulary cannot spell.
    pub unk: Option<u32>,
    /// Stands in front of a row for masked language modelling.
    pub cls: Option<u32>,
    /// Stands behind a row for masked language modelling.
    pub sep: Option<u32>,
    /// Hides a token.
    pub mask: Option<u32>,
}

impl TextSpecialIds {
    /// Returns the id that fills rows up. It need not be padding: the loss does not count it.
    pub(crate) fn fill(&self) -> i32 {
        self.pad.or(self.eos).unwrap_or(0) as i32
    }
}

/// Spellings of the special tokens that a language model's vocabulary has. Saved as `tokenizer_config.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TextNames {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pad_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bos_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) eos_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unk_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cls_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sep_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mask_token: Option<String>,
    /// What a published tokenizer says to other programs, for an export. It decides about no ids.
    #[serde(skip)]
    pub(super) published: Option<Value>,
}

/// Usual names of special tokens, most specific first.
const COMMON: [(&str, &[&str]); 7] = [
    ("pad_token", &["<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>", "<PAD>"]),
    ("bos_token", &["<s>", "<|begin_of_text|>", "<bos>", "[BOS]", "<|startoftext|>", "<|endoftext|>"]),
    ("eos_token", &["</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "[EOS]"]),
    ("unk_token", &["<unk>", "[UNK]", "<UNK>"]),
    ("cls_token", &["[CLS]", "<cls>"]),
    ("sep_token", &["[SEP]", "<sep>"]),
    ("mask_token", &COMMON_MASKS),
];

/// Usual names of the mask token.
pub(super) const COMMON_MASKS: [&str; 3] = ["[MASK]", "<mask>", "<|mask|>"];

impl TextNames {
    /// Finds the special tokens of a vocabulary by their spellings: in the configuration, else in `hints` (the
    /// `tokenizer_config.json` next to it), else by their usual names. Fails if the vocabulary lacks a spelling from
    /// the configuration.
    pub(super) fn find(
        tokenizer: &Tokenizer,
        config: &TokenizerConfig,
        hints: &Value,
        path: Option<&Path>,
    ) -> Result<Self> {
        let defaults = TokenizerConfig::default();
        let default_is = |value: &String, default: &String| (value != default).then(|| value.clone());
        let wanted = [
            default_is(&config.pad_token, &defaults.pad_token),
            default_is(&config.bos_token, &defaults.bos_token),
            default_is(&config.eos_token, &defaults.eos_token),
            default_is(&config.unk_token, &defaults.unk_token),
            config.cls_token.clone(),
            config.sep_token.clone(),
            config.mask_token.clone(),
        ];

        let there = |token: &str| tokenizer.token_to_id(token).is_some();
        let added: HashSet<String> =
            tokenizer.get_added_tokens_decoder().into_values().map(|token| token.content).collect();

        let mut found = [const { None }; 7];
        for (((key, common), wanted), found) in COMMON.iter().zip(wanted).zip(&mut found) {
            if let Some(wanted) = wanted {
                if !there(&wanted) {
                    return Err(Error::tokenizer(
                        path,
                        format!(
                            "has no \"{wanted}\" for tokenizer.{key}; its special tokens are {}: set tokenizer.{key} to one \
                             of them",
                            special_tokens_of(tokenizer)
                        ),
                    ));
                }
                *found = Some(wanted);
                continue;
            }
            // The hint is a string, or an object that contains it.
            let hint = hints[key].as_str().or_else(|| hints[key]["content"].as_str()).filter(|token| there(token));
            // An ordinary piece could be spelled like a special token, so added tokens come first.
            let is_added = common.iter().copied().find(|token| added.contains(*token));
            let known = hint.or(is_added).or_else(|| common.iter().copied().find(|token| there(token)));
            *found = known.map(Into::into);
        }
        let [pad_token, bos_token, eos_token, unk_token, cls_token, sep_token, mask_token] = found;
        let published = hints.get(PUBLISHED).cloned();
        Ok(Self { pad_token, bos_token, eos_token, unk_token, cls_token, sep_token, mask_token, published })
    }

    /// Returns all spellings.
    pub(super) fn all(&self) -> Vec<&str> {
        [
            &self.pad_token,
            &self.bos_token,
            &self.eos_token,
            &self.unk_token,
            &self.cls_token,
            &self.sep_token,
            &self.mask_token,
        ]
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect()
    }

    /// Returns their ids. BERT's tokens replace missing tokens around documents, and the other way round.
    pub(super) fn ids(&self, vocabulary: &Vocabulary) -> TextSpecialIds {
        let id = |token: &Option<String>| token.as_deref().and_then(|token| vocabulary.id(token));
        let (bos, eos, cls, sep) = (id(&self.bos_token), id(&self.eos_token), id(&self.cls_token), id(&self.sep_token));
        let (eos, sep) = (eos.or(sep), sep.or(eos));
        let bos = bos.or(cls).or(eos);
        let cls = cls.or(bos);
        let pad = id(&self.pad_token).filter(|pad| Some(*pad) != eos && Some(*pad) != sep);
        TextSpecialIds { pad, bos, eos, unk: id(&self.unk_token), cls, sep, mask: id(&self.mask_token) }
    }
}
