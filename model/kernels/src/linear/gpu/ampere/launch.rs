//! The launch of the kernel.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{MatricesLaunch, PitchesLaunch, ResultsLaunch, SizesLaunch, gemm, threads};
use crate::gpu::memory::row_pitch;
use crate::linear::gpu::shared::config::GemmConfig;
use crate::linear::gpu::shared::plan::{Call, Plan};

/// Launches the kernel.
pub(in crate::linear::gpu) fn launch(plan: &Plan, call: &Call, config: GemmConfig) {
    let Call { a, b, out, auxiliary, .. } = call;
    let rounded = if config.writes_sums() { a } else { out };
    let c = if config.is_f32() && config.splits_k() { call.sums_in_fours() } else { vectors(rounded) };
    let pitch = |matrix: &CubeTensor| row_pitch(matrix) as u32;
    let pitches = PitchesLaunch::new(plan.k as u32, pitch(a), pitch(b), pitch(rounded), pitch(auxiliary));

    // SAFETY: rows begin at multiples of 16 bytes; copies and stores are guarded by rows and columns, and a vector that reaches
    // beyond the columns lies in the gap behind its row.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        gemm::launch_unchecked(
            &a.client,
            plan.blocks(),
            CubeDim::new_1d(threads(&config)),
            config.vector(),
            config.arithmetic.register(),
            MatricesLaunch::new(vectors(a), vectors(b), call.bias(plan.n)),
            ResultsLaunch::new(c, vectors(auxiliary), call.sums()),
            SizesLaunch::new(plan.size(out), pitches),
            plan.split_k_size(),
            config,
            dtype_to_storage_type(a.dtype),
        );
    }
}

/// Returns `matrix` as vectors of 16 bytes.
#[expect(unsafe_code, reason = "a buffer argument from a handle")]
fn vectors(matrix: &CubeTensor) -> BufferArg {
    let len = matrix.meta.shape()[0] * row_pitch(matrix) * matrix.dtype.size() / 16;
    // SAFETY: the matrix has as many rows of as many elements.
    unsafe { BufferArg::from_raw_parts(matrix.handle.clone(), len) }
}
