//! The multiply warps: two warpgroups, each of which multiplies 64 rows of a tile by all its columns with wgmma.
//!
//! A warpgroup issues the products of stage `n + 1` while stage `n` still multiplies. It then waits for stage `n` and
//! frees it.

use cubecl::prelude::*;

use super::epilogue::{lane_bias, write_panels};
use super::memory::{Memory, Pipelines};
use super::store::store_sums;
use crate::gpu::pipeline::{Phases, Pipeline, phases, wait_next};
use crate::gpu::wgmma::{
    STEP_BYTES, at_row, commit, descriptor, fence, multiply_described, multiply_fp8, pin, wait, zeros,
};
use crate::linear::gpu::shared::arguments::GemmSize;
use crate::linear::gpu::shared::config::{GemmConfig, TILE_M};
use crate::linear::gpu::shared::schedule::{Schedule, next_wave, take_tile};
use crate::linear::gpu::shared::vectors::Pair;

/// Multiplies every tile of the schedule, and passes the results on: as panels, or as f32 sums straight to `sums`.
#[cube]
pub(super) fn run<E: Float>(
    memory: &mut Memory<E>,
    pipelines: &Pipelines,
    schedule: &mut Schedule,
    sums: &mut [Pair<f32>],
    bias: &[Pair<E>],
    size: &GemmSize,
    warpgroup: u32,
    #[comptime] cfg: GemmConfig,
) {
    let a = descriptor::<E>(&memory.a, comptime![cfg.a_tile()]);
    let b = descriptor::<E>(&memory.b, comptime![cfg.b_tile()]);
    let row = warpgroup as usize * 64;
    let mut loaded = phases(0u32);
    // A panel with a residual is free for results once the residual has been loaded.
    let mut free = phases(comptime![if cfg.adds_residual() { 0u32 } else { 1u32 }]);

    #[unroll]
    for wave in 0..comptime![cfg.waves()] {
        let cfg = comptime![cfg.wave(wave)];
        while schedule.next < schedule.end {
            let tile = take_tile(schedule, cfg);
            let mut held_bias = Array::<Pair<E>>::new(comptime![cfg.panels_across()]);
            if comptime![cfg.has_bias()] {
                held_bias = lane_bias(bias, tile.col0, size.n, cfg);
            }

            let acc = multiply_tile::<E>(a, b, &pipelines.stages, &mut loaded, row, tile.to - tile.from, cfg);

            if comptime![cfg.writes_sums()] {
                let base = tile.slice as usize * size.m as usize * size.pitch as usize;
                let row0 = tile.row0 + warpgroup * 64;
                store_sums(&acc, sums, base, row0, tile.col0, size, cfg);
            } else {
                write_panels(&acc, memory, &pipelines.panels, &mut free, warpgroup, &held_bias, cfg);
            }
        }
        next_wave(schedule, cfg);
    }
}

/// Multiplies `count` K tiles, from stage 0 on, into a zeroed accumulator of 64 rows, those from `row` of the tile on.
#[cube]
pub(crate) fn multiply_tile<E: Float>(
    a: u64,
    b: u64,
    stages: &Pipeline,
    loaded: &mut Phases,
    row: usize,
    count: u32,
    #[comptime] cfg: GemmConfig,
) -> Array<f32> {
    let n_stages = comptime![cfg.stages as u32];
    let laps = count / n_stages;
    let mut acc = zeros(comptime![cfg.columns]);
    pin(&acc);
    fence();
    commit();
    for lap in 0..laps {
        #[unroll]
        for stage in 0..comptime![cfg.stages] {
            wait_next(stages.loaded.index(stage), loaded, stage);
            multiply_stage::<E>(&mut acc, a, b, row, stage, cfg);
            commit();
            // For the products of the stage before.
            wait(1usize);
            if comptime![stage == 0] {
                if lap > 0 {
                    free_stage(stages, comptime![cfg.stages - 1]);
                }
            } else {
                free_stage(stages, comptime![stage - 1]);
            }
        }
    }

    // The K tiles after the last whole lap.
    if comptime![cfg.ragged] {
        let done = laps * n_stages;
        #[unroll]
        for stage in 0..comptime![cfg.stages - 1] {
            if done + comptime![stage as u32] < count {
                wait_next(stages.loaded.index(stage), loaded, stage);
                multiply_stage::<E>(&mut acc, a, b, row, stage, cfg);
                commit();
                // For all products. Waiting for those of the stage before, as above, has not been measured here.
                wait(0usize);
                if comptime![stage == 0] {
                    if laps > 0 {
                        free_stage(stages, comptime![cfg.stages - 1]);
                    }
                } else {
                    free_stage(stages, comptime![stage - 1]);
                }
            }
        }
    }

    commit();
    wait(0usize);
    pin(&acc);
    free_last_stage(stages, count, cfg);
    acc
}

/// Issues the products of one stage, of 128 bytes of K.
#[cube]
pub(crate) fn multiply_stage<E: Float>(
    acc: &mut Array<f32>,
    a: u64,
    b: u64,
    row: usize,
    #[comptime] stage: usize,
    #[comptime] cfg: GemmConfig,
) {
    let element_bytes = comptime![16 / cfg.vector()];
    #[unroll]
    for step in 0..comptime![cfg.tile_k() * element_bytes / STEP_BYTES] {
        let of_a = at_row(a, row + comptime![stage * TILE_M], step, comptime![cfg.a_tile()], element_bytes);
        let of_b = at_row(b, comptime![stage * cfg.tile_n], step, comptime![cfg.b_tile()], element_bytes);

        if comptime![cfg.is_fp8()] {
            multiply_fp8(acc, of_a, of_b, comptime![cfg.columns], comptime![cfg.formats()]);
        } else {
            multiply_described::<E>(
                acc,
                of_a,
                of_b,
                comptime![STEP_BYTES / element_bytes],
                comptime![cfg.columns],
                comptime![cfg.a_tile().major],
                comptime![cfg.b_tile().major],
            );
        }
    }
}

/// Frees `stage` on behalf of this warp.
#[cube]
pub(crate) fn free_stage(stages: &Pipeline, #[comptime] stage: usize) {
    if UNIT_POS_PLANE == 0 {
        stages.free.index(stage).arrive();
    }
}

/// Frees the stage of the last of `count` K tiles.
#[cube]
fn free_last_stage(stages: &Pipeline, count: u32, #[comptime] cfg: GemmConfig) {
    if comptime![cfg.ragged] {
        let last = (count - 1) % comptime![cfg.stages as u32];
        #[unroll]
        for stage in 0..comptime![cfg.stages] {
            if last == comptime![stage as u32] {
                free_stage(stages, stage);
            }
        }
    } else {
        free_stage(stages, comptime![cfg.stages - 1]);
    }
}
