//! What a run has trained on of each source of a mixture (`data.mix`).

use std::collections::BTreeMap;

use kiln_data::SourceCount;
use serde::{Deserialize, Serialize};

use crate::units::thousands;

/// Rows and tokens of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SourceTotals {
    /// Pairs, or rows of text.
    pub samples: u64,
    /// Non-padding tokens: source and target, or tokens of text.
    pub tokens: u64,
}

/// The sources of a mixture by name; empty without one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SourceMetrics(BTreeMap<String, SourceTotals>);

impl SourceMetrics {
    /// Whether nothing was counted: a run without a mixture.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the sources by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, SourceTotals)> {
        self.0.iter().map(|(name, totals)| (name.as_str(), *totals))
    }

    /// Adds the rows of a batch.
    pub fn count(&mut self, batch: &[SourceCount]) {
        for SourceCount { name, rows, tokens } in batch {
            self.add(name, SourceTotals { samples: *rows, tokens: *tokens });
        }
    }

    /// Adds the rows of other steps or ranks.
    pub fn merge(&mut self, other: &Self) {
        other.iter().for_each(|(name, totals)| self.add(name, totals));
    }

    fn add(&mut self, name: &str, totals: SourceTotals) {
        let sum = self.0.entry(name.to_owned()).or_default();
        sum.samples += totals.samples;
        sum.tokens += totals.tokens;
    }

    /// Returns the sum over all steps.
    pub(super) fn of<'a>(steps: impl Iterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        steps.for_each(|step| sum.merge(step));
        sum
    }

    /// Describes a source's share of the rows and its tokens; `None` for an unknown name.
    pub fn share_of(&self, name: &str) -> Option<String> {
        let SourceTotals { samples, tokens } = *self.0.get(name)?;
        let all: u64 = self.0.values().map(|totals| totals.samples).sum();
        let (share, tokens) = (100.0 * samples as f64 / all.max(1) as f64, thousands(tokens as f64));
        Some(format!("{share:.1} % ({} rows, {tokens} tokens)", thousands(samples as f64)))
    }

    /// Describes all sources in a sentence; `None` without a mixture.
    pub fn in_words(&self) -> Option<String> {
        let source = |name: &String| Some(format!("{name} {}", self.share_of(name)?));
        let sources: Vec<String> = self.0.keys().filter_map(source).collect();
        (!sources.is_empty()).then(|| format!("trained on {}", sources.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_add_up_by_name() {
        let batch = |name: &str, rows, tokens| SourceCount { name: name.into(), rows, tokens };
        let mut one = SourceMetrics::default();
        assert_eq!((one.is_empty(), one.in_words()), (true, None));
        one.count(&[batch("news", 3, 30), batch("web", 1, 10)]);
        let mut other = SourceMetrics::default();
        other.count(&[batch("web", 4, 1990)]);
        one.merge(&other);
        let words = one.in_words().expect("a mixture");
        assert_eq!(words, "trained on news 37.5 % (3 rows, 30 tokens), web 62.5 % (5 rows, 2,000 tokens)");
        let json = serde_json::to_string(&one).expect("plain values");
        let wanted = r#"{"news":{"samples":3,"tokens":30},"web":{"samples":5,"tokens":2000}}"#;
        assert_eq!(json, wanted);
        assert_eq!(SourceMetrics::of([&one, &one].into_iter()).iter().next().expect("news").1.tokens, 60);
    }
}
