//! The vocabularies of both sides of pairs.

use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;

use super::encoder::SideEncoder;
use super::special::{SpecialIds, SpecialNames, add_missing_tokens};
use super::spm_file::{Stored, save_model};
use super::vocabulary::Vocabulary;
use super::{JOINT_FILE, NAMES_FILE, SOURCE_FILE, TARGET_FILE, TokenizerConfig, refuse, train};
use crate::corpus::{CharacterCounts, Example, PairCorpus, Unknown};
use crate::error::{Error, Result};
use crate::files::{read_file, write_fresh};

/// Texts for which a thread makes an encoder of its own.
const LEAST_TEXTS: usize = 256;

/// The vocabularies of both sides of pairs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PairTokenizers {
    source: Arc<Vocabulary>,
    /// The same vocabulary as `source` if both sides share it.
    target: Arc<Vocabulary>,
    names: SpecialNames,
    special: SpecialIds,
    /// The tokens in front of every source and target.
    before: [Arc<[u32]>; 2],
    /// Special tokens that were appended because the loaded source vocabulary lacked them.
    added: Vec<String>,
}

impl PairTokenizers {
    /// Loads the files that `config.path` names, or trains on `corpus` if it is not set.
    pub fn load_or_train(config: &TokenizerConfig, corpus: &PairCorpus, num_threads: usize) -> Result<Self> {
        match &config.path {
            Some(_) => Self::load(config),
            None => Self::train(config, corpus, num_threads),
        }
    }

    /// Trains on the usable rows of a corpus. The result depends on text and configuration alone.
    ///
    /// # Errors
    ///
    /// If the configuration is invalid, the text cannot be read, too many rows are bad, or the vocabulary is too small.
    pub fn train(config: &TokenizerConfig, corpus: &PairCorpus, num_threads: usize) -> Result<Self> {
        refuse(config.validate())?;
        Self::trained(config, train::train_on_pairs(config, corpus, num_threads)?)
    }

    /// Trains on pairs in memory. The result is the same as for a corpus with these rows.
    ///
    /// # Errors
    ///
    /// If the configuration is invalid or the vocabulary is too small.
    pub fn train_on_examples(config: &TokenizerConfig, examples: &[Example], num_threads: usize) -> Result<Self> {
        refuse(config.validate())?;
        Self::trained(config, train::train_on_examples(config, examples, num_threads)?)
    }

    fn trained(config: &TokenizerConfig, (source, target): (String, Option<String>)) -> Result<Self> {
        let names = SpecialNames::from(config);
        let vocabulary = |json| Vocabulary::parse(json, None, &names.all(), Some(&names.unk_token)).map(Arc::new);
        let source = vocabulary(source)?;
        let target = target.map(vocabulary).transpose()?.unwrap_or_else(|| source.clone());
        Self::pair(source, target, names, Vec::new())
    }

    /// Loads the `tokenizer.json` files that the configuration names.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or lacks a special token, or if both sides number their special tokens differently.
    pub fn load(config: &TokenizerConfig) -> Result<Self> {
        refuse(config.validate())?;
        let path = config.path.as_deref().ok_or_else(|| {
            Error::Invalid("tokenizer.path is not set: set it to a tokenizer.json, or train a tokenizer".into())
        })?;
        let names = SpecialNames::from(config);
        Self::load_files(path, config.target_path.as_deref(), names, config.add_missing_tokens, Stored::read)
    }

    /// Loads the files that [`PairTokenizers::save`] wrote.
    pub fn load_dir(dir: &Path) -> Result<Self> {
        let names_file = dir.join(NAMES_FILE);
        let names = match read_file(&names_file) {
            Ok(json) => serde_json::from_slice(&json)
                .map_err(|e| Error::tokenizer(Some(&names_file), format!("has no valid special tokens: {e}")))?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => SpecialNames::from(&TokenizerConfig::default()),
            Err(e) => return Err(Error::io(names_file, "reading")(e)),
        };
        let (source, target) = (dir.join(SOURCE_FILE), dir.join(TARGET_FILE));
        if source.exists() {
            Self::load_files(&source, Some(&target), names, false, Stored::read_of_run)
        } else {
            Self::load_files(&dir.join(JOINT_FILE), None, names, false, Stored::read_of_run)
        }
    }

    fn load_files(
        source: &Path,
        target: Option<&Path>,
        names: SpecialNames,
        add_missing: bool,
        read: fn(&Path) -> Result<Stored>,
    ) -> Result<Self> {
        let load = |path: &Path| {
            let Stored { json, model } = read(path)?;
            let (json, added) = add_missing_tokens(json, path, &names, add_missing)?;
            let vocabulary = Vocabulary::parse(json, Some(path), &names.all(), Some(&names.unk_token))?;
            let controls: Vec<u32> = names.all().iter().filter_map(|token| vocabulary.id(token)).collect();
            let vocabulary = Stored::attach(model, vocabulary, Some(path), &controls)?;
            names.ids(&vocabulary, Some(path))?;
            Ok::<_, Error>((Arc::new(vocabulary), added))
        };
        let (source, added) = load(source)?;
        let target = match target {
            Some(path) => load(path)?.0,
            None => source.clone(),
        };
        Self::pair(source, target, names, added)
    }

