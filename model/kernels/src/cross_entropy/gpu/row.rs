//! A row of logits: its shape, and the reductions that the loss needs.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use crate::gpu::constant::Constant;
use crate::gpu::instruction::{exp2_approx, sigmoid_base2};
use crate::gpu::pipeline::VECTOR_BYTES;

/// Bytes of shared memory for rows.
const STREAM_BYTES: usize = 208 * 1024;
/// More rows than this in shared memory do not pay (`benches/results/2026-11-22-h200-5980429.md`).
const MOST_SLOTS: usize = 3;
/// Below every logit, and finite even times [`LOG2_E`], so that differences of it are not NaN.
const LOWEST: f32 = -2e38;

/// The shape of a row, and of the block that reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Row {
    /// Vectors full of logits.
    pub(super) vectors: u32,
    /// Logits of the incomplete last vector.
    pub(super) rest: usize,
    /// Vectors from the start of a row to the next.
    pub(super) pitch: u32,
    /// Threads of the block.
    pub(super) units: u32,
    /// Rows in shared memory at a time: the one that is worked on and those being copied. 0 if rows are not streamed.
    pub(super) slots: usize,
    /// The bound `c` of the logits, which count as `c * tanh(logit / c)`.
    pub(super) softcap: Option<Constant>,
}

impl Row {
    /// Returns the number of vectors that contain a logit.
    pub(super) fn reach(&self) -> u32 {
        self.vectors + u32::from(self.rest > 0)
    }

    /// Returns this row streamed through shared memory, if at least two rows fit there.
    pub(super) fn streamed(self) -> Self {
        let slots = STREAM_BYTES / (self.reach() as usize * VECTOR_BYTES).max(1);
        Self { slots: if slots < 2 { 0 } else { slots.min(MOST_SLOTS) }, ..self }
    }

    /// Returns the bound of the logits; infinity without one.
    pub(super) fn cap(&self) -> f32 {
        self.softcap.map_or(f32::INFINITY, Constant::value)
    }

    pub(super) fn vocabulary(&self, width: usize) -> f32 {
        (self.vectors as usize * width + self.rest) as f32
    }
}

/// Returns logits as they count.
#[cube]
pub(super) fn bounded<N: Size>(z: Vector<f32, N>, #[comptime] row: Row) -> Vector<f32, N> {
    let mut bounded = z;
    if comptime![row.softcap.is_some()] {
        let cap = comptime![row.cap()].runtime();
        // tanh(x) is 2 sigmoid(2 x) - 1.
        let sigmoid = sigmoid_base2::<N>(z * Vector::new(comptime![2.0 * LOG2_E / row.cap()].runtime()));
        bounded = sigmoid * Vector::new(2.0f32 * cap) - Vector::new(cap);
    }
    bounded
}

/// Reductions over a row.
#[derive(CubeType)]
pub(super) struct RowSums {
    /// Logarithm of the sum of exponentials.
    pub(super) log_sum: f32,
    /// Sum of the logits.
    pub(super) total: f32,
}

/// A thread's part of a row: the maximum, the sum of exponentials relative to it, and the sum.
#[derive(CubeType)]
struct Partial {
    max: f32,
    exponentials: f32,
    sum: f32,
}

/// Includes the first `count` logits of `z`.
#[cube]
fn include<N: Size>(partial: &mut Partial, z: Vector<f32, N>, #[comptime] count: usize) {
    let mut top = partial.max;
    #[unroll]
    for i in 0..count {
        top = max(top, z.extract(i));
        partial.sum += z.extract(i);
    }
    let base = top * LOG2_E;
    partial.exponentials *= exp2_approx(partial.max * LOG2_E - base);
    #[unroll]
    for i in 0..count {
        partial.exponentials += exp2_approx(z.extract(i) * LOG2_E - base);
    }
    partial.max = top;
}

/// Reduces the row at `base`. The result is the same in every thread of the block.
#[cube]
pub(super) fn row_sums<F: Float, N: Size>(logits: &[Vector<F, N>], base: usize, #[comptime] row: Row) -> RowSums {
    let width = N::value().comptime();
    let mut partial = Partial { max: LOWEST.runtime(), exponentials: 0.0f32.runtime(), sum: 0.0f32.runtime() };
    let mut at = UNIT_POS;
    while at < row.vectors {
        include::<N>(&mut partial, bounded::<N>(Vector::cast_from(logits[base + at as usize]), row), width);
        at += row.units;
    }
    // The thread whose turn it is takes the incomplete vector.
    if comptime![row.rest > 0] {
        if at == row.vectors {
            let z = bounded::<N>(Vector::cast_from(logits[base + at as usize]), row);
            include::<N>(&mut partial, z, comptime![row.rest]);
        }
    }

    // Reduce over the warp, then over the warps of the block.
    let planes = comptime![(row.units / 32) as usize];
    let plane_top = plane_max(partial.max);
    let plane_exponentials = plane_sum(partial.exponentials * exponential(partial.max - plane_top));
    let plane_total = plane_sum(partial.sum);
    let mut shared = Shared::<[f32]>::new_slice(comptime![3 * planes]);
    let plane = (UNIT_POS / 32) as usize;
    if UNIT_POS_PLANE == 0 {
        shared[plane] = plane_top;
        shared[planes + plane] = plane_exponentials;
        shared[2 * planes + plane] = plane_total;
    }
    sync_cube();

    // Every warp reduces the warps, one per lane, in the same order.
    let lane = UNIT_POS_PLANE as usize;
    let mut lane_top = LOWEST.runtime();
    let mut lane_exponentials = 0.0f32;
    let mut lane_total = 0.0f32;
    if lane < planes {
        lane_top = shared[lane];
        lane_exponentials = shared[planes + lane];
        lane_total = shared[2 * planes + lane];
    }

    let top = plane_max(lane_top);
    let all = plane_sum(lane_exponentials * exponential(lane_top - top));
    RowSums { log_sum: top + f32::ln(all), total: plane_sum(lane_total) }
}

/// Returns `e^x` for a non-positive x, with a relative error of 1e-6.
#[cube]
fn exponential(x: f32) -> f32 {
    exp2_approx(x * LOG2_E)
}
