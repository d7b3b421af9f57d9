//! The training loss.

use burn::tensor::{Bool, DType, Int, Tensor};
use kiln_kernels::{
    CrossEntropy, CrossEntropyConfig, Projection, cross_entropy, linear_cross_entropy, row_argmax, row_losses, row_sums,
};

use crate::config::TransformerConfig;

/// Sums over the labels that count, on the device. Add them up over micro-batches and ranks, then divide by `n_labels` for
/// means.
#[derive(Debug, Clone)]
pub struct LossSums {
    /// Label-smoothed cross-entropy in nats, `[1]`, f32. Training differentiates this one.
    pub loss_sum: Tensor<1>,
    /// Negative log-likelihood of the labels in nats, `[1]`, f32, outside the graph.
    pub nll_sum: Tensor<1>,
    /// Labels that count, `[1]`, f32, outside the graph. It stays on the device, since masking the input of an encoder-only
    /// model happens there too.
    pub n_labels: Tensor<1>,
}

/// The parts of [`LossSums`] that each row of a batch has, outside the graph.
#[derive(Debug, Clone)]
pub struct RowSums {
    /// Negative log-likelihood of the row's labels in nats, `[B]`, f32.
    pub nll: Tensor<1>,
    /// Labels that count, `[B]`, f32.
    pub n_labels: Tensor<1>,
}

/// [`LossSums`] of a validation batch, and the number of correct predictions.
#[derive(Debug, Clone)]
pub struct EvalSums {
    /// Losses and number of labels.
    pub losses: LossSums,
    /// Labels that got the largest logit of their row, `[1]`, f32.
    pub n_correct: Tensor<1>,
}

/// [`LossSums`] of a batch of preferences, and what became of its pairs. The label of a pair is which answer is better.
#[derive(Debug, Clone)]
pub struct PreferenceSums {
    /// Loss of the pairs, and their number. The negative log-likelihood is the preferred answers', each as a mean over its tokens.
    pub losses: LossSums,
    /// Pairs whose preferred answer has the larger reward, `[1]`, f32, outside the graph.
    pub n_preferred: Tensor<1>,
    /// Rewards of the preferred answers minus rewards of the others, summed over the pairs, `[1]`, f32, outside the graph.
    pub margin_sum: Tensor<1>,
}

/// How losses are computed.
///
/// A loss is always a sum. The caller divides once, by the global number of real labels. So padding, micro-batches and
/// ranks cannot bias the mean.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenLoss<'a> {
    /// Decides how many rows of logits exist at once.
    pub(crate) config: &'a TransformerConfig,
    pub(crate) label_smoothing: f64,
    /// The label that does not count.
    pub(crate) ignored: i64,
}

