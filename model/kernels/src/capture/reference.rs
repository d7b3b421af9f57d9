//! Writing rows by plain Burn operations, into a new tensor.

use burn::tensor::{Bool, Int, Tensor};

/// See [`super::overwrite_rows`].
pub(super) fn overwrite_rows(target: Tensor<3>, rows: Tensor<2>, at: Tensor<1, Int>) -> Tensor<3> {
    let [b, s, width] = target.dims();
    let is_written = places(at, s).reshape([b, s, 1]).expand([b, s, width]);
    target.mask_where(is_written, rows.reshape([b, 1, width]).expand([b, s, width]))
}

/// See [`super::overwrite_numbers`].
pub(super) fn overwrite_numbers(target: Tensor<2, Int>, numbers: Tensor<1, Int>, at: Tensor<1, Int>) -> Tensor<2, Int> {
    let [b, s] = target.dims();
    target.mask_where(places(at, s), numbers.reshape([b, 1]).expand([b, s]))
}

/// The place `at[b]` of each of `[B]` rows, as a mask of `[B, s]`.
fn places(at: Tensor<1, Int>, s: usize) -> Tensor<2, Bool> {
    let [b] = at.dims();
    let all = Tensor::<1, Int>::arange(0..s as i64, (&at.device(), at.dtype())).reshape([1, s]).expand([b, s]);
    all.equal(at.reshape([b, 1]).expand([b, s]))
}
