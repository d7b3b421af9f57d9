//! Everything that a run needs to start.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn::tensor::{Device, FloatDType};
use kiln_data::{BatchSource, Example};
use kiln_metrics::logging::Logging;
use kiln_model::ActivationCheckpointing;
use kiln_ranks::Ranks;

use super::profiling::StepProfiler;
use crate::checkpoint::NamedTensor;
use crate::config::task::traits_of;
use crate::config::{Config, Task};
use crate::dataset::Vocabulary;
use crate::optim::Groups;

/// Everything that a run needs to start.
pub struct Setup {
    /// The configuration: validated, with the model's vocabulary sizes filled in, see [`Vocabulary::complete`].
    pub config: Config,
    /// The run folder, which gets the checkpoints.
    pub run_dir: PathBuf,
    /// The device to compute on.
    pub device: Device,
    /// The vocabulary.
    pub vocabulary: Vocabulary,
    /// Weights to start from instead of initial ones. A resumed run ignores them, unless it compares answers with the model that has
    /// them, see [`Config::compares_with_start`].
    pub weights: Option<Vec<NamedTensor>>,
    /// Training data.
    pub train: Arc<dyn BatchSource>,
    /// Validation data.
    pub validation: Validation,
    /// Sinks of notes and metrics.
    pub logging: Logging,
    /// Requests from outside while the run is going on.
    pub signals: Signals,
    /// The activations that training keeps. With `train.activation_checkpointing = "auto"` it keeps fewer if they do not fit.
    pub checkpointing: ActivationCheckpointing,
    /// Raise `train.split_batches` until the largest batch fits into memory.
    pub auto_micro_batch: bool,
    /// Compute every operator by its reference definition, see [`kiln_kernels::Settings`].
    pub reference_operators: bool,
    /// The processes that train together.
    pub ranks: Ranks,
    /// Chooses the optimizers of a run and their parameters: [`Groups::of`], or others.
    pub optimizers: fn(&Config, FloatDType) -> Groups,
    /// Measures the steps of `train.profile_at`.
    pub profiler: Option<Box<dyn StepProfiler>>,
}

/// The data that a run is validated on.
#[derive(Clone, Default)]
pub struct Validation {
    /// Batches to measure the loss on; without them the run is not validated.
    pub source: Option<Arc<dyn BatchSource>>,
    /// A mixture: batches of each source, by name, whose loss is reported too.
    pub parts: Vec<(String, Arc<dyn BatchSource>)>,
    /// lm: UTF-8 bytes of the validation text, to report bits per byte.
    pub n_bytes: Option<u64>,
    /// Translation: text to translate and score, see `train.translate_every`; may be empty.
    pub examples: Vec<Example>,
    /// Plain text: words of it to try the model with, or a question.
    pub prompt: Option<String>,
}

/// Pairs of a validation text that is translated at every validation, unless the configuration says otherwise. The
/// translation takes about as long as the loss on it.
const SMALL: usize = 1000;

impl Validation {
    /// Returns whether the model writes text at a validation: translations, or the continuation of a prompt.
    pub(super) fn has_text(&self, task: Task) -> bool {
        !self.examples.is_empty() || self.prompt_of(task).is_some()
    }

    /// Returns the prompt of a model that continues text.
    pub(super) fn prompt_of(&self, task: Task) -> Option<&str> {
        self.prompt.as_deref().filter(|_| traits_of(task).continues_text)
    }

    /// Returns whether the text is translated at every validation.
    pub(super) fn is_small(&self) -> bool {
        self.examples.len() <= SMALL
    }
}

/// Requests to a run in progress. Clones share their flags.
#[derive(Debug, Clone, Default)]
pub struct Signals {
    /// Set it to save and end the run after the step in progress.
    pub stop: Arc<AtomicBool>,
    /// Set it to save the run after the step in progress and continue. The trainer clears it.
    pub save_now: Arc<AtomicBool>,
}
