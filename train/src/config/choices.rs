//! Values of keys of the training loop that are one of several names.

use serde::{Deserialize, Serialize};

/// The optimizer of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerChoice {
    /// AdamW for all parameters.
    Adamw,
    /// Muon for the weight matrices of layers, AdamW for the others.
    Muon,
}

/// What happens to a run whose devices take steps alone when one of them is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LostReplicas {
    /// It ends.
    End,
    /// The others continue.
    GoOn,
}

/// Reaction to a loss or gradient that is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NonFinite {
    /// Stop the run, keep the last checkpoint, save the batch and name the parameters.
    Stop,
    /// Continue with the next batch; count and report the skipped update.
    Skip,
}
