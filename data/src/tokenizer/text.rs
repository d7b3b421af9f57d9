//! The vocabulary of a language model.

mod names;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tokenizers::Tokenizer;

use names::{add_missing, controls, neighbouring_names};

use super::around::around;
use super::chat::chat_template_next_to;
use super::encoder::SideEncoder;
use super::special::{TextNames, TextSpecialIds, special_tokens_of};
use super::spm_file::{Stored, save_model};
use super::stream::DecodeStream;
use super::vocabulary::{Vocabulary, not_a_tokenizer};
use super::{JOINT_FILE, NAMES_FILE, PUBLISHED, TOKENS_OF_TEMPLATE, TokenizerConfig, guard, refuse, train};
use crate::corpus::{CharacterCounts, Task, TextCorpus, Unknown};
use crate::error::{Error, Result};
use crate::files::write_fresh;

/// A vocabulary for plain text, and the roles of its special tokens. Cheap to clone.
///
/// Special tokens are found by their spelling: from [`TokenizerConfig`], else from a `tokenizer_config.json` or
/// `special_tokens_map.json` next to the `tokenizer.json`, else by their usual names. All of them are optional;
/// [`TextTokenizer::check`] fails if a task needs a missing one.
#[derive(Debug, Clone)]
pub struct TextTokenizer {
    vocabulary: Arc<Vocabulary>,
    names: TextNames,
    special: TextSpecialIds,
    /// The tokens that the post-processor puts in front of and behind a text.
    around: (Vec<u32>, Vec<u32>),
    /// The tokens in front of a prompt.
    before_prompt: Vec<u32>,
    /// `add_bos_token` of the `tokenizer_config.json`.
    adds_bos: Option<bool>,
    /// How the mask token is found in texts, if the `tokenizer_config.json` says so.
    mask_settings: Option<Value>,
    /// The template for conversations.
    chat_template: Option<Arc<str>>,
}

impl TextTokenizer {
    /// Loads the file that `config.path` names, or trains on `corpus` if it is not set.
    pub fn load_or_train(config: &TokenizerConfig, corpus: &TextCorpus, num_threads: usize) -> Result<Self> {
        match &config.path {
            Some(_) => Self::load(config),
            None => Self::train(config, corpus, num_threads),
        }
    }

    /// Trains on the usable documents of a text. The result depends on text and configuration alone.
    ///
    /// # Errors
    ///
    /// If the configuration is invalid, the text cannot be read, too many documents are bad, or the vocabulary is too
    /// small.
    pub fn train(config: &TokenizerConfig, corpus: &TextCorpus, num_threads: usize) -> Result<Self> {
        refuse(config.validate_for_text())?;
        Self::of_trained(train::train_on_text(config, corpus, num_threads)?, config)
    }

    /// Trains on documents in memory. The result is the same as for a text with these documents.
    ///
    /// # Errors
    ///
    /// If the configuration is invalid or the vocabulary is too small.
    pub fn train_on_documents(config: &TokenizerConfig, documents: &[String], num_threads: usize) -> Result<Self> {
        refuse(config.validate_for_text())?;
        Self::of_trained(train::train_on_documents(config, documents, num_threads)?, config)
    }

    /// Loads the `tokenizer.json` that the configuration names.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or lacks a special token that the configuration names.
    pub fn load(config: &TokenizerConfig) -> Result<Self> {
        refuse(config.validate_for_text())?;
        let path = config.path.as_deref().ok_or_else(|| {
            Error::Invalid("tokenizer.path is not set: set it to a tokenizer.json, or train a tokenizer".into())
        })?;
        Self::load_stored(Stored::read(path)?, path, config)
    }

    /// Loads the files that [`TextTokenizer::save`] wrote, or the tokenizer of a Hugging Face folder.
    pub fn load_dir(dir: &Path) -> Result<Self> {
        let path = dir.join(JOINT_FILE);
        Self::load_stored(Stored::read_of_run(&path)?, &path, &TokenizerConfig::default())
    }

