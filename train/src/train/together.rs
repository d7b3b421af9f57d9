//! What the hosts of all ranks tell each other after each step: tokens, and whether to go on. No tensor is read.

use anyhow::Result;
use kiln_ranks::Ranks;
use serde::{Deserialize, Serialize};

use super::outcome::Ended;
use crate::metrics::deferred::StepFacts;
use crate::metrics::{SourceLoss, StepMetrics};

/// A step as one rank, or all of them, see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Step {
    pub(super) facts: StepFacts,
    /// FLOPs of forward and backward; `None` if the model does not count them.
    pub(super) flops: Option<f64>,
    /// Why the run ends after the step. Rank 0 has the clock.
    pub(super) ended: Option<Ended>,
    /// Whether this rank was asked to stop.
    pub(super) stop: bool,
    /// Whether this rank was asked to save.
    pub(super) save_now: bool,
    /// Whether other ranks train together from here on. Rank 0 looks.
    pub(super) regroup: bool,
}

impl Step {
    /// Returns the step as all ranks see it: with the tokens of all, and one decision.
    ///
    /// # Errors
    /// If another rank has failed.
    pub(super) fn agreed_by_all(self, ranks: &Ranks) -> Result<Self> {
        if !ranks.are_many() {
            return Ok(self);
        }
        let steps = ranks.share("agreeing on a step", self)?;
        let mut steps = steps.into_iter();
        let first = steps.next().expect("this rank's own step");
        Ok(steps.fold(first, |sum, step| sum.with(&step)))
    }

    fn with(mut self, other: &Self) -> Self {
        self.facts.sources.merge(&other.facts.sources);
        let facts = StepFacts {
            tokens: self.facts.tokens + other.facts.tokens,
            source_tokens: self.facts.source_tokens + other.facts.source_tokens,
            padded_tokens: self.facts.padded_tokens + other.facts.padded_tokens,
            samples: self.facts.samples + other.facts.samples,
            ..self.facts
        };
        let stop = self.stop || other.stop;
        Self {
            facts,
            flops: self.flops.zip(other.flops).map(|(one, other)| one + other),
            ended: self.ended.or(stop.then_some(Ended::Stopped)),
            stop,
            save_now: self.save_now || other.save_now,
            regroup: self.regroup || other.regroup,
        }
    }
}

/// A replica's measures of a step, as bits: JSON knows no NaN.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Told {
    loss: u64,
    nll: u64,
    grad_norm: u64,
    labels: u64,
    skipped: bool,
    stopped: bool,
}

/// Returns the steps that each replica has taken alone as steps of all: means over all labels, and the largest of the gradient norms.
/// `own` are this rank's, of which learning rate and scale are kept.
///
/// # Errors
/// If another rank has failed.
pub(super) fn of_replicas(ranks: &Ranks, own: &[StepMetrics]) -> Result<Vec<StepMetrics>> {
    let told = own.iter().map(|step| Told {
        loss: step.loss.to_bits(),
        nll: step.nll.to_bits(),
        grad_norm: step.grad_norm.to_bits(),
        labels: step.target_tokens,
        skipped: step.skipped,
        stopped: step.stopped,
    });
    let told: Vec<Vec<Told>> = ranks.share("metrics of the replicas", told.collect())?;

    // A replica that had to stop has fewer steps.
    let n = told.iter().map(Vec::len).min().unwrap_or(0);
    Ok((0..n).map(|at| merged(&own[at], told.iter().map(|steps| steps[at]))).collect())
}

/// Gives steps of a mixture the losses of its sources over all ranks. Without other ranks they have them.
///
/// # Errors
/// If another rank has failed.
pub(super) fn losses_of_sources(ranks: &Ranks, steps: &mut [StepMetrics]) -> Result<()> {
    if !ranks.are_many() {
        return Ok(());
    }
    let own = |step: &StepMetrics| -> Vec<(String, u64, u64)> {
        step.sources.losses().map(|(name, loss)| (name.to_owned(), loss.nll.to_bits(), loss.labels)).collect()
    };
    let told: Vec<Vec<Vec<(String, u64, u64)>>> =
        ranks.share("losses of the sources", steps.iter().map(own).collect())?;
    for (at, step) in steps.iter_mut().enumerate() {
        let of_step = told.iter().filter_map(|steps| steps.get(at)).flatten();
        let losses = of_step
            .map(|(name, nll, labels)| (name.as_str(), SourceLoss { nll: f64::from_bits(*nll), labels: *labels }));
        step.sources.set_losses(losses);
    }
    Ok(())
}

fn merged(own: &StepMetrics, replicas: impl Iterator<Item = Told> + Clone) -> StepMetrics {
    let labels: u64 = replicas.clone().map(|replica| replica.labels).sum();
    let mean = |of: fn(&Told) -> u64| {
        let sum: f64 = replicas.clone().map(|replica| f64::from_bits(of(&replica)) * replica.labels as f64).sum();
        sum / (labels as f64).max(1.0)
    };
    let norms = replicas.clone().map(|replica| f64::from_bits(replica.grad_norm));
    StepMetrics {
        loss: mean(|replica| replica.loss),
        nll: mean(|replica| replica.nll),
        grad_norm: norms.fold(0.0, |largest, norm| if norm > largest || norm.is_nan() { norm } else { largest }),
        target_tokens: labels,
        skipped: replicas.clone().any(|replica| replica.skipped),
        stopped: replicas.clone().any(|replica| replica.stopped),
        ..own.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_replicas_are_means_over_all_labels_and_nothing_hides_a_nan() {
        let told = |loss: f64, grad_norm: f64, labels, skipped| Told {
            loss: loss.to_bits(),
            nll: (loss / 2.0).to_bits(),
            grad_norm: grad_norm.to_bits(),
            labels,
            skipped,
            stopped: false,
        };
        let own = StepMetrics { step: 9, lr: 0.5, updates: 8, tokens: 70, ..StepMetrics::default() };
        let step = merged(&own, [told(2.0, 3.0, 10, false), told(4.0, 1.0, 30, true)].into_iter());
        assert_eq!((step.loss, step.nll, step.grad_norm, step.target_tokens), (3.5, 1.75, 3.0, 40));
        assert_eq!((step.step, step.lr, step.updates, step.tokens, step.skipped), (9, 0.5, 8, 70, true));

        for order in [[f64::NAN, 1.0], [1.0, f64::NAN]] {
            let step = merged(&own, order.map(|norm| told(norm, norm, 1, false)).into_iter());
            assert!(step.loss.is_nan() && step.grad_norm.is_nan());
        }
    }

    #[test]
    fn tokens_add_up_and_one_rank_is_enough_to_stop_or_save() {
        let facts = StepFacts { step: 7, tokens: 30, source_tokens: 10, padded_tokens: 40, ..StepFacts::default() };
        let quiet = Step { facts, flops: Some(2.0), ended: None, stop: false, save_now: false, regroup: false };
        let both = quiet.clone().with(&Step { stop: true, save_now: true, ..quiet.clone() });
        assert_eq!((both.facts.step, both.facts.tokens, both.facts.source_tokens), (7, 60, 20));
        assert_eq!((both.facts.padded_tokens, both.flops), (80, Some(4.0)));
        assert_eq!((both.ended, both.save_now), (Some(Ended::Stopped), true));
        assert_eq!(quiet.clone().with(&quiet).ended, None);

        // The last step stays the last step.
        let last = Step { ended: Some(Ended::Steps), ..quiet.clone() };
        assert_eq!(last.with(&Step { stop: true, ..quiet }).ended, Some(Ended::Steps));
    }
}
