//! A small product with `mma.sync`, the matrix instruction of a single warp, on the pipeline of the warpgroup products.
//!
//! No operator uses it. It shows where the seam is: another kind of matrix instruction changes what the consuming warp does with a
//! loaded stage, while the pipeline, its phases and the loading thread stay the same.

use std::sync::Arc;

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use cubecl::__private::Runtime;
use cubecl::cmma::MmaDefinition;
use cubecl::cuda::CudaRuntime;
use cubecl::prelude::*;
use cubecl::wgmma::{Major, Swizzle, WgmmaTileLayout};
use cubecl_ir::types::MatrixIdent;

use super::offline::{Compiled, buffer, settings};
use super::pipeline::{Phases, Pipeline, phases, pipeline, wait_next};

type Pair<E> = Vector<E, Const<2>>;
type Oct<E> = Vector<E, Const<8>>;

/// The tile of a warp, and the K elements of a stage.
const ROWS: usize = 16;
const COLUMNS: usize = 8;
const TILE_K: usize = 64;
const STAGES: usize = 3;
/// K elements per instruction.
const K_STEP: usize = 16;

fn layout(rows: usize) -> WgmmaTileLayout {
    WgmmaTileLayout { major: Major::K, swizzle: Swizzle::B128, rows, k: TILE_K }
}

/// The stages of both operands.
#[derive(CubeType)]
struct Memory<E: Float> {
    a: Shared<[Oct<E>]>,
    b: Shared<[Oct<E>]>,
}

/// `out = a · bᵀ` for a tile of 16 x 8, over `laps` laps of the pipeline. Warp 0 multiplies, warp 1 loads.
#[cube(launch_unchecked)]
fn tile_product<E: Float>(
    a: &TensorMap<E, Tiled>,
    b: &TensorMap<E, Tiled>,
    out: &mut [Pair<f32>],
    laps: u32,
    #[define(E)] _dtype: ElemType,
) {
    let a_stages = Shared::<[Oct<E>]>::new_aligned_slice(comptime![STAGES * ROWS * TILE_K / 8], 1024usize);
    let b_stages = Shared::<[Oct<E>]>::new_aligned_slice(comptime![STAGES * COLUMNS * TILE_K / 8], 1024usize);
    let mut memory = Memory::<E> { a: a_stages, b: b_stages };
    let stages = pipeline(STAGES, 1u32, 1u32);
    sync_async_proxy_shared();
    sync_cube();

    if plane_broadcast(UNIT_POS / 32, 0u32) == 1 {
        if UNIT_POS_PLANE == 0 {
            let mut free = phases(1u32);
            for lap in 0..laps {
                load_lap(a, b, &mut memory, &stages, &mut free, lap);
            }
        }
    } else {
        let mut loaded = phases(0u32);
        let mut acc = Array::<Pair<f32>>::new(2usize);
        acc[0] = Pair::zeroed();
        acc[1] = Pair::zeroed();
        for _ in 0..laps {
            multiply_lap(&memory, &stages, &mut loaded, &mut acc);
        }
        let at = (UNIT_POS_PLANE / 4 * comptime![COLUMNS as u32 / 2] + UNIT_POS_PLANE % 4) as usize;
        out[at] = acc[0];
        out[at + comptime![8 * COLUMNS / 2]] = acc[1];
    }
}

/// Loads the K tiles of one lap.
#[cube]
fn load_lap<E: Float>(
    a: &TensorMap<E, Tiled>,
    b: &TensorMap<E, Tiled>,
    memory: &mut Memory<E>,
    stages: &Pipeline,
    free: &mut Phases,
    lap: u32,
) {
    #[unroll]
    for stage in 0..STAGES {
        wait_next(stages.free.index(stage), free, stage);
        let loaded = stages.loaded.index(stage);
        loaded.arrive_and_expect_tx(1, comptime![((ROWS + COLUMNS) * TILE_K * 2) as u32]);
        let k = (lap * comptime![STAGES as u32] + comptime![stage as u32]) * comptime![TILE_K as u32];
        let at_a = comptime![stage * ROWS * TILE_K / 8];
        let at_b = comptime![stage * COLUMNS * TILE_K / 8];
        loaded.tma_load_2d(a, &mut memory.a[at_a..comptime![at_a + ROWS * TILE_K / 8]], 0i32, k as i32);
        loaded.tma_load_2d(b, &mut memory.b[at_b..comptime![at_b + COLUMNS * TILE_K / 8]], 0i32, k as i32);
    }
}

/// Multiplies the K tiles of one lap.
#[cube]
fn multiply_lap<E: Float>(memory: &Memory<E>, stages: &Pipeline, loaded: &mut Phases, acc: &mut Array<Pair<f32>>) {
    let instruction = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    let (row_a, col_a) = (UNIT_POS_PLANE % 16, UNIT_POS_PLANE / 16 * 8);
    let (row_b, col_b) = (UNIT_POS_PLANE % 8, UNIT_POS_PLANE / 8 % 2 * 8);
    #[unroll]
    for stage in 0..STAGES {
        wait_next(stages.loaded.index(stage), loaded, stage);
        #[unroll]
        for step in 0..comptime![TILE_K / K_STEP] {
            let k = comptime![(step * K_STEP) as u32];
            let at_a = comptime![stage * ROWS * TILE_K / 8]
                + comptime![layout(ROWS)].offset(row_a as usize, (col_a + k) as usize, 2usize) / 8;
            let at_b = comptime![stage * COLUMNS * TILE_K / 8]
                + comptime![layout(COLUMNS)].offset(row_b as usize, (col_b + k) as usize, 2usize) / 8;
            let a =
                instruction.load_matrix::<Oct<E>, Const<2>>(&memory.a[at_a..at_a + 1], MatrixIdent::A, 4usize, false);
            let b =
                instruction.load_matrix::<Oct<E>, Const<2>>(&memory.b[at_b..at_b + 1], MatrixIdent::B, 2usize, false);
            instruction.execute_inplace(&a, &b, acc);
        }
        sync_plane();
        if UNIT_POS_PLANE == 0 {
            stages.free.index(stage).arrive();
        }
    }
}

#[test]
fn kernels_compile_without_a_device() {
    let (launch, properties, _) = settings(64);
    // The instruction asks the target for its register layout.
    let target = Arc::new(CudaRuntime::target_properties());
    let dtype = dtype_to_storage_type(DType::BF16);
    let kernel = tile_product::TileProduct::new(launch, properties, target, (), (), buffer(), (), dtype);
    let code = Compiled::new("gpu/mma-sync/bf16", kernel).ptx.expect("no function of libdevice");
    assert!(code.contains("mma.sync.aligned.m16n8k16"), "{code}");
    assert!(code.contains("cp.async.bulk.tensor"), "{code}");
}
