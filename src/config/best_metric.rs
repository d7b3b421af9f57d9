//! The measure by which the best checkpoint is chosen.

use serde::{Deserialize, Serialize};

use super::{Config, Task};

/// Measure by which the best checkpoint is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BestMetric {
    /// The lowest validation loss.
    Loss,
    /// The highest BLEU.
    Bleu,
    /// The highest chrF2.
    Chrf,
    /// The most lines equal to their reference.
    ExactMatch,
    /// The most right classes or tags.
    Accuracy,
    /// The highest mean F1 of the classes or tags.
    MacroF1,
    /// The highest F1 over all classes or tags together.
    MicroF1,
    /// The highest F1 of whole entities.
    EntityF1,
    /// The most hidden tokens that the model gets right.
    MaskedAccuracy,
    /// The most pairs whose preferred answer has the larger reward.
    RewardAccuracy,
}

impl BestMetric {
    /// Returns its name in configurations, which is also its field in `metrics.jsonl`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Bleu => "bleu",
            Self::Chrf => "chrf",
            Self::ExactMatch => "exact_match",
            Self::Accuracy => "accuracy",
            Self::MacroF1 => "macro_f1",
            Self::MicroF1 => "micro_f1",
            Self::EntityF1 => "entity_f1",
            Self::MaskedAccuracy => "masked_accuracy",
            Self::RewardAccuracy => "reward_accuracy",
        }
    }

    /// Returns whether it scores text that the model generates.
    pub fn scores_text(self) -> bool {
        matches!(self, Self::Bleu | Self::Chrf | Self::ExactMatch)
    }
}

impl Config {
    /// Returns what `train.best_metric` scores, if the validations of the run do not have it.
    pub(super) fn lacks_metric(&self, translates: bool, hides_tokens: bool) -> Option<&'static str> {
        let is_preferences = self.task == Task::Lm && self.data.text.is_preferences();
        let (scored, is_there) = match self.train.best_metric {
            BestMetric::Loss => return None,
            BestMetric::Bleu | BestMetric::Chrf | BestMetric::ExactMatch => ("translations", translates),
            BestMetric::Accuracy | BestMetric::MacroF1 | BestMetric::MicroF1 => {
                ("classes", matches!(self.task, Task::Classification | Task::Tagging))
            }
            BestMetric::EntityF1 => ("entities", self.task == Task::Tagging),
            BestMetric::MaskedAccuracy => ("hidden tokens", hides_tokens),
            BestMetric::RewardAccuracy => ("pairs of answers", is_preferences),
        };
        (!is_there).then_some(scored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Preset, TrainConfig, presets};

    #[test]
    fn a_metric_needs_a_task_that_has_it() {
        let refused = |config: Config, metric| {
            let config = Config { train: TrainConfig { best_metric: metric, ..config.train.clone() }, ..config };
            config.validate().iter().any(|problem| problem.starts_with("train.best_metric"))
        };
        let [pairs, text, hidden] = [presets::base, presets::gpt2_mini, presets::bert_small];
        for (metric, accepted) in [
            (BestMetric::Loss, [true, true, true]),
            (BestMetric::Bleu, [true, false, false]),
            (BestMetric::MacroF1, [false; 3]),
            (BestMetric::EntityF1, [false; 3]),
            (BestMetric::MaskedAccuracy, [false, false, true]),
            (BestMetric::RewardAccuracy, [false; 3]),
        ] {
            let found = [pairs(), text(), hidden()].map(|config| !refused(config, metric));
            assert_eq!(found, accepted, "{metric:?}");
        }
        for (preset, metrics) in [
            (Preset::Classify, vec![BestMetric::Accuracy, BestMetric::MacroF1, BestMetric::MicroF1]),
            (Preset::Tag, vec![BestMetric::Accuracy, BestMetric::MacroF1, BestMetric::EntityF1]),
        ] {
            assert!(metrics.into_iter().all(|metric| !refused(preset.config(), metric)), "{preset:?}");
        }
        assert!(refused(Preset::Classify.config(), BestMetric::EntityF1), "texts have no entities");
    }
}
