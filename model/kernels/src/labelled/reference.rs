//! The rows with labels by plain Burn operations.

use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor};

/// See [`super::labelled_rows`]. Each row has a place, behind the rows of its kind that come before it; it is written there.
pub(super) fn labelled_rows(labels: Tensor<1, Int>, ignored: i32, len: usize) -> Tensor<1, Int> {
    let ([rows], device) = (labels.dims(), labels.device());
    let counts = labels.not_equal_elem(ignored).int().cast(DType::I32);
    let others = counts.clone().neg() + 1;
    let among_counting = counts.clone().cumsum(0) - 1;
    let among_others = others.clone().cumsum(0) - 1 + counts.clone().sum();
    let places = counts * among_counting + others * among_others;

    let row = Tensor::<1, Int>::arange(0..rows as i64, (&device, DType::I32));
    let all = Tensor::<1, Int>::zeros([rows], (&device, DType::I32));
    all.scatter(0, places, row, IndexingUpdateOp::Add).narrow(0, 0, len)
}
