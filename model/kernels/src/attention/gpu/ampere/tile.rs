//! Tiles of a head's rows in shared memory: copies to them, and products with them. A block's own tiles have 64 rows, the streamed
//! ones 64 or 32.
//!
//! A tile consists of panels of 64 columns, in the lines of [`crate::gpu::mma`]. Columns that complete the head's last sixteen are 0.
//! Tiles are counted from the beginning of the memory, as if all had as many rows as the one that is asked for.

use cubecl::prelude::*;

use super::super::Oct;
use super::super::config::{FlashConfig, TILE, UNITS};
use super::super::position::Patch;
use super::super::rows::pair;
use crate::gpu::async_copy::copy;
use crate::gpu::mma::{
    K_STEP, LINE, Pair, Reader, fragment, half_of, left_reader, multiply, place_in_tile, right_reader,
    short_right_reader,
};

/// Vectors of a tile of `rows` rows.
pub(super) fn tile_octs(rows: usize, cfg: &FlashConfig) -> usize {
    cfg.head_dim.div_ceil(TILE) * rows * LINE
}

/// Where a lane reads the fragments of tiles.
#[derive(CubeType)]
pub(super) struct Readers {
    /// The warp's 16 rows, as left operand.
    left: Reader,
    /// Rows, for a product that sums over columns.
    rows: Reader,
    /// Columns, for a product that sums over rows.
    columns: Reader,
}

/// Returns the readers of this lane. Streamed tiles have `streamed_rows` rows.
#[cube]
pub(super) fn readers(#[comptime] streamed_rows: usize) -> Readers {
    // The same number on every lane; the broadcast tells the assembler so.
    let warp = plane_broadcast(UNIT_POS / 32, 0u32);
    let (left, rows) = (left_reader(warp * 16, false), right_reader(0u32, false));
    let columns =
        if comptime![streamed_rows == TILE] { right_reader(0u32, true) } else { short_right_reader(streamed_rows) };
    Readers { left, rows, columns }
}

/// Allocates `n` tiles of `rows` rows.
#[cube]
pub(super) fn tiles_memory<E: Float>(
    #[comptime] n: usize,
    #[comptime] rows: usize,
    #[comptime] cfg: FlashConfig,
) -> Shared<[Oct<E>]> {
    Shared::<[Oct<E>]>::new_aligned_slice(comptime![n * tile_octs(rows, &cfg)], 128usize)
}

/// Starts to copy the `rows` rows at `patch` of a matrix of `columns` columns to tile `tile`. Rows beyond the batch row's last become
/// 0.
#[cube]
pub(super) fn request<E: Float>(
    memory: &mut Shared<[Oct<E>]>,
    tile: u32,
    matrix: &[Oct<E>],
    patch: &Patch,
    #[comptime] columns: usize,
    #[comptime] rows: usize,
    #[comptime] cfg: FlashConfig,
) {
    let first = tile * comptime![tile_octs(rows, &cfg) as u32];
    #[unroll]
    for panel in 0..comptime![cfg.head_dim.div_ceil(TILE)] {
        let left = comptime![(cfg.head_dim / 8 - panel * LINE).min(LINE)];
        // Products read columns by sixteens, and the threads fill no more lines at once than there are.
        let width = comptime![left.next_power_of_two().max(UNITS as usize / rows)];
        let lines_at_once = comptime![UNITS as usize / width];
        let (line, vector) = (UNIT_POS / comptime![width as u32], UNIT_POS % comptime![width as u32]);
        let from = (patch.first + patch.row0 + line) * comptime![columns as u32 / 8] + patch.column / 8 + vector;
        let to = first + place_in_tile(line, vector);

        #[unroll]
        for turn in 0..comptime![rows / lines_at_once] {
            let down = comptime![turn * lines_at_once];
            let inside = patch.row0 + line + comptime![down as u32] < patch.rows;
            let bytes = if comptime![left == width] {
                select(inside, 16u32, 0u32)
            } else {
                select(inside && vector < comptime![left as u32], 16u32, 0u32)
            };
            let from = (from + comptime![(down * columns / 8 + panel * LINE) as u32]) as usize;
            let to = (to + comptime![(panel * rows * LINE + down * LINE) as u32]) as usize;
            copy(&matrix[from..from + 1], &mut memory[to..to + 1], bytes);
        }
    }
}

