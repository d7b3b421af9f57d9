//! Tiles of 64 rows of a head in shared memory: copies to them, and products with them.
//!
//! A tile consists of panels of 64 columns, in the lines of [`crate::gpu::mma`]. Columns that complete the head's last sixteen are 0.

use cubecl::prelude::*;

use super::super::Oct;
use super::super::config::{FlashConfig, TILE, UNITS};
use super::super::position::{Patch, place};
use super::super::softmax::quad_sum;
use crate::gpu::async_copy::copy;
use crate::gpu::mma::{
    K_STEP, LINE, Pair, Reader, fragment, left_reader, multiply, place_in_tile, quad_transpose, right_reader,
};

/// Vectors of a panel.
const PANEL: usize = TILE * LINE;
/// Columns whose results four adjacent lanes exchange.
const GROUP: usize = 32;

/// Vectors of a tile.
pub(super) fn tile_octs(cfg: &FlashConfig) -> usize {
    cfg.head_dim.div_ceil(TILE) * PANEL
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

/// Returns the readers of this lane.
#[cube]
pub(super) fn readers() -> Readers {
    // The same number on every lane; the broadcast tells the assembler so.
    let warp = plane_broadcast(UNIT_POS / 32, 0u32);
    Readers { left: left_reader(warp * 16, false), rows: right_reader(0u32, false), columns: right_reader(0u32, true) }
}

/// Allocates `n` tiles.
#[cube]
pub(super) fn tiles_memory<E: Float>(#[comptime] n: usize, #[comptime] cfg: FlashConfig) -> Shared<[Oct<E>]> {
    Shared::<[Oct<E>]>::new_aligned_slice(comptime![n * tile_octs(&cfg)], 128usize)
}

/// Starts to copy the 64 rows at `patch` of a matrix of `columns` columns to tile `tile`. Rows beyond the batch row's last become 0.
#[cube]
pub(super) fn request<E: Float>(
    memory: &mut Shared<[Oct<E>]>,
    tile: u32,
    matrix: &[Oct<E>],
    patch: &Patch,
    #[comptime] columns: usize,
    #[comptime] cfg: FlashConfig,
) {
    let first = tile * comptime![tile_octs(&cfg) as u32];
    #[unroll]
    for panel in 0..comptime![cfg.head_dim.div_ceil(TILE)] {
        let left = comptime![(cfg.head_dim / 8 - panel * LINE).min(LINE)];
        // Products read columns by sixteens.
        let width = comptime![left.next_power_of_two().max(2)];
        let lines_at_once = comptime![UNITS as usize / width];
        let (line, vector) = (UNIT_POS / comptime![width as u32], UNIT_POS % comptime![width as u32]);
        let from = (patch.first + patch.row0 + line) * comptime![columns as u32 / 8] + patch.column / 8 + vector;
        let to = first + place_in_tile(line, vector);

        #[unroll]
        for turn in 0..comptime![TILE / lines_at_once] {
            let down = comptime![turn * lines_at_once];
            let inside = patch.row0 + line + comptime![down as u32] < patch.rows;
            let bytes = if comptime![left == width] {
                select(inside, 16u32, 0u32)
            } else {
                select(inside && vector < comptime![left as u32], 16u32, 0u32)
            };
            let from = (from + comptime![(down * columns / 8 + panel * LINE) as u32]) as usize;
            let to = (to + comptime![(panel * PANEL + down * LINE) as u32]) as usize;
            copy(&matrix[from..from + 1], &mut memory[to..to + 1], bytes);
        }
    }
}

/// Adds to each `scores[i]` the product of tile `left + i` and the transpose of tile `right`, both summed over their columns.
#[cube]
pub(super) fn add_scores<E: Float>(
    scores: &mut Sequence<Array<f32>>,
    memory: &Shared<[Oct<E>]>,
    readers: &Readers,
    left: u32,
    right: u32,
    #[comptime] cfg: FlashConfig,
) {
    let octs = comptime![tile_octs(&cfg) as u32];
    #[unroll]
    for step in 0..comptime![cfg.head_dim.div_ceil(K_STEP)] {
        let (panel, step) = comptime![((step / 4 * PANEL) as u32, step % 4)];
        let mut lefts = Sequence::<Array<Pair<E>>>::new();
        #[unroll]
        for i in 0..scores.len() {
            let at = (left + comptime![i as u32]) * octs + panel;
            lefts.push(fragment::<E>(memory, at, &readers.left, 0usize, step));
        }

        #[unroll]
        for sixteen in 0..comptime![TILE / 16] {
            let rows = fragment::<E>(memory, right * octs + panel, &readers.rows, sixteen, step);
            #[unroll]
            for i in 0..scores.len() {
                #[unroll]
                for half in 0..2usize {
                    multiply_part::<E>(scores.index_mut(i), lefts.index(i), &rows, comptime![2 * sixteen + half]);
                }
            }
        }
    }
}

/// Adds to each `sums[i]` the product of `lefts[i]`, 64 x 64 and rounded to the elements' type, and tile `tile`, summed over its
/// rows.
#[cube]
pub(super) fn add_products<E: Float>(
    sums: &mut Sequence<Array<f32>>,
    lefts: &Sequence<Array<f32>>,
    memory: &Shared<[Oct<E>]>,
    readers: &Readers,
    tile: u32,
    #[comptime] cfg: FlashConfig,
) {
    let tile = tile * comptime![tile_octs(&cfg) as u32];
    #[unroll]
    for step in 0..comptime![TILE / K_STEP] {
        let mut rounded = Sequence::<Array<Pair<E>>>::new();
        #[unroll]
        for i in 0..lefts.len() {
            rounded.push(rounded_step::<E>(lefts.index(i), step));
        }

        #[unroll]
        for sixteen in 0..comptime![cfg.head_dim.div_ceil(16)] {
            let columns = fragment::<E>(memory, tile, &readers.columns, sixteen, step);
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

/// Returns the left fragment of step `step` of K of a 64 x 64 accumulator, rounded.
#[cube]
fn rounded_step<E: Float>(values: &Array<f32>, #[comptime] step: usize) -> Array<Pair<E>> {
    let mut rounded = Array::<Pair<E>>::new(4usize);
    #[unroll]
    for i in 0..4usize {
        rounded[i] = Pair::<E>::cast_from(pair(values, comptime![step * 8 + i * 2]));
    }
    rounded
}

/// Returns `values[at]` and `values[at + 1]`.
#[cube]
fn pair(values: &Array<f32>, #[comptime] at: usize) -> Pair<f32> {
    let mut pair = Pair::<f32>::empty();
    pair.insert(0usize, values[at]);
    pair.insert(1usize, values[comptime![at + 1]]);
    pair
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
    multiply::<E>(&mut sums, left, right, comptime![part % 2]);
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

/// Stores a 64 x head_dim accumulator at `patch` of a matrix of `columns` columns. Multiplies a thread's first row by `scale0` and
/// its second by `scale1`. Four adjacent lanes exchange their results, so that each stores eight neighbours at once.
#[cube]
pub(super) fn store_rows<E: Float>(
    values: &Array<f32>,
    scale0: f32,
    scale1: f32,
    out: &mut [Oct<E>],
    patch: &Patch,
    #[comptime] columns: usize,
    #[comptime] head_dim: usize,
) {
    let lane = UNIT_POS % 32;
    #[unroll]
    for row in 0..2usize {
        let scale = if comptime![row == 0] { scale0 } else { scale1 };
        let row0 = patch.row0 + place(UNIT_POS).row + comptime![8 * row as u32];
        #[unroll]
        for group in 0..comptime![head_dim.div_ceil(GROUP)] {
            let mut words = Array::<u32>::new(4usize);
            #[unroll]
            for i in 0..4usize {
                words[i] = 0u32;
                let part = comptime![group * 4 + i];
                if comptime![8 * part < head_dim] {
                    let mut scaled = pair(values, comptime![4 * part + 2 * row]);
                    scaled.insert(0usize, scaled.extract(0usize) * scale);
                    scaled.insert(1usize, scaled.extract(1usize) * scale);
                    words[i] = u32::reinterpret(Pair::<E>::cast_from(scaled));
                }
            }

            quad_transpose(&mut words);
            let mut four = Vector::<u32, Const<4>>::empty();
            #[unroll]
            for i in 0..4usize {
                four.insert(i, words[i]);
            }
            let oct = comptime![group as u32 * 4] + lane % 4;
            if row0 < patch.rows && oct < comptime![head_dim as u32 / 8] {
                let to = (patch.first + row0) as usize * comptime![columns / 8] + (patch.column / 8 + oct) as usize;
                out[to] = Oct::<E>::reinterpret(four);
            }
        }
    }
}

/// Returns the sums of `a * b` over the columns of a head, for the thread's two rows of `patch`. Rows beyond the batch row's last
/// repeat it.
#[cube]
pub(super) fn row_products<E: Float>(
    a: &[Oct<E>],
    b: &[Oct<E>],
    patch: &Patch,
    #[comptime] columns: usize,
    #[comptime] head_dim: usize,
) -> (f32, f32) {
    let mut sums = Array::<f32>::new(2usize);
    #[unroll]
    for row in 0..2usize {
        let row0 = min(patch.row0 + place(UNIT_POS).row + comptime![8 * row as u32], patch.rows - 1);
        let from = (patch.first + row0) as usize * comptime![columns / 8] + (patch.column / 8) as usize;

        let mut sum = 0.0f32;
        #[unroll]
        for turn in 0..comptime![head_dim.div_ceil(GROUP)] {
            let oct = comptime![turn as u32 * 4] + UNIT_POS % 4;
            if oct < comptime![head_dim as u32 / 8] {
                let (left, right) = (a[from + oct as usize], b[from + oct as usize]);
                #[unroll]
                for i in 0..8usize {
                    sum += f32::cast_from(left.extract(i)) * f32::cast_from(right.extract(i));
                }
            }
        }
        sums[row] = quad_sum(sum);
    }
    (sums[0], sums[1])
}
