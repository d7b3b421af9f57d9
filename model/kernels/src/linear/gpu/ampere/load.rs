//! The loads: all threads of the block copy the operands' K tiles into the stages, and run ahead of the products.
//!
//! A copy between products costs them issue slots and registers. So everything that holds for an output tile is computed once, see
//! [`Source`], and no branch surrounds a copy: past the last K tile, a copy is of no bytes.

use cubecl::prelude::*;

use super::{Matrices, Memory, Sizes, threads};
use crate::gpu::async_copy::{commit, copy};
use crate::gpu::mma::{LINE, place_in_tile};
use crate::gpu::mma_f32::{Arithmetic, place_across};
use crate::linear::gpu::shared::arguments::SplitKSize;
use crate::linear::gpu::shared::config::{GemmConfig, TILE_M};
use crate::linear::gpu::shared::schedule::{Schedule, first_wave, take_tile};

/// Parts in which a K tile is loaded, between the products of its steps.
pub(super) const PARTS: usize = 3;

/// The next K tile to load.
#[derive(CubeType)]
pub(super) struct Loads {
    schedule: Schedule,
    a: Source,
    b: Source,
    k_tile: u32,
    /// One past the last K tile of the output tile. If it equals `k_tile`, there is nothing left to load.
    end: u32,
    stage: u32,
}

/// Where this thread's first copy of an operand's K tile begins in memory, in vectors, and what it may copy.
///
/// `inside` has a bit per copy of an operand along K, set if its row exists. Of one across K it has, per panel, what of the thread's
/// vector belongs to the matrix: a byte with the bytes of 16-bit elements, or four bits with the elements of f32.
#[derive(CubeType)]
struct Source {
    from: u32,
    inside: u32,
}

/// Returns the loads of a block, before its first K tile.
#[cube]
pub(super) fn loads(sizes: &Sizes, split_k: SplitKSize, #[comptime] cfg: GemmConfig) -> Loads {
    let zero = 0u32.runtime();
    let (a, b) = (Source { from: zero, inside: zero }, Source { from: zero, inside: zero });
    let mut loads =
        Loads { schedule: first_wave(&sizes.product, split_k, cfg), a, b, k_tile: zero, end: zero, stage: zero };
    next_tile(&mut loads, sizes, cfg);
    loads
}

/// Moves on to the next output tile, if there is one.
#[cube]
fn next_tile(loads: &mut Loads, sizes: &Sizes, #[comptime] cfg: GemmConfig) {
    if loads.schedule.next < loads.schedule.end {
        let tile = take_tile(&mut loads.schedule, cfg);
        let (of_a, of_b) = comptime![(cfg.a_is_mn_major(), cfg.b_is_mn_major())];
        begin(&mut loads.a, sizes.pitches.a, tile.row0, sizes.product.m, tile.from, TILE_M, of_a, cfg);
        begin(&mut loads.b, sizes.pitches.b, tile.col0, sizes.product.n, tile.from, comptime![cfg.tile_n], of_b, cfg);
        loads.k_tile = tile.from;
        loads.end = tile.to;
    }
}

/// Returns line and vector of the thread's first copy in a tile.
#[cube]
fn first_place() -> (u32, u32) {
    (UNIT_POS / 8, UNIT_POS % 8)
}

/// Returns the lines that the threads of a block copy at once.
fn lines_at_once(cfg: &GemmConfig) -> usize {
    threads(cfg) as usize / LINE
}

/// Sets `source` to K tile `k_tile` of the rows from `row0` on, of `rows`.
#[cube]
fn begin(
    source: &mut Source,
    pitch: u32,
    row0: u32,
    rows: u32,
    k_tile: u32,
    #[comptime] tile_rows: usize,
    #[comptime] across: bool,
    #[comptime] cfg: GemmConfig,
) {
    let (line, vector) = first_place();
    let (elements, tile_k) = comptime![(cfg.vector() as u32, cfg.tile_k() as u32)];

    let mut inside = 0u32;
    if comptime![across] {
        source.from = (k_tile * tile_k + line) * (pitch / elements) + row0 / elements + vector;
        #[unroll]
        for panel in 0..comptime![tile_rows / cfg.tile_k()] {
            let row = row0 + vector * elements + comptime![(panel * cfg.tile_k()) as u32];
            let existing = select(row < rows, min(rows - row, elements.runtime()), 0u32);
            if comptime![cfg.is_f32()] {
                inside |= existing << comptime![4 * panel as u32];
            } else {
                inside |= (2 * existing) << comptime![8 * panel as u32];
            }
        }
    } else {
        source.from = (row0 + line) * (pitch / elements) + k_tile * comptime![LINE as u32] + vector;
        let at_once = comptime![lines_at_once(&cfg)];
        #[unroll]
        for turn in 0..comptime![tile_rows / at_once] {
            let row = row0 + line + comptime![(turn * at_once) as u32];
            inside |= u32::cast_from(row < rows) << comptime![turn as u32];
        }
    }

    source.inside = inside;
}

/// A copy of all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Turn {
    nth: usize,
    /// Of the operand in a tile.
    rows: usize,
    across: bool,
    lines_at_once: usize,
    arithmetic: Arithmetic,
}

