//! One vocabulary: a Hugging Face tokenizer, prepared for training rows.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;
use tokenizers::{Model as _, NormalizedString, Normalizer as _, NormalizerWrapper, Tokenizer};

use super::guard::{caught, check};
use super::pieces::{Pieces, byte_characters};
use super::sentencepiece::{META, SentencePiece};
use super::words::SharedWords;
use crate::error::{Error, Result};

/// A tokenizer, and facts about it that encoding and decoding need.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// The file as it was loaded or trained, to be saved and fingerprinted.
    pub(crate) json: String,
    /// The largest id + 1.
    pub(crate) size: usize,
    /// Adds no special tokens, never truncates or pads, and encodes control tokens in a text as text.
    pub(crate) tokenizer: Tokenizer,
    /// The SentencePiece model that `json` was made of. It encodes and decodes instead of `tokenizer`.
    pub(crate) sentencepiece: Option<SentencePiece>,
    /// The pieces that texts can be divided into.
    pub(crate) pieces: Pieces,
    shared_words: SharedWords,
    in_text: AddedTokens,
    /// Spellings of control tokens.
    control_spellings: AddedTokens,
    /// Finds control tokens in texts too. Made when a text spells one.
    reader: OnceLock<Tokenizer>,
    byte_characters: [char; 256],
    /// Ids of control tokens, which an encoded text never contains.
    controls: Vec<u32>,
    /// Replaces a control token that a text spells, and text that the vocabulary cannot spell.
    unk: Option<u32>,
    /// Ids of the tokens that spell single bytes (`<0xE4>`).
    bytes: HashSet<u32>,
    /// Ids of special tokens.
    special: HashSet<u32>,
    /// The special tokens that a text may contain all the same: symbols that the trainer of a SentencePiece model defined.
    symbols: HashSet<u32>,
}

impl Vocabulary {
    /// Parses a `tokenizer.json`. `controls` are the spellings of tokens that steer a model; the ones that the
    /// vocabulary lacks are ignored. Errors name `path`.
    pub(crate) fn parse(json: String, path: Option<&Path>, controls: &[&str], unk: Option<&str>) -> Result<Self> {
        let fail = |e: &dyn std::fmt::Display| not_a_tokenizer(path, e);
        let mut parts: Value = serde_json::from_str(&json).map_err(|e| fail(&e))?;
        check(&parts).map_err(|problem| fail(&problem))?;
        let control_spellings = controls.iter().filter(|token| !token.is_empty()).map(|token| (*token).to_owned());
        let control_spellings = AddedTokens::new(control_spellings.collect());
        let (mut special, in_text) = free_text_of_controls(&mut parts, controls);
        for part in ["truncation", "padding", "post_processor"] {
            parts[part] = Value::Null;
        }
        if parts["model"]["dropout"].is_number() {
            // BPE dropout would sample other ids every time, so the cache could not be reproduced.
            parts["model"]["dropout"] = Value::Null;
        }

        let pieces = Pieces::of(&parts);
        let parsed = caught(|| serde_json::from_value(parts)).map_err(|problem| fail(&problem))?;
        let mut tokenizer: Tokenizer = parsed.map_err(|e| fail(&e))?;
        tokenizer.set_encode_special_tokens(true);
        let unk = unk.and_then(|token| tokenizer.token_to_id(token));
        let controls: Vec<u32> = controls.iter().filter_map(|token| tokenizer.token_to_id(token)).collect();
        special.extend(&controls);

        let bytes = (0..=u8::MAX).filter_map(|byte| tokenizer.token_to_id(&format!("<0x{byte:02X}>"))).collect();
        Ok(Self {
            bytes,
            size: tokenizer.get_vocab(true).values().max().map_or(0, |max| *max as usize + 1),
            controls: controls.into_iter().filter(|id| Some(*id) != unk).collect(),
            json,
            tokenizer,
            sentencepiece: None,
            pieces,
            shared_words: SharedWords::default(),
            in_text: AddedTokens::new(in_text),
            control_spellings,
            reader: OnceLock::new(),
            byte_characters: byte_characters(),
            unk,
            special,
            symbols: HashSet::new(),
        })
    }

