//! What a run has reached and what follows from it, kept on the device so that a step needs nothing from the host.
//!
//! Only the device knows whether a step was taken. The count of updates, the loss scale and the stop flag therefore
//! live in one small tensor there, [`Progress`]. Learning rate and bias corrections are looked up by that count in a
//! [`Coefficients`] table, which the host computes in f64 for many updates ahead.

use burn::tensor::{DType, Device, Tensor, TensorData};

use super::slots::{BLOCK, COLUMNS, progress, step};
use super::{AdamWHyper, StepNumbers};

/// [`Progress`] on the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Counters {
    /// Updates made.
    pub updates: u64,
    /// Factor of the loss; 1 without [`LossScaling`].
    pub loss_scale: f32,
    /// Steps since the scale last changed.
    pub good_steps: u32,
}

/// Counters of a run, kept by [`prepare`](super::prepare), which writes them in place on a GPU.
#[derive(Debug, Clone)]
pub struct Progress {
    /// See [`super::slots::progress`].
    pub(super) values: Tensor<1>,
}

impl Progress {
    /// Creates the counters of a run that has reached `counters`.
    pub fn new(counters: Counters, device: &Device) -> Self {
        let mut values = [0f32; progress::LEN];
        values[progress::LOSS_SCALE] = counters.loss_scale;
        values[progress::GOOD_STEPS] = counters.good_steps as f32;
        values[progress::BLOCKS] = (counters.updates / BLOCK as u64) as f32;
        values[progress::UPDATES] = (counters.updates % BLOCK as u64) as f32;

        Self { values: Tensor::from_data(TensorData::from(values), (device, DType::F32)) }
    }

    /// Returns all counters, `[5]`, f32, to be read together with other tensors; see [`Self::counters`].
    pub fn values(&self) -> &Tensor<1> {
        &self.values
    }

    /// Returns the loss scale of the next step, `[1]`, f32.
    pub fn loss_scale(&self) -> Tensor<1> {
        self.values.clone().narrow(0, progress::LOSS_SCALE, 1)
    }

    /// Interprets [`Self::values`] after they were read.
    ///
    /// # Panics
    /// If `values` does not come from [`Self::values`].
    pub fn counters(values: &TensorData) -> Counters {
        let values: &[f32] = values.as_slice().expect("counters are f32");
        assert_eq!(values.len(), progress::LEN, "the counters of a run: {values:?}");

        Counters {
            updates: count(values[progress::BLOCKS], values[progress::UPDATES]),
            loss_scale: values[progress::LOSS_SCALE],
            good_steps: values[progress::GOOD_STEPS] as u32,
        }
    }
}

/// Returns whole blocks and a rest as one number of updates.
pub(super) fn count(blocks: f32, rest: f32) -> u64 {
    blocks as u64 * BLOCK as u64 + rest as u64
}

/// Learning rate and bias corrections of a range of updates.
#[derive(Debug, Clone)]
pub struct Coefficients {
    /// The first block, then a row of three numbers for each update: learning rate over the first bias correction,
    /// second bias correction, decay.
    pub(super) values: Tensor<1>,
    first_block: u64,
    n_blocks: u64,
}

impl Coefficients {
    /// Computes a table for the updates after the first `from` up to at least number `to`. `lr(number)` is the learning
    /// rate of an update; numbers count from 1.
    ///
    /// Bias corrections are computed in f64: in f32, `1 - beta2^number` would lose four digits at number 1.
    pub fn new(hyper: &AdamWHyper, lr: impl Fn(u64) -> f64, from: u64, to: u64, device: &Device) -> Self {
        Self::of_rows(|update| hyper.coefficients(lr(update), update), from, to, device)
    }

    /// Does the same for any optimizer: `row(number)` returns the three numbers of an update.
    pub fn of_rows(row: impl Fn(u64) -> [f32; COLUMNS], from: u64, to: u64, device: &Device) -> Self {
        let block = BLOCK as u64;
        let first_block = from / block;
        // Tables have the same length where possible, so that a captured step can reuse one buffer.
        let n_blocks = (to.max(from) / block + 1 - first_block).next_multiple_of(4);

        let mut values = vec![first_block as f32];
        for update in first_block * block + 1..=(first_block + n_blocks) * block {
            values.extend(row(update));
        }

        let n = values.len();
        let values = Tensor::from_data(TensorData::new(values, [n]), (device, DType::F32));
        Self { values, first_block, n_blocks }
    }

    /// A table whose only row is 0, for a step that only clips.
    pub(super) fn of_no_update(device: &Device) -> Self {
        let values = Tensor::zeros([1 + COLUMNS], (device, DType::F32));
        Self { values, first_block: 0, n_blocks: 0 }
    }

    /// Returns the numbers of the same step with the row of this table, for parameters whose optimizer or learning rate is another one.
    /// The device looks it up; `numbers` may come from any table.
    pub fn of(&self, numbers: &StepNumbers) -> StepNumbers {
        let slot = |slot: usize| numbers.values.clone().narrow(0, slot, 1);
        let rows = (self.values.dims()[0] - 1) / COLUMNS;
        let table = self.values.clone().narrow(0, 1, rows * COLUMNS).reshape([rows, COLUMNS]);
        let ahead = (slot(step::BLOCKS) - self.first_block as f32) * BLOCK as f32 + slot(step::UPDATES);
        let row = table.select(0, ahead.clamp(0.0, (rows - 1) as f32).int()).reshape([COLUMNS]);

        let before = numbers.values.clone().narrow(0, 0, step::COEFFICIENTS);
        let rest = step::COEFFICIENTS + COLUMNS;
        let behind = numbers.values.clone().narrow(0, rest, step::LEN - rest);
        StepNumbers { values: Tensor::cat(vec![before, row, behind], 0) }
    }

    /// Returns the last update in the table.
    pub fn last(&self) -> u64 {
        (self.first_block + self.n_blocks) * BLOCK as u64
    }
}

/// Dynamic loss scaling for f16, as `torch.amp.GradScaler`: the loss is multiplied by a scale so that small gradients
/// do not vanish, and the scale adapts itself. A step whose gradient overflows is skipped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScaling {
    /// The loss that is differentiated is multiplied by the scale and divided by this.
    pub unit: f32,
    /// Factor of the scale after `growth_interval` good steps in a row.
    pub growth_factor: f32,
    /// Good steps between two increases.
    pub growth_interval: u32,
    /// Factor of the scale after an overflow.
    pub backoff_factor: f32,
    /// If an overflow would lower the scale below this, the scale is not the cause, and the run stops.
    pub floor: f32,
}

/// How a gradient becomes a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepPolicy {
    /// Global norm to clip the gradient to; 0 switches clipping off.
    pub max_norm: f64,
    /// `None`: the loss is differentiated without a scale.
    pub scaling: Option<LossScaling>,
    /// Whether, without scaling, a non-finite loss or gradient ends all updates. The weights then stay those that the
    /// step failed with.
    pub stops: bool,
}