/// Loads the next K tile as a group. Where none is left, the group copies nothing.
#[cube]
pub(super) fn load_next<E: Float, N: Size>(
    loads: &mut Loads,
    matrices: &Matrices<E, N>,
    memory: &mut Memory<E, N>,
    sizes: &Sizes,
    #[comptime] cfg: GemmConfig,
) {
    #[unroll]
    for part in 0..PARTS {
        load_part(&*loads, matrices, memory, sizes, part, cfg);
    }
    end_load(loads, sizes, cfg);
}

/// Starts the copies of part `part` of the next K tile.
#[cube]
pub(super) fn load_part<E: Float, N: Size>(
    loads: &Loads,
    matrices: &Matrices<E, N>,
    memory: &mut Memory<E, N>,
    sizes: &Sizes,
    #[comptime] part: usize,
    #[comptime] cfg: GemmConfig,
) {
    // The elements of K that are left, from this K tile on.
    let k0 = loads.k_tile * comptime![cfg.tile_k() as u32];
    let k = select(loads.k_tile < loads.end, sizes.pitches.k - k0, 0u32);
    let lines_at_once = comptime![lines_at_once(&cfg)];
    let of_a = comptime![TILE_M / lines_at_once];
    let turns = comptime![of_a + cfg.tile_n / lines_at_once];

    #[unroll]
    for turn in comptime![part * turns / PARTS]..comptime![(part + 1) * turns / PARTS] {
        if comptime![turn < of_a] {
            let across = comptime![cfg.a_is_mn_major()];
            let turn = comptime![Turn { nth: turn, rows: TILE_M, across, lines_at_once, arithmetic: cfg.arithmetic }];
            copy_turn(&matrices.a, &mut memory.a, &loads.a, sizes.pitches.a, loads.stage, k, turn);
        } else {
            let across = comptime![cfg.b_is_mn_major()];
            let turn = comptime![Turn {
                nth: turn - of_a,
                rows: cfg.tile_n,
                across,
                lines_at_once,
                arithmetic: cfg.arithmetic
            }];
            copy_turn(&matrices.b, &mut memory.b, &loads.b, sizes.pitches.b, loads.stage, k, turn);
        }
    }
}

/// Ends the group of copies, and moves on to the K tile after it.
#[cube]
pub(super) fn end_load(loads: &mut Loads, sizes: &Sizes, #[comptime] cfg: GemmConfig) {
    commit();
    loads.stage = select(loads.stage == comptime![cfg.stages as u32 - 1], 0u32, loads.stage + 1);
    advance(&mut loads.a, sizes.pitches.a, comptime![cfg.a_is_mn_major()]);
    advance(&mut loads.b, sizes.pitches.b, comptime![cfg.b_is_mn_major()]);
    loads.k_tile += u32::cast_from(loads.k_tile < loads.end);
    if loads.k_tile == loads.end {
        next_tile(loads, sizes, cfg);
    }
}

/// Moves `source` on by a K tile: as many lines, or vectors of a line.
#[cube]
fn advance(source: &mut Source, pitch: u32, #[comptime] across: bool) {
    source.from += if comptime![across] { pitch * comptime![LINE as u32] } else { comptime![LINE as u32].runtime() };
}

/// Starts a copy of a K tile of an operand, of which `k` elements are left, into stage `stage`. What lies beyond the matrix
/// becomes 0.
#[cube]
fn copy_turn<E: Float, N: Size>(
    operand: &[Vector<E, N>],
    memory: &mut Shared<[Vector<E, N>]>,
    source: &Source,
    pitch: u32,
    stage: u32,
    k: u32,
    #[comptime] turn: Turn,
) {
    let (line, vector) = first_place();
    // Lines of the tile before this one.
    let nth = comptime![turn.nth * turn.lines_at_once];
    let (elements, tile_k) = comptime![(turn.arithmetic.vector() as u32, turn.arithmetic.line())];
    let element_bytes = comptime![16 / elements];
    let place = if comptime![turn.across && turn.arithmetic.is_f32()] {
        place_across(line, vector)
    } else {
        place_in_tile(line, vector)
    };
    let to = stage * comptime![(turn.rows * LINE) as u32] + place + comptime![(nth * LINE) as u32];

    let (from, bytes) = if comptime![turn.across] {
        let (down, panel) = comptime![((nth % tile_k) as u32, (nth / tile_k) as u32)];
        let inside = if comptime![turn.arithmetic.is_f32()] {
            4 * (source.inside >> comptime![4 * panel] & 0xf)
        } else {
            source.inside >> comptime![8 * panel] & 0xff
        };
        (source.from + pitch / elements * down + comptime![panel * LINE as u32], select(line + down < k, inside, 0u32))
    } else {
        let left = element_bytes * select(vector * elements < k, min(k - vector * elements, elements.runtime()), 0u32);
        let inside = source.inside & comptime![1u32 << turn.nth];
        (source.from + pitch / elements * comptime![nth as u32], select(inside != 0, left, 0u32))
    };
    let (from, to) = (from as usize, to as usize);
    copy(&operand[from..from + 1], &mut memory[to..to + 1], bytes);
}
