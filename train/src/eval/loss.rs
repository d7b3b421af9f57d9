//! Loss on a validation set.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use burn::tensor::{Device, Tensor, TensorData, Transaction};
use kiln_data::HostBatch;
use kiln_model::{DropoutStream, PreferenceSums};
use kiln_ranks::{Phase, Ranks};
use serde::{Deserialize, Serialize};

use super::masking::NOT_MASKED;
use super::{Masking, Model};
use crate::device::upload;
use crate::metrics::host_sync;

/// Seed of the masks of every validation. All validations mask the same tokens, in runs with other seeds too, so their
/// numbers can be compared.
pub(super) const VALIDATION_MASKS: u64 = 0x6b69_6c6e;

/// Losses over a set of batches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValidationLoss {
    /// Label-smoothed loss, nats per label.
    pub loss: f64,
    /// Negative log-likelihood, nats per label.
    pub nll: f64,
    /// Labels: non-padding target tokens, tokens of a text, or masked tokens.
    pub target_tokens: u64,
    /// Accuracy on masked tokens, if there are masks.
    pub masked: Option<MaskedAccuracy>,
    /// Rewards of the answers, if they are preferences.
    pub rewards: Option<Rewards>,
}

/// Rewards of preferred answers and of the others: `train.preference_beta` times the log-likelihood of an answer, minus the one under
/// the reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rewards {
    /// Fraction of the pairs whose preferred answer has the larger reward, 0 to 1.
    pub accuracy: f64,
    /// Mean difference of the two rewards of a pair.
    pub margin: f64,
}

impl Rewards {
    /// Returns a line about them. With the weights that the comparison began with, both answers have the same.
    pub fn in_words(&self) -> String {
        match (self.accuracy, self.margin) {
            (0.0, 0.0) => "rewards of both answers still equal\n".to_owned(),
            (accuracy, margin) => format!("reward accuracy {:.2}%  margin {margin:.4}\n", 100.0 * accuracy),
        }
    }
}

impl ValidationLoss {
    /// Returns the negative log-likelihood of a text of `n_bytes` in bits per byte. Unlike perplexity, it does not depend on the
    /// vocabulary.
    pub fn bits_per_byte(&self, n_bytes: u64) -> f64 {
        self.nll * self.target_tokens as f64 / std::f64::consts::LN_2 / n_bytes.max(1) as f64
    }
}

/// Fractions of the masked tokens that are predicted correctly, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MaskedAccuracy {
    /// The model predicts its likeliest token.
    pub model: f64,
    /// A guess without looking at the text: always the most frequent of the masked tokens.
    pub unigram: f64,
}

/// Returns the loss of `model` over `batches`, without dropout. `model` has no autodiff (see
/// [`burn::module::Module::valid`]). With `masking`, every call masks the same tokens.
///
/// All batches are enqueued before the one host sync at the end. With several ranks, `batches` are the share of this
/// one, and the result covers all shares. It equals the loss that one rank computes to the last digit.
///
/// # Errors
/// If a batch cannot be read, the device or another rank fails, or there are no labels.
pub fn validation_loss<M: Model, E: Into<anyhow::Error>>(
    model: &M,
    batches: impl Iterator<Item = Result<HostBatch, E>>,
    label_smoothing: f64,
    masking: Option<&Masking>,
    device: &Device,
    ranks: &Ranks,
) -> Result<ValidationLoss> {
    let mut sums: Vec<Tensor<1>> = Vec::new();
    let mut masked_labels = Transaction::default();

    for batch in numbered(batches, ranks) {
        let (number, batch) = batch?;
        let batch = upload(&batch, device);
        let Some(masking) = masking else {
            if let Some(found) = model.prefer(&batch, label_smoothing) {
                let PreferenceSums { losses, n_preferred, margin_sum } = found;
                let losses = [losses.loss_sum, losses.nll_sum, losses.n_labels];
                sums.push(Tensor::cat(losses.into_iter().chain([n_preferred, margin_sum]).collect(), 0));
                continue;
            }
            let losses = model.loss(&batch, label_smoothing, None);
            sums.push(Tensor::cat(vec![losses.loss_sum, losses.nll_sum, losses.n_labels], 0));
            continue;
        };
        let batch = masking.mask(&batch, &DropoutStream::new(VALIDATION_MASKS, number, device));
        let found = model.evaluate(&batch, label_smoothing).context("this model cannot be scored on masked tokens")?;
        let losses = found.losses;
        sums.push(Tensor::cat(vec![losses.loss_sum, losses.nll_sum, losses.n_labels, found.n_correct], 0));
        masked_labels = masked_labels.register(batch.labels().clone());
    }

    // Host sync: three to five numbers per batch, summed in f64 in the order of the batches.
    let values = host_sync::read(sums).context("reading the validation loss from the device")?;
    let labels = match masking {
        None => Vec::new(),
        Some(_) => {
            host_sync::waiting(|| masked_labels.try_execute()).context("reading the masked tokens from the device")?
        }
    };
    let of_ranks = ranks.share("sharing the validation loss", Measured::of(&values, &labels))?;
    let (mut totals, mut compares) = ([0.0; 5], false);
    for value in in_order(of_ranks.iter().map(|rank| rank.sums.as_slice()).collect()) {
        compares |= value.len() == 5;
        totals.iter_mut().zip(value).for_each(|(total, bits)| *total += f64::from(f32::from_bits(*bits)));
    }
    let [loss, nll, n_labels, n_correct, margins] = totals;
    ensure!(n_labels > 0.0, "the validation data is empty: name files with text in data.valid, or leave it out");

    let masked = match masking {
        None => None,
        Some(_) => {
            let unigram = Measured::most_frequent(&of_ranks) as f64 / n_labels;
            Some(MaskedAccuracy { model: n_correct / n_labels, unigram })
        }
    };
    let rewards = compares.then(|| Rewards { accuracy: n_correct / n_labels, margin: margins / n_labels });
    Ok(ValidationLoss { loss: loss / n_labels, nll: nll / n_labels, target_tokens: n_labels as u64, masked, rewards })
}

