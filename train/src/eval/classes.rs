//! Scores of predicted classes: accuracy and F1, as `sklearn.metrics` defines them, and F1 of entities.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use burn::tensor::{Device, Tensor, Transaction};
use kiln_data::HostBatch;
use kiln_ranks::{Phase, Ranks};
use serde::{Deserialize, Serialize};

use super::entities::{EntityCounts, EntityScores, Tags};
use super::ratio::{f1, ratio};
use super::{Model, ValidationLoss};
use crate::device::upload;
use crate::metrics::host_sync;

/// Scores of predicted classes.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassScores {
    /// Fraction of the texts or words whose class is right, 0 to 1.
    pub accuracy: f64,
    /// Mean of the F1 of the classes that occur or were predicted, 0 to 1.
    pub macro_f1: f64,
    /// F1 over all predictions, 0 to 1. Where each text has one class, it equals the accuracy.
    pub micro_f1: f64,
    /// The classes that occur or were predicted, in the order of their ids.
    pub classes: Vec<ClassScore>,
    /// Scores of entities, if the names of the classes are tags such as `B-place`.
    pub entities: Option<EntityScores>,
}

/// Scores of one class.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassScore {
    /// Its name.
    pub name: String,
    /// Fraction of the predictions of this class that are right, 0 to 1.
    pub precision: f64,
    /// Fraction of its texts or words that were found, 0 to 1.
    pub recall: f64,
    /// Harmonic mean of both, 0 to 1.
    pub f1: f64,
    /// Its texts or words.
    pub support: u64,
}

/// Returns loss and scores of `model` over `batches` of labelled rows, without dropout. `names` are the classes. With
/// several ranks, `batches` are the share of this one, and the result covers all shares.
///
/// All batches are enqueued before the one host sync at the end.
///
/// # Errors
/// If a batch cannot be read, the model predicts no classes, the device or another rank fails, or labels are missing.
pub fn class_scores<M: Model, E: Into<anyhow::Error>>(
    model: &M,
    batches: impl Iterator<Item = Result<HostBatch, E>>,
    label_smoothing: f64,
    names: &[String],
    device: &Device,
    ranks: &Ranks,
) -> Result<(ValidationLoss, ClassScores)> {
    let (mut sums, mut guesses, mut wanted) = (Vec::new(), Transaction::default(), Vec::new());
    for batch in batches {
        ranks.enter(Phase::Validate); // it advances
        let batch = batch.map_err(Into::into).context("reading the validation data")?;
        let found = model.classify(&upload(&batch, device), label_smoothing);
        let (losses, classes) = found.context("this model predicts no classes (model.class_head)")?;
        sums.push(Tensor::cat(vec![losses.loss_sum, losses.nll_sum, losses.n_labels], 0));
        guesses = guesses.register(classes);
        wanted.push((batch.labels().to_vec(), batch.target_len));
    }

    // Host sync: three numbers per batch, and a class per row or token.
    let values = host_sync::read(sums).context("reading the validation loss from the device")?;
    let guesses = host_sync::waiting(|| guesses.try_execute()).context("reading the classes from the device")?;
    let tags = Tags::of(names);
    let mut own = Counts::default();
    for ((sums, guesses), (labels, width)) in values.iter().zip(&guesses).zip(&wanted) {
        own.sums.push(sums.iter::<f32>().map(f32::to_bits).collect());
        let guesses: Vec<i32> = guesses.iter::<i32>().collect();
        own.count(&guesses, labels, *width, tags.as_ref());
    }

    let of_ranks = ranks.share("sharing the classes", own)?;
    let (mut totals, mut counts) = ([0.0; 3], Counts::default());
    for rank in of_ranks {
        for sums in &rank.sums {
            totals.iter_mut().zip(sums).for_each(|(total, bits)| *total += f64::from(f32::from_bits(*bits)));
        }
        counts.merge(rank);
    }
    let [loss, nll, n_labels] = totals;
    ensure!(
        n_labels > 0.0,
        "the validation data is empty: name files with labelled rows in data.valid, or leave it out"
    );
    let loss = ValidationLoss {
        loss: loss / n_labels,
        nll: nll / n_labels,
        target_tokens: n_labels as u64,
        masked: None,
        rewards: None,
    };
    Ok((loss, counts.scores(names, tags.is_some())))
}

/// What a rank has counted on its batches.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Counts {
    /// The bits of the sums of each batch, as f32.
    sums: Vec<Vec<u32>>,
    /// How often each class was predicted for each label: `(label, class, times)`.
    pairs: Vec<(i32, i32, u64)>,
    entities: EntityCounts,
}

