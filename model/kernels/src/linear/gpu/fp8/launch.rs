//! The launch of the kernel, and of what it needs before.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::round::{Fp8Matrix, rounded};
use super::{ScalesLaunch, gemm_fp8};
use crate::fp8::Fp8;
use crate::gpu::tensor_map::tensor_map;
use crate::linear::Layout;
use crate::linear::gpu::shared::arguments::{OperandsLaunch, ResultsLaunch};
use crate::linear::gpu::shared::config::{GemmConfig, PANEL, TILE_M, box_rows};
use crate::linear::gpu::shared::plan::{Call, Plan};

/// An operand in 16 bits, or rounded before.
#[derive(Clone)]
pub(in crate::linear::gpu) enum Operand {
    Sixteen(CubeTensor),
    Eight(Fp8Matrix),
}

impl Operand {
    /// Returns the operand along K, in elements of two numbers, and its scale. It lies `across` K in memory, or along it.
    pub(in crate::linear::gpu) fn along_k(self, across: bool, format: Fp8) -> (CubeTensor, CubeTensor) {
        let Fp8Matrix { format: found, straight, across: transposed, scale } = match self {
            Self::Sixteen(matrix) => rounded(&matrix, format, [!across, across]),
            Self::Eight(matrix) => matrix,
        };
        assert_eq!(found, format, "an operand in the format of the product");
        let matrix = if across { transposed } else { straight };
        (matrix.expect("an operand rounded in the order of the product"), scale)
    }
}

/// Launches the kernel of `plan`.
pub(in crate::linear::gpu) fn launch(plan: &Plan, call: &Call, config: GemmConfig) {
    let Call { a, b, out, auxiliary, .. } = call;
    let config = GemmConfig { layout: Layout::NT, ..config };
    let scale = |nth: usize| call.scales.as_ref().expect("operands in FP8 have scales")[nth].clone().into_buffer_arg();
    let map = |operand: &CubeTensor, rows: usize| tensor_map(operand, box_rows(rows), config.tile_k());

    // SAFETY: the maps describe the tensors and TMA clips to them; for the bias see [`Call::bias`].
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        gemm_fp8::launch_unchecked(
            &a.client,
            plan.blocks(),
            CubeDim::new_1d(config.threads()),
            OperandsLaunch::new(map(a, TILE_M), map(b, config.tile_n)),
            ResultsLaunch::new(tensor_map(out, PANEL, PANEL), tensor_map(auxiliary, PANEL, PANEL)),
            ScalesLaunch::new(scale(0), scale(1)),
            call.bias(plan.n),
            plan.size(out),
            plan.split_k_size(),
            config,
            dtype_to_storage_type(out.dtype),
        );
    }
}