impl TokenLoss<'_> {
    /// Returns the label-smoothed cross-entropy of the logits of `hidden`, summed over the labels that count.
    ///
    /// # Shapes
    /// - `hidden`: `[M, D]`
    /// - `labels`: `[M]`
    pub(crate) fn loss(&self, hidden: Tensor<2>, projection: Projection, labels: Tensor<1, Int>) -> LossSums {
        self.with_nll(hidden, projection, labels).0
    }

    /// [`Self::loss`], and the losses themselves, from which the negative log-likelihood of each label can be had.
    fn with_nll(&self, hidden: Tensor<2>, projection: Projection, labels: Tensor<1, Int>) -> (LossSums, CrossEntropy) {
        let n_labels = self.n_labels(&labels);
        let chunk_rows = self.config.logits_chunk(labels.dims()[0]);
        let sums = linear_cross_entropy(hidden, projection, labels, &self.cross_entropy_config(), chunk_rows);
        (LossSums { loss_sum: sums.loss_sum.clone(), nll_sum: sums.nll_sum.clone(), n_labels }, sums)
    }

    /// [`Self::loss`], and its parts by the `batch_size` rows of the batch. Label i belongs to row `i * B / M`; or, if only some places of
    /// the batch are read, label i stands at place `places[i]`, and places of one row are `row_len` apart at most.
    ///
    /// # Shapes
    /// As [`Self::loss`]
    /// - `places`: `[M]`
    pub(crate) fn by_row(
        &self,
        hidden: Tensor<2>,
        projection: Projection,
        labels: Tensor<1, Int>,
        batch_size: usize,
        places: Option<(Tensor<1, Int>, usize)>,
    ) -> (LossSums, RowSums) {
        let [m] = labels.dims();
        let is_counted = labels.clone().not_equal_elem(self.ignored).float().cast(DType::F32);
        let (sums, losses) = self.with_nll(hidden, projection, labels);
        let nll = losses.nll_of_rows();
        let of_rows = |of_labels: Tensor<1>| match &places {
            None => row_sums(of_labels.reshape([batch_size, m / batch_size])),
            Some((places, row_len)) => {
                let rows = places.clone().div_scalar(*row_len as i64).reshape([1, m]).expand([batch_size, m]);
                let number = Tensor::<1, Int>::arange(0..batch_size as i64, (&rows.device(), rows.dtype()));
                let is_of_row = rows.equal(number.reshape([batch_size, 1]).expand([batch_size, m]));
                row_sums(is_of_row.float().cast(DType::F32) * of_labels.reshape([1, m]))
            }
        };
        let rows = RowSums { nll: of_rows(nll), n_labels: of_rows(is_counted) };
        (sums, rows)
    }

    /// Returns the negative log-likelihood of each label, and 0 for those that do not count.
    ///
    /// # Shapes
    /// As [`Self::loss`]
    /// - result: `[M]`, f32
    pub(crate) fn of_rows(&self, hidden: Tensor<2>, projection: Projection, labels: Tensor<1, Int>) -> Tensor<1> {
        let chunk_rows = self.config.logits_chunk(labels.dims()[0]);
        row_losses(hidden, projection, labels, self.ignored, chunk_rows)
    }

    /// [`Self::loss`], and the number of correct predictions.
    ///
    /// # Shapes
    /// As [`Self::loss`].
    pub(crate) fn evaluate(&self, hidden: Tensor<2>, projection: Projection, labels: Tensor<1, Int>) -> EvalSums {
        let [m] = labels.dims();
        let chunk_rows = match self.config.logits_chunk(m) {
            0 => m,
            chunk_rows => chunk_rows,
        };

        let chunks = (0..m).step_by(chunk_rows.max(1)).map(|first| {
            let len = chunk_rows.min(m - first);
            let labels = labels.clone().narrow(0, first, len);
            let logits = projection.logits(hidden.clone().narrow(0, first, len));
            let guesses = row_argmax(logits.clone()).cast(labels.dtype());
            let is_counted = labels.clone().not_equal_elem(self.ignored);
            let n_correct = count(guesses.equal(labels.clone()).bool_and(is_counted));
            let CrossEntropy { loss_sum, nll_sum, .. } = cross_entropy(logits, labels, &self.cross_entropy_config());
            (loss_sum, nll_sum, n_correct)
        });
        let sums = chunks.reduce(|a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2));
        let (loss_sum, nll_sum, n_correct) = sums.expect("a batch has at least one row");
        EvalSums { losses: LossSums { loss_sum, nll_sum, n_labels: self.n_labels(&labels) }, n_correct }
    }

    /// Returns the loss of few classes.
    ///
    /// # Shapes
    /// - `logits`: `[M, C]`
    /// - `labels`: `[M]`
    pub(crate) fn of_classes(&self, logits: Tensor<2>, labels: Tensor<1, Int>) -> LossSums {
        let n_labels = self.n_labels(&labels);
        let CrossEntropy { loss_sum, nll_sum, .. } = cross_entropy(logits, labels, &self.cross_entropy_config());
        LossSums { loss_sum, nll_sum, n_labels }
    }

    /// [`Self::of_classes`], and the number of correct predictions.
    pub(crate) fn evaluate_classes(&self, logits: Tensor<2>, labels: Tensor<1, Int>) -> EvalSums {
        let guesses = row_argmax(logits.clone()).cast(labels.dtype());
        let is_counted = labels.clone().not_equal_elem(self.ignored);
        let n_correct = count(guesses.equal(labels.clone()).bool_and(is_counted));
        EvalSums { losses: self.of_classes(logits, labels), n_correct }
    }

    fn n_labels(&self, labels: &Tensor<1, Int>) -> Tensor<1> {
        count(labels.clone().not_equal_elem(self.ignored))
    }

    fn cross_entropy_config(&self) -> CrossEntropyConfig {
        CrossEntropyConfig { label_smoothing: self.label_smoothing, ignore_index: self.ignored }
    }
}

/// Counts what is true, `[1]`, f32: exact up to 16 million.
fn count(which: Tensor<1, Bool>) -> Tensor<1> {
    let [n] = which.dims();
    row_sums(which.float().reshape([1, n]))
}
