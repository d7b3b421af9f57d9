//! Rows that are taken out of the training text for validation. A hash of each row decides.

use std::collections::BTreeSet;

/// The rows that are for validation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldOut {
    /// Rows with a hash below this are for validation, ..
    pub below: u64,
    /// .. except rows with these hashes.
    pub kept: BTreeSet<u64>,
}

impl HeldOut {
    /// Returns the hash of a row, of the line of JSON that says the same.
    pub fn hash(record: &str) -> u64 {
        let bytes = *blake3::hash(record.as_bytes()).as_bytes();
        u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
    }

    /// Whether a row with this hash is for validation.
    pub fn has(&self, hash: u64) -> bool {
        hash < self.below && !self.kept.contains(&hash)
    }

    /// Returns a pair as a line of JSON.
    pub fn record_of_pair(source: &str, target: &str) -> String {
        serde_json::json!({"src": source, "trg": target}).to_string()
    }

    /// Returns a document as a line of JSON.
    pub fn record_of_text(text: &str) -> String {
        serde_json::json!({ "text": text }).to_string()
    }

    /// Describes the rows, for fingerprints.
    pub(super) fn mark(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.below.to_le_bytes());
        self.kept.iter().for_each(|hash| {
            hasher.update(&hash.to_le_bytes());
        });
        hasher.finalize().to_hex().to_string()
    }
}

/// Returns a record as the line of JSON that rows are hashed by. One that is not JSON becomes an object without fields.
pub(crate) fn record_of_json(json: &[u8]) -> String {
    serde_json::from_slice::<serde_json::Value>(json).map_or_else(|_| "{}".to_owned(), |row| row.to_string())
}
