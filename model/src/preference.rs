//! Direct preference optimization (Rafailov et al. 2023): a language model learns which of two answers is better.

use burn::module::Module;
use burn::tensor::activation::log_sigmoid;
use burn::tensor::{DType, Int, Tensor};
use kiln_kernels::DropoutStream;

use crate::batch::TextBatch;
use crate::decoder_only::DecoderOnly;
use crate::loss::{LossSums, PreferenceSums};

/// What the answers of a batch are worth to a model.
struct Likelihoods {
    /// Log-likelihood of each answer in nats, summed over its tokens, `[B]`, f32.
    sums: Tensor<1>,
    /// Its tokens, `[B]`, f32.
    n_labels: Tensor<1>,
}

impl DecoderOnly {
    /// Compares the pairs of answers of a batch. The reward of an answer is `beta` times its log-likelihood minus the one under the
    /// reference: the model without adapters. The loss of a pair is `-log sigmoid(z)`, with `z` the reward of the preferred
    /// answer minus the other's, or `(1 - e) * -log sigmoid(z) + e * -log sigmoid(-z)` with the label smoothing `e` (Mitchell 2023,
    /// "conservative DPO"). The reference has no dropout.
    ///
    /// # Panics
    /// If the batch has no preferences, if its rows do not come in pairs, or if the model has no adapters.
    pub fn prefer(&self, batch: &TextBatch, label_smoothing: f64, stream: Option<&DropoutStream>) -> PreferenceSums {
        let beta = batch.preference.expect("a batch of preferences");
        let (n_rows, n_pairs) = (batch.batch_size, batch.batch_size / 2);
        assert_eq!(n_rows % 2, 0, "a row without its pair");
        assert!(self.config().has_adapters(), "the reference is the model without adapters");

        let Likelihoods { sums, n_labels } = self.likelihoods(batch, stream);
        let is_autodiff = sums.is_autodiff();
        let plain = |tensor: Tensor<1>| if is_autodiff { tensor.inner() } else { tensor };
        let reference = if is_autodiff { self.valid() } else { self.clone() }.without_adapters();
        let reference = reference.likelihoods(batch, None).sums;
        let reference = if is_autodiff { Tensor::from_inner(reference) } else { reference };

        let rewards = ((sums.clone() - reference) * beta).reshape([n_pairs, 2]);
        let margins = (rewards.clone().narrow(1, 0, 1) - rewards.narrow(1, 1, 1)).reshape([n_pairs]);
        let loss = -log_sigmoid(margins.clone());
        let loss = match label_smoothing {
            0.0 => loss,
            e => loss * (1.0 - e) - log_sigmoid(-margins.clone()) * e,
        };

        let margins = plain(margins);
        let means = plain(sums) / n_labels.clamp_min(1.0);
        let of_preferred = means.reshape([n_pairs, 2]).narrow(1, 0, 1);
        PreferenceSums {
            n_preferred: margins.clone().greater_elem(0.0).float().cast(margins.dtype()).sum(),
            losses: LossSums {
                loss_sum: loss.sum(),
                nll_sum: outside(-of_preferred.sum(), is_autodiff),
                n_labels: outside(
                    Tensor::<1>::full([1], n_pairs as f32, &margins.device()).cast(DType::F32),
                    is_autodiff,
                ),
            },
            margin_sum: margins.sum(),
        }
    }

    fn likelihoods(&self, batch: &TextBatch, stream: Option<&DropoutStream>) -> Likelihoods {
        let losses = self.losses_of_tokens(batch, stream);
        let [b, t] = batch.shape();
        let counts: Tensor<2, Int> = batch.labels.clone().not_equal_elem(TextBatch::NOT_COUNTED).int().reshape([b, t]);
        let sums = -losses.reshape([b, t]).sum_dim(1).reshape([b]);
        let n_labels = counts.sum_dim(1).reshape([b]).float().cast(DType::F32);
        Likelihoods { n_labels, sums }
    }
}

fn outside(tensor: Tensor<1>, is_autodiff: bool) -> Tensor<1> {
    if is_autodiff { Tensor::from_inner(tensor) } else { tensor }
}
