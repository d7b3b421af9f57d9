//! The gradients of the parameters: each block's sums over its rows, and the sum over blocks, both in a fixed order.

use cubecl::prelude::*;

use super::UNITS;
use super::row::Row;
use crate::gpu::reduce::{One, add_up};

/// Threads of the blocks of [`reduce_partial`]: columns times slices of the partial sums.
pub(crate) const REDUCE_UNITS: u32 = 1024;
pub(crate) const REDUCE_COLUMNS: u32 = 32;
const REDUCE_SLICES: u32 = REDUCE_UNITS / REDUCE_COLUMNS;
/// Partial sums of a thread of [`reduce_partial`] whose loads are in flight.
const SUMS_IN_FLIGHT: u32 = 9;

/// A thread's sums of parameter gradients over the rows it has seen, for its columns.
#[derive(CubeType)]
pub(super) struct Sums<N: Size> {
    pub(super) gamma: Array<Vector<f32, N>>,
    pub(super) beta: Array<Vector<f32, N>>,
    pub(super) bias: Array<Vector<f32, N>>,
}

/// Returns sums of nothing.
#[cube]
pub(super) fn no_sums<N: Size>(#[comptime] row: Row) -> Sums<N> {
    let slots = comptime![row.slots()];
    let mut gamma = Array::<Vector<f32, N>>::new(slots);
    let mut beta = Array::<Vector<f32, N>>::new(slots);
    let mut bias = Array::<Vector<f32, N>>::new(slots);
    #[unroll]
    for i in 0..slots {
        gamma[i] = Vector::<f32, N>::zeroed();
        beta[i] = Vector::<f32, N>::zeroed();
        bias[i] = Vector::<f32, N>::zeroed();
    }
    Sums::<N> { gamma, beta, bias }
}

/// Writes the block's sums to `partial[block]`: gamma, beta, and the bias of the branch if there are three
/// `parameters`.
#[cube]
pub(super) fn store_sums<N: Size>(
    sums: &Sums<N>,
    partial: &mut [Vector<f32, N>],
    #[comptime] parameters: u32,
    #[comptime] row: Row,
) {
    let slots = comptime![row.slots()];
    let vectors = comptime![row.vectors];
    let base = CUBE_POS as u32 * vectors * parameters;
    if comptime![row.units() == UNITS] {
        // Each thread has columns of its own.
        #[unroll]
        for i in 0..slots {
            let at = UNIT_POS + comptime![i as u32 * UNITS];
            if at < vectors {
                partial[(base + at) as usize] = sums.gamma[i];
                partial[(base + vectors + at) as usize] = sums.beta[i];
                if comptime![parameters == 3] {
                    partial[(base + 2 * vectors + at) as usize] = sums.bias[i];
                }
            }
        }
    } else {
        // Sum over the warps in their order, one vector of columns per thread. The parameters take turns in the same
        // shared memory.
        let planes = comptime![UNITS / 32];
        let mut shared = Shared::<[Vector<f32, N>]>::new_slice(comptime![(row.vectors * planes) as usize]);
        #[unroll]
        for part in 0..parameters {
            sync_cube();
            #[unroll]
            for i in 0..slots {
                let at = UNIT_POS_PLANE + comptime![i as u32 * 32];
                if at < vectors {
                    let mut held = sums.gamma[i];
                    if comptime![part == 1] {
                        held = sums.beta[i];
                    } else if comptime![part == 2] {
                        held = sums.bias[i];
                    }
                    shared[(UNIT_POS / 32 * vectors + at) as usize] = held;
                }
            }
            sync_cube();

            let mut at = UNIT_POS;
            while at < vectors {
                let mut total = shared[at as usize];
                #[unroll]
                for p in 1..planes {
                    total += shared[(p * vectors + at) as usize];
                }
                partial[(base + part * vectors + at) as usize] = total;
                at += UNITS;
            }
        }
    }
}

/// Sums the blocks' partial sums: 32 columns per block, every 32nd partial sum per thread, then the 32 threads of a
/// column. `CUBE_POS_Y` is the number of the parameter.
#[cube(launch_unchecked)]
pub(crate) fn reduce_partial<F: Float>(
    partial: &[One],
    dgamma: &mut [F],
    dbeta: &mut [F],
    dbias: &mut [F],
    d: u32,
    cubes: u32,
    #[comptime] parameters: u32,
    #[define(F)] _dtype: ElemType,
) {
    let column = CUBE_POS_X * REDUCE_COLUMNS + UNIT_POS % REDUCE_COLUMNS;
    let mut sum = One::zeroed();
    if column < d {
        let (base, stride) = ((CUBE_POS_Y * d + column) as usize, (parameters * d) as usize);
        sum = add_up(sum, partial, base, stride, UNIT_POS / REDUCE_COLUMNS, cubes, REDUCE_SLICES, SUMS_IN_FLIGHT);
    }

    let mut shared = Shared::<[f32]>::new_slice(comptime![REDUCE_UNITS as usize]);
    shared[UNIT_POS as usize] = sum.extract(0usize);
    sync_cube();
    if UNIT_POS < REDUCE_COLUMNS && column < d {
        let mut total = 0.0f32;
        #[unroll]
        for i in 0..REDUCE_SLICES {
            total += shared[(i * REDUCE_COLUMNS + UNIT_POS) as usize];
        }

        let at = column as usize;
        if CUBE_POS_Y == 0 {
            dgamma[at] = F::cast_from(total);
        } else if CUBE_POS_Y == 1 {
            dbeta[at] = F::cast_from(total);
        } else {
            dbias[at] = F::cast_from(total);
        }
    }
}