    /// Encodes and decodes with the SentencePiece model that the vocabulary was made of. A text contains the symbols that the
    /// trainer of the model defined, except `controls`. Errors name `path`.
    pub(crate) fn with_sentencepiece(mut self, model: Vec<u8>, path: Option<&Path>, controls: &[u32]) -> Result<Self> {
        let ids = self.tokenizer.get_vocab(true).into_iter().collect();
        let model = SentencePiece::new(model, ids, controls).map_err(|problem| Error::tokenizer(path, problem))?;
        self.symbols = model.symbols().filter(|id| Some(*id) != self.unk).collect();
        self.controls.retain(|id| !self.symbols.contains(id));
        let mut spellings = std::mem::take(&mut self.control_spellings.spellings);
        spellings.retain(|token| self.id(token).is_none_or(|id| !self.symbols.contains(&id)));
        self.control_spellings = AddedTokens::new(spellings);
        self.sentencepiece = Some(model);
        self.pieces = Pieces::Whole;
        Ok(self)
    }

    /// Adds to a hash everything that ids depend on.
    pub(crate) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        hasher.update(self.json.as_bytes());
        if let Some(model) = &self.sentencepiece {
            hasher.update(&[1]).update(&model.bytes);
        }
    }

    /// Returns the id of a token by its spelling.
    pub(crate) fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// Whether this id stands for text that the vocabulary cannot spell.
    pub(crate) fn is_unknown(&self, id: u32) -> bool {
        self.unk == Some(id)
    }

    /// Whether characters without an entry are spelled as bytes.
    pub(crate) fn spells_bytes(&self) -> bool {
        self.bytes.len() == 256
    }

    /// Whether a character has no entry: it becomes the unknown token or bytes.
    pub(crate) fn lacks(&self, character: char) -> Result<bool> {
        let mut ids = Vec::new();
        self.encode(&self.tokenizer, character.encode_utf8(&mut [0; 4]), &mut ids)?;
        Ok(ids.iter().any(|id| self.is_unknown(*id) || self.bytes.contains(id)))
    }

    /// Returns the ids of all special tokens.
    pub(crate) fn special_ids(&self) -> &HashSet<u32> {
        &self.special
    }

    /// Whether no text contains this id, so that decoding skips it.
    pub(crate) fn is_outside_text(&self, id: u32) -> bool {
        self.special.contains(&id) && !self.symbols.contains(&id)
    }

    /// Returns `text` without the symbols of a SentencePiece model, whose characters need no entries.
    pub(crate) fn without_symbols<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match &self.sentencepiece {
            Some(model) if !self.symbols.is_empty() => Cow::Owned(model.without_symbols(text)),
            _ => Cow::Borrowed(text),
        }
    }

    /// Appends the ids of a text, without special tokens.
    pub(crate) fn encode(&self, tokenizer: &Tokenizer, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        if let Some(model) = &self.sentencepiece {
            let start = ids.len();
            model.encode(text, ids);
            ids[start..].iter_mut().for_each(|id| *id = self.never_control(*id));
            return Ok(());
        }
        let failed =
            |e: &dyn std::fmt::Display| Error::tokenizer(None, format!("encoding {:?} failed: {e}", beginning(text)));
        let encoding =
            caught(|| tokenizer.encode_fast(text, false)).map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
        ids.extend(encoding.get_ids().iter().map(|id| self.never_control(*id)));
        Ok(())
    }

    /// Returns how many control tokens a text spells.
    pub(crate) fn count_controls(&self, text: &str) -> u64 {
        self.control_spellings.count(text)
    }

    /// Appends the ids of a text in which control tokens may be spelled. Returns `false`, without ids, if none is: then
    /// [`Self::encode`] gives them. A SentencePiece model has no spelled control tokens.
    pub(crate) fn encode_with_controls(&self, text: &str, ids: &mut Vec<u32>) -> Result<bool> {
        if self.sentencepiece.is_some() || !self.control_spellings.are_in(text) {
            return Ok(false);
        }
        let reader = self.reader.get_or_init(|| {
            let mut reader = self.tokenizer.clone();
            reader.set_encode_special_tokens(false);
            reader
        });
        let encoding = reader
            .encode_fast(text, false)
            .map_err(|e| Error::tokenizer(None, format!("encoding {:?} failed: {e}", beginning(text))))?;
        ids.extend(encoding.get_ids());
        Ok(true)
    }

    /// Appends the ids that a piece has in every text. Returns `false` if they depend on the text around it: so they do
    /// for a word that holds an added token, or normalizes to nothing, to spaces or to the meta symbol.
    pub(crate) fn encode_piece(&self, piece: &str, ids: &mut Vec<u32>) -> Result<bool> {
        match self.pieces {
            Pieces::Pattern { .. } => {
                let spelled: String = piece.bytes().map(|byte| self.byte_characters[usize::from(byte)]).collect();
                self.extend_from_model(&spelled, ids)?;
                Ok(true)
            }
            Pieces::Prefixed { .. } | Pieces::PrefixedOnce { .. } => {
                self.extend_from_model(piece, ids)?;
                Ok(true)
            }
            Pieces::WhiteSpace => {
                if self.holds_added_token(piece) || self.holds_added_token(&self.normalized(piece)?) {
                    return Ok(false);
                }
                self.encode(&self.tokenizer, piece, ids)?;
                Ok(true)
            }
            Pieces::Spaces { meta, split_further } => {
                let normalized = self.normalized(piece)?;
                if normalized.is_empty()
                    || normalized.contains([' ', meta])
                    || piece.contains(meta)
                    || self.holds_added_token(piece)
                    || self.holds_added_token(&normalized)
                {
                    return Ok(false);
                }

                if split_further {
                    self.encode(&self.tokenizer, piece, ids)?;
                } else {
                    self.extend_from_model(&format!("{meta}{normalized}"), ids)?;
                }
                Ok(true)
            }
            Pieces::Whole => Ok(false),
        }
    }

    /// Does the same, with the table that all threads share.
    pub(crate) fn encode_shared(&self, piece: &str, ids: &mut Vec<u32>) -> Result<bool> {
        self.shared_words.encode(piece, ids, |ids| self.encode_piece(piece, ids))
    }

    fn extend_from_model(&self, piece: &str, ids: &mut Vec<u32>) -> Result<()> {
        let failed =
            |e: &dyn std::fmt::Display| Error::tokenizer(None, format!("encoding {:?} failed: {e}", beginning(piece)));
        let model = self.tokenizer.get_model();
        let tokens = caught(|| model.tokenize(piece)).map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
        ids.extend(tokens.iter().map(|token| self.never_control(token.id)));
        Ok(())
    }

    /// Whether a text spells a token that was added to the vocabulary and is not a control token.
    pub(crate) fn holds_added_token(&self, text: &str) -> bool {
        self.in_text.are_in(text)
    }

    /// Returns the text after normalization, line by line: no normalization form looks across a line end.
    pub(crate) fn normalized<'t>(&self, text: &'t str) -> Result<Cow<'t, str>> {
        if let Some(model) = &self.sentencepiece {
            return Ok(Cow::Owned(model.normalize(text).replace(META, " ")));
        }
        let Some(normalizer) = self.tokenizer.get_normalizer() else { return Ok(Cow::Borrowed(text)) };
        // All Unicode forms leave ASCII unchanged. BERT's normalizer changes its white space and case.
        if text.is_ascii() && !matches!(self.pieces, Pieces::WhiteSpace) {
            return Ok(Cow::Borrowed(text));
        }
        let mut normalized = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            if line.is_ascii() && !matches!(self.pieces, Pieces::WhiteSpace) {
                normalized.push_str(line);
                continue;
            }
            let mut changed = NormalizedString::from(line);
            let failed = |e: &dyn std::fmt::Display| {
                Error::tokenizer(None, format!("normalizing {:?} failed: {e}", beginning(line)))
            };
            caught(|| normalizer.normalize(&mut changed)).map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
            normalized.push_str(changed.get());
        }
        Ok(Cow::Owned(normalized))
    }

    /// Returns a text in the Unicode form that encoding gives it. Changes of another kind, such as of case, are left out.
    pub(crate) fn in_unicode_form<'t>(&self, text: &'t str) -> Result<Cow<'t, str>> {
        if text.is_ascii() {
            return Ok(Cow::Borrowed(text));
        }
        if self.sentencepiece.is_none() && self.tokenizer.get_normalizer().is_none_or(is_unicode_form) {
            return self.normalized(text);
        }
        // A vocabulary that reads both forms alike writes the composed one.
        let composed = NormalizedString::from(text).nfc().get().to_owned();
        Ok(if self.normalized(text)? == self.normalized(&composed)? { composed.into() } else { text.into() })
    }

    /// Says what encoding takes from a text that its ids cannot give back: upper case, accents; `None` if it keeps both.
    pub(crate) fn folding(&self) -> Result<Option<&'static str>> {
        let normalized = self.normalized("É")?;
        let lowers = !normalized.contains(['E', 'É']);
        let strips = !normalized.contains(['é', 'É', '\u{301}']);
        Ok(match (lowers, strips) {
            (true, true) => Some("converts upper case to lower case and strips accents"),
            (true, false) => Some("converts upper case to lower case"),
            (false, true) => Some("strips accents"),
            (false, false) => None,
        })
    }

    /// Replaces the id of a control token. Some vocabularies can spell one by merges, but a text must never end a
    /// sequence.
    fn never_control(&self, id: u32) -> u32 {
        if self.controls.contains(&id) { self.unk.unwrap_or(id) } else { id }
    }

    /// Returns the text of some ids, without special tokens.
    pub(crate) fn decode(&self, ids: &[u32]) -> Result<String> {
        let ids: Vec<u32> = ids.iter().copied().filter(|id| !self.is_outside_text(*id)).collect();
        if let Some(model) = &self.sentencepiece {
            return Ok(model.decode(&ids));
        }
        self.tokenizer.decode(&ids, false).map_err(|e| Error::tokenizer(None, format!("decoding {ids:?} failed: {e}")))
    }
}

