//! The second kernel of a product whose K is split: adds up the partial sums, and applies bias and epilogue.

use cubecl::prelude::*;

use super::config::{Epilogue, TILE_M};
use super::relu::positive;
use super::schedule::tile_number;
use super::vectors::Quad;
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::reduce::add_up;

/// Threads of a block.
pub(crate) const SUM_THREADS: u32 = 256;
/// Blocks in flight per multiprocessor: many threads wait for memory
/// (`benches/results/2026-11-22-h200-5980429.md`).
const SUM_BLOCKS: usize = 6;
/// Partial sums that a thread has in flight (`benches/results/2026-11-22-h200-5980429.md`).
const SLICES_IN_FLIGHT: u32 = 3;

/// What the kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SumConfig {
    /// As in the kernel that computed the partial sums.
    pub(crate) tile_n: usize,
    pub(crate) group_m: u32,
    /// The sums are added to the output (`beta = 1`).
    pub(crate) accumulates: bool,
    pub(crate) bias: bool,
    /// Not an activation: products with one are never split.
    pub(crate) epilogue: Epilogue,
}

/// The sizes of the product and of its slices.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct SumSize {
    pub(crate) m: u32,
    pub(crate) n: u32,
    pub(crate) slices: u32,
    pub(crate) tail_blocks: u32,
    pub(crate) tail_slices: u32,
    /// Vectors of four from one row of the partial sums and of the output to the next.
    pub(crate) row_quads: u32,
    pub(crate) residual_row_quads: u32,
}

/// `out = epilogue(sum of the slices of partial + bias)`. One thread computes four elements of a row.
#[cube(launch_unchecked)]
pub(crate) fn gemm_add_slices<E: Float>(
    partial: &[Quad<f32>],
    bias: &[Quad<E>],
    residual: &[Quad<E>],
    out: &mut [Quad<E>],
    size: SumSize,
    #[comptime] cfg: SumConfig,
    #[define(E)] _dtype: ElemType,
) {
    cubes_at_once(SUM_BLOCKS);
    let quads = size.m as usize * size.row_quads as usize;
    if ABSOLUTE_POS < quads {
        let row = ABSOLUTE_POS as u32 / size.row_quads;
        // The gap behind a row holds nothing that anyone reads.
        let col = min(ABSOLUTE_POS as u32 % size.row_quads * 4, size.n - 1);
        let slices = slices_at(row, col, &size, cfg);

        let mut sum = add_up(Quad::zeroed(), partial, ABSOLUTE_POS, quads, 0u32, slices, 1u32, SLICES_IN_FLIGHT);
        if comptime![cfg.accumulates] {
            sum += Quad::<f32>::cast_from(out[ABSOLUTE_POS]);
        }
        if comptime![cfg.bias] {
            // The buffer may be longer than the bias in it: its length does not tell the column.
            sum += Quad::<f32>::cast_from(bias[ABSOLUTE_POS % size.row_quads as usize]);
        }
        if comptime![cfg.epilogue.adds_residual()] {
            sum += Quad::<f32>::cast_from(residual[(row * size.residual_row_quads + col / 4) as usize]);
        }
        if comptime![cfg.epilogue.is_relu()] {
            #[unroll]
            for i in 0..4usize {
                sum.insert(i, positive(sum.extract(i)));
            }
        }
        out[ABSOLUTE_POS] = Quad::<E>::cast_from(sum);
    }
}

/// Returns how many slices there are of the tile with the element at (`row`, `col`).
#[cube]
fn slices_at(row: u32, col: u32, size: &SumSize, #[comptime] cfg: SumConfig) -> u32 {
    let tiles_m = (size.m + comptime![TILE_M as u32 - 1]) / comptime![TILE_M as u32];
    let tiles_n = (size.n + comptime![cfg.tile_n as u32 - 1]) / comptime![cfg.tile_n as u32];
    let (tm, tn) = (row / comptime![TILE_M as u32], col / comptime![cfg.tile_n as u32]);
    let tile = tile_number(tm, tn, tiles_m, tiles_n, comptime![cfg.group_m]);
    let tiles = tiles_m * tiles_n;
    let mut slices = size.slices;
    if size.tail_blocks > 0 {
        slices += select(tile < tiles - tiles % size.tail_blocks, 1u32, size.tail_slices);
    }
    slices
}