    fn load_stored(stored: Stored, path: &Path, config: &TokenizerConfig) -> Result<Self> {
        let loaded = Self::parse(stored, Some(path), config, &neighbouring_names(path)?)?;
        Ok(Self { chat_template: chat_template_next_to(path)?.map(Into::into), ..loaded })
    }

    pub(super) fn parse(stored: Stored, path: Option<&Path>, config: &TokenizerConfig, hints: &Value) -> Result<Self> {
        let Stored { mut json, model } = stored;
        let mut whole: Tokenizer = guard::read(&json).map_err(|e| not_a_tokenizer(path, &e))?;
        if config.add_missing_tokens && add_missing(&mut whole, config, hints)? {
            json = whole.to_string(true).map_err(|e| not_a_tokenizer(path, &e))?;
        }
        let names = TextNames::find(&whole, config, hints, path)?;
        let around = around(&mut whole, path)?;
        let controls = controls(&whole, &names);
        let controls: Vec<&str> = controls.iter().map(String::as_str).collect();
        let vocabulary = Vocabulary::parse(json, path, &controls, names.unk_token.as_deref())?;
        let special = names.ids(&vocabulary);
        // Other roles do not end a text: a symbol that the trainer of a SentencePiece model defined stays part of texts.
        let ends: Vec<u32> = special.eos.into_iter().collect();
        let vocabulary = Stored::attach(model, vocabulary, path, &ends)?;

        let adds_bos = hints["add_bos_token"].as_bool();
        let before_prompt = match (&around, adds_bos) {
            (Some((before, _)), _) => before.clone(),
            (None, Some(false)) => Vec::new(),
            (None, _) => special.bos.into_iter().collect(),
        };
        let around = around.unwrap_or_default();
        Ok(Self {
            vocabulary: Arc::new(vocabulary),
            names,
            special,
            around,
            before_prompt,
            adds_bos,
            mask_settings: Some(&hints["mask_token"]).filter(|token| token.is_object()).cloned(),
            chat_template: None,
        })
    }

