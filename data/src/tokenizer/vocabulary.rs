//! One vocabulary: a Hugging Face tokenizer, made fit for training rows.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;

use serde_json::Value;
use tokenizers::{AddedToken, Model as _, NormalizedString, Normalizer as _, Tokenizer};

use super::encoder::SharedWords;
use super::{SpecialIds, SpecialNames};
use crate::error::{Error, Result};

/// A tokenizer and what must be known of it.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// The file as it was loaded or trained; saved and fingerprinted as it is.
    pub(crate) json: String,
    /// The largest id + 1.
    pub(crate) size: usize,
    pub(crate) special: SpecialIds,
    /// Special tokens that the file lacked and that were appended.
    pub(crate) added: Vec<String>,
    /// Adds no special tokens, never truncates or pads, and spells control tokens in a text as text.
    pub(crate) tokenizer: Tokenizer,
    /// Whether texts can be encoded word by word.
    pub(crate) words: Words,
    pub(super) shared_words: SharedWords,
    /// Spellings of added tokens that a text may contain.
    pub(crate) in_text: Vec<String>,
    /// Ids that are left out when decoding.
    skipped: HashSet<u32>,
}

/// Whether the ids of a text are those of its words (the pieces between single spaces) one after the other, so that
/// words can be remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Words {
    /// They are: the Metaspace family, which is what [`super::train`] makes. Metaspace splits at every space, and NFC and
    /// NFKC never look across one (U+0020 neither combines nor is reordered).
    Apart {
        /// Stands for the space in front of a word.
        meta: char,
        /// Words are split further (at digits, say) before the model sees them.
        split_further: bool,
    },
    /// They are not, or it cannot be told.
    Together,
}

impl Vocabulary {
    /// Takes a `tokenizer.json` apart. `path` is named in errors.
    pub(crate) fn parse(
        mut json: String,
        path: Option<&Path>,
        names: &SpecialNames,
        add_missing: bool,
    ) -> Result<Self> {
        let fail =
            |e: &dyn std::fmt::Display| Error::tokenizer(path, format!("is no Hugging Face tokenizer.json: {e}"));
        let controls = [&names.pad_token, &names.bos_token, &names.eos_token, &names.unk_token];
        let loaded: Tokenizer = json.parse().map_err(|e| fail(&e))?;
        let missing: Vec<String> =
            controls.iter().filter(|t| loaded.token_to_id(t).is_none()).map(|t| (*t).clone()).collect();
        if !missing.is_empty() {
            if !add_missing {
                return Err(Error::tokenizer(path, missing_message(&missing, &loaded)));
            }
            let mut extended = loaded;
            extended.add_special_tokens(&missing.iter().map(|t| AddedToken::from(t, true)).collect::<Vec<_>>());
            json = extended.to_string(true).map_err(|e| fail(&e))?;
        }

        let mut parts: Value = serde_json::from_str(&json).map_err(|e| fail(&e))?;
        let (skipped, in_text) = free_text_of_controls(&mut parts, &controls);
        for part in ["truncation", "padding", "post_processor"] {
            parts[part] = Value::Null;
        }
        if parts["model"]["dropout"].is_number() {
            // BPE dropout would draw other ids every time: the cache could not be reproduced.
            parts["model"]["dropout"] = Value::Null;
        }
        let words = words_of(&parts);
        let mut tokenizer: Tokenizer = serde_json::from_value(parts).map_err(|e| fail(&e))?;
        tokenizer.set_encode_special_tokens(true);

        let id = |token: &str| tokenizer.token_to_id(token).expect("present or added above");
        let special = SpecialIds {
            pad: id(&names.pad_token),
            bos: id(&names.bos_token),
            eos: id(&names.eos_token),
            unk: id(&names.unk_token),
        };
        if special.pad == special.eos {
            return Err(Error::tokenizer(path, "padding and end of sequence have the same id: name two tokens"));
        }
        let size = tokenizer.get_vocab(true).values().max().map_or(0, |max| *max as usize + 1);
        Ok(Self {
            json,
            size,
            special,
            added: missing,
            tokenizer,
            words,
            shared_words: SharedWords::default(),
            in_text,
            skipped,
        })
    }

    /// Appends the ids of a text, without special tokens.
    pub(crate) fn encode(&self, tokenizer: &Tokenizer, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        let encoding = tokenizer
            .encode_fast(text, false)
            .map_err(|e| Error::tokenizer(None, format!("encoding {text:?} failed: {e}")))?;
        ids.extend(encoding.get_ids().iter().map(|id| self.never_control(*id)));
        Ok(())
    }

