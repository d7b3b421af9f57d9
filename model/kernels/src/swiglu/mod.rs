//! SwiGLU and GEGLU, the gated activations of a feed-forward block.

mod autodiff;
#[cfg(feature = "cuda")]
mod kernel;
mod ops;
mod reference;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::Tensor;
#[cfg(all(test, feature = "cuda"))]
pub(crate) use kernel::tests::offline_kernels;
use ops::{Gate, SwigluOps};

use crate::settings::runs_plain;

/// Computes SwiGLU (Shazeer 2020, "GLU variants improve Transformer"): `silu(gate) * up`, where one product gave both
/// operands. The arithmetic is f32; the result has the dtype of `gate_up`. Only `gate_up` is kept for backward.
///
/// # Shapes
/// - `gate_up`: `[M, 2 * F]`, columns `gate | up`
/// - result: `[M, F]`
///
/// # Panics
/// If `gate_up` has an odd number of columns.
pub fn swiglu(gate_up: Tensor<2>) -> Tensor<2> {
    gated(gate_up, Gate::Silu)
}

/// Computes GEGLU (Shazeer 2020) with the tanh approximation of GELU: `gelu(gate) * up`, as [`swiglu`].
///
/// # Shapes
/// - `gate_up`: `[M, 2 * F]`, columns `gate | up`
/// - result: `[M, F]`
///
/// # Panics
/// If `gate_up` has an odd number of columns.
pub fn geglu(gate_up: Tensor<2>) -> Tensor<2> {
    gated(gate_up, Gate::Gelu)
}

fn gated(gate_up: Tensor<2>, by: Gate) -> Tensor<2> {
    let [_, columns] = gate_up.dims();
    assert!(columns.is_multiple_of(2), "{columns} columns do not split into gate and up");
    if runs_plain(&gate_up.device()) {
        return reference::gated(gate_up, by);
    }
    Tensor::from_dispatch(Dispatch::fused_swiglu(gate_up.into_dispatch(), by))
}
