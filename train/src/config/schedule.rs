//! The schedules of the learning rate.

use serde::{Deserialize, Serialize};

/// Learning-rate schedules; each a pure function of the optimizer step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// `lr` after warm-up.
    Constant,
    /// Half a cosine from `lr` to `lr * min_lr_ratio` at `decay_end`.
    Cosine,
    /// A straight line from `lr` to `lr * min_lr_ratio` at `decay_end`.
    Linear,
    /// Vaswani et al. 2017, section 5.3.
    Noam,
    /// Constant, then linear decay over the last `decay_fraction` of the steps.
    WarmupStableDecay,
}

/// The step at which a decaying schedule (cosine, linear, warmup_stable_decay) reaches its final rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecayEnd {
    /// One step after the last, as in PyTorch's recipes: the last step still moves the weights.
    AfterLastStep,
    /// The last step, which therefore has the final rate. Runs of versions before 0.2 do this.
    LastStep,
}

impl DecayEnd {
    /// The value of a run whose configuration lacks the key.
    pub(super) fn without_the_key() -> Self {
        Self::LastStep
    }
}
