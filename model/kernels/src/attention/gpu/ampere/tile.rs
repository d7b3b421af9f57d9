//! Tiles of a head's rows in shared memory: copies to them, and products with them. A block's own tiles have 64 rows, the streamed
//! ones 64 or 32.
//!
//! A tile consists of panels of 64 columns, or 32 of f32, in the lines of [`crate::gpu::mma`]. Columns that complete the head's last
//! sixteen, or panel of f32, are 0.
//! Tiles are counted from the beginning of the memory, as if all had as many rows as the one that is asked for.

use cubecl::prelude::*;

use crate::attention::gpu::shared::config::{FlashConfig, TILE, UNITS};
use crate::attention::gpu::shared::position::Patch;
use crate::attention::gpu::shared::rows::pair;
use crate::gpu::async_copy::copy;
use crate::gpu::mma::{LINE, Pair, Reader, fragment, left_reader, place_in_tile, right_reader, short_right_reader};
use crate::gpu::mma_f32::{
    Operand, fragments as fragments_across, left_operand, multiply_as, reader_across, right_operand,
};

/// Vectors of a tile of `rows` rows.
pub(super) fn tile_octs(rows: usize, cfg: &FlashConfig) -> usize {
    panels(cfg) * rows * LINE
}

/// Panels of a tile.
fn panels(cfg: &FlashConfig) -> usize {
    cfg.head_dim.div_ceil(cfg.arithmetic.line())
}

