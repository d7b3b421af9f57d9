//! The GEMM on Ampere and later GPUs, and in f32 on all: `cp.async`, `mma.sync`, a persistent grid.
//!
//! All warps of a block do the same. Each computes 64 x 64 results of an output tile, 64 x 32 with the accuracy of f32:
//!
//! ```text
//! [`load`]      K tile n + stages - 1 of A and B   -- cp.async -->   a stage of shared memory
//! [`multiply`]  K tile n in its stage              -- mma.sync -->   registers
//! [`epilogue`]  registers  -- bias, activation, residual -->  C, after the last K tile of an output tile
//! ```
//!
//! In f32 only the instructions differ ([`crate::gpu::mma_f32`]), the elements of a K tile, and [`epilogue_f32`].
//!
//! The loads run ahead across the boundaries of output tiles, so that the first K tiles of the next one arrive during the epilogue.
//! The schedule of the tiles, the split of K and the sum of its slices are the same as on Hopper: see
//! [`shared`](super::shared).

mod epilogue;
mod epilogue_f32;
mod launch;
mod load;
mod multiply;
#[cfg(test)]
pub(super) mod tests;

use cubecl::prelude::*;
pub(super) use launch::launch;

use crate::gpu::async_copy::wait;
use crate::gpu::mma::{LINE, Pair};
use crate::linear::gpu::shared::arguments::{GemmSize, SplitKSize};
use crate::linear::gpu::shared::config::{GemmConfig, TILE_M};
use crate::linear::gpu::shared::schedule::{first_wave, take_tile};
use epilogue::finish_tile;
use load::{load_next, loads};
use multiply::{multiply_k_tile, readers, zeroed_accumulator};

/// Rows of the results of a warp.
const WARP_ROWS: usize = 64;

/// Returns the threads of a block.
pub(super) fn threads(config: &GemmConfig) -> u32 {
    (TILE_M / WARP_ROWS * (config.tile_n / config.warp_columns()) * 32) as u32
}

/// The matrices of a product, in vectors of 16 bytes.
#[derive(CubeType, CubeLaunch)]
struct Matrices<E: Float, N: Size> {
    a: Box<[Vector<E, N>]>,
    b: Box<[Vector<E, N>]>,
    bias: Box<[Pair<E>]>,
}

/// The elements of K, and the elements from one row of each matrix to the next.
#[derive(CubeType, CubeLaunch)]
struct Pitches {
    k: u32,
    a: u32,
    b: u32,
    c: u32,
    /// Of the residual, or of the arguments of an activation that are kept.
    auxiliary: u32,
}

/// The sizes of a product and of its matrices.
#[derive(CubeType, CubeLaunch)]
struct Sizes {
    product: GemmSize,
    pitches: Pitches,
}

/// Where results go, and what is added to them.
#[derive(CubeType, CubeLaunch)]
struct Results<E: Float, N: Size> {
    c: Box<[Vector<E, N>]>,
    /// The residual, or where the arguments of an activation are kept for backward.
    auxiliary: Box<[Vector<E, N>]>,
    /// As f32: slice `i` of each tile goes to matrix `i`.
    sums: Box<[Pair<f32>]>,
}

/// The stages of both operands, see [`crate::gpu::mma`].
#[derive(CubeType)]
struct Memory<E: Float, N: Size> {
    a: Shared<[Vector<E, N>]>,
    b: Shared<[Vector<E, N>]>,
}

/// `c = a · b` in the layout and with the epilogue of `cfg`.
#[cube(launch_unchecked)]
fn gemm<E: Float, N: Size, R: Size>(
    matrices: &Matrices<E, N>,
    results: &mut Results<E, N>,
    sizes: &Sizes,
    split_k: SplitKSize,
    #[comptime] cfg: GemmConfig,
    #[define(E)] _dtype: ElemType,
) {
    let mut memory = Memory::<E, N> {
        a: Shared::<[Vector<E, N>]>::new_aligned_slice(comptime![cfg.stages * TILE_M * LINE], 128usize),
        b: Shared::<[Vector<E, N>]>::new_aligned_slice(comptime![cfg.stages * cfg.tile_n * LINE], 128usize),
    };
    let SplitKSize { slices, slice_len, tail_slices } = split_k;
    let mut loads = loads(sizes, SplitKSize { slices, slice_len, tail_slices }, cfg);
    #[unroll]
    for _ in 0..comptime![cfg.stages - 1] {
        load_next(&mut loads, matrices, &mut memory, sizes, cfg);
    }

    let mut schedule = first_wave(&sizes.product, SplitKSize { slices, slice_len, tail_slices }, cfg);
    let readers = readers(cfg);
    let mut stage = 0u32;
    while schedule.next < schedule.end {
        let tile = take_tile(&mut schedule, cfg);
        let mut acc = zeroed_accumulator(cfg);
        for _ in tile.from..tile.to {
            multiply_k_tile::<E, N, R>(&mut acc, &readers, &mut loads, matrices, &mut memory, sizes, stage, cfg);
            stage = select(stage == comptime![cfg.stages as u32 - 1], 0u32, stage + 1);
        }
        if comptime![cfg.is_f32()] {
            epilogue_f32::finish_tile(&acc, &matrices.bias, results, &tile, sizes, cfg);
        } else {
            finish_tile(&acc, &matrices.bias, results, &tile, sizes, cfg);
        }
    }
    wait(0usize);
}
