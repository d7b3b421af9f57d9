//! How the vocabulary comes about.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The vocabulary: loaded from a file, or trained on the training text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TokenizerConfig {
    /// A Hugging Face `tokenizer.json` for both sides, or for the source if `target_path` is given. Unset: train one.
    pub path: Option<PathBuf>,
    /// A second `tokenizer.json` for the target side.
    pub target_path: Option<PathBuf>,
    /// Algorithm to train.
    pub kind: TokenizerKind,
    /// Entries of the trained vocabulary (of each, if they are separate), special tokens included. Small corpora can
    /// end below it.
    pub vocab_size: usize,
    /// One vocabulary for both sides (needed to share embeddings three ways), or one each.
    pub joint: bool,
    /// Unicode normalization before tokenizing.
    pub normalization: Normalization,
    /// Spell characters outside the vocabulary as UTF-8 bytes (256 entries) instead of the unknown token.
    pub byte_fallback: bool,
    /// Share of the training text's characters whose kinds get an entry of their own, in (0.9, 1]; the rarest rest is
    /// spelled as bytes or becomes unknown.
    pub character_coverage: f64,
    /// Every digit a token of its own.
    pub split_digits: bool,
    /// Spelling of the padding token.
    pub pad_token: String,
    /// Spelling of the token that starts the decoder.
    pub bos_token: String,
    /// Spelling of the end-of-sequence token.
    pub eos_token: String,
    /// Spelling of the unknown token.
    pub unk_token: String,
    /// Further special tokens that are never split, for example `<2it>`; a text may contain them.
    pub extra_tokens: Vec<String>,
    /// Append special tokens that a loaded `tokenizer.json` lacks, instead of refusing it.
    pub add_missing_tokens: bool,
}

impl Default for TokenizerConfig {
    fn default() -> Self {
        Self {
            path: None,
            target_path: None,
            kind: TokenizerKind::Bpe,
            vocab_size: 16_000,
            joint: true,
            normalization: Normalization::Nfc,
            byte_fallback: true,
            character_coverage: 0.9999,
            split_digits: false,
            pad_token: "<pad>".into(),
            bos_token: "<s>".into(),
            eos_token: "</s>".into(),
            unk_token: "<unk>".into(),
            extra_tokens: Vec::new(),
            add_missing_tokens: false,
        }
    }
}

/// Algorithms of subword tokenizers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerKind {
    /// Byte-pair encoding (Sennrich et al. 2016).
    Bpe,
    /// Unigram language model (Kudo 2018). Training runs on one thread, for equal results, and takes about five times as
    /// long as BPE.
    Unigram,
}

/// Unicode normalization forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Normalization {
    /// Canonical composition: equal-looking characters get one spelling. Lossless for the reader.
    Nfc,
    /// Compatibility composition: also folds ligatures, full-width forms and no-break spaces.
    Nfkc,
    /// Text as it is.
    None,
}

impl TokenizerConfig {
    /// Everything that cannot work, each with its remedy.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.target_path.is_some() && self.path.is_none() {
            problems.push(
                "tokenizer.target_path without tokenizer.path: name the source side's tokenizer.json in tokenizer.path"
                    .into(),
            );
        }
        if self.path.is_none() {
            let reserved = self.reserved_tokens();
            if self.vocab_size <= reserved {
                problems.push(format!(
                    "tokenizer.vocab_size = {} cannot hold {reserved} special and byte tokens and any text: raise it{}",
                    self.vocab_size,
                    if self.byte_fallback { ", or set tokenizer.byte_fallback = false" } else { "" }
                ));
            }
        }
        if !(self.character_coverage > 0.9 && self.character_coverage <= 1.0) {
            problems.push(format!(
                "tokenizer.character_coverage = {} is outside (0.9, 1]: 0.9999 suits most languages, 1 keeps every \
                 character",
                self.character_coverage
            ));
        }
        let named = [
            ("pad_token", &self.pad_token),
            ("bos_token", &self.bos_token),
            ("eos_token", &self.eos_token),
            ("unk_token", &self.unk_token),
        ];
        for (key, token) in named {
            if token.is_empty() {
                problems.push(format!("tokenizer.{key} is empty: give it a spelling such as \"<{}>\"", &key[..3]));
            }
        }
        if self.pad_token == self.eos_token {
            problems.push(format!(
                "tokenizer.pad_token and tokenizer.eos_token are both \"{}\": the loss ignores padding, so the end of a \
                 sequence would never be learned; use two tokens (tokenizer.add_missing_tokens = true appends a new one)",
                self.pad_token
            ));
        }
        if self.path.is_none() {
            for (i, (key, token)) in named.iter().enumerate() {
                for (other, same) in &named[..i] {
                    if token == same && !token.is_empty() && (*other, *key) != ("pad_token", "eos_token") {
                        problems.push(format!(
                            "tokenizer.{other} and tokenizer.{key} are both \"{token}\": a trained vocabulary needs four \
                             different ones"
                        ));
                    }
                }
            }
        }
        for (i, token) in self.extra_tokens.iter().enumerate() {
            let taken = named.iter().any(|(_, t)| *t == token) || self.extra_tokens[..i].contains(token);
            if token.is_empty() || taken {
                problems.push(format!(
                    "tokenizer.extra_tokens has \"{token}\" twice, empty or among the other special tokens: remove it"
                ));
            }
        }
        problems
    }

    /// Entries of a trained vocabulary that are not learned from text.
    pub(crate) fn reserved_tokens(&self) -> usize {
        4 + self.extra_tokens.len() + if self.byte_fallback { 256 } else { 0 }
    }
}
