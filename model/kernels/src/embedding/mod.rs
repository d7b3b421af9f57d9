//! Rows of a table.

mod autodiff;
#[cfg(feature = "cuda")]
mod kernel;
mod ops;
mod reference;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};
use ops::EmbeddingOps;

use crate::plain::plain_operators;

/// Looks up one row per id. The gradient of the table adds the rows of each id in the order of their tokens, in f32: it does
/// not change from run to run.
///
/// # Shapes
/// - `ids`: `[M]`, each in `0..V`
/// - `table`: `[V, D]`
/// - result: `[M, D]`
///
/// # Panics
/// Ids out of range are refused on the CPU and undefined on a GPU: check them where they are made.
pub fn embedding(ids: Tensor<1, Int>, table: Tensor<2>) -> Tensor<2> {
    if plain_operators() {
        return reference::embedding(ids, table);
    }
    Tensor::from_dispatch(Dispatch::table_rows(table.into_dispatch(), ids.into_dispatch()))
}
