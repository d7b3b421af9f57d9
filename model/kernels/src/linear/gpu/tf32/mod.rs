//! Products in TF32 on Hopper: the load warp, the schedule and the products of the 16-bit kernel, with results in f32.
//!
//! In TF32 `wgmma` takes operands along K only. A matrix that is stored across K is [`transpose`]d first. Where that costs more time than
//! it saves, the plan chooses the kernel for Ampere. TMA rounds what it loads to TF32.
//!
//! Multiply warps apply the [`epilogue`] in their registers, and store from there. A warpgroup that stores holds up the other one only
//! when no stage is left to load.

mod epilogue;
mod launch;
#[cfg(test)]
pub(super) mod tests;
mod transpose;

use cubecl::prelude::*;
pub(super) use launch::launch;

use crate::gpu::pipeline::{phases, pipeline};
use crate::gpu::wgmma::descriptor;
use crate::linear::gpu::hopper::load;
use crate::linear::gpu::hopper::memory::allocate;
use crate::linear::gpu::hopper::multiply::multiply_tile;
use crate::linear::gpu::shared::arguments::{GemmSize, Operands, SplitKSize};
use crate::linear::gpu::shared::config::{GemmConfig, WARPGROUPS};
use crate::linear::gpu::shared::schedule::{first_wave, take_tile};
use crate::linear::gpu::shared::vectors::Pair;
use epilogue::store_results;

/// Where results go, and what is added to them.
#[derive(CubeType, CubeLaunch)]
struct Results {
    /// The output; or partial sums, slice `i` of each tile in matrix `i`.
    c: Box<[Pair<f32>]>,
    /// The residual, or where the arguments of an activation are kept for backward.
    auxiliary: Box<[Pair<f32>]>,
    bias: Box<[Pair<f32>]>,
    /// Elements from one row of `auxiliary` to the next.
    auxiliary_pitch: u32,
}

/// `c = a · bᵀ` with the epilogue of `cfg`, of `a` `[M, K]` and `b` `[N, K]`.
#[cube(launch_unchecked)]
fn gemm_tf32(
    operands: &Operands<f32>,
    results: &mut Results,
    size: GemmSize,
    split_k: SplitKSize,
    #[comptime] cfg: GemmConfig,
) {
    let mut memory = allocate::<f32>(cfg);
    let stages = pipeline(comptime![cfg.stages], 1u32, comptime![4 * WARPGROUPS]);
    sync_async_proxy_shared();
    sync_cube();
    let mut schedule = first_wave(&size, split_k, cfg);

    // The same number on every lane; the broadcast tells the assembler so.
    let warp = plane_broadcast(UNIT_POS / 32, 0u32);
    let warpgroup = warp / 4;
    if warpgroup < WARPGROUPS {
        let a = descriptor::<f32>(&memory.a, comptime![cfg.a_tile()]);
        let b = descriptor::<f32>(&memory.b, comptime![cfg.b_tile()]);
        let row = warpgroup as usize * 64;
        let mut loaded = phases(0u32);
        while schedule.next < schedule.end {
            let tile = take_tile(&mut schedule, cfg);
            let acc = multiply_tile::<tf32>(a, b, &stages, &mut loaded, row, tile.to - tile.from, cfg);
            store_results(&acc, results, &tile, warpgroup * 64, &size, cfg);
        }
    } else {
        load::run(operands, &mut memory, &stages, &mut schedule, cfg);
    }
}
