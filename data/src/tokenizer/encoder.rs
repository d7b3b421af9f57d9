//! Encoding on one thread, fast: whole words are remembered.
//!
//! `tokenizers` builds strings with alignments for every text, which costs about a microsecond a token. Where the
//! vocabulary splits at spaces, the ids of a text are those of its words one after the other, and nearly every word has
//! been seen before: a lookup in a hash table replaces normalizing, splitting and merging. Texts for which that does not
//! hold (runs of spaces, added tokens) take the ordinary way and give the same ids.
//!
//! Each thread has a table of its own, so that a lookup takes no lock; behind them stands one table for all threads, so
//! that a word is tokenized once and not once per thread.

use std::sync::{Arc, PoisonError, RwLock};

use ahash::AHashMap;
use tokenizers::Tokenizer;

use super::vocabulary::{Vocabulary, Words};
use crate::error::Result;

/// Words that each thread remembers at most (about 100 bytes each).
const MAX_OWN_WORDS: usize = 1 << 18;
/// Words that all threads remember together at most.
const MAX_SHARED_WORDS: usize = 1 << 20;
/// Longer words are too rare to be worth it.
const MAX_WORD_BYTES: usize = 64;

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
        let own = (vocabulary.words == Words::Together).then(|| Box::new(vocabulary.tokenizer.clone()));
        Self { vocabulary, own, words: AHashMap::new(), ids: Vec::new() }
    }

    fn encode(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        if self.vocabulary.words == Words::Together {
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
        if word.len() > MAX_WORD_BYTES {
            return Ok(Word::InContext);
        }
        if self.words.len() >= MAX_OWN_WORDS {
            // Bounded; the frequent words return at once.
            self.words.clear();
            self.ids.clear();
        }
        let start = self.ids.len();
        let apart = self.vocabulary.shared_words.encode(word, &self.vocabulary, &mut self.ids)?;
        let learned = if apart {
            Word::Ids { start: start as u32, len: (self.ids.len() - start) as u32 }
        } else {
            Word::InContext
        };
        self.words.insert(word.into(), learned);
        Ok(learned)
    }
}

/// Ids of a word; `None` if it needs its context.
type WordIds = Option<Box<[u32]>>;

/// Words that some thread has tokenized.
#[derive(Debug, Default)]
pub(super) struct SharedWords {
    ids: RwLock<AHashMap<Box<str>, WordIds>>,
}

impl SharedWords {
    /// Appends the ids of a word; `false` if it needs its context.
    fn encode(&self, word: &str, vocabulary: &Vocabulary, ids: &mut Vec<u32>) -> Result<bool> {
        // No code that could panic runs under the lock: a poisoned one still holds a whole table.
        if let Some(known) = self.ids.read().unwrap_or_else(PoisonError::into_inner).get(word) {
            ids.extend_from_slice(known.as_deref().unwrap_or_default());
            return Ok(known.is_some());
        }
        let start = ids.len();
        let apart = vocabulary.encode_word(word, ids)?;
        let mut shared = self.ids.write().unwrap_or_else(PoisonError::into_inner);
        if shared.len() < MAX_SHARED_WORDS {
            shared.insert(word.into(), apart.then(|| ids[start..].into()));
        }
        Ok(apart)
    }
}