/// Adds to each `scores[i]`, 64 x `rows`, the product of tile `left + i` and the transpose of tile `right` of `rows` rows, both summed
/// over their columns.
#[cube]
pub(super) fn add_scores<E: Float>(
    scores: &mut Sequence<Array<f32>>,
    memory: &Shared<[Oct<E>]>,
    readers: &Readers,
    left: u32,
    right: u32,
    #[comptime] rows: usize,
    #[comptime] cfg: FlashConfig,
) {
    let (left_octs, right_octs) = comptime![(tile_octs(TILE, &cfg) as u32, tile_octs(rows, &cfg) as u32)];
    #[unroll]
    for step in 0..comptime![cfg.head_dim.div_ceil(K_STEP)] {
        let (panel, step) = comptime![(step / 4 * LINE, step % 4)];
        let mut lefts = Sequence::<Array<Pair<E>>>::new();
        #[unroll]
        for i in 0..scores.len() {
            let at = (left + comptime![i as u32]) * left_octs + comptime![(panel * TILE) as u32];
            lefts.push(fragment::<E, Const<8>, Const<2>>(memory, at, &readers.left, 0usize, step));
        }

        #[unroll]
        for sixteen in 0..comptime![rows / 16] {
            let at = right * right_octs + comptime![(panel * rows) as u32];
            let streamed = fragment::<E, Const<8>, Const<2>>(memory, at, &readers.rows, sixteen, step);
            #[unroll]
            for i in 0..scores.len() {
                #[unroll]
                for half in 0..2usize {
                    multiply_part::<E>(scores.index_mut(i), lefts.index(i), &streamed, comptime![2 * sixteen + half]);
                }
            }
        }
    }
}

/// Adds to each `sums[i]` the product of `lefts[i]`, 64 x `rows` and rounded to the elements' type, and tile `tile`, summed over its
/// `rows` rows.
#[cube]
pub(super) fn add_products<E: Float>(
    sums: &mut Sequence<Array<f32>>,
    lefts: &Sequence<Array<f32>>,
    memory: &Shared<[Oct<E>]>,
    readers: &Readers,
    tile: u32,
    #[comptime] rows: usize,
    #[comptime] cfg: FlashConfig,
) {
    let tile = tile * comptime![tile_octs(rows, &cfg) as u32];
    #[unroll]
    for step in 0..comptime![rows / K_STEP] {
        let mut rounded = Sequence::<Array<Pair<E>>>::new();
        #[unroll]
        for i in 0..lefts.len() {
            rounded.push(rounded_step::<E>(lefts.index(i), step));
        }

        #[unroll]
        for sixteen in 0..comptime![cfg.head_dim.div_ceil(16)] {
            let columns = fragment::<E, Const<8>, Const<2>>(memory, tile, &readers.columns, sixteen, step);
            #[unroll]
            for i in 0..lefts.len() {
                #[unroll]
                for half in 0..comptime![(cfg.head_dim / 8 - 2 * sixteen).min(2)] {
                    let part = comptime![2 * sixteen + half];
                    multiply_part::<E>(sums.index_mut(i), rounded.index(i), &columns, part);
                }
            }
        }
    }
}

/// Returns the left fragment of step `step` of K of an accumulator, rounded.
#[cube]
fn rounded_step<E: Float>(values: &Array<f32>, #[comptime] step: usize) -> Array<Pair<E>> {
    let mut rounded = Array::<Pair<E>>::new(4usize);
    #[unroll]
    for i in 0..4usize {
        rounded[i] = Pair::<E>::cast_from(pair(values, comptime![step * 8 + i * 2]));
    }
    rounded
}

/// Adds to columns `8 * part` to `8 * part + 7` of an accumulator the product of a left fragment and half `part % 2` of a right one.
#[cube]
fn multiply_part<E: Float>(
    values: &mut Array<f32>,
    left: &Array<Pair<E>>,
    right: &Array<Pair<E>>,
    #[comptime] part: usize,
) {
    let mut sums = Array::<Pair<f32>>::new(2usize);
    #[unroll]
    for row in 0..2usize {
        sums[row] = pair(&*values, comptime![4 * part + 2 * row]);
    }
    multiply::<E, Const<2>>(&mut sums, left, &half_of::<E, Const<2>>(right, comptime![part % 2]));
    #[unroll]
    for row in 0..2usize {
        values[comptime![4 * part + 2 * row]] = sums[row].extract(0usize);
        values[comptime![4 * part + 2 * row + 1]] = sums[row].extract(1usize);
    }
}

/// Returns `n` zeroed accumulators of 64 x `columns`.
#[cube]
pub(super) fn accumulators(#[comptime] n: usize, #[comptime] columns: usize) -> Sequence<Array<f32>> {
    let mut accumulators = Sequence::<Array<f32>>::new();
    #[unroll]
    for _ in 0..n {
        let mut zeros = Array::<f32>::new(comptime![columns / 2]);
        #[unroll]
        for i in 0..comptime![columns / 2] {
            zeros[i] = 0.0f32;
        }
        accumulators.push(zeros);
    }
    accumulators
}
