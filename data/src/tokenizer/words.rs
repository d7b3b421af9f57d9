//! A table of words that all threads share, so that a word is tokenized once and not once per thread.

use std::sync::{PoisonError, RwLock};

use ahash::AHashMap;

use crate::error::Result;

/// Words that the table holds at most.
const MAX_WORDS: usize = 1 << 20;

/// Ids of a word; `None` if the ids depend on the text around the word.
type WordIds = Option<Box<[u32]>>;

/// Words that some thread has tokenized, with their ids.
#[derive(Debug, Default)]
pub(super) struct SharedWords {
    ids: RwLock<AHashMap<Box<str>, WordIds>>,
}

impl SharedWords {
    /// Appends the ids of a word, from the table or else from `tokenize`. Returns `false` if the ids depend on the text
    /// around the word; so does `tokenize`.
    pub(super) fn encode(
        &self,
        word: &str,
        ids: &mut Vec<u32>,
        tokenize: impl FnOnce(&mut Vec<u32>) -> Result<bool>,
    ) -> Result<bool> {
        // No code that could panic runs under the lock: a poisoned one still holds a whole table.
        if let Some(known) = self.ids.read().unwrap_or_else(PoisonError::into_inner).get(word) {
            ids.extend_from_slice(known.as_deref().unwrap_or_default());
            return Ok(known.is_some());
        }

        let start = ids.len();
        let independent = tokenize(ids)?;
        let mut shared = self.ids.write().unwrap_or_else(PoisonError::into_inner);
        if shared.len() < MAX_WORDS {
            shared.insert(word.into(), independent.then(|| ids[start..].into()));
        }
        Ok(independent)
    }
}
