//! The load warp: fills the stages with the operands' K tiles, by TMA. It runs ahead of the multiply warps as far as there are
//! free stages, across the boundaries of output tiles.

use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;

use super::memory::Memory;
use crate::gpu::pipeline::{Phases, Pipeline, phases, wait_next};
use crate::linear::gpu::shared::arguments::Operands;
use crate::linear::gpu::shared::config::{GemmConfig, PANEL, TILE_M, box_rows};
use crate::linear::gpu::shared::schedule::{Schedule, WorkTile, next_wave, take_tile};

/// Loads the operands of every tile of the schedule.
#[cube]
pub(crate) fn run<E: Float>(
    operands: &Operands<E>,
    memory: &mut Memory<E>,
    stages: &Pipeline,
    schedule: &mut Schedule,
    #[comptime] cfg: GemmConfig,
) {
    if UNIT_POS_PLANE == 0 {
        let mut free = phases(1u32);
        #[unroll]
        for wave in 0..comptime![cfg.waves()] {
            let cfg = comptime![cfg.wave(wave)];
            while schedule.next < schedule.end {
                let tile = take_tile(schedule, cfg);
                load_tile(operands, memory, stages, &mut free, &tile, cfg);
            }
            next_wave(schedule, cfg);
        }
    }
}

/// Loads the K tiles of an output tile, from stage 0 on.
#[cube]
fn load_tile<E: Float>(
    operands: &Operands<E>,
    memory: &mut Memory<E>,
    stages: &Pipeline,
    free: &mut Phases,
    tile: &WorkTile,
    #[comptime] cfg: GemmConfig,
) {
    let n_stages = comptime![cfg.stages as u32];
    let laps = (tile.to - tile.from) / n_stages;
    for lap in 0..laps {
        #[unroll]
        for stage in 0..comptime![cfg.stages] {
            let k_tile = tile.from + lap * n_stages + comptime![stage as u32];
            load_stage(operands, memory, stages, free, tile, k_tile, stage, cfg);
        }
    }

    if comptime![cfg.ragged] {
        let done = tile.from + laps * n_stages;
        #[unroll]
        for stage in 0..comptime![cfg.stages - 1] {
            let k_tile = done + comptime![stage as u32];
            if k_tile < tile.to {
                load_stage(operands, memory, stages, free, tile, k_tile, stage, cfg);
            }
        }
    }
}

/// Loads K tile `k_tile` of both operands into stage `stage`, once that is free.
#[cube]
fn load_stage<E: Float>(
    operands: &Operands<E>,
    memory: &mut Memory<E>,
    stages: &Pipeline,
    free: &mut Phases,
    tile: &WorkTile,
    k_tile: u32,
    #[comptime] stage: usize,
    #[comptime] cfg: GemmConfig,
) {
    wait_next(stages.free.index(stage), free, stage);

    let loaded = stages.loaded.index(stage);
    loaded.arrive_and_expect_tx(1, comptime![cfg.stage_bytes()]);
    let tile_k = comptime![cfg.tile_k()];
    let at_a = comptime![stage * TILE_M * tile_k];
    let at_b = comptime![stage * cfg.tile_n * tile_k];
    let k = k_tile * comptime![tile_k as u32];
    let (b_row, b_k) = place_in_b(tile, k, cfg);
    load_operand(
        &operands.a,
        loaded,
        &mut memory.a[at_a..comptime![at_a + TILE_M * tile_k]],
        tile.row0,
        k,
        TILE_M,
        tile_k,
        comptime![cfg.a_is_mn_major()],
    );
    load_operand(
        &operands.b,
        loaded,
        &mut memory.b[at_b..comptime![at_b + cfg.columns * tile_k]],
        b_row,
        b_k,
        comptime![cfg.columns],
        tile_k,
        comptime![cfg.b_is_mn_major()],
    );
}

/// Returns row and K of the second operand, which begin behind the operands of the products before this tile's.
#[cube]
fn place_in_b(tile: &WorkTile, k: u32, #[comptime] cfg: GemmConfig) -> (u32, u32) {
    let (mut row, mut of_k) = (tile.col0, k);
    if comptime![cfg.batch.is_some()] {
        let [rows, b_rows] = comptime![cfg.batch.map_or([1, 0], |batch| [batch.rows as u32, batch.b_rows as u32])];
        let before = tile.row0 / rows * b_rows;
        if comptime![cfg.b_is_mn_major()] {
            of_k += before;
        } else {
            row += before;
        }
    }
    (row, of_k)
}

/// Loads `rows` x `tile_k` elements of an operand at (`row`, `k`): a box per 128 or 96 rows of a matrix `[rows, K]`, or a box per
/// panel of 64 rows of a matrix `[K, rows]`.
#[cube]
fn load_operand<E: Float>(
    map: &TensorMap<E, Tiled>,
    loaded: &Barrier,
    stage: &mut [E],
    row: u32,
    k: u32,
    #[comptime] rows: usize,
    #[comptime] tile_k: usize,
    #[comptime] mn_major: bool,
) {
    // Boxes have their rows along the operand's rows in memory.
    if comptime![mn_major] {
        #[unroll]
        for panel in 0..comptime![rows / PANEL] {
            let start = panel * comptime![PANEL * tile_k];

            loaded.tma_load_2d(
                map,
                &mut stage[start..start + comptime![PANEL * tile_k]],
                k as i32,
                (row + comptime![(panel * PANEL) as u32]) as i32,
            );
        }
    } else {
        #[unroll]
        for nth in 0..comptime![rows / box_rows(rows)] {
            let start = nth * comptime![box_rows(rows) * tile_k];
            loaded.tma_load_2d(
                map,
                &mut stage[start..start + comptime![box_rows(rows) * tile_k]],
                (row + comptime![(nth * box_rows(rows)) as u32]) as i32,
                k as i32,
            );
        }
    }
}
