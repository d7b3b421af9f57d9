//! The likeliest columns of each row of logits with their log-probabilities: what a search reads at every step.
//!
//! Log-softmax and selection are one pass over the logits, which writes a few numbers per row. Nothing of the size of the logits is
//! written, and nothing is sorted.

mod autodiff;
#[cfg(feature = "cuda")]
mod kernel;
mod ops;
mod reference;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
#[cfg(all(test, feature = "cuda"))]
pub(crate) use kernel::tests::offline_kernels;
use ops::LikeliestOps;

use crate::settings::runs_plain;

/// Columns per number of a set.
const WORD: usize = 32;

/// A set of columns, one bit per column.
#[derive(Debug, Clone)]
pub struct ColumnSet {
    /// `[ceil(V / 32)]`
    words: Tensor<1, Int>,
}

impl ColumnSet {
    /// Uploads the set of `columns`, each of which is below `n`.
    ///
    /// # Panics
    /// If a column is `n` or above.
    pub fn new(columns: impl IntoIterator<Item = u32>, n: usize, device: &Device) -> Self {
        let mut words = vec![0_u32; n.div_ceil(WORD).max(1)];
        for column in columns {
            assert!((column as usize) < n, "column {column} of {n}");
            words[column as usize / WORD] |= 1 << (column as usize % WORD);
        }
        let words: Vec<i32> = words.into_iter().map(u32::cast_signed).collect();
        let shape = [words.len()];
        Self { words: Tensor::from_data(TensorData::new(words, shape), (&device.clone().inner(), DType::I32)) }
    }
}

/// Returns the `k` likeliest columns of each row, and their log-probabilities in f32. Columns in `excluded` have probability 0.
///
/// The likeliest column comes first, and the lower one of equal logits. A NaN is never chosen. Where fewer than `k` columns are
/// possible, column 0 with a log-probability of negative infinity stands in the other places. Each row is computed by itself and in
/// a fixed order: its bits depend neither on other rows nor on their number.
///
/// # Shapes
/// - `logits`: `[M, V]`, any float dtype
/// - result: `[2, M, k]`, f32: the log-probabilities, then the columns
///
/// # Panics
/// If `k` is 0 or the rows are empty, or a column is above 2^24, which f32 does not hold exactly.
pub fn likeliest(logits: Tensor<2>, excluded: &ColumnSet, k: usize) -> Tensor<3> {
    let [_, columns] = logits.dims();
    assert!(k > 0 && columns > 0, "{k} of {columns} columns");
    assert!(columns <= 1 << 24, "{columns} columns are more than f32 counts");
    if runs_plain(&logits.device()) {
        return reference::likeliest(logits, excluded.words.clone(), k);
    }
    Tensor::from_dispatch(Dispatch::likeliest(logits.into_dispatch(), excluded.words.clone().into_dispatch(), k))
}
