//! Finds the rows whose labels count, so that a head computes the logits of these rows alone.

mod autodiff;
#[cfg(feature = "cuda")]
mod kernel;
mod ops;
mod reference;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};
#[cfg(all(test, feature = "cuda"))]
pub(crate) use kernel::tests::offline_kernels;
use ops::LabelledOps;

use crate::settings::has_kernels;

/// Returns the numbers of `len` different rows: those whose label is not `ignored` in ascending order, then others in
/// ascending order. If the labels of more rows count, the last of them are missing.
///
/// The result has as many numbers whatever the labels are, so that the host need not know how many count.
///
/// # Shapes
/// - `labels`: `[M]`, i32
/// - result: `[len]`, i32
///
/// # Panics
/// If `len` is 0 or above M, or M above 2^31 - 1.
pub fn labelled_rows(labels: Tensor<1, Int>, ignored: i32, len: usize) -> Tensor<1, Int> {
    let [rows] = labels.dims();
    assert!(len > 0 && len <= rows && i32::try_from(rows).is_ok(), "{len} of {rows} rows");
    if !has_kernels(&labels.device()) {
        return reference::labelled_rows(labels, ignored, len);
    }
    Tensor::from_dispatch(Dispatch::labelled_rows(labels.into_dispatch(), ignored, len))
}
