//! Where each number lies in the small device tensors that the kernels, the CPU loop, the reference and the tests
//! share.

/// Slots of [`StepNumbers`](super::StepNumbers): one step, as the host reports it and as the update reads it.
pub(super) mod step {
    /// Global norm of the divided gradient before clipping.
    pub(crate) const NORM: usize = 0;
    /// Factor that divides, unscales and clips the gradient.
    pub(crate) const GRADIENT_FACTOR: usize = 1;
    /// 1 if the update is made.
    pub(crate) const TAKEN: usize = 2;
    /// The update's row of [`Coefficients`](super::super::Coefficients) begins here: [`LEARNING_RATE`],
    /// [`SECOND_MOMENT`], [`DECAY`].
    pub(crate) const COEFFICIENTS: usize = 3;
    /// Learning rate over the bias correction of the first moment, `lr / (1 - beta1^t)`.
    pub(crate) const LEARNING_RATE: usize = 3;
    /// Bias correction of the root of the second moment, `1 / sqrt(1 - beta2^t)`.
    pub(crate) const SECOND_MOMENT: usize = 4;
    /// Decoupled weight decay, `lr * weight_decay`.
    pub(crate) const DECAY: usize = 5;
    /// Scale of the loss in this step.
    pub(crate) const LOSS_SCALE: usize = 6;
    /// Whole blocks of updates made before this step.
    pub(crate) const BLOCKS: usize = 7;
    /// Updates made beyond the whole blocks.
    pub(crate) const UPDATES: usize = 8;
    /// 1 if the run has stopped, in this step or before.
    pub(crate) const STOPPED: usize = 9;
    pub(crate) const LEN: usize = 10;
}

/// Slots of [`Progress`](super::Progress): what a run has reached.
pub(super) mod progress {
    /// Scale of the next step's loss.
    pub(crate) const LOSS_SCALE: usize = 0;
    /// Finite steps in a row since the scale last changed.
    pub(crate) const GOOD_STEPS: usize = 1;
    /// Whole blocks of updates.
    pub(crate) const BLOCKS: usize = 2;
    /// Updates beyond the whole blocks.
    pub(crate) const UPDATES: usize = 3;
    /// 1 once the run has stopped.
    pub(crate) const STOPPED: usize = 4;
    pub(crate) const LEN: usize = 5;
}

/// Updates of a block. Counts are kept as whole blocks and a rest, because f32 counts exactly only to 2^24.
pub(super) const BLOCK: usize = 1024;
/// Numbers of a row of [`Coefficients`](super::Coefficients).
pub(super) const COLUMNS: usize = 3;
