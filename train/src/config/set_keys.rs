//! The keys that a user decided, which no default may change.

use std::collections::BTreeSet;

/// The keys that a user decided.
#[derive(Debug, Clone, Default)]
pub(super) struct SetKeys {
    given: BTreeSet<String>,
    /// The run has weights, whose model and vocabulary are decided, too.
    has_weights: bool,
}

impl SetKeys {
    pub(super) fn new(given: impl IntoIterator<Item = String>, has_weights: bool) -> Self {
        Self { given: given.into_iter().collect(), has_weights }
    }

    /// Whether the user decided `key`.
    pub(super) fn contains(&self, key: &str) -> bool {
        let is_of_weights = key.starts_with("model.") || key.starts_with("tokenizer.");
        self.given.contains(key) || self.has_weights && is_of_weights
    }

    /// The keys that the file and the command line name.
    pub(super) fn into_given(self) -> BTreeSet<String> {
        self.given
    }

    #[cfg(test)]
    pub(super) fn of<const N: usize>(keys: [&str; N]) -> Self {
        Self::new(keys.map(str::to_owned), false)
    }
}
