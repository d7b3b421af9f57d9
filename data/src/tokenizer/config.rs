//! Which vocabulary is loaded or trained.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The vocabulary: loaded from a file, or trained on the training text. The configuration table `[tokenizer]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TokenizerConfig {
    /// A Hugging Face `tokenizer.json` or a SentencePiece model (`.spm`, `.model`) for both sides, or for the source if
    /// `target_path` is set. Unset: train one.
    pub path: Option<PathBuf>,
    /// A second file for the target side.
    pub target_path: Option<PathBuf>,
    /// Algorithm to train.
    pub kind: TokenizerKind,
    /// Entries of the trained vocabulary (of each, if there are two), special tokens included. A small corpus can give
    /// fewer.
    pub vocab_size: usize,
    /// One vocabulary for both sides (needed to share embeddings three ways), or one for each.
    pub joint: bool,
    /// Unicode normalization before tokenizing. WordPiece uses BERT's own normalization instead.
    pub normalization: Normalization,
    /// Spells characters outside the vocabulary as UTF-8 bytes (256 entries) instead of the unknown token. Byte-level
    /// BPE always does so, WordPiece never.
    pub byte_fallback: bool,
    /// Share of the training text that must consist of characters with their own entry, in (0.9, 1]. The rarest
    /// characters are spelled as bytes or become unknown.
    pub character_coverage: f64,
    /// Makes every digit a separate token.
    pub split_digits: bool,
    /// WordPiece: converts upper case to lower case and strips accents.
    pub lowercase: bool,
    /// Spelling of the padding token.
    pub pad_token: String,
    /// Spelling of the token that starts the decoder.
    pub bos_token: String,
    /// Spelling of the end-of-sequence token.
    pub eos_token: String,
    /// Spelling of the unknown token.
    pub unk_token: String,
    /// Plain text: spelling of the token in front of a row for masked language modelling. Unset: the vocabulary's token
    /// with a usual name.
    pub cls_token: Option<String>,
    /// Plain text: spelling of the token behind a row for masked language modelling. Unset: the vocabulary's token with
    /// a usual name.
    pub sep_token: Option<String>,
    /// Plain text: spelling of the token that hides others. Unset: the vocabulary's token with a usual name.
    pub mask_token: Option<String>,
    /// Further tokens that are never split, for example `<2it>`. A text may contain them.
    pub extra_tokens: Vec<String>,
    /// Appends special tokens that a loaded `tokenizer.json` lacks, instead of refusing the file.
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
            lowercase: false,
            pad_token: "<pad>".into(),
            bos_token: "<s>".into(),
            eos_token: "</s>".into(),
            unk_token: "<unk>".into(),
            cls_token: None,
            sep_token: None,
            mask_token: None,
            extra_tokens: Vec::new(),
            add_missing_tokens: false,
        }
    }
}

/// Algorithms of subword tokenizers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerKind {
    /// Byte-pair encoding of words between spaces (Sennrich et al. 2016). For sentences. It treats a line end as a
    /// letter, so byte-level BPE suits plain text with several lines better.
    Bpe,
    /// Unigram language model of words between spaces (Kudo 2018). Training uses one thread, so that results repeat,
    /// and takes about five times as long as BPE.
    Unigram,
    /// Byte-pair encoding over bytes, as in GPT-2 and RoBERTa (Radford et al. 2019). Spells every text without loss.
    ByteLevelBpe,
    /// WordPiece over whole words, as in BERT (Devlin et al. 2019). Words that it cannot spell become the unknown
    /// token, and it does not keep the white space of a text.
    WordPiece,
}

impl TokenizerKind {
    /// Whether every byte has an entry.
    fn spells_bytes(self, byte_fallback: bool) -> bool {
        match self {
            Self::Bpe | Self::Unigram => byte_fallback,
            Self::ByteLevelBpe => true,
            Self::WordPiece => false,
        }
    }
}

/// Unicode normalization forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Normalization {
    /// Canonical composition: characters that look the same get one spelling. Lossless for the reader.
    Nfc,
    /// Compatibility composition: also folds ligatures, full-width forms and no-break spaces.
    Nfkc,
    /// The text stays as it is.
    None,
}

