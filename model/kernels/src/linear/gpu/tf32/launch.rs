//! The launch of the kernel, and of what it needs before.

use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

use super::transpose::transposed;
use super::{ResultsLaunch, gemm_tf32};
use crate::gpu::memory::row_pitch;
use crate::gpu::tensor_map::tensor_map_as;
use crate::linear::Layout;
use crate::linear::gpu::shared::arguments::OperandsLaunch;
use crate::linear::gpu::shared::config::{GemmConfig, TILE_M, box_rows};
use crate::linear::gpu::shared::plan::{Call, Plan};

/// Launches the kernel.
pub(in crate::linear::gpu) fn launch(plan: &Plan, call: &Call, config: GemmConfig) {
    let along_k = |operand: &CubeTensor, across: bool| if across { transposed(operand) } else { operand.clone() };
    let a = along_k(&call.a, config.a_is_mn_major());
    let b = along_k(&call.b, config.b_is_mn_major());
    let config = GemmConfig { layout: Layout::NT, ..config };
    let map = |operand: &CubeTensor| {
        tensor_map_as(operand, box_rows(TILE_M), config.tile_k(), ElemType::Float(FloatKind::TF32).into())
    };

    let auxiliary_pairs = call.auxiliary.meta.shape()[0] * row_pitch(&call.auxiliary) / 2;
    // SAFETY: the maps describe the tensors and TMA clips to them; loads and stores of results are guarded by rows and columns, and
    // rows begin at even elements; for the bias see [`Call::bias`].
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        gemm_tf32::launch_unchecked(
            &a.client,
            plan.blocks(),
            CubeDim::new_1d(config.threads()),
            OperandsLaunch::new(map(&a), map(&b)),
            ResultsLaunch::new(
                call.sums(),
                BufferArg::from_raw_parts(call.auxiliary.handle.clone(), auxiliary_pairs),
                call.bias(plan.n),
                row_pitch(&call.auxiliary) as u32,
            ),
            plan.size(&call.out),
            plan.split_k_size(),
            config,
        );
    }
}
