//! Whether the loss of a run went the wrong way: above a guess, or above its first values.

use std::collections::VecDeque;

use kiln_model::TransformerConfig;

use crate::config::Config;
use crate::config::task::{Reads, traits_of};
use crate::metrics::{StepMetrics, ValidationMetrics, WindowMetrics};

/// Lines of metrics at the end, over which a loss that has risen is a mean. One batch may be a hard one.
const LAST_LINES: usize = 5;
/// A loss is above a guess if it is so many times as large. Initial weights are a little worse than a guess.
const ABOVE_GUESS: f64 = 1.1;
/// A loss has risen if it is so many times the first one. Batches differ.
const RISEN: f64 = 1.25;

/// The first and the last losses of this process.
#[derive(Debug)]
pub(super) struct Course {
    /// Whether the run compares answers: its loss is one of pairs then, not of tokens.
    compares: bool,
    /// The loss of step 1, and the mean of the first line.
    first: Option<[f64; 2]>,
    last: VecDeque<f64>,
}

impl Course {
    /// Starts without steps of a run with this `config`.
    pub(super) fn of(config: &Config) -> Self {
        Self { compares: config.data.text.is_preferences(), first: None, last: VecDeque::new() }
    }

    /// Adds a line of metrics with its steps.
    pub(super) fn add(&mut self, steps: &[StepMetrics], line: &WindowMetrics) {
        let of_line = if self.compares { line.loss } else { line.nll };
        if let Some(step) = steps.first().filter(|step| step.step == 1) {
            self.first = Some([if self.compares { step.loss } else { step.nll }, of_line]);
        }
        if self.last.len() == LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(of_line);
    }

    /// Says if the loss went the wrong way, and what to do. `guess` is the loss of one, if it is known.
    pub(super) fn warning(&self, valid: Option<&ValidationMetrics>, guess: Option<f64>, lr: f64) -> Option<String> {
        let valid = valid.map(|valid| if self.compares { valid.loss } else { valid.nll });
        let last = *self.last.back()?;
        let mean = self.last.iter().sum::<f64>() / self.last.len() as f64;
        let has_fallen = self.first.is_some_and(|first| last < first[0]);
        let is_above = |loss: f64| guess.filter(|guess| loss > ABOVE_GUESS * guess);

        if let Some(guess) = is_above(last).filter(|_| !has_fallen) {
            return Some(format!(
                "warning: the training loss ends at {last:.2} nats, above the {guess:.2} of a guess: lower optim.lr (now {lr})"
            ));
        }
        let has_risen = |first: &[f64; 2]| first.iter().all(|first| last.min(mean) > RISEN * first);
        if let Some([step, line]) = self.first.filter(has_risen) {
            return Some(format!(
                "warning: the training loss ends at {last:.2} nats and began at {:.2}: lower optim.lr (now {lr})",
                f64::max(step, line)
            ));
        }

        let (valid, guess) = valid.and_then(|valid| is_above(valid).map(|guess| (valid, guess)))?;
        (last < guess).then(|| {
            format!(
                "warning: the validation loss ends at {valid:.2} nats, above the {guess:.2} of a guess: lower train.steps, or add \
                 training text"
            )
        })
    }
}

/// Returns the loss of a model of Kiln that takes all labels for equally likely.
pub(super) fn guess(config: &Config, model: &TransformerConfig) -> f64 {
    let traits = traits_of(config.task);
    let n_labels = match traits.reads {
        _ if config.data.text.is_preferences() => 2,
        _ if traits.classes.is_some() => config.data.labels.names.len(),
        Reads::Pairs => model.target_vocab_size,
        Reads::Text => model.vocab_size(),
    };
    (n_labels.max(2) as f64).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(losses: &[f64]) -> Course {
        let mut course = Course::of(&Config::default());
        for (step, nll) in (1..).zip(losses) {
            let step = StepMetrics { step, nll: *nll, target_tokens: 1, ..StepMetrics::default() };
            let line = WindowMetrics::new(std::slice::from_ref(&step), crate::metrics::Throughput::default(), 0.0);
            course.add(&[step], &line.expect("a step"));
        }
        course
    }

    fn validation(nll: f64) -> ValidationMetrics {
        ValidationMetrics { nll, ..ValidationMetrics::default() }
    }

    #[test]
    fn a_loss_above_a_guess_or_above_its_first_value_names_the_rate() {
        let said = |losses: &[f64], valid: Option<f64>, guess| {
            course(losses).warning(valid.map(validation).as_ref(), guess, 0.3).unwrap_or_default()
        };
        let diverged = said(&[5.8, 3324.0, 1241.0], Some(1200.0), Some(5.7));
        assert!(diverged.contains("above the 5.70 of a guess: lower optim.lr (now 0.3)"), "{diverged}");
        // A model that was trained before is far below a guess at first.
        let worse = said(&[1.0, 1.1, 3.0, 3.0, 3.0, 3.0, 3.0], Some(3.0), Some(5.7));
        assert!(worse.contains("ends at 3.00 nats and began at 1.00: lower optim.lr"), "{worse}");
        assert!(said(&[1.0, 3.0, 3.0, 3.0, 3.0, 3.0], None, None).contains("lower optim.lr"), "a model of one's own");
        let by_heart = said(&[5.8, 3.0, 0.1, 0.1, 0.1, 0.1], Some(9.0), Some(5.7));
        assert!(by_heart.contains("the validation loss ends at 9.00 nats") && !by_heart.contains("optim.lr"));
    }

    #[test]
    fn a_loss_that_falls_or_that_batches_change_is_fine() {
        for (losses, valid) in [
            (&[5.8, 4.0, 3.0][..], Some(4.5)),
            (&[5.8, 5.75], None),
            (&[9.5, 9.0, 8.7], Some(8.8)), // initial weights far from a guess
            (&[2.0, 1.8, 2.2, 2.3, 1.9], Some(2.2)),
            (&[1.0, 0.9, 1.1, 1.0, 1.6], None),        // one batch
            (&[5.8, 30.0, 20.0, 9.0, 3.5], Some(3.6)), // back again
            (&[], Some(9.0)),
        ] {
            assert_eq!(course(losses).warning(valid.map(validation).as_ref(), Some(5.7), 0.3), None, "{losses:?}");
        }
    }
}
