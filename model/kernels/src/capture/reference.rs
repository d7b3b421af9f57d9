//! Writing rows by plain Burn operations, into a new tensor.

use burn::tensor::{Int, Tensor};

/// See [`super::overwrite_rows`].
pub(super) fn overwrite_rows(target: Tensor<3>, rows: Tensor<2>, at: Tensor<1, Int>) -> Tensor<3> {
    let [b, s, width] = target.dims();
    let places = Tensor::<1, Int>::arange(0..s as i64, (&at.device(), at.dtype())).reshape([1, s]).expand([b, s]);
    let is_written = places.equal(at.reshape([b, 1]).expand([b, s])).reshape([b, s, 1]).expand([b, s, width]);
    target.mask_where(is_written, rows.reshape([b, 1, width]).expand([b, s, width]))
}
