//! The launch of the kernel.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::gemm;
use crate::gpu::tensor_map::tensor_map;
use crate::linear::gpu::shared::arguments::{OperandsLaunch, ResultsLaunch};
use crate::linear::gpu::shared::config::{GemmConfig, PANEL, TILE_M, box_rows};
use crate::linear::gpu::shared::plan::{Call, Plan};

/// Returns the map through which the load warp reads an operand, of which a tile has `rows` rows.
fn operand_map(operand: &CubeTensor, rows: usize, mn_major: bool, tile_k: usize) -> TensorMapArg<Tiled> {
    if mn_major { tensor_map(operand, tile_k, PANEL) } else { tensor_map(operand, box_rows(rows), tile_k) }
}

/// Launches the kernel of `plan`.
pub(in crate::linear::gpu) fn launch(plan: &Plan, call: &Call, config: GemmConfig) {
    let Call { a, b, out, auxiliary, .. } = call;
    let tile_k = config.tile_k();
    let map_a = operand_map(a, TILE_M, config.a_is_mn_major(), tile_k);
    let map_b = operand_map(b, config.tile_n, config.b_is_mn_major(), tile_k);
    let map_out = tensor_map(if config.writes_sums() { a } else { out }, PANEL, PANEL);
    let map_auxiliary = tensor_map(auxiliary, PANEL, PANEL);

    // SAFETY: the maps describe the tensors and TMA clips to them; `sums` holds a matrix per slice, with rows of the
    // pitch of `out`, and stores to it are guarded by rows and columns; a bias is read in groups of four, of which
    // the last may reach past its end but not past its 16-byte aligned buffer's.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        gemm::launch_unchecked(
            &a.client,
            plan.blocks(),
            CubeDim::new_1d(config.threads()),
            OperandsLaunch::new(map_a, map_b),
            ResultsLaunch::new(map_out, map_auxiliary),
            call.sums(),
            call.bias(plan.n),
            plan.size(out),
            plan.split_k_size(),
            config,
            dtype_to_storage_type(a.dtype),
        );
    }
}