    fn pair(source: Arc<Vocabulary>, target: Arc<Vocabulary>, names: SpecialNames, added: Vec<String>) -> Result<Self> {
        let (special, of_target) = (names.ids(&source, None)?, names.ids(&target, None)?);
        if special != of_target {
            return Err(Error::tokenizer(
                None,
                format!(
                    "source and target number their special tokens differently ({special:?} and {of_target:?}): both need \
                     the same ids for padding, begin, end and unknown"
                ),
            ));
        }
        let before = [names.before_source(&source, None)?.into(), names.before_target(&target, None)?.into()];
        Ok(Self { source, target, names, special, before, added })
    }

    /// Writes `tokenizer.json` (or one file for each side) and `tokenizer_config.json` into a folder; also the SentencePiece
    /// models that they were made of.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            write_fresh(&path, text.as_bytes()).map_err(Error::io(path, "writing the tokenizer"))
        };
        let sides = match self.is_joint() {
            true => vec![(JOINT_FILE, &self.source)],
            false => vec![(SOURCE_FILE, &self.source), (TARGET_FILE, &self.target)],
        };
        for (name, vocabulary) in sides {
            write(name, &vocabulary.json)?;
            save_model(vocabulary, &dir.join(name))?;
        }
        let mut names = serde_json::to_value(&self.names).expect("four strings");
        names["tokenizer_class"] = "PreTrainedTokenizerFast".into();
        write(NAMES_FILE, &format!("{names:#}\n"))
    }

    /// Whether both sides share one vocabulary.
    pub fn is_joint(&self) -> bool {
        Arc::ptr_eq(&self.source, &self.target)
    }

    /// Returns the ids of the special tokens.
    pub fn special(&self) -> SpecialIds {
        self.special
    }

    /// Returns the tokens in front of every source, which encoding adds.
    pub fn before_source(&self) -> &[u32] {
        &self.before[0]
    }

    /// Returns the tokens in front of every target, which encoding adds. Models that were imported have them if their own
    /// tokenizer puts some in front of a text (BART: `<s>`).
    pub fn before_target(&self) -> &[u32] {
        &self.before[1]
    }

    /// Returns the rows of the source embedding: the largest source id + 1.
    pub fn source_vocab_size(&self) -> usize {
        self.source.size
    }

    /// Returns the rows of the target embedding: the largest target id + 1.
    pub fn target_vocab_size(&self) -> usize {
        self.target.size
    }

    /// Returns the id of a token of the targets, if they have it.
    pub fn target_id(&self, token: &str) -> Option<u32> {
        self.target.id(token)
    }

    /// Returns the spelling of a target id in the vocabulary, if it has one.
    pub fn target_token(&self, id: u32) -> Option<String> {
        self.target.tokenizer.id_to_token(id)
    }

    /// Returns the special tokens that were appended because the loaded files lacked them.
    pub fn added_tokens(&self) -> &[String] {
        &self.added
    }

    /// Returns the BLAKE3 hash of the serialized vocabularies and the special tokens, in hex. Equal fingerprints give
    /// equal ids.
    pub fn fingerprint(&self) -> String {
        self.fingerprint_hash().to_hex().to_string()
    }

    pub(crate) fn fingerprint_hash(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&serde_json::to_vec(&self.names.unpublished()).expect("four strings"));
        self.source.hash_into(&mut hasher);
        if !self.is_joint() {
            hasher.update(&[0]);
            self.target.hash_into(&mut hasher);
        }
        hasher.finalize()
    }

    /// Returns a fast encoder for one thread.
    pub fn encoder(&self) -> PairEncoder {
        let joint = self.is_joint();
        PairEncoder {
            source: SideEncoder::new(self.source.clone()),
            target: (!joint).then(|| SideEncoder::new(self.target.clone())),
            before: self.before.clone(),
        }
    }

    /// Returns source rows: the ids of each text and eos. Several threads share the texts.
    pub fn encode_sources<S: AsRef<str> + Sync>(&self, texts: &[S]) -> Result<Vec<Vec<u32>>> {
        self.encode_rows(texts, PairEncoder::encode_source)
    }

    /// Returns label rows: the ids of each text and eos. Several threads share the texts.
    pub fn encode_targets<S: AsRef<str> + Sync>(&self, texts: &[S]) -> Result<Vec<Vec<u32>>> {
        self.encode_rows(texts, PairEncoder::encode_target)
    }

    /// Counts the characters of source texts that the vocabulary lacks.
    pub fn lacking_in_sources<S: AsRef<str>>(&self, texts: &[S]) -> Result<CharacterCounts> {
        let (mut encoder, mut counts) = (SideEncoder::new(self.source.clone()), CharacterCounts::default());
        texts.iter().try_for_each(|text| encoder.count_lacking(text.as_ref(), &mut counts))?;
        Ok(counts)
    }

    /// Counts the characters of pairs that the vocabularies lack, each side by its own.
    pub fn lacking_in_pairs(&self, examples: &[Example]) -> Result<CharacterCounts> {
        let mut counts = CharacterCounts::default();
        let (mut source, mut target) = (SideEncoder::new(self.source.clone()), SideEncoder::new(self.target.clone()));
        for example in examples {
            source.count_lacking(&example.source, &mut counts)?;
            target.count_lacking(&example.target, &mut counts)?;
        }
        Ok(counts)
    }

    /// Returns a target text in the Unicode form that encoding gives it, so that it can be compared with [`Self::decode`].
    pub fn target_in_unicode_form(&self, text: &str) -> Result<String> {
        Ok(self.target.in_unicode_form(text)?.into_owned())
    }

    /// Says what encoding takes from a source or target text that its ids cannot give back; `None` if it takes nothing.
    pub fn folding(&self) -> Result<Option<&'static str>> {
        Ok(self.source.folding()?.or(self.target.folding()?))
    }

    /// Whether source characters that the vocabulary lacks become bytes instead of unknown tokens.
    pub fn spells_bytes(&self) -> bool {
        self.source.spells_bytes()
    }

    fn encode_rows<S: AsRef<str> + Sync>(
        &self,
        texts: &[S],
        encode: impl Fn(&mut PairEncoder, &str, &mut Vec<u32>) -> Result<()> + Sync,
    ) -> Result<Vec<Vec<u32>>> {
        let eos = self.special().eos;
        let rows_of = |texts: &[S]| {
            let mut encoder = self.encoder();
            let row = |text: &S| {
                let mut ids = Vec::new();
                encode(&mut encoder, text.as_ref(), &mut ids)?;
                ids.push(eos);
                Ok(ids)
            };
            texts.iter().map(row).collect::<Result<Vec<_>>>()
        };
        // An encoder remembers words, so that a thread takes many texts.
        let per_thread = texts.len().div_ceil(rayon::current_num_threads()).max(LEAST_TEXTS);
        Ok(texts.par_chunks(per_thread).map(rows_of).collect::<Result<Vec<_>>>()?.concat())
    }

    /// Returns the text of target ids, without special tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.target.decode(ids)
    }

    /// Returns the texts of several rows of target ids, without special tokens. Several threads share the rows.
    pub fn decode_batch<R: AsRef<[u32]> + Sync>(&self, rows: &[R]) -> Result<Vec<String>> {
        rows.par_iter().map(|ids| self.decode(ids.as_ref())).collect()
    }
}

