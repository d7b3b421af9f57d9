//! The measure by which the best checkpoint is chosen.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};

use super::suggest::did_you_mean;
use super::{Config, ConfigError, Task};

/// Measure by which the best checkpoint is chosen. A configuration names a figure of a model of one's own as `max:NAME` or
/// `min:NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// A figure of a model of one's own, see [`Model::FIGURES`](crate::Model::FIGURES).
    Figure {
        /// Its name.
        name: String,
        /// Whether the highest value is the best one, and not the lowest.
        is_highest: bool,
    },
}

/// The measures that have a name of their own, and how figures are named.
const NAMES: [&str; 12] = [
    "loss",
    "bleu",
    "chrf",
    "exact_match",
    "accuracy",
    "macro_f1",
    "micro_f1",
    "entity_f1",
    "masked_accuracy",
    "reward_accuracy",
    "max:FIGURE",
    "min:FIGURE",
];

impl BestMetric {
    /// Returns its name, which is also its field in `metrics.jsonl`: of the line, or, for a figure, of `figures`.
    pub fn name(&self) -> &str {
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
            Self::Figure { name, .. } => name,
        }
    }

    /// Returns whether it scores text that the model generates.
    pub fn scores_text(&self) -> bool {
        matches!(self, Self::Bleu | Self::Chrf | Self::ExactMatch)
    }

    /// Returns whether a lower value is better.
    pub fn falls(&self) -> bool {
        matches!(self, Self::Loss | Self::Figure { is_highest: false, .. })
    }

    fn parse(text: &str) -> Option<Self> {
        let figure = |name: &str, is_highest: bool| {
            (!name.trim().is_empty()).then(|| Self::Figure { name: name.to_owned(), is_highest })
        };
        Some(match text {
            "loss" => Self::Loss,
            "bleu" => Self::Bleu,
            "chrf" => Self::Chrf,
            "exact_match" => Self::ExactMatch,
            "accuracy" => Self::Accuracy,
            "macro_f1" => Self::MacroF1,
            "micro_f1" => Self::MicroF1,
            "entity_f1" => Self::EntityF1,
            "masked_accuracy" => Self::MaskedAccuracy,
            "reward_accuracy" => Self::RewardAccuracy,
            _ => match text.split_once(':')? {
                ("max", name) => return figure(name, true),
                ("min", name) => return figure(name, false),
                _ => return None,
            },
        })
    }
}

/// As in configurations.
impl fmt::Display for BestMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Figure { name, is_highest } => write!(f, "{}:{name}", if *is_highest { "max" } else { "min" }),
            named => f.write_str(named.name()),
        }
    }
}

impl Serialize for BestMetric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BestMetric {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| D::Error::unknown_variant(&text, &NAMES))
    }
}

impl Config {
    /// Checks that a model which reports `figures` reports the one that `train.best_metric` names, if it names one.
    ///
    /// # Errors
    /// If it does not.
    #[doc(hidden)]
    pub fn check_figure(&self, figures: &[&str]) -> Result<(), ConfigError> {
        let metric = &self.train.best_metric;
        let BestMetric::Figure { name, .. } = metric else { return Ok(()) };
        if figures.contains(&name.as_str()) {
            return Ok(());
        }
        let reported = match figures {
            [] if NAMES.contains(&name.as_str()) => format!("{name} is a measure of Kiln: set train.best_metric = \"{name}\""),
            [] => "it reports none of its own: only a model of your own does (Model::FIGURES); set train.best_metric = \"loss\"".to_owned(),
            figures => format!("it reports {}{}", figures.join(", "), did_you_mean(name, figures.iter().copied())),
        };
        let problem = format!(
            "train.best_metric = \"{metric}\": the model reports no figure \"{name}\" at validations; {reported}"
        );
        Err(ConfigError { problems: vec![problem] })
    }

    /// Returns what `train.best_metric` scores, if the validations of the run do not have it.
    pub(super) fn lacks_metric(&self, translates: bool, hides_tokens: bool) -> Option<&'static str> {
        let is_preferences = self.task == Task::Lm && self.data.text.is_preferences();
        let (scored, is_there) = match self.train.best_metric {
            // The model knows its figures, see `check_figure`.
            BestMetric::Loss | BestMetric::Figure { .. } => return None,
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
            let train = TrainConfig { best_metric: metric, ..config.train.clone() };
            Config { train, ..config }.validate().iter().any(|problem| problem.starts_with("train.best_metric"))
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
            let found = [pairs(), text(), hidden()].map(|config| !refused(config, metric.clone()));
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

    #[test]
    fn every_name_is_read_as_it_is_written_and_others_are_refused_with_the_names() {
        let read = |name: &str| serde_json::from_value::<BestMetric>(name.into());
        for name in NAMES {
            let metric = read(name).expect("a name");
            assert_eq!((metric.to_string().as_str(), serde_json::to_value(&metric).ok()), (name, Some(name.into())));
        }
        let error = BestMetric::Figure { name: "a:b".into(), is_highest: false };
        assert_eq!((read("min:a:b").ok(), error.falls()), (Some(error), true));
        for wrong in ["max:", "min: ", "mean:f1", "f1", ""] {
            let problem = read(wrong).expect_err("no metric").to_string();
            assert!(problem.contains("reward_accuracy") && problem.contains("max:FIGURE"), "{problem}");
        }
    }
}