    /// Writes `tokenizer.json` and `tokenizer_config.json` into a folder, and the SentencePiece model if the vocabulary was made of
    /// one.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            write_fresh(&path, text.as_bytes()).map_err(Error::io(path, "writing the tokenizer"))
        };
        write(JOINT_FILE, &self.vocabulary.json)?;
        save_model(&self.vocabulary, &dir.join(JOINT_FILE))?;
        let mut names = serde_json::to_value(&self.names).expect("strings");
        let template = self.chat_template.as_deref().map(Value::from);
        let published = self.names.published.clone();
        let more = [
            ("mask_token", self.mask_settings.clone()),
            ("add_bos_token", self.adds_bos.map(Value::from)),
            ("chat_template", template),
            (PUBLISHED, published),
        ];
        for (key, value) in more.into_iter().filter_map(|(key, value)| Some((key, value?))) {
            names[key] = value;
        }
        names["tokenizer_class"] = "PreTrainedTokenizerFast".into();
        write(NAMES_FILE, &format!("{names:#}\n"))
    }

    /// Returns the text of the model's chat template.
    pub(super) fn own_chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Returns the tokenizer with another chat template.
    pub fn with_chat_template(self, source: &str) -> Self {
        Self { chat_template: Some(source.into()), ..self }
    }

    /// Checks that the vocabulary has the tokens that a task needs.
    ///
    /// # Errors
    ///
    /// If a token is missing, which the error names, or if the task is translation, which needs pairs.
    pub fn check(&self, task: Task) -> Result<()> {
        let (missing, why, key) = match task {
            Task::Translation => {
                return Err(Error::Invalid(
                    "translation learns from pairs, not from plain text: set task = \"lm\" or \"mlm\"".into(),
                ));
            }
            Task::Lm if self.special.eos.is_none() => {
                ("end-of-text token", "every document must end with one", "eos_token")
            }
            Task::Mlm if self.special.mask.is_none() => {
                ("mask token", "it hides what the model predicts", "mask_token")
            }
            _ => return Ok(()),
        };
        Err(Error::tokenizer(
            None,
            format!(
                "has no {missing}, and {why}; its special tokens are {}: set tokenizer.{key} to its spelling, or append one \
                 with tokenizer.add_missing_tokens = true",
                special_tokens_of(&self.vocabulary.tokenizer)
            ),
        ))
    }

    /// Returns the ids of the special tokens that the vocabulary has.
    pub fn special(&self) -> TextSpecialIds {
        self.special
    }

    /// Returns the ids of all special tokens, sorted. Masked language modelling never hides them.
    pub fn special_ids(&self) -> Vec<u32> {
        let mut ids: Vec<_> = self.vocabulary.special_ids().iter().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Returns the ids of the special tokens that no text contains. The others are symbols that the trainer of a SentencePiece
    /// model defined.
    pub fn ids_outside_text(&self) -> Vec<u32> {
        self.special_ids().into_iter().filter(|id| self.vocabulary.is_outside_text(*id)).collect()
    }

    /// Returns the tokens in front of and behind a text for masked language modelling: the tokens that the tokenizer's
    /// post-processor adds, else `cls` and `sep`.
    pub fn around(&self) -> (Vec<u32>, Vec<u32>) {
        let (before, behind) = &self.around;
        if before.is_empty() && behind.is_empty() {
            return (self.special.cls.into_iter().collect(), self.special.sep.into_iter().collect());
        }
        (before.clone(), behind.clone())
    }

    /// Returns the token that fills rows up for a decoder that predicts classes: padding, or else the end token. Rows do not end with
    /// it, because `transformers` looks for the last token that is another one.
    pub fn padding_of_decoder(&self) -> Option<u32> {
        self.special.pad.or(self.special.eos)
    }

    /// Returns the spelling and the id of the mask token.
    pub(super) fn mask(&self) -> Option<(&str, u32)> {
        self.names.mask_token.as_deref().zip(self.special.mask)
    }

    /// Returns how the mask token is found in texts: the settings of a published tokenizer, which programs that load it follow;
    /// `None` if Kiln decides.
    pub fn mask_settings(&self) -> Option<&Value> {
        self.mask_settings.as_ref()
    }

    /// Returns the spellings of the special tokens.
    pub(super) fn special_names(&self) -> Vec<&str> {
        self.names.all()
    }

    /// Returns the special tokens that a chat template calls by names (`bos_token`): by their roles, or as the files of a
    /// published model say.
    pub(super) fn tokens_of_template(&self) -> BTreeMap<String, String> {
        let published = self.names.published.as_ref().and_then(|published| published.get(TOKENS_OF_TEMPLATE).cloned());
        let tokens = published.unwrap_or_else(|| serde_json::to_value(&self.names).expect("strings"));
        serde_json::from_value(tokens).expect("strings")
    }

    /// Returns the spelling of the token for text that the vocabulary cannot spell.
    pub(super) fn unknown(&self) -> Option<&str> {
        self.names.unk_token.as_deref()
    }

    /// Returns the `tokenizer.json` that was loaded or trained.
    pub fn json(&self) -> &str {
        &self.vocabulary.json
    }

    /// Returns the rows of the embedding: the largest id + 1.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.size
    }

    /// Returns the spelling of an id, as the vocabulary has it.
    pub fn vocabulary_token(&self, id: u32) -> Option<String> {
        self.vocabulary.tokenizer.id_to_token(id)
    }

    /// Returns the id of a token by its spelling.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.vocabulary.id(token)
    }

    /// Returns the BLAKE3 hash of the serialized vocabulary and the special tokens, in hex. Equal fingerprints give
    /// equal ids.
    pub fn fingerprint(&self) -> String {
        self.fingerprint_hash().to_hex().to_string()
    }

    pub(crate) fn fingerprint_hash(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&serde_json::to_vec(&self.names).expect("strings"));
        self.vocabulary.hash_into(&mut hasher);
        hasher.finalize()
    }

    /// Returns a fast encoder for one thread.
    pub fn encoder(&self) -> TextEncoder {
        TextEncoder { side: SideEncoder::new(self.vocabulary.clone()) }
    }

    /// Returns the ids of a text, without special tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.encoder().encode(text, &mut ids)?;
        Ok(ids)
    }

    /// Returns the ids of a prompt: [`Self::before_prompt`] and the text. A person writes a prompt, so special tokens that it spells
    /// are these tokens, as in `transformers`. A SentencePiece model reads them as text, as `sentencepiece` does.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.before_prompt.clone();
        if !self.vocabulary.encode_with_controls(text, &mut ids)? {
            self.encoder().encode(text, &mut ids)?;
        }
        Ok(ids)
    }

    /// Returns the tokens in front of a prompt. They are what the `tokenizer.json` says:
    ///
    /// - With a post-processor, the tokens that it puts in front of a text. Tokens behind a text (an end token) are left
    ///   out, since the continuation follows the prompt.
    /// - Without one, the token that starts documents, unless the `tokenizer_config.json` says `add_bos_token: false`.
    ///   So it is in vocabularies that this crate trained: [`TextSource`](crate::TextSource) shows that token to the model
    ///   in front of every document.
    pub fn before_prompt(&self) -> &[u32] {
        &self.before_prompt
    }

    /// Returns the token that a model reads in front of a document: the last one of [`Self::before_prompt`], else the
    /// start or end token.
    pub(crate) fn start_of_document(&self) -> Option<u32> {
        self.before_prompt.last().copied().or(self.special.bos).or(self.special.eos)
    }

    /// Counts the characters of texts that the vocabulary lacks.
    pub fn lacking_in<S: AsRef<str>>(&self, texts: &[S]) -> Result<CharacterCounts> {
        let (mut encoder, mut counts) = (SideEncoder::new(self.vocabulary.clone()), CharacterCounts::default());
        texts.iter().try_for_each(|text| encoder.count_lacking(text.as_ref(), &mut counts))?;
        Ok(counts)
    }

    /// Whether characters that the vocabulary lacks become bytes instead of unknown tokens.
    pub fn spells_bytes(&self) -> bool {
        self.vocabulary.spells_bytes()
    }

    /// Says what encoding takes from a text that its ids cannot give back, such as "strips accents"; `None` if it takes
    /// nothing.
    pub fn folding(&self) -> Result<Option<&'static str>> {
        self.vocabulary.folding()
    }

    /// Returns the text of some ids, without special tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.vocabulary.decode(ids)
    }

    /// Returns a decoder for ids that arrive one by one.
    pub fn decode_stream(&self) -> DecodeStream {
        DecodeStream::new(self.vocabulary.clone())
    }
}

/// Encodes documents. Take one for each thread; see [`TextTokenizer::encoder`].
#[derive(Debug)]
pub struct TextEncoder {
    side: SideEncoder,
}

impl TextEncoder {
    /// Returns an encoder that splits special tokens in a text like other text, or without `splits` reads them as tokens.
    pub fn splitting_special_tokens(self, splits: bool) -> Self {
        Self { side: self.side.reading_controls(!splits) }
    }

    /// Appends the ids of a text, without special tokens around it.
    pub fn encode(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        self.side.encode(text, ids)
    }

    /// Returns whether special tokens that a text spells are split like other text.
    pub(crate) fn splits_special_tokens(&self) -> bool {
        !self.side.reads_controls()
    }

    /// Returns how many special tokens a text spells.
    pub(crate) fn count_spelled(&self, text: &str) -> u64 {
        self.side.count_controls(text)
    }

    /// Counts the unknown tokens in the ids of a text.
    pub(crate) fn count_unknown(&mut self, text: &str, ids: &[u32], counts: &mut Unknown) -> Result<()> {
        self.side.count_unknown(text, ids, counts)
    }
}

#[cfg(test)]
mod tests;