/// Whether a normalizer gives texts a Unicode form and changes nothing else.
fn is_unicode_form(normalizer: &NormalizerWrapper) -> bool {
    use NormalizerWrapper::{NFC, NFD, NFKC, NFKD, Sequence};
    match normalizer {
        Sequence(parts) => parts.as_ref().iter().all(is_unicode_form),
        other => matches!(other, NFC(_) | NFD(_) | NFKC(_) | NFKD(_)),
    }
}

/// Returns enough of a text to find it again.
fn beginning(text: &str) -> &str {
    let end = text.char_indices().nth(200).map_or(text.len(), |(end, _)| end);
    &text[..end]
}

pub(super) fn not_a_tokenizer(path: Option<&Path>, e: &dyn std::fmt::Display) -> Error {
    Error::tokenizer(path, format!("is not a Hugging Face tokenizer.json: {e}"))
}

/// Spellings of added tokens that a text may contain.
#[derive(Debug)]
struct AddedTokens {
    spellings: Vec<String>,
    /// Whether a spelling starts with this byte. In most texts hardly any byte starts one.
    starts: [bool; 256],
}

impl AddedTokens {
    fn new(spellings: Vec<String>) -> Self {
        let mut starts = [false; 256];
        for spelling in &spellings {
            starts[usize::from(spelling.as_bytes()[0])] = true;
        }
        Self { spellings, starts }
    }

