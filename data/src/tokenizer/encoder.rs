//! Fast encoding on one thread, which remembers the pieces of texts (see [`super::pieces`]).
//!
//! Some texts cannot be divided into pieces (runs of spaces in some vocabularies, added tokens). `tokenizers` encodes
//! them as a whole. Both ways give the same ids.
//!
//! Each thread has its own table, so that a lookup takes no lock. All threads share a second table
//! ([`super::words::SharedWords`]), so that a piece is tokenized once and not once per thread.

use std::borrow::Cow;
use std::sync::Arc;

use ahash::AHashMap;
use tokenizers::Tokenizer;

use super::pieces::{Pieces, matches_and_gaps, prefixed_words, with_meta};
use super::vocabulary::Vocabulary;
use crate::corpus::{CharacterCounts, Unknown};
use crate::error::Result;

/// Largest number of pieces that a thread remembers (about 100 bytes each).
const MAX_OWN_WORDS: usize = 1 << 18;
/// Longer pieces are too rare to be worth remembering.
const MAX_WORD_BYTES: usize = 64;

/// A range of `Words::ids`, or a piece whose text must be encoded as a whole.
#[derive(Debug, Clone, Copy)]
enum Word {
    Ids { start: u32, len: u32 },
    InContext,
}

/// Encodes texts with one vocabulary.
#[derive(Debug)]
pub(super) struct SideEncoder {
    vocabulary: Arc<Vocabulary>,
    /// A private copy if every text is encoded as a whole: the tokenizer's internal cache has a lock.
    own: Option<Box<Tokenizer>>,
    words: Words,
    /// Whether control tokens that a text spells are read as these tokens.
    reads_controls: bool,
    /// Characters that were looked up, and whether the vocabulary lacks them.
    lacking: AHashMap<char, bool>,
}

impl SideEncoder {
    pub(super) fn new(vocabulary: Arc<Vocabulary>) -> Self {
        let is_whole = matches!(vocabulary.pieces, Pieces::Whole) && vocabulary.sentencepiece.is_none();
        let own = is_whole.then(|| Box::new(vocabulary.tokenizer.clone()));
        Self { vocabulary, own, words: Words::default(), reads_controls: false, lacking: AHashMap::new() }
    }

    /// Returns an encoder that reads control tokens which a text spells, if `reads` is set, as these tokens. A SentencePiece model
    /// never does.
    pub(super) fn reading_controls(self, reads: bool) -> Self {
        let reads_controls = reads && self.vocabulary.sentencepiece.is_none();
        Self { reads_controls, ..self }
    }

    /// Returns whether control tokens that a text spells are read as these tokens.
    pub(super) fn reads_controls(&self) -> bool {
        self.reads_controls
    }

    /// Appends the ids of a text, without special tokens but those that it spells.
    pub(super) fn encode(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        if self.reads_controls && self.vocabulary.encode_with_controls(text, ids)? {
            return Ok(());
        }
        let start = ids.len();
        if !self.encode_pieces(text, ids)? {
            ids.truncate(start);
            let tokenizer = self.own.as_deref().unwrap_or(&self.vocabulary.tokenizer);
            self.vocabulary.encode(tokenizer, text, ids)?;
        }
        Ok(())
    }

    /// Returns how many control tokens a text spells.
    pub(super) fn count_controls(&self, text: &str) -> u64 {
        self.vocabulary.count_controls(text)
    }

    /// Counts the unknown tokens in `ids`, the ids of `text`, and the characters that the vocabulary lacks.
    pub(super) fn count_unknown(&mut self, text: &str, ids: &[u32], counts: &mut Unknown) -> Result<()> {
        let tokens = ids.iter().filter(|id| self.vocabulary.is_unknown(**id)).count();
        if tokens > 0 {
            counts.tokens += tokens as u64;
            self.count_lacking(text, &mut counts.characters)?;
        }
        Ok(())
    }

