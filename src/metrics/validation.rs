//! A validation in words.

use super::ValidationMetrics;

impl ValidationMetrics {
    /// Returns the measured scores of classes with their names for people.
    pub fn of_classes(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let all = [("accuracy", self.accuracy), ("macro F1", self.macro_f1), ("entity F1", self.entity_f1)];
        all.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }

    /// Describes the BLEU score, and why it is 0 if the lines are too short for it.
    pub fn bleu_in_words(&self) -> Option<String> {
        let why = if self.no_four_grams { " (needs four words; no translation has them)" } else { "" };
        self.bleu.map(|bleu| format!("BLEU {bleu:.2}{why}"))
    }

    /// `exp(nll)`.
    pub fn perplexity(&self) -> f64 {
        self.nll.exp()
    }
}
