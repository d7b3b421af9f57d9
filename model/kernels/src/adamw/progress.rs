//! What a run has reached and what follows from it, on the device: a step's numbers without a word from the host.
//!
//! Only the device knows whether a step was taken. So the count of updates, the loss scale and whether the run has come to a stop
//! live in one small tensor there, [`Progress`], and learning rate and bias corrections are looked up by that count in a
//! [`Coefficients`] table, which the host computes in f64 for many updates ahead.

use burn::tensor::{DType, Device, Tensor, TensorData};

use super::AdamWHyper;

/// Updates of a block: counts are kept as whole blocks and a rest, since f32 counts only to 2^24.
pub(super) const BLOCK: usize = 1024;
/// Numbers of a row of [`Coefficients`].
pub(super) const COLUMNS: usize = 3;
/// Numbers of [`StepNumbers`](super::StepNumbers): norm, factor, 1 if the step is taken, a row of [`Coefficients`], loss scale, blocks
/// of updates and updates beyond them before the step, 1 if the run has stopped.
#[cfg(feature = "cuda")]
pub(super) const NUMBERS: usize = 10;

/// [`Progress`] on the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Counters {
    /// Updates made.
    pub updates: u64,
    /// What the loss is multiplied with, 1 without [`LossScaling`].
    pub loss_scale: f32,
    /// Steps since the scale last changed.
    pub good_steps: u32,
}

/// Counters of a run, kept by [`prepare`](super::prepare). On a GPU they are written in place.
#[derive(Debug, Clone)]
pub struct Progress {
    /// Loss scale, good steps in a row, blocks of updates, updates beyond them, 1 once stopped.
    pub(super) values: Tensor<1>,
}

impl Progress {
    /// A run that stands at `counters`.
    pub fn new(counters: Counters, device: &Device) -> Self {
        let [blocks, rest] = [counters.updates / BLOCK as u64, counters.updates % BLOCK as u64];
        let values = [counters.loss_scale, counters.good_steps as f32, blocks as f32, rest as f32, 0.0];
        Self { values: Tensor::from_data(TensorData::from(values), (device, DType::F32)) }
    }

    /// Everything, `[5]`, f32: to be read together with other tensors, see [`Self::counters`].
    pub fn values(&self) -> &Tensor<1> {
        &self.values
    }

    /// The loss scale of the next step, `[1]`, f32.
    pub fn loss_scale(&self) -> Tensor<1> {
        self.values.clone().narrow(0, 0, 1)
    }

    /// [`Self::values`] as read.
    ///
    /// # Panics
    /// If `values` is not what [`Self::values`] has given.
    pub fn counters(values: &TensorData) -> Counters {
        let values: &[f32] = values.as_slice().expect("counters are f32");
        let &[loss_scale, good_steps, blocks, rest, _] = values else { panic!("five counters: {values:?}") };
        Counters { updates: count([blocks, rest]), loss_scale, good_steps: good_steps as u32 }
    }
}

/// Blocks and rest as one number.
pub(super) fn count([blocks, rest]: [f32; 2]) -> u64 {
    blocks as u64 * BLOCK as u64 + rest as u64
}

/// Learning rate and bias corrections of the updates in a stretch of a run.
#[derive(Debug, Clone)]
pub struct Coefficients {
    /// The first block, then [`COLUMNS`] numbers for each update.
    pub(super) values: Tensor<1>,
    first_block: u64,
    n_blocks: u64,
}

impl Coefficients {
    /// A table for the updates after the first `from` up to number `to`, and somewhat more, with the learning rate `lr(number)`,
    /// numbers counted from 1.
    ///
    /// Bias corrections are computed here in f64: in f32, `1 - beta2^number` has lost four digits at number 1.
    pub fn new(hyper: &AdamWHyper, lr: impl Fn(u64) -> f64, from: u64, to: u64, device: &Device) -> Self {
        let block = BLOCK as u64;
        let first_block = from / block;
        // Of even size as long as it can be: buffers of one length are one buffer to a captured step.
        let n_blocks = (to.max(from) / block + 1 - first_block).next_multiple_of(4);
        let mut values = vec![first_block as f32];
        for update in first_block * block + 1..=(first_block + n_blocks) * block {
            values.extend(hyper.coefficients(lr(update), update));
        }
        let n = values.len();
        let values = Tensor::from_data(TensorData::new(values, [n]), (device, DType::F32));
        Self { values, first_block, n_blocks }
    }

    /// The last update in the table.
    pub fn last(&self) -> u64 {
        (self.first_block + self.n_blocks) * BLOCK as u64
    }
}

/// Dynamic loss scaling for f16, as `torch.amp.GradScaler`: the loss is multiplied by a scale so that small gradients do not
/// vanish, and the scale adapts itself. A step whose gradient overflows is left out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScaling {
    /// The loss that is differentiated is multiplied by the scale and divided by this.
    pub unit: f32,
    /// What the scale is multiplied with after `growth_interval` good steps in a row.
    pub growth_factor: f32,
    /// Good steps between two raises.
    pub growth_interval: u32,
    /// What the scale is multiplied with after an overflow.
    pub backoff_factor: f32,
    /// An overflow that would lower the scale below this is no matter of scale: the run stops.
    pub floor: f32,
}

/// How a gradient becomes a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepPolicy {
    /// The global norm that the gradient is clipped to; 0 switches clipping off.
    pub max_norm: f64,
    /// `None`: the loss is differentiated as it is.
    pub scaling: Option<LossScaling>,
    /// Whether, without scaling, no step is taken any more once a loss or gradient was not finite. The weights then stay those that
    /// the step failed with.
    pub stops: bool,
}
