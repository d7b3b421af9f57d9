//! The choice between memory and time in training.

use serde::{Deserialize, Serialize};

/// Activation checkpointing (Chen et al. 2016): which activations of the layers are kept for backward. The gradients have the same
/// bits with each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActivationCheckpointing {
    /// All of them.
    #[default]
    Off,
    /// The results of products and attention (Korthikanti et al. 2022 and others call it selective). Norms, activations and rotations
    /// are computed again: little time.
    Selective,
    /// The residual sum at the start of each layer. Each layer is computed again, apart from its last product.
    Layer,
}