impl TokenizerConfig {
    /// Returns all settings that are invalid for pairs, each with a remedy.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.target_path.is_some() && self.path.is_none() {
            problems.push(
                "tokenizer.target_path is set without tokenizer.path: set tokenizer.path to the source side's tokenizer.json"
                    .into(),
            );
        }

        let named = self.control_tokens();
        self.validate_training(named.len(), &mut problems);
        self.validate_names(&mut problems);
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
                             different tokens"
                        ));
                    }
                }
            }
        }
        problems
    }

    /// Returns all settings that are invalid for plain text, each with a remedy.
    pub fn validate_for_text(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.target_path.is_some() {
            problems.push(
                "tokenizer.target_path is for pairs: plain text has one vocabulary, set it with tokenizer.path".into(),
            );
        }
        self.validate_training(self.text_controls().len(), &mut problems);
        self.validate_names(&mut problems);
        problems
    }

    fn validate_training(&self, n_controls: usize, problems: &mut Vec<String>) {
        let reserved = self.reserved_tokens(n_controls);
        if self.path.is_none() && self.vocab_size <= reserved {
            let byte_fallback = self.byte_fallback && self.kind != TokenizerKind::ByteLevelBpe;
            problems.push(format!(
                "tokenizer.vocab_size = {} cannot hold {reserved} special and byte tokens plus text: raise it{}",
                self.vocab_size,
                if byte_fallback { ", or set tokenizer.byte_fallback = false" } else { "" }
            ));
        }
        if !(self.character_coverage > 0.9 && self.character_coverage <= 1.0) {
            problems.push(format!(
                "tokenizer.character_coverage = {} is outside (0.9, 1]: 0.9999 suits most languages, 1 keeps every \
                 character",
                self.character_coverage
            ));
        }
    }

    fn validate_names(&self, problems: &mut Vec<String>) {
        let optional =
            [("cls_token", &self.cls_token), ("sep_token", &self.sep_token), ("mask_token", &self.mask_token)];
        let optional = optional.into_iter().filter_map(|(key, token)| Some((key, token.as_ref()?)));
        let named: Vec<_> = self.control_tokens().into_iter().chain(optional).collect();
        for (key, token) in &named {
            if token.is_empty() {
                let name = key.trim_end_matches("_token");
                problems.push(format!("tokenizer.{key} is empty: give it a spelling such as \"<{name}>\""));
            }
        }

        for (i, token) in self.extra_tokens.iter().enumerate() {
            let taken = named.iter().any(|(_, t)| *t == token) || self.extra_tokens[..i].contains(token);
            if token.is_empty() || taken {
                problems.push(format!(
                    "tokenizer.extra_tokens has \"{token}\", which is empty, a repetition or another special token: remove it"
                ));
            }
        }
    }

    fn control_tokens(&self) -> [(&'static str, &String); 4] {
        [
            ("pad_token", &self.pad_token),
            ("bos_token", &self.bos_token),
            ("eos_token", &self.eos_token),
            ("unk_token", &self.unk_token),
        ]
    }

    /// Returns the control tokens of a language model's vocabulary, in the order of their ids: BERT's for WordPiece,
    /// and otherwise RoBERTa's, which work with and without masks.
    pub(super) fn text_controls(&self) -> Vec<String> {
        let defaults = Self::default();
        let or = |token: &Option<String>, usual: &str| token.clone().unwrap_or_else(|| usual.to_owned());
        let mut controls = match self.kind {
            TokenizerKind::WordPiece => {
                let chosen = |token: &String, default: &String, usual: &str| {
                    if token == default { usual.to_owned() } else { token.clone() }
                };
                vec![
                    chosen(&self.pad_token, &defaults.pad_token, "[PAD]"),
                    chosen(&self.unk_token, &defaults.unk_token, "[UNK]"),
                    or(&self.cls_token, "[CLS]"),
                    or(&self.sep_token, "[SEP]"),
                    or(&self.mask_token, "[MASK]"),
                ]
            }
            _ => {
                let mut names = vec![self.pad_token.clone(), self.bos_token.clone(), self.eos_token.clone()];
                names.extend([self.unk_token.clone(), or(&self.mask_token, "<mask>")]);
                names.extend([&self.cls_token, &self.sep_token].into_iter().flatten().cloned());
                names
            }
        };

        let mut seen = Vec::new();
        controls.retain(|token| {
            !seen.contains(token) && {
                seen.push(token.clone());
                true
            }
        });
        controls
    }

    /// Returns the number of entries of a vocabulary, trained on plain text or on pairs, that are not learned from it.
    pub fn reserved_entries(&self, is_text: bool) -> usize {
        self.reserved_tokens(if is_text { self.text_controls().len() } else { self.control_tokens().len() })
    }

    /// Returns the number of entries of a trained vocabulary that are not learned from text.
    pub(crate) fn reserved_tokens(&self, n_controls: usize) -> usize {
        n_controls + self.extra_tokens.len() + if self.kind.spells_bytes(self.byte_fallback) { 256 } else { 0 }
    }
}
