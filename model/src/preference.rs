//! Direct preference optimization (Rafailov et al. 2023): a language model learns which of two answers is better.

use burn::module::Module;
use burn::tensor::activation::log_sigmoid;
use burn::tensor::{DType, Tensor};
use kiln_kernels::{DropoutStream, row_sums};

use crate::batch::TextBatch;
use crate::decoder_only::DecoderOnly;
use crate::loss::{LossSums, PreferenceSums};

impl DecoderOnly {
    /// Returns the model with the one that [`Self::prefer`] compares it with: its weights before training, without autodiff. A saved
    /// model does not remember it.
    #[must_use]
    pub fn with_reference(mut self, reference: DecoderOnly) -> Self {
        self.reference = Some(Box::new(reference));
        self
    }

    /// Compares the pairs of answers of a batch. The reward of an answer is `beta` times its log-likelihood minus the one under the
    /// reference: [`Self::with_reference`], or else the model without adapters. The loss of a pair is `-log sigmoid(z)`, with `z` the reward of the preferred
    /// answer minus the other's, or `(1 - e) * -log sigmoid(z) + e * -log sigmoid(-z)` with the label smoothing `e` (Mitchell 2023,
    /// "conservative DPO"). The reference has no dropout.
    ///
    /// # Panics
    /// If the batch has no preferences, if its rows do not come in pairs, or if the model has neither a reference nor adapters.
    pub fn prefer(&self, batch: &TextBatch, label_smoothing: f64, stream: Option<&DropoutStream>) -> PreferenceSums {
        let beta = batch.preference.expect("a batch of preferences");
        let (n_rows, n_pairs) = (batch.batch_size, batch.batch_size / 2);
        assert_eq!(n_rows % 2, 0, "a row without its pair");

        let sums = self.log_likelihoods(batch, stream);
        let is_autodiff = sums.is_autodiff();
        let reference = match &self.reference {
            Some(reference) => reference.log_likelihoods(batch, None),
            None => {
                assert!(self.config().has_adapters(), "a model without adapters needs a reference");
                let base = if is_autodiff { self.valid() } else { self.clone() }.without_adapters();
                base.log_likelihoods(batch, None)
            }
        };
        let reference = untracked(reference, is_autodiff);

        let rewards = ((sums.clone() - reference) * beta).reshape([n_pairs, 2]);
        let margins = (rewards.clone().narrow(1, 0, 1) - rewards.narrow(1, 1, 1)).reshape([n_pairs]);
        let loss = -log_sigmoid(margins.clone());
        let loss = match label_smoothing {
            0.0 => loss,
            e => loss * (1.0 - e) - log_sigmoid(-margins.clone()) * e,
        };

        let plain = |tensor: Tensor<1>| if is_autodiff { tensor.inner() } else { tensor };
        let margins = plain(margins);
        let is_preferred = margins.clone().greater_elem(0.0).float();
        let means = plain(sums) / n_labels(batch).clamp_min(1.0);
        let of_preferred = means.reshape([n_pairs, 2]).narrow(1, 0, 1).reshape([n_pairs]);
        let count = Tensor::<1>::full([1], n_pairs as f32, &margins.device()).cast(DType::F32);
        PreferenceSums {
            losses: LossSums {
                loss_sum: total(loss),
                nll_sum: untracked(total(-of_preferred), is_autodiff),
                n_labels: untracked(count, is_autodiff),
            },
            n_preferred: total(is_preferred),
            margin_sum: total(margins),
        }
    }

    /// Returns the log-likelihood of each answer in nats, summed over its tokens, `[B]`, f32.
    fn log_likelihoods(&self, batch: &TextBatch, stream: Option<&DropoutStream>) -> Tensor<1> {
        -row_sums(self.losses_of_tokens(batch, stream).reshape(batch.shape()))
    }
}

/// Returns the tokens of each answer, `[B]`, f32.
fn n_labels(batch: &TextBatch) -> Tensor<1> {
    row_sums(batch.labels.clone().not_equal_elem(TextBatch::NOT_COUNTED).float().reshape(batch.shape()))
}

/// Adds up numbers in a fixed order, `[1]`.
fn total(numbers: Tensor<1>) -> Tensor<1> {
    let [n] = numbers.dims();
    row_sums(numbers.reshape([1, n]))
}

/// Returns a tensor that has no gradient, where the others of its graph do.
fn untracked(tensor: Tensor<1>, is_autodiff: bool) -> Tensor<1> {
    if is_autodiff { Tensor::from_inner(tensor) } else { tensor }
}
