//! Rows in registers: which thread holds which vectors, and the statistics of a row.

use cubecl::prelude::*;

use super::UNITS;
use crate::gpu::reduce::{cube_sum, sum_of};

/// Rows of up to this many vectors are a warp's; longer ones are a block's.
const PLANE_VECTORS: u32 = 128;

/// The length of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub(super) vectors: u32,
}

impl Row {
    /// Returns the threads that share a row.
    pub(super) fn units(&self) -> u32 {
        if self.vectors <= PLANE_VECTORS { 32 } else { UNITS }
    }

    /// Returns the rows that a block works on at a time.
    pub(super) fn per_cube(&self) -> u32 {
        UNITS / self.units()
    }

    /// Returns the vectors of a row that a thread holds.
    pub(super) fn slots(&self) -> usize {
        self.vectors.div_ceil(self.units()) as usize
    }

    /// Returns the vectors of the rows that a block works on at a time.
    pub(super) fn turn_vectors(&self) -> usize {
        (self.per_cube() * self.vectors) as usize
    }
}

/// Which normalization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Normalization {
    /// With a mean and a shift.
    Layer,
    RootMeanSquare,
}

/// Returns the sum over the threads of a row, the same in each of them.
#[cube]
pub(super) fn row_sum(value: f32, #[comptime] row: Row) -> f32 {
    if comptime![row.units() == 32] { plane_sum(value) } else { cube_sum(value, UNITS) }
}

/// Returns the thread's index among the threads of its row.
#[cube]
pub(super) fn row_unit(#[comptime] row: Row) -> u32 {
    if comptime![row.units() == 32] { UNIT_POS_PLANE } else { UNIT_POS }
}

/// Loads the thread's vectors of row number `nth`: vector `unit + units * i` to slot `i`, zeros beyond the row.
#[cube]
pub(super) fn load_row<F: Float, N: Size>(
    x: &[Vector<F, N>],
    nth: u32,
    held: &mut Array<Vector<F, N>>,
    #[comptime] row: Row,
) {
    #[unroll]
    for i in 0..comptime![row.slots()] {
        let at = row_unit(row) + comptime![i as u32 * row.units()];
        held[i] = Vector::<F, N>::zeroed();
        if at < comptime![row.vectors] {
            held[i] = x[(nth * comptime![row.vectors] + at) as usize];
        }
    }
}

/// Subtracts the mean of the row, if the normalization has one. Returns the mean (or 0), and one over the root of the
/// mean square plus `eps`.
#[cube]
pub(super) fn center<N: Size>(
    held: &mut Array<Vector<f32, N>>,
    eps: f32,
    #[comptime] normalization: Normalization,
    #[comptime] row: Row,
) -> (f32, f32) {
    let slots = comptime![row.slots()];
    let width = N::value().comptime();
    let n = comptime![(row.vectors as usize * width) as f32].runtime();
    let mut square = 0.0f32;
    let mut mean = 0.0f32;
    if comptime![normalization == Normalization::Layer] {
        let mut sum = 0.0f32;
        #[unroll]
        for i in 0..slots {
            sum += sum_of::<N>(held[i]);
        }
        mean = row_sum(sum, row) / n;

        let subtracted = Vector::<f32, N>::new(mean);
        #[unroll]
        for i in 0..slots {
            if row_unit(row) + comptime![i as u32 * row.units()] < comptime![row.vectors] {
                let centered = held[i] - subtracted;
                held[i] = centered;
                square += sum_of::<N>(centered * centered);
            }
        }
    } else {
        #[unroll]
        for i in 0..slots {
            square += sum_of::<N>(held[i] * held[i]);
        }
    }
    (mean, f32::inverse_sqrt(row_sum(square, row) / n + eps))
}
