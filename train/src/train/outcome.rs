//! The result of a run.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::checkpoint::Best;
use crate::metrics::{Throughput, ValidationMetrics};

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// All `train.steps` are done.
    Steps,
    /// The time limit `train.max_minutes` is reached.
    Time,
    /// `train.patience` validations in a row brought no improvement.
    NoImprovement,
    /// [`Signals::stop`](super::Signals::stop) was set; the run can be resumed.
    Stopped,
    /// The run was finished already when it was resumed.
    AlreadyFinished,
}

impl Ended {
    /// Returns its name in `metrics.jsonl`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Time => "time",
            Self::NoImprovement => "no_improvement",
            Self::Stopped => "stopped",
            Self::AlreadyFinished => "already_finished",
        }
    }
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Why it ended.
    pub ended: Ended,
    /// Optimizer steps since the start of the run.
    pub step: u64,
    /// Seconds of training since the start of the run, without validation and saving.
    pub train_secs: f64,
    /// Speed over this process's training time.
    pub throughput: Throughput,
    /// Share of this process's training time spent waiting for data, 0 to 1.
    pub data_wait_share: f64,
    /// The last validation of this process.
    pub validation: Option<ValidationMetrics>,
    /// The best validation since the start of the run.
    pub best: Option<Best>,
    /// The newest translations of [`Validation::examples`](super::Validation::examples), if they were made.
    pub hypotheses: Vec<String>,
    /// What the model wrote after [`Validation::prompt`](super::Validation::prompt) at the last validation, if it did.
    pub continuation: Option<String>,
    /// The newest checkpoint of this process.
    pub checkpoint: Option<PathBuf>,
    /// Kernels that training or validation launched for the first time after the first line of metrics: 0 if every
    /// shape was warmed up. `None` where nothing is compiled.
    pub late_kernels: Option<usize>,
}

impl Outcome {
    /// Returns the outcome of a process that has taken no step, in a run that is at `step` after `train_secs`.
    pub(super) fn before_training(step: u64, train_secs: f64, best: Option<Best>) -> Self {
        Self {
            ended: Ended::AlreadyFinished,
            step,
            train_secs,
            throughput: Throughput::default(),
            data_wait_share: 0.0,
            validation: None,
            best,
            hypotheses: Vec::new(),
            continuation: None,
            checkpoint: None,
            late_kernels: None,
        }
    }
}
