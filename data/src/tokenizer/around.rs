//! The special tokens that a tokenizer's post-processor puts around a text.

use std::path::Path;

use tokenizers::Tokenizer;

use super::guard;
use super::vocabulary::not_a_tokenizer;
use crate::error::Result;

/// Texts to try. The first one that has tokens decides; a vocabulary may lack any letter.
const TEXTS: [&str; 4] = ["a", "1", ".", "\u{3042}"];

/// Returns the ids that a `tokenizer.json` puts in front of and behind a text; `None` if it has no post-processor.
///
/// # Errors
///
/// If `json` is not a tokenizer.
pub fn tokens_around(json: &str) -> Result<Option<(Vec<u32>, Vec<u32>)>> {
    around(&mut guard::read(json).map_err(|e| not_a_tokenizer(None, &e))?, None)
}

/// Returns the ids in front of and behind a text; `None` if the tokenizer has no post-processor.
pub(super) fn around(tokenizer: &mut Tokenizer, path: Option<&Path>) -> Result<Option<(Vec<u32>, Vec<u32>)>> {
    if tokenizer.get_post_processor().is_none() {
        return Ok(None);
    }
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|e| not_a_tokenizer(path, &e))?;
    for text in TEXTS {
        let encoding = guard::encode(tokenizer, text).map_err(|e| not_a_tokenizer(path, &e))?;
        let (ids, special) = (encoding.get_ids(), encoding.get_special_tokens_mask());
        if special.iter().all(|special| *special == 1) {
            // The text has no token, so the front and the back cannot be distinguished.
            continue;
        }
        let before = special.iter().take_while(|special| **special == 1).count();
        let behind = special[before..].iter().rev().take_while(|special| **special == 1).count();
        return Ok(Some((ids[..before].to_vec(), ids[ids.len() - behind..].to_vec())));
    }
    Ok(Some((Vec::new(), Vec::new())))
}
