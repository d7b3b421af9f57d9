//! What a token cache says about its rows, for those who look at data before they train.

use std::collections::HashSet;

use super::{CacheKind, TokenCache, Tokens};
use crate::tokenizer::FLAG;

impl TokenCache {
    /// Returns whether the rows are documents of plain text or conversations, not pairs.
    pub fn is_text(&self) -> bool {
        self.kind() != CacheKind::Pairs
    }

    /// Returns the length of a row in tokens: of a pair source and target, eos included; of a document 0 and its tokens.
    pub fn row_lengths(&self, row: usize) -> (usize, usize) {
        match self.kind() {
            CacheKind::Pairs => self.lengths(row),
            CacheKind::Text | CacheKind::Chat => (0, self.document_len(row) as usize),
            CacheKind::Preferences => (0, (self.document_len(row) as usize).saturating_sub(1)),
            CacheKind::Labelled => (0, self.labelled_len(row)),
        }
    }

    /// Returns the target ids of a pair, or the ids of a document, without special tokens.
    pub fn target_ids(&self, row: usize) -> Vec<u32> {
        let ids = match self.kind() {
            CacheKind::Pairs => self.row(row).1,
            CacheKind::Text | CacheKind::Chat => self.document(row),
            // Both answers with their prompts, behind the length of the first.
            CacheKind::Preferences => self.document(row).skip(1),
            CacheKind::Labelled => self.row(row).0,
        };
        match ids {
            Tokens::Narrow(ids) => ids.iter().map(|id| u32::from(*id)).collect(),
            Tokens::Wide(ids) => ids.iter().map(|id| id & !FLAG).collect(),
        }
    }

    /// Counts the rows that are equal to an earlier row, token by token. Takes 16 bytes per different row.
    pub fn n_duplicates(&self) -> u64 {
        let mut seen: HashSet<[u8; 16]> = HashSet::with_capacity(self.n_rows());
        let is_known = |row: &usize| {
            let mut hasher = blake3::Hasher::new();
            let mut update = |ids: Tokens<'_>| {
                let (bytes, n): (&[u8], usize) = match ids {
                    Tokens::Narrow(ids) => (bytemuck::cast_slice(ids), ids.len()),
                    Tokens::Wide(ids) => (bytemuck::cast_slice(ids), ids.len()),
                };
                hasher.update(&(n as u64).to_le_bytes()).update(bytes);
            };

            match self.kind() {
                CacheKind::Pairs => {
                    let (source, target) = self.row(*row);
                    update(source);
                    update(target);
                }
                CacheKind::Text | CacheKind::Chat | CacheKind::Preferences | CacheKind::Labelled => {
                    update(self.document(*row));
                }
            }
            let hash = hasher.finalize();
            !seen.insert(hash.as_bytes()[..16].try_into().expect("32 bytes"))
        };
        (0..self.n_rows()).filter(is_known).count() as u64
    }
}
