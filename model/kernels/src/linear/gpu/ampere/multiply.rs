//! The products of a warp: 64 x 64 or 64 x 32 results in its registers.

use cubecl::prelude::*;

use super::load::{Loads, PARTS, end_load, load_part};
use super::{Matrices, Memory, Sizes, WARP_ROWS};
use crate::gpu::async_copy::wait;
use crate::gpu::mma::{EDGE, LINE, Pair, Reader, fragment, left_reader, right_reader, zeroed};
use crate::gpu::mma_f32::{
    Arithmetic, Operand, fragments as fragments_across, left_operand, multiply_as, reader_across, right_operand,
};
use crate::linear::gpu::shared::config::{GemmConfig, TILE_M};

/// Left fragments of the results of a warp.
pub(super) const FRAGMENTS: usize = WARP_ROWS / EDGE;
/// Products of 16 x 8 across the results of a warp.
pub(super) fn across(cfg: &GemmConfig) -> usize {
    cfg.warp_columns() / 8
}

/// Right fragments of the results of a warp.
fn right_fragments(cfg: &GemmConfig) -> usize {
    cfg.warp_columns() / EDGE
}

/// Steps of K of a K tile: two vectors of a line each.
const STEPS: usize = LINE / 2;

/// Where this lane reads the fragments of both operands.
#[derive(CubeType)]
pub(super) struct Readers {
    left: Reader,
    right: Reader,
}

/// The fragments of a step of K. The next step's replaces a left one as soon as its row has been multiplied; the right
/// ones, which all rows need, have registers for two steps.
#[derive(CubeType)]
struct Fragments<E: Float, R: Size> {
    left: Sequence<Array<Vector<E, R>>>,
    right: Sequence<Array<Vector<E, R>>>,
}

/// Returns row and column of a warp's results within the block's tile.
#[cube]
pub(super) fn warp_origin(#[comptime] cfg: GemmConfig) -> (u32, u32) {
    // The same number on every lane; the broadcast tells the assembler so.
    let warp = plane_broadcast(UNIT_POS / 32, 0u32);
    let across = comptime![(cfg.tile_n / cfg.warp_columns()) as u32];
    (warp / across * comptime![WARP_ROWS as u32], warp % across * comptime![cfg.warp_columns() as u32])
}

/// Returns the readers of this lane.
#[cube]
pub(super) fn readers(#[comptime] cfg: GemmConfig) -> Readers {
    let (row, col) = warp_origin(cfg);
    let (a_across, b_across) = comptime![(cfg.a_is_mn_major(), cfg.b_is_mn_major())];
    let left =
        if comptime![reads_words(&cfg, a_across)] { reader_across(row, false) } else { left_reader(row, a_across) };
    let right =
        if comptime![reads_words(&cfg, b_across)] { reader_across(col, false) } else { right_reader(col, b_across) };
    Readers { left, right }
}

/// Whether fragments of an operand are read by [`fragments_across`], two at once.
fn reads_words(cfg: &GemmConfig, across: bool) -> bool {
    across && cfg.is_f32()
}

/// Whether fragments are read when they are multiplied, not a step before. With the accuracy of f32 a step needs the registers for
/// both parts of its own, and takes the time of three products, which covers another warp's reads.
fn reads_late(cfg: &GemmConfig) -> bool {
    cfg.arithmetic == Arithmetic::F32
}

/// Returns registers for `n` fragments.
#[cube]
fn registers<E: Float, R: Size>(#[comptime] n: usize) -> Sequence<Array<Vector<E, R>>> {
    let mut fragments = Sequence::<Array<Vector<E, R>>>::new();
    #[unroll]
    for _ in 0..n {
        fragments.push(Array::<Vector<E, R>>::new(4usize));
    }
    fragments
}

/// Returns a lane's share of zeros for the results of a warp, in matrices of 16 x 8, row by row.
#[cube]
pub(super) fn zeroed_accumulator(#[comptime] cfg: GemmConfig) -> Sequence<Array<Pair<f32>>> {
    let mut acc = Sequence::<Array<Pair<f32>>>::new();
    #[unroll]
    for _ in 0..comptime![FRAGMENTS * across(&cfg)] {
        acc.push(zeroed());
    }
    acc
}

/// Multiplies the K tile in stage `stage`, and starts to load the one that comes next.
#[cube]
pub(super) fn multiply_k_tile<E: Float, N: Size, R: Size>(
    acc: &mut Sequence<Array<Pair<f32>>>,
    readers: &Readers,
    loads: &mut Loads,
    matrices: &Matrices<E, N>,
    memory: &mut Memory<E, N>,
    sizes: &Sizes,
    stage: u32,
    #[comptime] cfg: GemmConfig,
) {
    // The K tile is there, and no warp reads the one before it any more.
    wait(comptime![cfg.stages - 2]);
    sync_cube();
    let mut fragments = Fragments::<E, R> {
        left: registers::<E, R>(FRAGMENTS),
        right: registers::<E, R>(comptime![2 * right_fragments(&cfg)]),
    };
    let early = comptime![!reads_late(&cfg)];
    read_right(&mut fragments, readers, &*memory, stage, 0usize, cfg);
    if comptime![early] {
        #[unroll]
        for row in 0..FRAGMENTS {
            read_left(&mut fragments, readers, &*memory, stage, comptime![(0, row)], cfg);
        }
    }

    #[unroll]
    for step in 0..STEPS {
        let right = right_operands::<E, R>(&fragments, step, cfg);
        if comptime![early && step + 1 < STEPS] {
            read_right(&mut fragments, readers, &*memory, stage, comptime![step + 1], cfg);
        }
        if comptime![step < PARTS] {
            load_part(&*loads, matrices, memory, sizes, step, cfg);
        }
        #[unroll]
        for row in 0..FRAGMENTS {
            if comptime![!early && row % 2 == 0] {
                read_left(&mut fragments, readers, &*memory, stage, comptime![(step, row)], cfg);
                read_left(&mut fragments, readers, &*memory, stage, comptime![(step, row + 1)], cfg);
            }
            multiply_row::<E, R>(acc, fragments.left.index(row), &right, row, cfg);
            if comptime![early && step + 1 < STEPS] {
                read_left(&mut fragments, readers, &*memory, stage, comptime![(step + 1, row)], cfg);
            }
        }
        if comptime![!early && step + 1 < STEPS] {
            read_right(&mut fragments, readers, &*memory, stage, comptime![step + 1], cfg);
        }
    }
    end_load(loads, sizes, cfg);
}

