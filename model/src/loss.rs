//! What training minimizes.

use burn::tensor::{DType, Int, Tensor};
use kiln_kernels::{CrossEntropyConfig, cross_entropy};

/// Sums over the labels that count, on the device. Divide by `n_labels` for means, added up over micro-batches and ranks
/// first.
#[derive(Debug, Clone)]
pub struct LossSums {
    /// Label-smoothed cross-entropy in nats, `[1]`, f32. This is what is differentiated.
    pub loss_sum: Tensor<1>,
    /// Negative log-likelihood of the labels in nats, `[1]`, f32, outside the graph.
    pub nll_sum: Tensor<1>,
    /// Labels that count, `[1]`, f32, outside the graph. The host need not know this number: the masking of an encoder-only
    /// model's input happens on the device.
    pub n_labels: Tensor<1>,
}

/// [`LossSums`] of a validation batch, and how often the likeliest token was the label.
#[derive(Debug, Clone)]
pub struct EvalSums {
    /// Losses and number of labels.
    pub losses: LossSums,
    /// Labels that got the largest logit of their row, `[1]`, f32.
    pub n_correct: Tensor<1>,
}

/// Label-smoothed cross-entropy, summed over the labels other than `ignored`.
///
/// Always a sum: padding, micro-batches and ranks then cost nothing to get right, since the one division by the global
/// number of real labels happens where that number is known.
///
/// # Shapes
/// - `logits`: `[M, V]`
/// - `labels`: `[M]`
pub(crate) fn token_loss(logits: Tensor<2>, labels: Tensor<1, Int>, label_smoothing: f64, ignored: i64) -> LossSums {
    let n_labels = count(labels.clone().not_equal_elem(ignored).int());
    let config = CrossEntropyConfig { label_smoothing, ignore_index: ignored };
    let sums = cross_entropy(logits, labels, &config);
    LossSums { loss_sum: sums.loss_sum, nll_sum: sums.nll_sum, n_labels }
}

/// [`token_loss`] and the number of right guesses.
///
/// # Shapes
/// - `logits`: `[M, V]`
/// - `labels`: `[M]`
pub(crate) fn token_evaluation(
    logits: Tensor<2>,
    labels: Tensor<1, Int>,
    label_smoothing: f64,
    ignored: i64,
) -> EvalSums {
    let [m] = labels.dims();
    let guesses = logits.clone().argmax(1).reshape([m]).cast(labels.dtype());
    let counts = labels.clone().not_equal_elem(ignored).int();
    let n_correct = count(guesses.equal(labels.clone()).int() * counts);
    EvalSums { losses: token_loss(logits, labels, label_smoothing, ignored), n_correct }
}

/// The sum of zeros and ones, `[1]`, f32: exact up to 16 million.
fn count(ones: Tensor<1, Int>) -> Tensor<1> {
    ones.sum().float().cast(DType::F32)
}
