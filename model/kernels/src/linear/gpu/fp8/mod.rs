//! Products in FP8 on Hopper: the roles, stages and epilogues of the 16-bit kernel, whose operands are rounded first.
//!
//! `wgmma` multiplies FP8 at twice the rate of 16 bits, of operands along K only: [`round`] transposes while it rounds.
//! An element of 16 bits in the stages holds two numbers, so that a stage has 128 of them along K in place of 64.
//!
//! The tensor cores keep sums of FP8 products to about 14 bits (DeepSeek-V3, arXiv 2412.19437, section 3.3.2). Forward takes
//! them as they are. Gradients are added up in f32 after each lap over the stages. Their tiles have 128 columns, since a thread keeps
//! two sums for each result.

mod launch;
mod round;
#[cfg(test)]
pub(super) mod tests;

use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;
pub(super) use launch::{Operand, launch};
pub(super) use round::rounded;

use crate::fp8::adds_up;
use crate::gpu::pipeline::{Phases, Pipeline, phases, pipeline, wait_next};
use crate::gpu::wgmma::{commit, descriptor, fence, pin, wait, zeros};
use crate::linear::gpu::hopper::epilogue::{self, lane_bias, write_panels};
use crate::linear::gpu::hopper::memory::{Memory, Pipelines, allocate};
use crate::linear::gpu::hopper::multiply::{free_stage, multiply_stage, multiply_tile};
use crate::linear::gpu::hopper::{load, store};
use crate::linear::gpu::shared::arguments::{GemmSize, Operands, Results, SplitKSize};
use crate::linear::gpu::shared::config::{EPILOGUE_THREADS, GemmConfig, WARPGROUPS};
use crate::linear::gpu::shared::schedule::{Schedule, first_wave, next_wave, take_tile};
use crate::linear::gpu::shared::vectors::Pair;

/// What undoes the scaling of both operands.
#[derive(CubeType, CubeLaunch)]
struct Scales {
    a: Box<[f32]>,
    b: Box<[f32]>,
}

/// `c = a · bᵀ` of `a` `[M, K]` and `b` `[N, K]`, with the epilogue of `cfg`, in the dtype `E`.
#[cube(launch_unchecked)]
fn gemm_fp8<E: Float>(
    operands: &Operands<E>,
    results: &mut Results<E>,
    scales: &Scales,
    bias: &[Pair<E>],
    size: GemmSize,
    split_k: SplitKSize,
    #[comptime] cfg: GemmConfig,
    #[define(E)] _dtype: ElemType,
) {
    let mut memory = allocate::<E>(cfg);
    let epilogue_done = Barrier::shared_uninit();
    if UNIT_POS == 0 {
        epilogue_done.init_manual(EPILOGUE_THREADS);
    }
    let stages = pipeline(comptime![cfg.stages], 1u32, comptime![4 * WARPGROUPS]);
    let panels = pipeline(comptime![cfg.panel_groups()], comptime![4 * WARPGROUPS], 1u32);
    let pipelines = Pipelines { stages, panels };
    sync_async_proxy_shared();
    sync_cube();

    let mut schedule = first_wave(&size, split_k, cfg);

    // The same number on every lane; the broadcast tells the assembler so.
    let warp = plane_broadcast(UNIT_POS / 32, 0u32);
    let warpgroup = warp / 4;
    if warpgroup < WARPGROUPS {
        let scale = scales.a[0] * scales.b[0];
        multiply(&mut memory, &pipelines, &mut schedule, scale, bias, &size, warpgroup, cfg);
    } else if warp == comptime![4 * WARPGROUPS] {
        load::run(operands, &mut memory, &pipelines.stages, &mut schedule, cfg);
    } else if comptime![cfg.has_epilogue_warps()] {
        epilogue::run(&mut memory, results, &pipelines.panels, &epilogue_done, &mut schedule, cfg);
    } else {
        store::run(&mut memory, results, &pipelines.panels, &mut schedule, cfg);
    }
}

/// The multiply warps.
#[cube]
fn multiply<E: Float>(
    memory: &mut Memory<E>,
    pipelines: &Pipelines,
    schedule: &mut Schedule,
    scale: f32,
    bias: &[Pair<E>],
    size: &GemmSize,
    warpgroup: u32,
    #[comptime] cfg: GemmConfig,
) {
    let a = descriptor::<E>(&memory.a, comptime![cfg.a_tile()]);
    let b = descriptor::<E>(&memory.b, comptime![cfg.b_tile()]);
    let row = warpgroup as usize * 64;
    let mut loaded = phases(0u32);
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

            let mut sums = if comptime![adds_up(cfg.formats())] {
                add_up_tile::<E>(a, b, &pipelines.stages, &mut loaded, row, tile.to, cfg)
            } else {
                multiply_tile::<E>(a, b, &pipelines.stages, &mut loaded, row, tile.to, cfg)
            };
            scale_by(&mut sums, scale, cfg);
            write_panels(&sums, memory, &pipelines.panels, &mut free, warpgroup, &held_bias, cfg);
        }
        next_wave(schedule, cfg);
    }
}

#[cube]
fn scale_by(sums: &mut Array<f32>, scale: f32, #[comptime] cfg: GemmConfig) {
    #[unroll]
    for i in 0..comptime![cfg.columns / 2] {
        sums[i] *= scale;
    }
}

/// [`multiply_tile`], whose sums over each lap of the stages are added in f32.
#[cube]
fn add_up_tile<E: Float>(
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
    let mut total = zeros(comptime![cfg.columns]);
    for _ in 0..laps {
        let mut acc = zeros(comptime![cfg.columns]);
        pin(&acc);
        fence();
        #[unroll]
        for stage in 0..comptime![cfg.stages] {
            wait_next(stages.loaded.index(stage), loaded, stage);
            multiply_stage::<E>(&mut acc, a, b, row, stage, cfg);
            commit();
            if comptime![stage > 0] {
                wait(1usize);
                free_stage(stages, comptime![stage - 1]);
            }
        }
        wait(0usize);
        pin(&acc);
        free_stage(stages, comptime![cfg.stages - 1]);
        add(&mut total, &acc, cfg);
    }

    // The K tiles after the last whole lap.
    if comptime![cfg.ragged] {
        let done = laps * n_stages;
        let mut acc = zeros(comptime![cfg.columns]);
        pin(&acc);
        fence();
        #[unroll]
        for stage in 0..comptime![cfg.stages - 1] {
            if done + comptime![stage as u32] < count {
                wait_next(stages.loaded.index(stage), loaded, stage);
                multiply_stage::<E>(&mut acc, a, b, row, stage, cfg);
                commit();
                wait(0usize);
                free_stage(stages, stage);
            }
        }
        commit();
        wait(0usize);
        pin(&acc);
        add(&mut total, &acc, cfg);
    }
    total
}

#[cube]
fn add(total: &mut Array<f32>, acc: &Array<f32>, #[comptime] cfg: GemmConfig) {
    #[unroll]
    for i in 0..comptime![cfg.columns / 2] {
        total[i] += acc[i];
    }
}
