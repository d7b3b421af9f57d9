//! Rows of a table.

use burn::tensor::{Int, Tensor};

/// Looks up one row per id.
///
/// # Shapes
/// - `ids`: `[M]`, each in `0..V`
/// - `table`: `[V, D]`
/// - result: `[M, D]`
///
/// # Panics
/// Ids out of range are refused on the CPU and undefined on a GPU: check them where they are made.
pub fn embedding(ids: Tensor<1, Int>, table: Tensor<2>) -> Tensor<2> {
    table.select(0, ids)
}
