//! Label-smoothed cross-entropy (Szegedy et al. 2016), in PyTorch's definition.

mod autodiff;
pub(crate) mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod gpu;
mod ops;
mod reference;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};
#[cfg(all(test, feature = "cuda"))]
pub(crate) use gpu::tests::offline_kernels;
pub(crate) use ops::{CrossEntropyOps, RowLoss};

use crate::row::row_sums;
use crate::settings::runs_plain;

/// How the loss is computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrossEntropyConfig {
    /// Probability mass spread evenly over the vocabulary, in [0, 1).
    pub label_smoothing: f64,
    /// Rows with this label do not count: the padding id.
    pub ignore_index: i64,
}

/// Sums over the rows that count. Divide by their number for a mean.
#[derive(Debug, Clone)]
pub struct CrossEntropy {
    /// Smoothed loss in nats, `[1]`, f32, to be differentiated.
    pub loss_sum: Tensor<1>,
    /// Negative log-likelihood of the labels in nats, `[1]`, f32, outside the graph.
    pub nll_sum: Tensor<1>,
    /// Negative log-likelihood of each row, in pieces `[1, m]`, in order.
    pub(crate) nll: Vec<Tensor<2>>,
}

/// Returns the sum over rows of `(1 - e) * nll + e * mean over v of -log p(v)`, with `e` the label smoothing.
///
/// The closed form is `lse - (1 - e) * z[label] - e * mean(z)` per row, with `lse` the log of the sum of exponentials
/// of the logits `z`. It needs neither a one-hot tensor nor an f32 copy of the logits. The arithmetic is f32.
///
/// # Shapes
/// - `logits`: `[M, V]`
/// - `labels`: `[M]`, each in `0..V`; rows with `ignore_index` do not count
///
/// # Panics
/// If `logits` and `labels` differ in their number of rows.
pub fn cross_entropy(logits: Tensor<2>, labels: Tensor<1, Int>, config: &CrossEntropyConfig) -> CrossEntropy {
    let ([rows, _], [n_labels]) = (logits.dims(), labels.dims());
    assert_eq!(rows, n_labels, "{rows} rows of logits, but {n_labels} labels");
    if runs_plain(&logits.device()) {
        return reference::cross_entropy(logits, labels, config);
    }

    let of = RowLoss::new(config, None);
    CrossEntropy::of_rows(Tensor::from_dispatch(Dispatch::cross_entropy_rows(
        logits.into_dispatch(),
        labels.into_dispatch(),
        of,
    )))
}

/// Returns each row's negative log-likelihood of its label, `[M]`, f32; 0 where the label is `ignored`. See [`cross_entropy`].
pub(crate) fn cross_entropy_of_rows(logits: Tensor<2>, labels: Tensor<1, Int>, ignored: i64) -> Tensor<1> {
    let [rows, _] = logits.dims();
    if runs_plain(&logits.device()) {
        return reference::cross_entropy_of_rows(logits, labels, ignored);
    }
    let of = RowLoss::new(&CrossEntropyConfig { label_smoothing: 0.0, ignore_index: ignored }, None);
    let found: Tensor<2> =
        Tensor::from_dispatch(Dispatch::cross_entropy_rows(logits.into_dispatch(), labels.into_dispatch(), of));
    found.narrow(0, 0, 1).reshape([rows])
}

impl CrossEntropy {
    /// Sums the result of [`CrossEntropyOps::cross_entropy_rows`].
    pub(crate) fn of_rows(rows: Tensor<2>) -> Self {
        let nll = rows.clone().detach().narrow(0, 1, 1);
        let nll_sum = row_sums(nll.clone());
        Self { loss_sum: row_sums(rows.narrow(0, 0, 1)), nll_sum, nll: vec![nll] }
    }

    /// Returns the negative log-likelihood of each row's label in nats, `[M]`, f32, outside the graph; 0 for rows that do not count.
    pub fn nll_of_rows(&self) -> Tensor<1> {
        let nll = if let [whole] = &self.nll[..] { whole.clone() } else { Tensor::cat(self.nll.clone(), 1) };
        let [_, rows] = nll.dims();
        nll.reshape([rows])
    }
}
