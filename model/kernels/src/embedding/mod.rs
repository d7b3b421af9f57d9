//! Embedding: rows of a table, with their positions and dropout.

mod autodiff;
#[cfg(feature = "cuda")]
mod gpu;
mod ops;
mod reference;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};
#[cfg(all(test, feature = "cuda"))]
pub(crate) use gpu::tests::offline_kernels;
use ops::{EmbeddingOps, Lookup};

use crate::dropout::{DropoutStream, Mask};
use crate::maybe::Maybe;
use crate::settings::runs_plain;

/// Returns rows of a table: [`embed`] without scale, positions and dropout.
///
/// # Shapes
/// - `ids`: `[M]`, each in `0..V`
/// - `table`: `[V, D]`
/// - result: `[M, D]`
///
/// # Panics
/// As [`embed`].
pub fn embedding(ids: Tensor<1, Int>, table: Tensor<2>) -> Tensor<2> {
    embed(ids, table, 1.0, None, None)
}

/// Computes `dropout(scale * table[ids] + positions)`, rounded once. Row m is at position `m % T`.
///
/// The gradient of the table adds the rows of each id in the order of their tokens. The gradient of the positions adds
/// the rows of each position in order. Both sums are f32 and have the same bits in every run.
///
/// # Shapes
/// - `ids`: `[M]`, each in `0..V`
/// - `table`: `[V, D]`
/// - `positions`: `[T, D]`, in the table's dtype
/// - result: `[M, D]`
///
/// # Panics
/// If M is not a multiple of T, or the probability is not in [0, 1). On the CPU also if an id is out of range; on a GPU
/// the result of such an id is undefined. Check ids where they are made.
pub fn embed(
    ids: Tensor<1, Int>,
    table: Tensor<2>,
    scale: f64,
    positions: Option<Tensor<2>>,
    dropout: Option<(f64, &DropoutStream)>,
) -> Tensor<2> {
    let ([m], [rows, d]) = (ids.dims(), table.dims());
    let mask = Mask::take(dropout, m * d);
    let mut length = 1;
    if let Some(positions) = &positions {
        let [t, width] = positions.dims();
        assert!(width == d && t > 0 && m.is_multiple_of(t), "{t} x {width} positions for {m} rows of {d}");
        assert_eq!(positions.dtype(), table.dtype(), "positions and table of two dtypes");
        length = t;
    }

    if runs_plain(&table.device()) {
        return reference::embed(ids, table, scale, positions, mask);
    }

    let lookup = Lookup { scale: scale as f32, rows, length };
    let positions = Maybe::from(positions.map(Tensor::into_dispatch));
    Tensor::from_dispatch(Dispatch::embed(table.into_dispatch(), ids.into_dispatch(), positions, mask, lookup))
}
