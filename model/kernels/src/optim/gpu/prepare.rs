//! Decides about a step and counts it.

use cubecl::prelude::*;

use super::PREPARE_UNITS;
use crate::gpu::reduce::cube_sum;
use crate::optim::slots::{BLOCK, COLUMNS, progress as counter, step};

/// [`StepPolicy`](crate::optim::StepPolicy) in the precision of the arithmetic, and the sizes of the inputs.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Policy {
    /// Sums of squares.
    pub(super) n: u32,
    /// Rows of coefficients.
    pub(super) rows: u32,
    pub(super) max_norm: f32,
    pub(super) unit: f32,
    pub(super) growth_factor: f32,
    pub(super) growth_interval: f32,
    pub(super) backoff_factor: f32,
    pub(super) floor: f32,
}

/// What a gradient or loss that is not finite does, besides skipping the update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Overflow {
    /// Nothing.
    Skips,
    /// It stops the run.
    Stops,
    /// It lowers the loss scale, and stops the run at the scale's floor.
    Rescales,
}

/// Writes the numbers of a step and updates `progress`, see [`prepare`](crate::optim::prepare). One block.
#[cube(launch_unchecked)]
pub(super) fn prepare(
    squares: &[f32],
    divisor: &[f32],
    loss: &[f32],
    coefficients: &[f32],
    progress: &mut [f32],
    numbers: &mut [f32],
    policy: Policy,
    #[comptime] overflow: Overflow,
) {
    let mut sum = 0.0f32;
    let mut chunk = UNIT_POS;
    while chunk < policy.n {
        sum += squares[chunk as usize];
        chunk += PREPARE_UNITS;
    }
    let total = cube_sum(sum, PREPARE_UNITS);

    if UNIT_POS == 0 {
        let scale = progress[counter::LOSS_SCALE];
        let good_steps = progress[counter::GOOD_STEPS];
        let block = progress[counter::BLOCKS];
        let row = progress[counter::UPDATES];
        let had_stopped = progress[counter::STOPPED];

        // Norm and clipping of the divided gradient.
        let count = divisor[0];
        let mut per_label = 1.0f32 / select(count > 1.0f32, count, 1.0f32);
        if comptime![overflow == Overflow::Rescales] {
            per_label = per_label * policy.unit / scale;
        }
        let norm = f32::sqrt(total) * per_label;
        let clipped = policy.max_norm / (norm + 1e-6f32);
        let clips = policy.max_norm > 0.0f32 && clipped < 1.0f32;

        // Whether the update is made, and with which coefficients. Infinities and NaN fail the comparisons.
        let finite = norm <= comptime![f32::MAX] && f32::abs(loss[0]) <= comptime![f32::MAX];
        let taken = finite && had_stopped == 0.0f32;
        let ahead = u32::cast_from(block - coefficients[0]) * comptime![BLOCK as u32] + u32::cast_from(row);
        let coefficient = select(ahead < policy.rows, ahead, policy.rows - 1) * comptime![COLUMNS as u32] + 1;

        numbers[step::NORM] = norm;
        numbers[step::GRADIENT_FACTOR] = per_label * select(clips, clipped, 1.0f32);
        numbers[step::TAKEN] = select(taken, 1.0f32, 0.0f32);
        #[unroll]
        for column in 0..COLUMNS {
            numbers[comptime![step::COEFFICIENTS + column]] = coefficients[coefficient as usize + column];
        }
        numbers[step::LOSS_SCALE] = scale;
        numbers[step::BLOCKS] = block;
        numbers[step::UPDATES] = row;

        // The counters after the step.
        let next = row + select(taken, 1.0f32, 0.0f32);
        let wraps = next >= comptime![BLOCK as f32];
        progress[counter::BLOCKS] = block + select(wraps, 1.0f32, 0.0f32);
        progress[counter::UPDATES] = select(wraps, 0.0f32, next);
        let mut stopped = had_stopped;
        if comptime![overflow == Overflow::Rescales] {
            let in_a_row = select(finite, good_steps + 1.0f32, 0.0f32);
            let grown = scale * policy.growth_factor;
            let grows = in_a_row >= policy.growth_interval;
            let lowered = scale * policy.backoff_factor;
            let raised = select(grows && grown <= comptime![f32::MAX], grown, scale);
            stopped = select(!finite && lowered < policy.floor, 1.0f32, had_stopped);
            let kept = stopped > 0.0f32;
            progress[counter::LOSS_SCALE] = select(kept, scale, select(finite, raised, lowered));
            progress[counter::GOOD_STEPS] = select(kept, good_steps, select(grows, 0.0f32, in_a_row));
        }
        if comptime![overflow == Overflow::Stops] {
            stopped = select(finite, had_stopped, 1.0f32);
        }
        progress[counter::STOPPED] = stopped;
        numbers[step::STOPPED] = stopped;
    }
}
