//! The phases of a rank, and how long it may stay in each without advancing.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The part of a run that a rank announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Reading the data and building the model.
    Start,
    /// Compiling and tuning kernels.
    Compile,
    /// One training step.
    Step,
    /// Validation.
    Validate,
    /// Saving a checkpoint.
    Save,
    /// Waiting for lines to translate.
    Input,
    /// Translating lines.
    Translate,
}

/// The longest time without advancing, for each phase in the order of [`Phase::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits([Duration; Phase::ALL.len()]);

impl Phase {
    /// All phases.
    pub const ALL: [Phase; 7] =
        [Phase::Start, Phase::Compile, Phase::Step, Phase::Validate, Phase::Save, Phase::Input, Phase::Translate];

    /// The phase in words.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Compile => "compilation",
            Self::Step => "a training step",
            Self::Validate => "validation",
            Self::Save => "saving",
            Self::Input => "reading the input",
            Self::Translate => "translation",
        }
    }

    /// The variable that sets the limit, in seconds.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Self::Start => "KILN_START_TIMEOUT",
            Self::Compile => "KILN_COMPILE_TIMEOUT",
            Self::Step => "KILN_STEP_TIMEOUT",
            Self::Validate => "KILN_VALIDATE_TIMEOUT",
            Self::Save => "KILN_SAVE_TIMEOUT",
            Self::Input => "KILN_INPUT_TIMEOUT",
            Self::Translate => "KILN_TRANSLATE_TIMEOUT",
        }
    }
}

impl Limits {
    /// The limit of a phase.
    pub fn of(&self, phase: Phase) -> Duration {
        self.0[phase as usize]
    }

    /// Replaces the limit of a phase.
    pub fn set(&mut self, phase: Phase, limit: Duration) {
        self.0[phase as usize] = limit;
    }
}

impl Default for Limits {
    /// Start 10 minutes, compilation 15, a step 5, validation 30, saving 10, the input a day, translation 30.
    fn default() -> Self {
        Self([10, 15, 5, 30, 10, 24 * 60, 30].map(|minutes| Duration::from_secs(60 * minutes)))
    }
}
