//! Text as its ids come, for a reader who watches.

use std::sync::Arc;

use super::vocabulary::Vocabulary;
use crate::error::Result;

/// A character takes four bytes at most, and so four tokens; a longer run of bytes is no character.
const MAX_HELD_BACK: usize = 8;

/// What bytes that are no (whole) character are decoded to.
const REPLACEMENT: char = '\u{fffd}';

/// Decodes ids one by one. A piece of text is handed out once it can no longer change: never half a character, and a space
/// between two words together with the second. All pieces together are what [`super::TextTokenizer::decode`] makes of all
/// ids, as long as these spell valid UTF-8.
///
/// How a token is decoded depends on the ones before it (whether a space stands in front of a word, for one), so the last
/// few ids are decoded again together with the new one, and the text they had before is cut off.
#[derive(Debug, Clone)]
pub struct DecodeStream {
    vocabulary: Arc<Vocabulary>,
    /// The ids of the piece that was handed out last, and those that came after it.
    ids: Vec<u32>,
    /// How many of `ids` were handed out.
    done: usize,
}

impl DecodeStream {
    pub(super) fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self { vocabulary, ids: Vec::new(), done: 0 }
    }

    /// Takes the next id and returns the text that is certain by now; often empty. Special tokens have none.
    pub fn push(&mut self, id: u32) -> Result<String> {
        if self.vocabulary.special_ids().contains(&id) {
            return Ok(String::new());
        }
        self.ids.push(id);
        let held_back = self.ids.len() - self.done;
        self.hand_out(held_back > MAX_HELD_BACK)
    }

    /// What was held back, at the end of a text; a character that was not completed shows as U+FFFD.
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
        // A decoder that corrects what it said before (a stray byte, say) is followed from the first difference on.
        let same = before.bytes().zip(now.bytes()).take_while(|(a, b)| a == b).count();
        let same = (0..=same).rev().find(|at| now.is_char_boundary(*at)).unwrap_or(0);
        let new = now[same..].to_owned();
        if new.is_empty() && !even_if_incomplete {
            // Nothing to see yet: the next token is decoded in the same company.
            return Ok(new);
        }
        self.ids.drain(..self.done);
        self.done = self.ids.len();
        Ok(new)
    }
}