    /// Counts the characters of a text that the vocabulary lacks, whether they become unknown tokens or bytes.
    pub(super) fn count_lacking(&mut self, text: &str, counts: &mut CharacterCounts) -> Result<()> {
        let Self { vocabulary, lacking, .. } = self;
        for character in vocabulary
            .normalized(&vocabulary.without_symbols(text))?
            .chars()
            .filter(|character| !character.is_whitespace())
        {
            let is_lacking = match lacking.get(&character) {
                Some(known) => *known,
                None => {
                    let found = vocabulary.lacks(character)?;
                    lacking.insert(character, found);
                    found
                }
            };
            if is_lacking {
                counts.add(character);
            }
        }
        Ok(())
    }

    /// Appends the ids of the pieces of a text. Returns `false` if the text must be encoded as a whole; `ids` is then
    /// invalid.
    fn encode_pieces(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<bool> {
        let Self { vocabulary, words, .. } = self;
        // Encodes one piece after the other. Skips the rest after an error or a piece that needs its context.
        let mut result = Ok(true);
        let mut each = |piece: &str| {
            if let Ok(true) = result {
                result = words.encode(piece, vocabulary, ids);
            }
        };

        match &vocabulary.pieces {
            Pieces::Whole => return Ok(false),
            Pieces::Spaces { .. } => {
                for word in text.split(' ') {
                    if word.is_empty() {
                        return Ok(false);
                    }
                    each(word);
                }
            }
            Pieces::WhiteSpace => {
                // The normalizer removes or changes other white space before BERT's pre-tokenizer sees it.
                text.split([' ', '\t', '\n', '\r']).filter(|word| !word.is_empty()).for_each(each);
            }
            Pieces::Pattern { pattern, add_prefix_space } => {
                let mut normalized = vocabulary.normalized(text)?;
                if vocabulary.holds_added_token(text) || vocabulary.holds_added_token(&normalized) {
                    return Ok(false);
                }
                if *add_prefix_space && !normalized.is_empty() && !normalized.starts_with(' ') {
                    normalized = Cow::Owned(format!(" {normalized}"));
                }
                matches_and_gaps(pattern, &normalized, each);
            }
            Pieces::PrefixedOnce { meta } if text.starts_with([' ', *meta]) => return Ok(false),
            Pieces::Prefixed { meta } | Pieces::PrefixedOnce { meta } => {
                let normalized = with_meta(text, *meta);
                if vocabulary.holds_added_token(text) || vocabulary.holds_added_token(&normalized) {
                    return Ok(false);
                }
                prefixed_words(&normalized, *meta, each);
            }
        }
        result
    }
}

/// The pieces that a thread remembers.
#[derive(Debug, Default)]
struct Words {
    known: AHashMap<Box<str>, Word>,
    /// Ids of all of them.
    ids: Vec<u32>,
}

impl Words {
    /// Appends the ids of a piece. Returns `false` if they depend on the text around it.
    fn encode(&mut self, piece: &str, vocabulary: &Vocabulary, ids: &mut Vec<u32>) -> Result<bool> {
        if piece.len() > MAX_WORD_BYTES {
            return vocabulary.encode_piece(piece, ids);
        }
        let word = match self.known.get(piece) {
            Some(word) => *word,
            None => self.learn(piece, vocabulary)?,
        };
        match word {
            Word::Ids { start, len } => ids.extend_from_slice(&self.ids[start as usize..(start + len) as usize]),
            Word::InContext => return Ok(false),
        }
        Ok(true)
    }

    fn learn(&mut self, piece: &str, vocabulary: &Vocabulary) -> Result<Word> {
        if self.known.len() >= MAX_OWN_WORDS {
            // Start again: the frequent pieces return at once.
            self.known.clear();
            self.ids.clear();
        }
        let start = self.ids.len();
        let apart = vocabulary.encode_shared(piece, &mut self.ids)?;
        let learned = if apart {
            Word::Ids { start: start as u32, len: (self.ids.len() - start) as u32 }
        } else {
            Word::InContext
        };
        self.known.insert(piece.into(), learned);
        Ok(learned)
    }
}