    /// Appends the ids that a word has in every text, where [`Words`] says that there are such. `false` if this word is
    /// an exception: if it holds an added token, or normalizes to nothing, to spaces or to the meta symbol, it is encoded
    /// differently inside a text.
    pub(crate) fn encode_word(&self, word: &str, ids: &mut Vec<u32>) -> Result<bool> {
        let Words::Apart { meta, split_further } = self.words else { return Ok(false) };
        let mut normalized = Cow::Borrowed(word);
        // All Unicode forms leave ASCII as it is.
        if let Some(normalizer) = self.tokenizer.get_normalizer().filter(|_| !word.is_ascii()) {
            let mut text = NormalizedString::from(word);
            normalizer
                .normalize(&mut text)
                .map_err(|e| Error::tokenizer(None, format!("normalizing {word:?} failed: {e}")))?;
            normalized = Cow::Owned(text.get().to_owned());
        }
        let added = |token: &String| word.contains(token.as_str()) || normalized.contains(token.as_str());
        if normalized.is_empty()
            || normalized.contains([' ', meta])
            || word.contains(meta)
            || self.in_text.iter().any(added)
        {
            return Ok(false);
        }
        if split_further {
            self.encode(&self.tokenizer, word, ids)?;
        } else {
            let tokens = self
                .tokenizer
                .get_model()
                .tokenize(&format!("{meta}{normalized}"))
                .map_err(|e| Error::tokenizer(None, format!("encoding {word:?} failed: {e}")))?;
            ids.extend(tokens.iter().map(|token| self.never_control(token.id)));
        }
        Ok(true)
    }

    /// Some vocabularies can spell a control token by merges; a text must never end a sequence.
    fn never_control(&self, id: u32) -> u32 {
        let SpecialIds { pad, bos, eos, unk } = self.special;
        if id == pad || id == bos || id == eos { unk } else { id }
    }

    /// The text of some ids, special tokens left out.
    pub(crate) fn decode(&self, ids: &[u32]) -> Result<String> {
        let ids: Vec<u32> = ids.iter().copied().filter(|id| !self.skipped.contains(id)).collect();
        self.tokenizer.decode(&ids, false).map_err(|e| Error::tokenizer(None, format!("decoding {ids:?} failed: {e}")))
    }
}

fn missing_message(missing: &[String], loaded: &Tokenizer) -> String {
    let mut special: Vec<_> = loaded.get_added_tokens_decoder().into_iter().filter(|(_, t)| t.special).collect();
    special.sort_by_key(|(id, _)| *id);
    let known: Vec<_> = special.iter().take(12).map(|(_, t)| format!("\"{}\"", t.content)).collect();
    format!(
        "has no {}; its special tokens are {}: set tokenizer.pad_token, bos_token, eos_token and unk_token to their \
         spellings, or append what is missing with tokenizer.add_missing_tokens = true",
        missing.iter().map(|t| format!("\"{t}\"")).collect::<Vec<_>>().join(", "),
        if known.is_empty() { "none".into() } else { known.join(", ") }
    )
}

/// Leaves only control tokens special, so that a text which spells one is encoded as text, while other added tokens
/// (language codes, say) still match. Returns the ids that were special and the tokens that a text may contain.
fn free_text_of_controls(parts: &mut Value, controls: &[&String; 4]) -> (HashSet<u32>, Vec<String>) {
    let (mut skipped, mut in_text) = (HashSet::new(), Vec::new());
    for token in parts["added_tokens"].as_array_mut().into_iter().flatten() {
        let content = token["content"].as_str().unwrap_or_default().to_owned();
        let is_control = controls.contains(&&content);
        if is_control || token["special"] == Value::Bool(true) {
            skipped.extend(token["id"].as_u64().and_then(|id| u32::try_from(id).ok()));
        }
        token["special"] = is_control.into();
        if !is_control && !content.is_empty() {
            in_text.push(content);
        }
    }
    (skipped, in_text)
}

/// Reads off the parts of a tokenizer whether it splits at spaces and looks across none.
fn words_of(parts: &Value) -> Words {
    let kind = |part: &Value| part["type"].as_str().unwrap_or_default().to_owned();
    let unicode_form = |part: &Value| matches!(kind(part).as_str(), "NFC" | "NFKC" | "NFD" | "NFKD");
    let normalizer = &parts["normalizer"];
    let normalizer_fits = match kind(normalizer).as_str() {
        "" => normalizer.is_null(),
        "Sequence" => normalizer["normalizers"].as_array().is_some_and(|all| all.iter().all(unicode_form)),
        _ => unicode_form(normalizer),
    };
    let added = parts["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
    let added_fit = added.iter().all(|token| {
        let strips = token["lstrip"] == Value::Bool(true) || token["rstrip"] == Value::Bool(true);
        token["special"] == Value::Bool(true) || !(strips || token["content"].as_str().is_none_or(|c| c.contains(' ')))
    });
    let pre_tokenizer = &parts["pre_tokenizer"];
    let (first, rest) = match pre_tokenizer["pretokenizers"].as_array().map(Vec::as_slice) {
        Some([first, rest @ ..]) => (first, rest),
        _ => (pre_tokenizer, &[][..]),
    };
    let rest_fits = rest.iter().all(|part| matches!(kind(part).as_str(), "Digits" | "Punctuation"));
    let metaspace_fits = kind(first) == "Metaspace"
        && first["prepend_scheme"].as_str().is_none_or(|scheme| scheme != "never")
        && first["add_prefix_space"] != Value::Bool(false)
        && first["split"] != Value::Bool(false);
    let meta = first["replacement"].as_str().and_then(|text| text.chars().next());
    match meta {
        Some(meta) if normalizer_fits && added_fit && metaspace_fits && rest_fits => {
            Words::Apart { meta, split_further: !rest.is_empty() }
        }
        _ => Words::Together,
    }
}
