//! Cross-entropy in plain Burn operations.

use burn::tensor::{DType, Int, Tensor};

use super::{CrossEntropy, CrossEntropyConfig};

/// See [`super::cross_entropy`].
pub(crate) fn cross_entropy(logits: Tensor<2>, labels: Tensor<1, Int>, config: &CrossEntropyConfig) -> CrossEntropy {
    let [rows, _] = logits.dims();
    let logits = logits.cast(DType::F32);
    let counts = labels.clone().not_equal_elem(config.ignore_index).float().cast(DType::F32);

    let max = logits.clone().detach().max_dim(1);
    let shifted = logits - max;
    let log_sum = shifted.clone().exp().sum_dim(1).log().reshape([rows]);
    // An ignored label may lie outside the vocabulary.
    let label = shifted.clone().gather(1, labels.clamp_min(0).reshape([rows, 1])).reshape([rows]);
    let nll = log_sum.clone() - label.clone();
    let nll_of_rows = nll.clone().detach() * counts.clone();

    let loss = if config.label_smoothing > 0.0 {
        let mean = shifted.mean_dim(1).reshape([rows]);
        log_sum - label * (1.0 - config.label_smoothing) - mean * config.label_smoothing
    } else {
        nll
    };
    let (nll_sum, nll) = (nll_of_rows.clone().sum(), vec![nll_of_rows.reshape([1, rows])]);
    CrossEntropy { loss_sum: (loss * counts).sum(), nll_sum, nll }
}

/// See [`super::cross_entropy_of_rows`].
pub(crate) fn cross_entropy_of_rows(logits: Tensor<2>, labels: Tensor<1, Int>, ignored: i64) -> Tensor<1> {
    let [rows, _] = logits.dims();
    let counts = labels.clone().not_equal_elem(ignored).float().cast(DType::F32);
    let log_probabilities = burn::tensor::activation::log_softmax(logits.cast(DType::F32), 1);
    -log_probabilities.gather(1, labels.clamp_min(0).reshape([rows, 1])).reshape([rows]) * counts
}