    /// Returns how often they occur in a text.
    fn count(&self, text: &str) -> u64 {
        let (bytes, mut at, mut found) = (text.as_bytes(), 0, 0);
        while at < bytes.len() {
            let starts = self.starts[usize::from(bytes[at])];
            let here = self.spellings.iter().filter(|token| starts && bytes[at..].starts_with(token.as_bytes()));
            let length = here.map(String::len).max();
            found += u64::from(length.is_some());
            at += length.unwrap_or(1);
        }
        found
    }

    fn are_in(&self, text: &str) -> bool {
        let bytes = text.as_bytes();
        let is_here = |at: usize| self.spellings.iter().any(|token| bytes[at..].starts_with(token.as_bytes()));
        !self.spellings.is_empty() && (0..bytes.len()).any(|at| self.starts[usize::from(bytes[at])] && is_here(at))
    }
}

/// Marks only control tokens as special, so that a text which spells one is encoded as text. Other added tokens (such
/// as language codes) still match. Returns the ids that were special and the tokens that a text may contain.
fn free_text_of_controls(parts: &mut Value, controls: &[&str]) -> (HashSet<u32>, Vec<String>) {
    let (mut special, mut in_text) = (HashSet::new(), Vec::new());
    for token in parts["added_tokens"].as_array_mut().into_iter().flatten() {
        let content = token["content"].as_str().unwrap_or_default().to_owned();
        let is_control = controls.contains(&content.as_str());
        if is_control || token["special"] == Value::Bool(true) {
            special.extend(token["id"].as_u64().and_then(|id| u32::try_from(id).ok()));
        }
        token["special"] = is_control.into();
        if !is_control && !content.is_empty() {
            in_text.push(content);
        }
    }
    (special, in_text)
}