/// Elements of the summed dimension per instruction: two vectors.
fn k_step(cfg: &FlashConfig) -> usize {
    2 * cfg.arithmetic.vector()
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
pub(super) fn readers(#[comptime] streamed_rows: usize, #[comptime] cfg: FlashConfig) -> Readers {
    // The same number on every lane; the broadcast tells the assembler so.
    let warp = plane_broadcast(UNIT_POS / 32, 0u32);
    let (left, rows) = (left_reader(warp * 16, false), right_reader(0u32, false));
    let columns = if comptime![cfg.arithmetic.is_f32()] {
        reader_across(0u32, true)
    } else if comptime![streamed_rows == TILE] {
        right_reader(0u32, true)
    } else {
        short_right_reader(streamed_rows)
    };
    Readers { left, rows, columns }
}

/// Allocates `n` tiles of `rows` rows.
#[cube]
pub(super) fn tiles_memory<E: Float, N: Size>(
    #[comptime] n: usize,
    #[comptime] rows: usize,
    #[comptime] cfg: FlashConfig,
) -> Shared<[Vector<E, N>]> {
    Shared::<[Vector<E, N>]>::new_aligned_slice(comptime![n * tile_octs(rows, &cfg)], 128usize)
}

/// Starts to copy the `rows` rows at `patch` of a matrix of `columns` columns to tile `tile`. Rows beyond the batch row's last become
/// 0.
#[cube]
pub(super) fn request<E: Float, N: Size>(
    memory: &mut Shared<[Vector<E, N>]>,
    tile: u32,
    matrix: &[Vector<E, N>],
    patch: &Patch,
    #[comptime] columns: usize,
    #[comptime] rows: usize,
    #[comptime] cfg: FlashConfig,
) {
    let first = tile * comptime![tile_octs(rows, &cfg) as u32];
    let vector = comptime![cfg.arithmetic.vector()];
    #[unroll]
    for panel in 0..comptime![panels(&cfg)] {
        let left = comptime![(cfg.head_dim / vector - panel * LINE).min(LINE)];
        // Products read columns by sixteens, or panels of f32, and the threads fill no more lines at once than there are.
        let read = comptime![if cfg.arithmetic.is_f32() { LINE } else { left.next_power_of_two() }];
        let width = comptime![read.max(UNITS as usize / rows)];
        let lines_at_once = comptime![UNITS as usize / width];
        let (line, at) = (UNIT_POS / comptime![width as u32], UNIT_POS % comptime![width as u32]);
        let pitch = comptime![columns / vector];
        let from = (patch.first + patch.row0 + line) * comptime![pitch as u32];
        let from = from + patch.column / comptime![vector as u32] + at;
        let to = first + place_in_tile(line, at);

        #[unroll]
        for turn in 0..comptime![rows / lines_at_once] {
            let down = comptime![turn * lines_at_once];
            let inside = patch.row0 + line + comptime![down as u32] < patch.rows;
            let bytes = if comptime![left == width] {
                select(inside, 16u32, 0u32)
            } else {
                select(inside && at < comptime![left as u32], 16u32, 0u32)
            };
            let from = (from + comptime![(down * pitch + panel * LINE) as u32]) as usize;
            let to = (to + comptime![(panel * rows * LINE + down * LINE) as u32]) as usize;
            copy(&matrix[from..from + 1], &mut memory[to..to + 1], bytes);
        }
    }
}

/// Adds to each `scores[i]`, 64 x `rows`, the product of tile `left + i` and the transpose of tile `right` of `rows` rows, both summed
/// over their columns.
#[cube]
pub(super) fn add_scores<E: Float, N: Size>(
    scores: &mut Sequence<Array<f32>>,
    memory: &Shared<[Vector<E, N>]>,
    readers: &Readers,
    left: u32,
    right: u32,
    #[comptime] rows: usize,
    #[comptime] cfg: FlashConfig,
) {
    if comptime![cfg.arithmetic.is_f32()] {
        add_scores_as::<E, N, Const<1>>(scores, memory, readers, left, right, rows, cfg);
    } else {
        add_scores_as::<E, N, Const<2>>(scores, memory, readers, left, right, rows, cfg);
    }
}

#[cube]
fn add_scores_as<E: Float, N: Size, R: Size>(
    scores: &mut Sequence<Array<f32>>,
    memory: &Shared<[Vector<E, N>]>,
    readers: &Readers,
    left: u32,
    right: u32,
    #[comptime] rows: usize,
    #[comptime] cfg: FlashConfig,
) {
    let (left_octs, right_octs) = comptime![(tile_octs(TILE, &cfg) as u32, tile_octs(rows, &cfg) as u32)];
    #[unroll]
    for step in 0..comptime![cfg.head_dim.div_ceil(k_step(&cfg))] {
        let (panel, step) = comptime![(step / 4 * LINE, step % 4)];
        let mut lefts = Sequence::<Operand<E, R>>::new();
        #[unroll]
        for i in 0..scores.len() {
            let at = (left + comptime![i as u32]) * left_octs + comptime![(panel * TILE) as u32];
            let own = fragment::<E, N, R>(memory, at, &readers.left, 0usize, step);
            lefts.push(left_operand::<E, R>(&own, comptime![cfg.arithmetic]));
        }

        #[unroll]
        for sixteen in 0..comptime![rows / 16] {
            let at = right * right_octs + comptime![(panel * rows) as u32];
            let read = fragment::<E, N, R>(memory, at, &readers.rows, sixteen, step);
            let streamed = right_operands::<E, R>(&read, 2usize, cfg);
            #[unroll]
            for i in 0..scores.len() {
                multiply_parts::<E, R>(scores.index_mut(i), lefts.index(i), &streamed, comptime![2 * sixteen], cfg);
            }
        }
    }
}

/// Adds to each `sums[i]` the product of `lefts[i]`, 64 x `rows` and rounded to the elements' type, and tile `tile`, summed over its
/// `rows` rows.
#[cube]
pub(super) fn add_products<E: Float, N: Size>(
    sums: &mut Sequence<Array<f32>>,
    lefts: &Sequence<Array<f32>>,
    memory: &Shared<[Vector<E, N>]>,
    readers: &Readers,
    tile: u32,
    #[comptime] rows: usize,
    #[comptime] cfg: FlashConfig,
) {
    if comptime![cfg.arithmetic.is_f32()] {
        add_products_as::<E, N, Const<1>>(sums, lefts, memory, readers, tile, rows, cfg);
    } else {
        add_products_as::<E, N, Const<2>>(sums, lefts, memory, readers, tile, rows, cfg);
    }
}

#[cube]
fn add_products_as<E: Float, N: Size, R: Size>(
    sums: &mut Sequence<Array<f32>>,
    lefts: &Sequence<Array<f32>>,
    memory: &Shared<[Vector<E, N>]>,
    readers: &Readers,
    tile: u32,
    #[comptime] rows: usize,
    #[comptime] cfg: FlashConfig,
) {
    let tile = tile * comptime![tile_octs(rows, &cfg) as u32];
    // A fragment of 16 bits has 16 columns; two of f32, which are read at once, have the 32 of a panel.
    let eights = comptime![if cfg.arithmetic.is_f32() { 4usize } else { 2 }];
    #[unroll]
    for step in 0..comptime![rows / k_step(&cfg)] {
        let mut own = Sequence::<Operand<E, R>>::new();
        #[unroll]
        for i in 0..lefts.len() {
            own.push(left_operand::<E, R>(&left_step::<E, R>(lefts.index(i), step, cfg), comptime![cfg.arithmetic]));
        }

        #[unroll]
        for group in 0..comptime![cfg.head_dim.div_ceil(8 * eights)] {
            let columns = if comptime![cfg.arithmetic.is_f32()] {
                let panel = tile + comptime![(group * rows * LINE) as u32];
                fragments_across::<E, N, R>(memory, panel, &readers.columns, step, false)
            } else {
                fragment::<E, N, R>(memory, tile, &readers.columns, group, step)
            };
            let streamed = right_operands::<E, R>(&columns, comptime![eights_of(&cfg, group, eights)], cfg);
            #[unroll]
            for i in 0..lefts.len() {
                multiply_parts::<E, R>(sums.index_mut(i), own.index(i), &streamed, comptime![eights * group], cfg);
            }
        }
    }
}

/// Returns how many products of eight columns group `group` needs, of `eights` at most. A panel of f32 always needs all: each product has
/// columns from the whole panel.
fn eights_of(cfg: &FlashConfig, group: usize, eights: usize) -> usize {
    if cfg.arithmetic.is_f32() { eights } else { (cfg.head_dim / 8 - eights * group).min(eights) }
}

/// Returns the left fragment of step `step` of K of an accumulator, rounded to the elements' type. In f32 its K are pairs of adjacent
/// columns, as [`reader_across`] reads the other operand.
#[cube]
fn left_step<E: Float, R: Size>(
    values: &Array<f32>,
    #[comptime] step: usize,
    #[comptime] cfg: FlashConfig,
) -> Array<Vector<E, R>> {
    let mut registers = Array::<Vector<E, R>>::new(4usize);
    #[unroll]
    for i in 0..4usize {
        if comptime![cfg.arithmetic.is_f32()] {
            registers[i] = Vector::<E, R>::new(E::cast_from(values[comptime![step * 4 + i % 2 * 2 + i / 2]]));
        } else {
            registers[i] = Vector::<E, R>::cast_from(pair(values, comptime![step * 8 + i * 2]));
        }
    }
    registers
}

/// Returns the first `n` groups of eight columns of right fragments, as they are multiplied.
#[cube]
fn right_operands<E: Float, R: Size>(
    read: &Array<Vector<E, R>>,
    #[comptime] n: usize,
    #[comptime] cfg: FlashConfig,
) -> Sequence<Operand<E, R>> {
    let mut operands = Sequence::<Operand<E, R>>::new();
    #[unroll]
    for eight in 0..n {
        operands.push(right_operand::<E, R>(read, eight, comptime![cfg.arithmetic]));
    }
    operands
}

/// Adds the products of a left fragment and of right ones, of eight columns each, to the parts of an accumulator from `first` on.
#[cube]
fn multiply_parts<E: Float, R: Size>(
    values: &mut Array<f32>,
    left: &Operand<E, R>,
    right: &Sequence<Operand<E, R>>,
    #[comptime] first: usize,
    #[comptime] cfg: FlashConfig,
) {
    #[unroll]
    for nth in 0..right.len() {
        let at = comptime![4 * (first + nth)];
        let mut sums = Array::<Pair<f32>>::new(2usize);
        #[unroll]
        for row in 0..2usize {
            sums[row] = pair(&*values, comptime![at + 2 * row]);
        }
        multiply_as::<E, R>(&mut sums, left, right.index(nth), comptime![cfg.arithmetic]);
        #[unroll]
        for row in 0..2usize {
            values[comptime![at + 2 * row]] = sums[row].extract(0usize);
            values[comptime![at + 2 * row + 1]] = sums[row].extract(1usize);
        }
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

/// Returns `n` zeroed accumulators of 64 rows of a head: whole panels of f32.
#[cube]
pub(super) fn row_accumulators(#[comptime] n: usize, #[comptime] cfg: FlashConfig) -> Sequence<Array<f32>> {
    accumulators(
        n,
        comptime![if cfg.arithmetic.is_f32() { panels(&cfg) * cfg.arithmetic.line() } else { cfg.head_dim }],
    )
}