impl Counts {
    /// Adds a batch. `guesses` has one class per row, or one per position.
    fn count(&mut self, guesses: &[i32], labels: &[i32], width: usize, tags: Option<&Tags>) {
        let rows = labels.len() / width.max(1);
        let mut pairs: BTreeMap<(i32, i32), u64> = self.pairs.iter().map(|(a, b, n)| ((*a, *b), *n)).collect();
        for row in 0..rows {
            let labels = &labels[row * width..(row + 1) * width];
            let counted: Vec<(i32, i32)> = if guesses.len() == rows {
                vec![(labels[0], guesses[row])]
            } else {
                let both = labels.iter().copied().zip(guesses[row * width..(row + 1) * width].iter().copied());
                both.filter(|(label, _)| *label != HostBatch::NOT_COUNTED).collect()
            };
            counted.iter().for_each(|pair| *pairs.entry(*pair).or_default() += 1);
            if let Some(tags) = tags {
                let [wanted, found] = [|pair: &(i32, i32)| pair.0, |pair: &(i32, i32)| pair.1];
                let wanted: Vec<i32> = counted.iter().map(wanted).collect();
                let found: Vec<i32> = counted.iter().map(found).collect();
                self.entities.count(tags, &wanted, &found);
            }
        }
        self.pairs = pairs.into_iter().map(|((a, b), n)| (a, b, n)).collect();
    }

    fn merge(&mut self, other: Self) {
        let mut pairs: BTreeMap<(i32, i32), u64> = self.pairs.iter().map(|(a, b, n)| ((*a, *b), *n)).collect();
        for (label, class, n) in other.pairs {
            *pairs.entry((label, class)).or_default() += n;
        }
        self.pairs = pairs.into_iter().map(|((a, b), n)| (a, b, n)).collect();
        self.entities.merge(&other.entities);
    }

    fn scores(&self, names: &[String], has_entities: bool) -> ClassScores {
        let mut of_class = vec![[0_u64; 3]; names.len()];
        for (label, class, n) in &self.pairs {
            // Places of right, predicted and wanted ones.
            let mut add = |class: i32, place: usize| {
                if let Some(counts) = usize::try_from(class).ok().and_then(|class| of_class.get_mut(class)) {
                    counts[place] += n;
                }
            };
            if label == class {
                add(*label, 0);
            }
            add(*class, 1);
            add(*label, 2);
        }

        let classes: Vec<ClassScore> = of_class
            .iter()
            .zip(names)
            .filter(|([_, predicted, wanted], _)| predicted + wanted > 0)
            .map(|([right, predicted, wanted], name)| ClassScore {
                name: name.clone(),
                precision: ratio(*right, *predicted),
                recall: ratio(*right, *wanted),
                f1: f1(*right, *predicted, *wanted),
                support: *wanted,
            })
            .collect();
        let sum = |place: usize| of_class.iter().map(|counts| counts[place]).sum::<u64>();
        ClassScores {
            accuracy: ratio(sum(0), sum(2)),
            macro_f1: classes.iter().map(|class| class.f1).sum::<f64>() / classes.len().max(1) as f64,
            micro_f1: f1(sum(0), sum(1), sum(2)),
            classes,
            entities: has_entities.then(|| self.entities.scores()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of `sklearn.metrics.f1_score` for `y_true = [0, 0, 0, 1, 1, 2]` and `y_pred = [0, 0, 1, 1, 2, 0]`.
    #[test]
    fn the_scores_are_those_of_scikit_learn() {
        let names = ["a", "b", "c", "never"].map(str::to_owned);
        let mut counts = Counts::default();
        let labels: Vec<i32> = [0, 0, 0, 1, 1, 2].into_iter().flat_map(|label| [label, -1]).collect();
        counts.count(&[0, 0, 1, 1, 2, 0], &labels, 2, None);
        let scores = counts.scores(&names, false);
        assert!((scores.accuracy - 0.5).abs() < 1e-9 && (scores.micro_f1 - 0.5).abs() < 1e-9, "{scores:?}");
        assert!((scores.macro_f1 - 0.388_888_888_9).abs() < 1e-9, "{scores:?}");
        let found: Vec<(&str, f64, u64)> =
            scores.classes.iter().map(|class| (class.name.as_str(), class.f1, class.support)).collect();
        assert_eq!(found.len(), 3, "{found:?}");
        assert!((found[0].1 - 2.0 / 3.0).abs() < 1e-9 && found[0].2 == 3, "{found:?}");
        assert_eq!((found[1], found[2]), (("b", 0.5, 2), ("c", 0.0, 1)));
        assert_eq!(scores.entities, None);
    }

    #[test]
    fn tokens_count_where_they_have_a_label_and_ranks_add_up() {
        let names = ["O", "B-x"].map(str::to_owned);
        let tags = Tags::of(&names);
        let (mut whole, mut first, mut second) = (Counts::default(), Counts::default(), Counts::default());
        let (labels, guesses) = ([-1, 1, -1, 0, -1, 0, 1, -1], [1, 1, 0, 0, 0, 1, 1, 1]);
        whole.count(&guesses, &labels, 4, tags.as_ref());
        first.count(&guesses[..4], &labels[..4], 4, tags.as_ref());
        second.count(&guesses[4..], &labels[4..], 4, tags.as_ref());
        first.merge(second);
        let scores = whole.scores(&names, true);
        assert_eq!(scores, first.scores(&names, true));
        assert!((scores.accuracy - 0.75).abs() < 1e-9, "{scores:?}");
        let entities = scores.entities.expect("tags");
        assert!((entities.precision - 2.0 / 3.0).abs() < 1e-9 && (entities.recall - 1.0).abs() < 1e-9, "{entities:?}");
    }
}
