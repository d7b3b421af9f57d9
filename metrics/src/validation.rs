//! A pass over the validation data: its numbers, and some of them in words.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Measurements of one pass over the validation data.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ValidationMetrics {
    /// Optimizer steps done.
    pub step: u64,
    /// Label-smoothed loss, nats per target token.
    pub loss: f64,
    /// Negative log-likelihood, nats per target token; perplexity is its exponential.
    pub nll: f64,
    /// Labels: non-padding target tokens, tokens of text, or masked tokens.
    pub target_tokens: u64,
    /// lm: bits per UTF-8 byte of the text, which are comparable across vocabularies.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bits_per_byte: Option<f64>,
    /// mlm: fraction of masked tokens that were predicted correctly, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub masked_accuracy: Option<f64>,
    /// mlm: the same for a baseline that always predicts the most frequent token.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unigram_accuracy: Option<f64>,
    /// Preferences: fraction of the pairs whose preferred answer has the larger reward, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reward_accuracy: Option<f64>,
    /// Preferences: mean difference of the rewards of a pair.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reward_margin: Option<f64>,
    /// classification and tagging: fraction of the texts or words whose class is right, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub accuracy: Option<f64>,
    /// classification and tagging: mean of the F1 of all classes, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub macro_f1: Option<f64>,
    /// classification and tagging: F1 over all predictions, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub micro_f1: Option<f64>,
    /// tagging with tags such as `B-place` and `I-place`: F1 of whole entities, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub entity_f1: Option<f64>,
    /// Corpus BLEU of generated text, 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bleu: Option<f64>,
    /// Whether no generated line has four tokens. BLEU needs sequences of four, so it is 0 then, however good the lines are.
    #[serde(skip_serializing_if = "super::is_false", default)]
    pub no_four_grams: bool,
    /// chrF2 of generated text, 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub chrf: Option<f64>,
    /// Fraction of generated lines that equal their reference, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exact_match: Option<f64>,
    /// Figures of a model of one's own: `kiln_train::eval::Model::FIGURES` names them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub figures: BTreeMap<String, f64>,
    /// A mixture: negative log-likelihood on the validation text of each source, nats per target token.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub sources: BTreeMap<String, f64>,
    /// Wall time of the validation, seconds.
    pub elapsed_secs: f64,
}

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

    /// Describes the rewards of preferences; at the start of a run both answers have the same.
    pub fn rewards_in_words(&self) -> Option<String> {
        let (accuracy, margin) = self.reward_accuracy.zip(self.reward_margin)?;
        Some(match (accuracy, margin) {
            (0.0, 0.0) => "rewards of both answers still equal".to_owned(),
            _ => format!("reward accuracy {:.2}% margin {margin:.3}", 100.0 * accuracy),
        })
    }

    /// Returns the perplexity as `perplexity 2.72`, with a comma or another sign in front; empty for classes, of which people read scores.
    pub fn perplexity_after(&self, sign: &str, digits: usize) -> String {
        match self.accuracy {
            Some(_) => String::new(),
            None => format!("{sign}perplexity {:.digits$}", self.perplexity()),
        }
    }

    /// `exp(nll)`.
    pub fn perplexity(&self) -> f64 {
        self.nll.exp()
    }
}
