//! The weight of a source, which may change with the optimizer steps.

use serde::{Deserialize, Serialize};

/// The weight of a source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "weight is neither a number nor a list such as [[0, 4.0], [10000, 1.0]]")]
pub enum MixWeight {
    /// The same in all steps.
    Constant(f64),
    /// Optimizer steps, and the weight from each on.
    FromSteps(Vec<(u64, f64)>),
}

impl From<f64> for MixWeight {
    fn from(weight: f64) -> Self {
        Self::Constant(weight)
    }
}

impl MixWeight {
    /// Returns the steps at which it changes.
    pub(super) fn steps(&self) -> impl Iterator<Item = u64> {
        let steps: &[(u64, f64)] = if let Self::FromSteps(steps) = self { steps } else { &[] };
        steps.iter().map(|(step, _)| *step)
    }

    /// Returns the weight from `step` on.
    pub(super) fn at(&self, step: u64) -> f64 {
        match self {
            Self::Constant(weight) => *weight,
            Self::FromSteps(steps) => steps.iter().rfind(|(from, _)| *from <= step).map_or(0.0, |(_, weight)| *weight),
        }
    }
}

/// Returns what is wrong with a weight that changes.
pub(super) fn problem(name: &str, steps: &[(u64, f64)]) -> Option<String> {
    let ascend = steps.first().is_some_and(|(first, _)| *first == 0) && steps.windows(2).all(|two| two[0].0 < two[1].0);
    if !ascend {
        return Some(format!(
            "data.mix: source \"{name}\" has a weight whose steps do not ascend from 0; write weight = [[0, 4.0], [10000, 1.0]] for 4, \
             and 1 after 10,000 steps"
        ));
    }
    let is_valid = |weight: &f64| *weight >= 0.0 && weight.is_finite();
    if let Some((step, weight)) = steps.iter().find(|(_, weight)| !is_valid(weight)) {
        return Some(format!(
            "data.mix: source \"{name}\" has the weight {weight} from step {step} on, which is not a finite number from 0"
        ));
    }
    let has_rows = steps.iter().any(|(_, weight)| *weight > 0.0);
    (!has_rows).then(|| format!("data.mix: source \"{name}\" has no weight above 0 at any step; remove the source"))
}
