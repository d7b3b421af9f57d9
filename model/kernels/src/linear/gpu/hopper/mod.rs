//! The 16-bit GEMM on Hopper: TMA, wgmma, warp specialization, a persistent grid.
//!
//! A block computes output tiles until its [`schedule`](super::shared::schedule) is empty. Its warps have four roles:
//!
//! ```text
//! warps     role       what it does                                              waits for         signals
//! 8         load       K tiles of A and B  -- TMA -->  stage s                   stages.free[s]    stages.loaded[s]
//! 0-7       multiply   stage s  -- wgmma -->  registers                          stages.loaded[s]  stages.free[s]
//!                      registers  -- bias, ReLU, residual -->  panel group g     panels.free[g]    panels.loaded[g]
//! 9         store      panel group g  -- TMA -->  C;  next residual  -- TMA --> g  panels.loaded[g]  panels.free[g]
//! 9-11      epilogue   panel group g  -- activation -->  panels  -- TMA -->  C   panels.loaded[g]  panels.free[g]
//! ```
//!
//! Warp 9 stores, or warps 9 to 11 apply an activation and store, or neither exists and the multiply warps write f32 sums.
//! Either way the results of one tile leave while the next tile is multiplied. [`memory`] has a picture of shared memory,
//! [`epilogue`] says where a new epilogue goes.
//!
//! TMA reads rows, columns and K beyond the matrices as zeros, and does not write them.

pub(super) mod accumulator;
pub(super) mod epilogue;
mod launch;
pub(super) mod load;
pub(super) mod memory;
pub(super) mod multiply;
mod residual;
pub(super) mod store;
#[cfg(test)]
pub(super) mod tests;

use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;
pub(super) use launch::launch;

use crate::gpu::pipeline::pipeline;
use crate::linear::gpu::shared::arguments::{GemmSize, Operands, Results, SplitKSize};
use crate::linear::gpu::shared::config::{EPILOGUE_THREADS, GemmConfig, WARPGROUPS};
use crate::linear::gpu::shared::schedule::first_wave;
use crate::linear::gpu::shared::vectors::Pair;
use memory::{Pipelines, allocate};

/// `c = a · b` in the layout and with the epilogue of `cfg`. Where `cfg` writes f32 sums they go to `sums`, slice `i` of each tile to
/// matrix `i`, and `results` is not touched.
#[cube(launch_unchecked)]
fn gemm<E: Float>(
    operands: &Operands<E>,
    results: &mut Results<E>,
    sums: &mut [Pair<f32>],
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
        multiply::run(&mut memory, &pipelines, &mut schedule, sums, bias, &size, warpgroup, cfg);
    } else if warp == comptime![4 * WARPGROUPS] {
        load::run(operands, &mut memory, &pipelines.stages, &mut schedule, cfg);
    } else if comptime![cfg.has_epilogue_warps()] {
        epilogue::run(&mut memory, results, &pipelines.panels, &epilogue_done, &mut schedule, cfg);
    } else if comptime![!cfg.writes_sums()] {
        store::run(&mut memory, results, &pipelines.panels, &mut schedule, cfg);
    }
}
