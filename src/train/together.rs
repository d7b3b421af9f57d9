//! What the hosts of all ranks tell each other after each step: tokens, and whether to go on. No tensor is read.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::outcome::Ended;
use crate::distributed::Ranks;
use crate::metrics::deferred::StepFacts;

/// A step as one rank, or all of them, see it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
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
}

impl Step {
    /// Returns the step as all ranks see it: with the tokens of all, and one decision.
    ///
    /// # Errors
    /// If another rank has failed.
    pub(super) fn of_all(self, ranks: &Ranks) -> Result<Self> {
        if !ranks.are_many() {
            return Ok(self);
        }
        let steps = ranks.share("agreeing on a step", self)?;
        let first = steps[0];
        Ok(steps[1..].iter().fold(first, |sum, step| sum.with(step)))
    }

    fn with(self, other: &Self) -> Self {
        let facts = StepFacts {
            tokens: self.facts.tokens + other.facts.tokens,
            source_tokens: self.facts.source_tokens + other.facts.source_tokens,
            padded_tokens: self.facts.padded_tokens + other.facts.padded_tokens,
            ..self.facts
        };
        let stop = self.stop || other.stop;
        Self {
            facts,
            flops: self.flops.zip(other.flops).map(|(one, other)| one + other),
            ended: self.ended.or(stop.then_some(Ended::Stopped)),
            stop,
            save_now: self.save_now || other.save_now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_add_up_and_one_rank_is_enough_to_stop_or_save() {
        let facts = StepFacts { step: 7, tokens: 30, source_tokens: 10, padded_tokens: 40, ..StepFacts::default() };
        let quiet = Step { facts, flops: Some(2.0), ended: None, stop: false, save_now: false };
        let both = quiet.with(&Step { stop: true, save_now: true, ..quiet });
        assert_eq!((both.facts.step, both.facts.tokens, both.facts.source_tokens), (7, 60, 20));
        assert_eq!((both.facts.padded_tokens, both.flops), (80, Some(4.0)));
        assert_eq!((both.ended, both.save_now), (Some(Ended::Stopped), true));
        assert_eq!(quiet.with(&quiet).ended, None);

        // The last step stays the last step.
        let last = Step { ended: Some(Ended::Steps), ..quiet };
        assert_eq!(last.with(&Step { stop: true, ..quiet }).ended, Some(Ended::Steps));
    }
}