/// Returns the batches of this rank with their numbers among the batches of all ranks.
pub(super) fn numbered<E: Into<anyhow::Error>>(
    batches: impl Iterator<Item = Result<HostBatch, E>>,
    ranks: &Ranks,
) -> impl Iterator<Item = Result<(u64, HostBatch)>> {
    (ranks.rank() as u64..).step_by(ranks.size()).zip(batches).map(|(number, batch)| {
        ranks.enter(Phase::Validate); // it advances
        Ok((number, batch.map_err(Into::into).context("reading the validation data")?))
    })
}

/// Returns what all ranks have measured in the order of the batches: rank r has every batch whose number leaves the remainder r.
pub(super) fn in_order<T>(of_ranks: Vec<&[T]>) -> impl Iterator<Item = &T> {
    (0..).map_while(move |number: usize| of_ranks[number % of_ranks.len()].get(number / of_ranks.len()))
}

/// What a rank has measured on its batches.
#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    /// The bits of the sums of each batch, as f32.
    sums: Vec<Vec<u32>>,
    /// How often each label occurs, without labels that do not count.
    labels: HashMap<i32, u64>,
}

impl Measured {
    fn of(sums: &[TensorData], labels: &[TensorData]) -> Self {
        let bits =
            |sums: &TensorData| sums.as_slice::<f32>().expect("losses are f32").iter().map(|x| x.to_bits()).collect();
        let mut counts = HashMap::new();
        for label in labels.iter().flat_map(|labels| labels.iter::<i32>()) {
            if label != NOT_MASKED {
                *counts.entry(label).or_default() += 1;
            }
        }
        Self { sums: sums.iter().map(bits).collect(), labels: counts }
    }

    /// Counts the occurrences of the most frequent label.
    fn most_frequent(of_ranks: &[Self]) -> u64 {
        let mut counts: HashMap<i32, u64> = HashMap::new();
        for (label, n) in of_ranks.iter().flat_map(|rank| &rank.labels) {
            *counts.entry(*label).or_default() += n;
        }
        counts.into_values().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_per_byte_do_not_depend_on_the_tokens() {
        let of = |nll: f64, target_tokens: u64| ValidationLoss {
            loss: nll,
            nll,
            target_tokens,
            masked: None,
            rewards: None,
        };
        let bits = of(2.0 * std::f64::consts::LN_2, 100).bits_per_byte(400);
        assert!((bits - 0.5).abs() < 1e-12);
        assert_eq!(bits, of(std::f64::consts::LN_2, 200).bits_per_byte(400));
    }

    #[test]
    fn the_unigram_guess_is_the_most_frequent_label_among_those_that_count() {
        let labels = [TensorData::from([-1i32, -1, -1, -1, 7, 7, 3]), TensorData::from([3i32, 7, -1])];
        let of = |labels: &[TensorData]| Measured::of(&[], labels);
        assert_eq!(Measured::most_frequent(&[of(&labels)]), 3);
        assert_eq!(Measured::most_frequent(&[of(&labels[..1]), of(&labels[1..])]), 3);
        assert_eq!(Measured::most_frequent(&[of(&[])]), 0);
    }

    #[test]
    fn batches_of_ranks_come_in_the_order_of_one_rank() {
        let rank =
            |sums: &[u32]| Measured { sums: sums.iter().map(|sum| vec![*sum]).collect(), labels: HashMap::new() };
        let of_ranks = [rank(&[0, 3, 6]), rank(&[1, 4]), rank(&[2, 5])];
        let sums = of_ranks.iter().map(|rank| rank.sums.as_slice()).collect();
        assert_eq!(in_order(sums).flatten().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
    }
}
