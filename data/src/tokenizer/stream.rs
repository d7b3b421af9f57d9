//! Text from ids as a model generates them.

use std::sync::Arc;

use super::vocabulary::Vocabulary;
use crate::error::Result;

/// Ids that are held back at most. A character takes at most four bytes, and so four tokens.
const MAX_HELD_BACK: usize = 8;

/// The decoded text of bytes that are not a whole character.
const REPLACEMENT: char = '\u{fffd}';

/// Decodes ids one by one. It returns a piece of text once later ids cannot change it: never half a character, and a
/// space between two words together with the second word. All pieces together are the text that
/// [`TextTokenizer::decode`](super::TextTokenizer::decode) returns for all ids, if these spell valid UTF-8.
///
/// The text of a token depends on the tokens before it: on whether a space stands in front of a word, for example. So
/// the last few ids are decoded again together with the new one, and the text that they had before is cut off.
#[derive(Debug, Clone)]
pub struct DecodeStream {
    vocabulary: Arc<Vocabulary>,
    /// The ids of the last returned piece, and all ids after it.
    ids: Vec<u32>,
    /// The number of `ids` whose text was returned.
    done: usize,
}

impl DecodeStream {
    pub(super) fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self { vocabulary, ids: Vec::new(), done: 0 }
    }

    /// Takes the next id and returns the text that can no longer change, which is often empty. Special tokens have no
    /// text.
    pub fn push(&mut self, id: u32) -> Result<String> {
        if self.vocabulary.is_outside_text(id) {
            return Ok(String::new());
        }
        self.ids.push(id);
        let held_back = self.ids.len() - self.done;
        self.hand_out(held_back > MAX_HELD_BACK)
    }

    /// Ends the text and returns the rest of it. An incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> Result<String> {
        let rest = self.hand_out(true);
        self.ids.clear();
        self.done = 0;
        rest
    }

    fn hand_out(&mut self, even_if_incomplete: bool) -> Result<String> {
        if self.done == self.ids.len() {
            return Ok(String::new());
        }
        let before = self.vocabulary.decode(&self.ids[..self.done])?;
        let now = self.vocabulary.decode(&self.ids)?;
        if now.ends_with(REPLACEMENT) && !even_if_incomplete {
            return Ok(String::new());
        }
        // Some decoders change earlier text (after a stray byte, for example): continue at the first difference.
        let same = before.bytes().zip(now.bytes()).take_while(|(a, b)| a == b).count();
        let same = (0..=same).rev().find(|at| now.is_char_boundary(*at)).unwrap_or(0);
        let new = now[same..].to_owned();
        if new.is_empty() && !even_if_incomplete {
            // No text yet: the next token is decoded together with the same ids.
            return Ok(new);
        }
        self.ids.drain(..self.done);
        self.done = self.ids.len();
        Ok(new)
    }
}