/// Encodes the texts of pairs. Take one for each thread; see [`PairTokenizers::encoder`].
#[derive(Debug)]
pub struct PairEncoder {
    source: SideEncoder,
    /// `None` if both sides share a vocabulary.
    target: Option<SideEncoder>,
    /// The tokens in front of every source and target.
    before: [Arc<[u32]>; 2],
}

impl PairEncoder {
    /// Returns an encoder that splits special tokens in a text like other text, or without `splits` reads them as tokens.
    pub fn splitting_special_tokens(self, splits: bool) -> Self {
        let Self { source, target, before } = self;
        let target = target.map(|target| target.reading_controls(!splits));
        Self { source: source.reading_controls(!splits), target, before }
    }

    /// Appends the ids of a source text, behind the tokens that the tokenizer puts in front of it, and without an end token.
    pub fn encode_source(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        ids.extend_from_slice(&self.before[0]);
        self.source.encode(text, ids)
    }

    /// Appends the ids of a target text, as [`Self::encode_source`].
    pub fn encode_target(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        ids.extend_from_slice(&self.before[1]);
        self.target_side().encode(text, ids)
    }

    fn target_side(&mut self) -> &mut SideEncoder {
        self.target.as_mut().unwrap_or(&mut self.source)
    }

    /// Returns whether special tokens that a text spells are split like other text.
    pub(crate) fn splits_special_tokens(&self) -> bool {
        !self.source.reads_controls()
    }

    /// Returns how many special tokens a source and its target spell.
    pub(crate) fn count_spelled(&self, source: &str, target: &str) -> u64 {
        self.source.count_controls(source) + self.target.as_ref().unwrap_or(&self.source).count_controls(target)
    }

    /// Counts the unknown tokens in the ids of a source text.
    pub(crate) fn count_unknown_source(&mut self, text: &str, ids: &[u32], counts: &mut Unknown) -> Result<()> {
        self.source.count_unknown(text, ids, counts)
    }

    /// Counts the unknown tokens in the ids of a target text.
    pub(crate) fn count_unknown_target(&mut self, text: &str, ids: &[u32], counts: &mut Unknown) -> Result<()> {
        self.target_side().count_unknown(text, ids, counts)
    }
}

#[cfg(test)]
mod tests;
