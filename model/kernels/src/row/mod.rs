//! Reductions along the rows of a matrix, with one kernel each.
//!
//! The backend's own reductions are chosen by timing several kernels, which delays the first step by seconds, and some of the
//! candidates add floats with atomics. These add in a fixed order.

mod autodiff;
#[cfg(feature = "cuda")]
mod kernel;
mod ops;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::{DType, Int, Tensor};
#[cfg(all(test, feature = "cuda"))]
pub(crate) use kernel::tests::offline_kernels;
use ops::RowOps;

use crate::settings::runs_plain;

/// Returns the sum of each row, in f32 and in a fixed order: equal inputs give equal bits.
///
/// # Shapes
/// - `x`: `[M, N]`, any float dtype
/// - result: `[M]`, f32
pub fn row_sums(x: Tensor<2>) -> Tensor<1> {
    let [rows, _] = x.dims();
    let x = x.cast(DType::F32);
    if runs_plain(&x.device()) {
        return x.sum_dim(1).reshape([rows]);
    }
    Tensor::from_dispatch(Dispatch::row_sums(x.into_dispatch()))
}

/// Returns the column of the largest number of each row; the first one on the CPU and on CUDA devices, if several are equal.
/// A NaN is never the largest on a CUDA device.
///
/// # Shapes
/// - `x`: `[M, N]`, any float dtype
/// - result: `[M]`
///
/// # Panics
/// If the rows are empty.
pub fn row_argmax(x: Tensor<2>) -> Tensor<1, Int> {
    let [rows, columns] = x.dims();
    assert!(columns > 0, "rows without columns have no largest number");
    if runs_plain(&x.device()) {
        return x.argmax(1).reshape([rows]);
    }
    Tensor::from_dispatch(Dispatch::row_argmax(x.into_dispatch()))
}