/// Reads the right fragments of step `step` of `stage`.
#[cube]
fn read_right<E: Float, N: Size, R: Size>(
    fragments: &mut Fragments<E, R>,
    readers: &Readers,
    memory: &Memory<E, N>,
    stage: u32,
    #[comptime] step: usize,
    #[comptime] cfg: GemmConfig,
) {
    let tile = stage * comptime![(cfg.tile_n * LINE) as u32];
    let first = comptime![step % 2 * right_fragments(&cfg)];

    if comptime![reads_words(&cfg, cfg.b_is_mn_major())] {
        #[unroll]
        for pair in 0..comptime![right_fragments(&cfg) / 2] {
            let panel = tile + comptime![(pair * cfg.tile_k() * LINE) as u32];
            let read = fragments_across::<E, N, R>(&memory.b, panel, &readers.right, step, false);
            keep(fragments.right.index_mut(comptime![first + 2 * pair]), &read, 0usize);
            keep(fragments.right.index_mut(comptime![first + 2 * pair + 1]), &read, 4usize);
        }
    } else {
        #[unroll]
        for i in 0..comptime![right_fragments(&cfg)] {
            let read = fragment::<E, N, R>(&memory.b, tile, &readers.right, i, step);
            keep(fragments.right.index_mut(comptime![first + i]), &read, 0usize);
        }
    }
}

/// Reads the left fragment of step and row `place` of `stage`; or, with the second of two rows, both if they are read at once.
#[cube]
fn read_left<E: Float, N: Size, R: Size>(
    fragments: &mut Fragments<E, R>,
    readers: &Readers,
    memory: &Memory<E, N>,
    stage: u32,
    #[comptime] place: (usize, usize),
    #[comptime] cfg: GemmConfig,
) {
    let (step, row) = comptime![place];
    let tile = stage * comptime![(TILE_M * LINE) as u32];
    if comptime![!reads_words(&cfg, cfg.a_is_mn_major())] {
        let read = fragment::<E, N, R>(&memory.a, tile, &readers.left, row, step);
        keep(fragments.left.index_mut(row), &read, 0usize);
    } else if comptime![row % 2 == 1] {
        let panel = tile + comptime![(row / 2 * cfg.tile_k() * LINE) as u32];
        let read = fragments_across::<E, N, R>(&memory.a, panel, &readers.left, step, true);
        keep(fragments.left.index_mut(comptime![row - 1]), &read, 0usize);
        keep(fragments.left.index_mut(row), &read, 4usize);
    }
}

/// Copies a fragment: four registers of `from`, from `first` on.
#[cube]
fn keep<E: Float, R: Size>(to: &mut Array<Vector<E, R>>, from: &Array<Vector<E, R>>, #[comptime] first: usize) {
    #[unroll]
    for i in 0..4usize {
        to[i] = from[comptime![first + i]];
    }
}

/// Returns the right fragments of step `step`, by eight columns.
#[cube]
fn right_operands<E: Float, R: Size>(
    fragments: &Fragments<E, R>,
    #[comptime] step: usize,
    #[comptime] cfg: GemmConfig,
) -> Sequence<Operand<E, R>> {
    let mut right = Sequence::<Operand<E, R>>::new();
    #[unroll]
    for j in 0..comptime![across(&cfg)] {
        let fragment = fragments.right.index(comptime![step % 2 * right_fragments(&cfg) + j / 2]);
        right.push(right_operand::<E, R>(fragment, comptime![j % 2], comptime![cfg.arithmetic]));
    }
    right
}

/// Multiplies left fragment `row` of a step with its right ones.
#[cube]
fn multiply_row<E: Float, R: Size>(
    acc: &mut Sequence<Array<Pair<f32>>>,
    left: &Array<Vector<E, R>>,
    right: &Sequence<Operand<E, R>>,
    #[comptime] row: usize,
    #[comptime] cfg: GemmConfig,
) {
    let left = left_operand::<E, R>(left, comptime![cfg.arithmetic]);
    #[unroll]
    for j in 0..comptime![across(&cfg)] {
        let at = comptime![row * across(&cfg) + j];
        multiply_as::<E, R>(acc.index_mut(at), &left, right.index(j), comptime![cfg.arithmetic]);
    }
}
