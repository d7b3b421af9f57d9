//! The products of a warp: 64 x 64 results in its registers.

use cubecl::prelude::*;

use super::super::config::{GemmConfig, TILE_K, TILE_M};
use super::load::{Loads, PARTS, end_load, load_part};
use super::{Matrices, Memory, Sizes, WARP_TILE};
use crate::gpu::async_copy::wait;
use crate::gpu::mma::{EDGE, K_STEP, LINE, Pair, Reader, fragment, left_reader, multiply, right_reader, zeroed};

/// Fragments across the results of a warp, on either side.
pub(super) const FRAGMENTS: usize = WARP_TILE / EDGE;
/// Products of 16 x 8 across the results of a warp.
pub(super) const ACROSS: usize = WARP_TILE / 8;
const STEPS: usize = TILE_K / K_STEP;

/// Where this lane reads the fragments of both operands.
#[derive(CubeType)]
pub(super) struct Readers {
    left: Reader,
    right: Reader,
}

/// The fragments of a step of K. The next step's replaces a left one as soon as its row has been multiplied; the right
/// ones, which all rows need, have registers for two steps.
#[derive(CubeType)]
struct Fragments<E: Float> {
    left: Sequence<Array<Pair<E>>>,
    right: Sequence<Array<Pair<E>>>,
}

/// Returns row and column of a warp's results within the block's tile.
#[cube]
pub(super) fn warp_origin(#[comptime] cfg: GemmConfig) -> (u32, u32) {
    // The same number on every lane; the broadcast tells the assembler so.
    let warp = plane_broadcast(UNIT_POS / 32, 0u32);
    let across = comptime![(cfg.tile_n / WARP_TILE) as u32];
    (warp / across * comptime![WARP_TILE as u32], warp % across * comptime![WARP_TILE as u32])
}

/// Returns the readers of this lane.
#[cube]
pub(super) fn readers(#[comptime] cfg: GemmConfig) -> Readers {
    let (row, col) = warp_origin(cfg);
    Readers {
        left: left_reader(row, comptime![cfg.a_is_mn_major()]),
        right: right_reader(col, comptime![cfg.b_is_mn_major()]),
    }
}

/// Returns registers for `n` fragments.
#[cube]
fn registers<E: Float>(#[comptime] n: usize) -> Sequence<Array<Pair<E>>> {
    let mut fragments = Sequence::<Array<Pair<E>>>::new();
    #[unroll]
    for _ in 0..n {
        fragments.push(Array::<Pair<E>>::new(4usize));
    }
    fragments
}

/// Returns a lane's share of 64 x 64 zeros, in matrices of 16 x 8, row by row.
#[cube]
pub(super) fn zeroed_accumulator() -> Sequence<Array<Pair<f32>>> {
    let mut acc = Sequence::<Array<Pair<f32>>>::new();
    #[unroll]
    for _ in 0..comptime![FRAGMENTS * ACROSS] {
        acc.push(zeroed());
    }
    acc
}

/// Multiplies the K tile in stage `stage`, and starts to load the one that comes next.
#[cube]
pub(super) fn multiply_k_tile<E: Float>(
    acc: &mut Sequence<Array<Pair<f32>>>,
    readers: &Readers,
    loads: &mut Loads,
    matrices: &Matrices<E>,
    memory: &mut Memory<E>,
    sizes: &Sizes,
    stage: u32,
    #[comptime] cfg: GemmConfig,
) {
    // The K tile is there, and no warp reads the one before it any more.
    wait(comptime![cfg.stages - 2]);
    sync_cube();
    let mut fragments =
        Fragments::<E> { left: registers::<E>(FRAGMENTS), right: registers::<E>(comptime![2 * FRAGMENTS]) };
    read_right(&mut fragments, readers, &*memory, stage, 0usize, cfg);
    #[unroll]
    for row in 0..FRAGMENTS {
        read_left(&mut fragments, readers, &*memory, stage, 0usize, row);
    }

    #[unroll]
    for step in 0..STEPS {
        if comptime![step + 1 < STEPS] {
            read_right(&mut fragments, readers, &*memory, stage, comptime![step + 1], cfg);
        }
        if comptime![step < PARTS] {
            load_part(&*loads, matrices, memory, sizes, step, cfg);
        }
        #[unroll]
        for row in 0..FRAGMENTS {
            multiply_row(acc, &fragments, step, row);
            if comptime![step + 1 < STEPS] {
                read_left(&mut fragments, readers, &*memory, stage, comptime![step + 1], row);
            }
        }
    }
    end_load(loads, sizes, cfg);
}

/// Reads the right fragments of step `step` of `stage`.
#[cube]
fn read_right<E: Float>(
    fragments: &mut Fragments<E>,
    readers: &Readers,
    memory: &Memory<E>,
    stage: u32,
    #[comptime] step: usize,
    #[comptime] cfg: GemmConfig,
) {
    let tile = stage * comptime![(cfg.tile_n * LINE) as u32];
    #[unroll]
    for i in 0..FRAGMENTS {
        let read = fragment::<E>(&memory.b, tile, &readers.right, i, step);
        keep(fragments.right.index_mut(comptime![step % 2 * FRAGMENTS + i]), &read);
    }
}

/// Reads the left fragment of row `row` of step `step` of `stage`.
#[cube]
fn read_left<E: Float>(
    fragments: &mut Fragments<E>,
    readers: &Readers,
    memory: &Memory<E>,
    stage: u32,
    #[comptime] step: usize,
    #[comptime] row: usize,
) {
    let read = fragment::<E>(&memory.a, stage * comptime![(TILE_M * LINE) as u32], &readers.left, row, step);
    keep(fragments.left.index_mut(row), &read);
}

/// Copies a fragment.
#[cube]
fn keep<E: Float>(to: &mut Array<Pair<E>>, from: &Array<Pair<E>>) {
    #[unroll]
    for i in 0..4usize {
        to[i] = from[i];
    }
}

/// Multiplies row `row` of the fragments of step `step`.
#[cube]
fn multiply_row<E: Float>(
    acc: &mut Sequence<Array<Pair<f32>>>,
    fragments: &Fragments<E>,
    #[comptime] step: usize,
    #[comptime] row: usize,
) {
    let left = fragments.left.index(row);
    #[unroll]
    for j in 0..ACROSS {
        let right = fragments.right.index(comptime![step % 2 * FRAGMENTS + j / 2]);
        multiply::<E>(acc.index_mut(comptime![row * ACROSS + j]), left, right, comptime![j % 2]);
    }
}
