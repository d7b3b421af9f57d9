//! What a run has trained on of each source of a mixture (`data.mix`).

use std::collections::BTreeMap;

use kiln_data::SourceCount;
use serde::{Deserialize, Serialize};

use crate::units::thousands;

/// Rows, tokens and loss of a source.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct SourceTotals {
    /// Pairs, or rows of text.
    pub samples: u64,
    /// Non-padding tokens: source and target, or tokens of text.
    pub tokens: u64,
    /// Its training loss, as far as it has been read from the device.
    #[serde(flatten, skip_serializing_if = "Option::is_none", default)]
    pub loss: Option<SourceLoss>,
}

/// The training loss of a source.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct SourceLoss {
    /// Negative log-likelihood without smoothing, nats per label.
    pub nll: f64,
    /// Labels, over which it is a mean.
    pub labels: u64,
}

impl SourceLoss {
    /// Returns the mean over the labels of both.
    fn with(self, other: Self) -> Self {
        let labels = self.labels + other.labels;
        let sum = self.nll * self.labels as f64 + other.nll * other.labels as f64;
        Self { nll: sum / (labels as f64).max(1.0), labels }
    }
}

impl SourceTotals {
    /// Returns the training loss without smoothing, nats per label, if it is known.
    pub fn nll(&self) -> Option<f64> {
        self.loss.map(|loss| loss.nll)
    }
}

/// The sources of a mixture by name; empty without one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
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
            self.add(name, SourceTotals { samples: *rows, tokens: *tokens, loss: None });
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
        sum.loss = match (sum.loss, totals.loss) {
            (Some(one), Some(other)) => Some(one.with(other)),
            (one, other) => one.or(other),
        };
    }

    /// Adds the loss of a source, summed over its labels. Nothing is added for a source without labels.
    pub fn add_loss(&mut self, name: &str, nll_sum: f64, labels: u64) {
        if labels > 0 {
            let loss = Some(SourceLoss { nll: nll_sum / labels as f64, labels });
            self.add(name, SourceTotals { loss, ..SourceTotals::default() });
        }
    }

    /// Returns the losses of the sources whose loss is known, by name.
    pub fn losses(&self) -> impl Iterator<Item = (&str, SourceLoss)> {
        self.iter().filter_map(|(name, totals)| Some((name, totals.loss?)))
    }

    /// Replaces the losses of this rank by the ones over all ranks.
    pub fn set_losses<'a>(&mut self, of_ranks: impl Iterator<Item = (&'a str, SourceLoss)>) {
        self.0.values_mut().for_each(|totals| totals.loss = None);
        of_ranks.for_each(|(name, loss)| self.add(name, SourceTotals { loss: Some(loss), ..SourceTotals::default() }));
    }

    /// Returns the sum over all steps.
    pub(super) fn of<'a>(steps: impl Iterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        steps.for_each(|step| sum.merge(step));
        sum
    }

    /// Describes a source's share of the rows and its tokens; `None` for an unknown name.
    pub fn share_of(&self, name: &str) -> Option<String> {
        let SourceTotals { samples, tokens, .. } = *self.0.get(name)?;
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

    #[test]
    fn losses_are_means_over_labels_and_stay_with_their_source() {
        let step = |losses: &[(&str, f64, u64)]| {
            let mut step = SourceMetrics::default();
            losses.iter().for_each(|(name, sum, labels)| step.add_loss(name, *sum, *labels));
            step
        };
        let sum =
            SourceMetrics::of([&step(&[("news", 6.0, 3), ("web", 0.0, 0)]), &step(&[("news", 2.0, 1)])].into_iter());
        let losses = |metrics: &SourceMetrics| -> Vec<_> {
            metrics.losses().map(|(name, loss)| (name.to_owned(), loss.nll, loss.labels)).collect()
        };
        assert_eq!(losses(&sum), [("news".to_owned(), 2.0, 4)]);
        let json = r#"{"news":{"samples":0,"tokens":0,"nll":2.0,"labels":4}}"#;
        assert_eq!(serde_json::to_string(&sum).expect("plain values"), json);
        assert_eq!(serde_json::from_str::<SourceMetrics>(json).expect("as written"), sum);

        let mut all = sum.clone();
        let other = step(&[("news", 8.0, 4), ("web", 5.0, 1)]);
        all.set_losses(sum.losses().chain(other.losses()));
        assert_eq!(losses(&all), [("news".to_owned(), 2.0, 8), ("web".to_owned(), 5.0, 1)]);
    }
}
