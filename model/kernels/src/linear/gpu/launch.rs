//! The launch of a product: its kernel, and the sum of its slices where K is split.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::super::Layout;
use super::super::ops::record_sizes;
use super::fp8::Operand;
use super::shared::config::{Epilogue, GROUP_M};
use super::shared::plan::{Call, Plan};
use super::shared::split_k::SplitK;
use super::shared::split_k_sum::{SUM_THREADS, SumConfig, SumSizeLaunch, gemm_add_slices};
use super::{ampere, fp8, hopper, tf32};
use crate::activation::Activation;
use crate::calls;
use crate::gpu::memory::{addressable, aligned, row_pitch};
use crate::gpu::mma_f32::Arithmetic;
use crate::kernel_set::KernelSet;

/// An epilogue with its tensors, see `hopper/epilogue.rs`.
pub(crate) enum EpilogueArguments {
    Store,
    Relu,
    /// By the epilogue warps; only with a plan [`Plan::with_epilogue_warps`].
    Activation {
        activation: Activation,
        /// Where the arguments of the activation go, if they are wanted.
        input: Option<CubeTensor>,
    },
    /// This matrix is added.
    AddResidual(CubeTensor),
}

impl EpilogueArguments {
    /// Splits into what the kernel is compiled for and the auxiliary matrix that it reads or writes.
    fn split(self) -> (Epilogue, Option<CubeTensor>) {
        match self {
            Self::Store => (Epilogue::Store, None),
            Self::Relu => (Epilogue::Relu, None),
            Self::Activation { activation, input } => {
                (Epilogue::Activation { activation, keeps_input: input.is_some() }, input)
            }
            Self::AddResidual(residual) => (Epilogue::AddResidual, Some(addressable(residual))),
        }
    }
}

impl Plan {
    /// Launches the kernel. `out` has the dtype of `a` and `b`, or is in f32.
    pub(super) fn launch(
        self,
        a: CubeTensor,
        b: CubeTensor,
        bias: Option<CubeTensor>,
        epilogue: EpilogueArguments,
        out: CubeTensor,
    ) -> CubeTensor {
        let more = if let EpilogueArguments::AddResidual(residual) = &epilogue { calls::bytes(residual) } else { 0.0 };
        let _call = record_sizes(&a, &b, self.kind(), || (self.m, self.n, self.k), more);
        self.launch_operands(Operand::Sixteen(a), Operand::Sixteen(b), bias, epilogue, out)
    }

    /// [`Self::launch`] of operands that may have been rounded to FP8.
    pub(super) fn launch_operands(
        self,
        a: Operand,
        b: Operand,
        bias: Option<CubeTensor>,
        epilogue: EpilogueArguments,
        out: CubeTensor,
    ) -> CubeTensor {
        let (a, b, scales) = self.operands(a, b);
        let bias = bias.map(|bias| aligned(into_contiguous(bias)));
        let (epilogue, auxiliary) = epilogue.split();
        let config = self.config(out.dtype, bias.is_some(), epilogue);
        let client = a.client.clone();
        let reads_output = self.arithmetic.is_f32() && self.accumulates;

        // The partial sums of the slices, or the output itself.
        let pitch = row_pitch(&out);
        let parts = self.split_k.as_ref().map_or(1, SplitK::most_slices);
        let (partial, partial_pairs) = match config.splits_k() {
            true => (client.empty(parts * self.m * pitch * 4), parts * self.m * pitch / 2),
            false => (out.handle.clone(), self.m * pitch * out.dtype.size() / 8),
        };
        let call = Call {
            has_bias: bias.is_some(),
            scales,
            // A kernel argument needs some tensor; `a` takes the place of those that this kernel does not touch.
            bias: bias.map_or_else(|| a.handle.clone(), |bias| bias.handle),
            auxiliary: auxiliary.unwrap_or_else(|| if reads_output { out.clone() } else { a.clone() }),
            a,
            b,
            out,
            sums: (partial, partial_pairs),
        };
        match self.set {
            KernelSet::Hopper if config.is_f32() => tf32::launch(&self, &call, config),
            KernelSet::Hopper if config.is_fp8() => fp8::launch(&self, &call, config),
            KernelSet::Hopper => hopper::launch(&self, &call, config),
            KernelSet::Ampere => ampere::launch(&self, &call, config),
        }
        if let Some(split_k) = &self.split_k {
            self.add_slices(split_k, &call, epilogue);
        }
        call.out
    }

    /// Returns the operands as the kernel reads them, and their scales in FP8.
    fn operands(&self, a: Operand, b: Operand) -> (CubeTensor, CubeTensor, Option<[CubeTensor; 2]>) {
        let layout = self.kind().layout;
        match (self.arithmetic, a, b) {
            (Arithmetic::Eight([of_a, of_b]), a, b) => {
                let (a, a_scale) = a.along_k(layout == Layout::TN, of_a);
                let (b, b_scale) = b.along_k(layout != Layout::NT, of_b);
                (a, b, Some([a_scale, b_scale]))
            }
            (_, Operand::Sixteen(a), Operand::Sixteen(b)) => (addressable(a), addressable(b), None),
            _ => unreachable!("only products in FP8 have rounded operands"),
        }
    }

    /// Launches the sum of the slices of a product whose K is split.
    fn add_slices(&self, split_k: &SplitK, call: &Call, epilogue: Epilogue) {
        let Call { out, auxiliary: residual, .. } = call;
        let config = SumConfig {
            tile_n: self.tile_n,
            group_m: GROUP_M,
            accumulates: self.accumulates,
            bias: call.has_bias,
            epilogue,
        };

        let row_quads = row_pitch(out) / 4;
        let quads = self.m * row_quads;
        let residual_row_quads = row_pitch(residual) / 4;
        let size = SumSizeLaunch::new(
            self.m as u32,
            self.n as u32,
            split_k.slices as u32,
            split_k.tail_blocks as u32,
            split_k.tail_slices as u32,
            row_quads as u32,
            residual_row_quads as u32,
        );

        // SAFETY: threads are guarded by rows and columns; `partial` holds a matrix of the size of `out` per slice; see
        // [`Self::launch`] for the bias.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            gemm_add_slices::launch_unchecked(
                &out.client,
                CubeCount::Static(quads.div_ceil(SUM_THREADS as usize) as u32, 1, 1),
                CubeDim::new_1d(SUM_THREADS),
                BufferArg::from_raw_parts(call.sums.0.clone(), split_k.most_slices() * quads),
                BufferArg::from_raw_parts(call.bias.clone(), row_quads),
                BufferArg::from_raw_parts(residual.handle.clone(), residual.meta.shape()[0] * residual_row_quads),
                BufferArg::from_raw_parts(out.handle.clone(), quads),
                size,
                config,
                dtype_to_storage_type(out.dtype),
            );
        }
    }
}
