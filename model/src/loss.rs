//! What training minimizes.

use burn::tensor::{Int, Tensor};
use kiln_kernels::{CrossEntropy, CrossEntropyConfig, cross_entropy};

/// Label-smoothed cross-entropy, summed over the labels that are no padding.
///
/// Always a sum: padding, micro-batches and ranks then cost nothing to get right, since the one division by the global
/// number of real labels happens where that number is known.
///
/// # Shapes
/// - `logits`: `[M, V]`
/// - `labels`: `[M]`
pub(crate) fn token_loss(logits: Tensor<2>, labels: Tensor<1, Int>, label_smoothing: f64, pad_id: u32) -> CrossEntropy {
    cross_entropy(logits, labels, &CrossEntropyConfig { label_smoothing, ignore_index: i64::from(pad_id) })
}
