//! Encoding on one thread, fast: whole words are remembered.
//!
//! `tokenizers` builds strings with alignments for every text, which costs about a microsecond a token. Where the
//! vocabulary splits at spaces, the ids of a text are those of its words one after the other, and nearly every word has
//! been seen before: a lookup in a hash table replaces normalizing, splitting and merging. Texts for which that does not
//! hold (runs of spaces, added tokens) take the ordinary way and give the same ids.

use std::sync::Arc;

use ahash::AHashMap;
use tokenizers::{NormalizedString, Normalizer as _, Tokenizer};

use super::Vocabulary;
use crate::error::{Error, Result};

/// Words remembered per vocabulary at most (about 80 bytes each).
const MAX_WORDS: usize = 1 << 18;
/// Longer words are too rare to be worth it.
const MAX_WORD_BYTES: usize = 64;
/// The meta symbol of the Metaspace family.
const META: char = '▁';

/// Turns texts into ids. One for each thread; see [`super::Tokenizers::encoder`].
#[derive(Debug)]
pub struct Encoder {
    source: SideEncoder,
    /// `None` if both sides share a vocabulary.
    target: Option<SideEncoder>,
}

impl Encoder {
    pub(crate) fn new(source: Arc<Vocabulary>, target: Arc<Vocabulary>) -> Self {
        let joint = Arc::ptr_eq(&source, &target);
        Self { source: SideEncoder::new(source), target: (!joint).then(|| SideEncoder::new(target)) }
    }

    /// Appends the ids of a source text, without special tokens.
    pub fn encode_source(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        self.source.encode(text, ids)
    }

    /// Appends the ids of a target text, without special tokens.
    pub fn encode_target(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        self.target.as_mut().unwrap_or(&mut self.source).encode(text, ids)
    }
}

/// A part of `SideEncoder::ids`, or a word whose text must be encoded as a whole.
#[derive(Debug, Clone, Copy)]
enum Word {
    Ids { start: u32, len: u32 },
    InContext,
}

#[derive(Debug)]
struct SideEncoder {
    vocabulary: Arc<Vocabulary>,
    /// A copy of its own where every text passes through it: its internal cache is behind a lock.
    own: Option<Box<Tokenizer>>,
    words: AHashMap<Box<str>, Word>,
    /// Ids of all remembered words.
    ids: Vec<u32>,
}

impl SideEncoder {
    fn new(vocabulary: Arc<Vocabulary>) -> Self {
        let own = (!vocabulary.word_by_word).then(|| Box::new(vocabulary.tokenizer.clone()));
        Self { vocabulary, own, words: AHashMap::new(), ids: Vec::new() }
    }

    fn encode(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        if !self.vocabulary.word_by_word {
            let tokenizer = self.own.as_deref().unwrap_or(&self.vocabulary.tokenizer);
            return self.vocabulary.encode(tokenizer, text, ids);
        }
        let start = ids.len();
        for word in text.split(' ') {
            let known = match self.words.get(word) {
                Some(known) => *known,
                None if word.is_empty() => Word::InContext,
                None => self.learn(word)?,
            };
            match known {
                Word::Ids { start, len } => {
                    ids.extend_from_slice(&self.ids[start as usize..(start + len) as usize]);
                }
                Word::InContext => {
                    ids.truncate(start);
                    return self.vocabulary.encode(&self.vocabulary.tokenizer, text, ids);
                }
            }
        }
        Ok(())
    }

    fn learn(&mut self, word: &str) -> Result<Word> {
        if self.words.len() >= MAX_WORDS {
            // A new vocabulary of words every quarter of a million: stays bounded, and the frequent ones return at once.
            self.words.clear();
            self.ids.clear();
        }
        if word.len() > MAX_WORD_BYTES || self.needs_context(word)? {
            if word.len() <= MAX_WORD_BYTES {
                self.words.insert(word.into(), Word::InContext);
            }
            return Ok(Word::InContext);
        }
        let start = self.ids.len();
        self.vocabulary.encode(&self.vocabulary.tokenizer, word, &mut self.ids)?;
        let learned = Word::Ids { start: start as u32, len: (self.ids.len() - start) as u32 };
        self.words.insert(word.into(), learned);
        Ok(learned)
    }

    /// A word that normalizes to nothing, to spaces or to the meta symbol, or that holds an added token, is encoded
    /// differently inside a text.
    fn needs_context(&self, word: &str) -> Result<bool> {
        let mut normalized = NormalizedString::from(word);
        if let Some(normalizer) = self.vocabulary.tokenizer.get_normalizer() {
            normalizer
                .normalize(&mut normalized)
                .map_err(|e| Error::tokenizer(None, format!("normalizing {word:?} failed: {e}")))?;
        }
        let normalized = normalized.get();
        let special = |token: &String| word.contains(token.as_str()) || normalized.contains(token.as_str());
        Ok(normalized.is_empty()
            || normalized.contains([' ', META])
            || word.contains(META)
            || self.vocabulary.in_text.iter().any(special))
    }
}
