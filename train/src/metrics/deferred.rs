//! Measurements that stay on the device until the next host sync.
//!
//! Each training step leaves its sums in small device tensors. [`DeferredMetrics::begin`] enqueues their copies to the host,
//! and [`DeferredMetrics::finish`] reads them, some steps later: the device has passed the copies long ago and goes on with
//! the later steps. Each value is reported for the step at which it was measured.

use std::collections::VecDeque;

use burn::tensor::{ExecutionError, Tensor};
use kiln_kernels::Readback;
use kiln_kernels::optim::{StepNumbers, StepReport};
use serde::{Deserialize, Serialize};

use super::{SourceMetrics, StepMetrics, host_sync};

/// Measurements of one optimizer step, still on the device.
#[derive(Debug, Clone)]
pub struct Measures {
    /// Smoothed loss, summed over the step's labels, `[1]`, f32.
    pub loss_sum: Tensor<1>,
    /// Negative log-likelihood, summed over the step's labels, `[1]`, f32.
    pub nll_sum: Tensor<1>,
    /// Labels that count, `[1]`, f32. Only the device knows how many tokens it has masked.
    pub target_tokens: Tensor<1>,
    /// Gradient norm, loss scale, and what became of the step: [`StepNumbers::values`], the norm first.
    pub numbers: Tensor<1>,
    /// A mixture: negative log-likelihood summed over the labels of each source, then their numbers, `[2 S]`, f32, of this rank.
    pub of_sources: Option<Tensor<1>>,
}

impl Measures {
    /// Global gradient norm before clipping, `[1]`, f32.
    pub fn grad_norm(&self) -> Tensor<1> {
        self.numbers.clone().narrow(0, 0, 1)
    }
}

/// What the host knows about a step without a sync.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StepFacts {
    /// Optimizer steps done, this one included.
    pub step: u64,
    /// Epoch of the step's first batch.
    pub epoch: u64,
    /// Whether the loss is scaled, as in fp16.
    pub is_scaled: bool,
    /// Non-padding tokens: source and target, or tokens of text.
    pub tokens: u64,
    /// Source tokens among them.
    pub source_tokens: u64,
    /// Positions computed, padding included.
    pub padded_tokens: u64,
    /// Pairs, or rows of text.
    pub samples: u64,
    /// A mixture: its sources.
    #[serde(skip_serializing_if = "SourceMetrics::is_empty", default)]
    pub sources: SourceMetrics,
}

/// Steps whose copies to the host are enqueued.
#[derive(Debug)]
struct Begun {
    facts: Vec<(StepFacts, usize)>,
    read: Readback,
}

/// The steps whose measurements have not been read yet.
#[derive(Debug, Default)]
pub struct DeferredMetrics {
    /// A mixture: the names of its sources, in order.
    names: Vec<String>,
    /// The facts of each step, the numbers that it has of sources, and all its numbers.
    pending: Vec<((StepFacts, usize), Tensor<1>)>,
    /// Oldest first.
    begun: VecDeque<Begun>,
}

impl DeferredMetrics {
    /// Starts without steps. `names` are the sources of a mixture, in order.
    pub fn of_sources(names: Vec<String>) -> Self {
        Self { names, ..Self::default() }
    }

    /// Keeps one step's measurements without reading them.
    pub fn push(&mut self, facts: StepFacts, measures: Measures) {
        let Measures { loss_sum, nll_sum, target_tokens, numbers, of_sources } = measures;
        let of_sources = of_sources.filter(|sums| sums.dims() == [2 * self.names.len()]);
        let n = of_sources.as_ref().map_or(0, |sums| sums.dims()[0]);
        let parts = [loss_sum, nll_sum, target_tokens, numbers].into_iter().chain(of_sources);
        self.pending.push(((facts, n), Tensor::cat(parts.collect(), 0)));
    }

    /// Number of steps that have not been read.
    pub fn len(&self) -> usize {
        self.pending.len() + self.begun.iter().map(|begun| begun.facts.len()).sum::<usize>()
    }

    /// Whether all steps have been read.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Enqueues the copies of the steps since the last call, and does not wait for them.
    pub fn begin(&mut self) {
        let (facts, tensors): (Vec<_>, Vec<_>) = self.pending.drain(..).unzip();
        self.begun.push_back(Begun { facts, read: Readback::begin(tensors) });
    }

    /// Reads the steps of the oldest call of [`Self::begin`] that has not been finished, oldest first. The host waits until the
    /// device has passed them, not for later steps. `lr` is the learning rate of an update.
    ///
    /// # Errors
    /// If the device has failed. The steps are lost then.
    pub fn finish(&mut self, lr: impl Fn(u64) -> f64) -> Result<Vec<StepMetrics>, ExecutionError> {
        let Some(Begun { facts, read }) = self.begun.pop_front() else { return Ok(Vec::new()) };
        let values = if facts.is_empty() { Vec::new() } else { host_sync::waiting(|| read.finish())? };
        let measure = |((facts, n), values): ((StepFacts, usize), Vec<f32>)| {
            let (values, of_sources) = values.split_at(values.len() - n);
            let mut step = measured(facts, values, &lr);
            let (nll, n_labels) = of_sources.split_at(n / 2);
            for (name, (nll, n_labels)) in self.names.iter().zip(nll.iter().zip(n_labels)) {
                step.sources.add_loss(name, f64::from(*nll), *n_labels as u64);
            }
            step
        };
        Ok(facts.into_iter().zip(values).map(measure).collect())
    }

    /// Reads all steps, oldest first, and waits for the device.
    ///
    /// # Errors
    /// As for [`Self::finish`].
    pub fn drain(&mut self, lr: impl Fn(u64) -> f64) -> Result<Vec<StepMetrics>, ExecutionError> {
        self.begin();
        let mut steps = Vec::new();
        while !self.begun.is_empty() {
            steps.extend(self.finish(&lr)?);
        }
        Ok(steps)
    }
}

fn measured(facts: StepFacts, values: &[f32], lr: impl Fn(u64) -> f64) -> StepMetrics {
    let [loss_sum, nll_sum, target_tokens, numbers @ ..] = values else { panic!("measurements of a step: {values:?}") };
    let (&loss_sum, &nll_sum, &target_tokens) = (loss_sum, nll_sum, target_tokens);
    let StepReport { norm, taken, update, loss_scale, stopped } = StepNumbers::report(numbers);

    // A step without masked tokens has no labels. Its loss is 0, not NaN.
    let per_label = |sum: f32| f64::from(sum) / f64::from(target_tokens).max(1.0);
    StepMetrics {
        step: facts.step,
        epoch: facts.epoch,
        loss: per_label(loss_sum),
        nll: per_label(nll_sum),
        grad_norm: f64::from(norm),
        lr: lr(update),
        updates: update - u64::from(!taken),
        loss_scale: facts.is_scaled.then_some(f64::from(loss_scale)),
        skipped: !taken,
        stopped,
        tokens: facts.tokens,
        source_tokens: facts.source_tokens,
        target_tokens: target_tokens as u64,
        padded_tokens: facts.padded_tokens,
        samples: facts.samples,
        sources: facts.sources,
        loss_z: None,
        grad_norm_z: None,
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    /// Measurements of a step, which was skipped if a number is not finite.
    fn measures(loss_sum: f32, nll_sum: f32, target_tokens: f32, grad_norm: f32, update: u64) -> Measures {
        let tensor = |value: f32| Tensor::<1>::from_data([value], &Device::flex());
        let taken = f32::from(u8::from(loss_sum.is_finite() && grad_norm.is_finite()));
        let numbers = [grad_norm, 1.0, taken, 0.0, 0.0, 0.0, 256.0, 2.0, (update - 1 - 2048) as f32, 0.0];
        let [loss_sum, nll_sum, target_tokens] = [loss_sum, nll_sum, target_tokens].map(tensor);
        let numbers = Tensor::from_data(numbers, &Device::flex());
        Measures { loss_sum, nll_sum, target_tokens, numbers, of_sources: None }
    }

    #[test]
    fn every_value_comes_back_for_its_own_step_and_only_once() {
        let mut deferred = DeferredMetrics::default();
        for step in 1..=5u64 {
            let facts = StepFacts { step, is_scaled: true, ..StepFacts::default() };
            let n = step as f32;
            deferred.push(facts, measures(n * 8.0, n * 6.0, n * 4.0, n / 3.0, 2048 + step));
        }
        assert_eq!(deferred.len(), 5);
        let steps = deferred.drain(|update| update as f64).expect("the CPU answers");
        assert_eq!(steps.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        for step in &steps {
            assert_eq!((step.loss, step.nll), (2.0, 1.5), "sums divided by the step's own labels, exactly");
            assert_eq!(step.target_tokens, 4 * step.step);
            assert_eq!(step.grad_norm, f64::from(step.step as f32 / 3.0));
            assert_eq!((step.updates, step.lr), (2048 + step.step, (2048 + step.step) as f64));
            assert_eq!((step.loss_scale, step.skipped, step.stopped), (Some(256.0), false, false));
        }
        assert!(deferred.is_empty());
        assert_eq!(deferred.drain(|_| 0.0).expect("nothing to read"), []);
    }

    #[test]
    fn steps_are_read_in_order_while_later_ones_are_pending() {
        let mut deferred = DeferredMetrics::default();
        let push = |deferred: &mut DeferredMetrics, step: u64| {
            let facts = StepFacts { step, ..StepFacts::default() };
            deferred.push(facts, measures(step as f32 / 3.0, 1.0, 1.0, 0.1, 2048 + step));
        };
        (1..=2).for_each(|step| push(&mut deferred, step));
        deferred.begin();
        push(&mut deferred, 3);
        deferred.begin();
        push(&mut deferred, 4);
        assert_eq!(deferred.len(), 4);
        let mut found = deferred.finish(|_| 0.0).expect("the CPU answers");
        assert_eq!((found.len(), deferred.len()), (2, 2));
        push(&mut deferred, 5);
        found.extend(deferred.drain(|_| 0.0).expect("the CPU answers"));
        let losses: Vec<_> = found.iter().map(|step| (step.step, step.loss)).collect();
        let wanted: Vec<_> = (1..=5).map(|step| (step, f64::from(step as f32 / 3.0))).collect();
        assert_eq!(losses, wanted, "bit for bit");
        assert!(deferred.is_empty() && deferred.finish(|_| 0.0).expect("nothing to read").is_empty());
    }

    #[test]
    fn sources_get_their_own_losses_and_only_where_there_are_some() {
        let mut deferred = DeferredMetrics::of_sources(vec!["news".into(), "web".into()]);
        let of_sources = |values: [f32; 4]| Some(Tensor::from_data(values, &Device::flex()));
        for (step, of_sources) in
            [(1, of_sources([6.0, 0.0, 4.0, 0.0])), (2, None), (3, of_sources([1.0, 9.0, 2.0, 3.0]))]
        {
            let mut sources = SourceMetrics::default();
            sources.count(&[kiln_data::SourceCount { name: "news".into(), rows: 1, tokens: 5 }]);
            let measures = Measures { of_sources, ..measures(8.0, 6.0, 4.0, 0.5, 2048 + step) };
            deferred.push(StepFacts { step, sources, ..StepFacts::default() }, measures);
        }
        let steps = deferred.drain(|_| 0.0).expect("the CPU answers");
        let nll =
            |step: &StepMetrics| step.sources.iter().map(|(name, of)| (name.to_owned(), of.nll())).collect::<Vec<_>>();
        assert_eq!(nll(&steps[0]), [("news".to_owned(), Some(1.5))], "a source without labels is left out");
        assert_eq!(nll(&steps[1]), [("news".to_owned(), None)]);
        assert_eq!(nll(&steps[2]), [("news".to_owned(), Some(0.5)), ("web".to_owned(), Some(3.0))]);
        assert!(steps.iter().all(|step| (step.loss, step.nll, step.grad_norm) == (2.0, 1.5, 0.5)));
    }

    #[test]
    fn a_value_that_is_not_finite_is_kept() {
        let mut deferred = DeferredMetrics::default();
        for (step, loss, norm) in [(1, f32::NAN, 2.0), (2, 1.0, f32::INFINITY), (3, 1.0, 2.0)] {
            deferred.push(StepFacts { step, ..StepFacts::default() }, measures(loss, 1.0, 1.0, norm, 2049));
        }
        let steps = deferred.drain(|update| update as f64).expect("the CPU answers");
        let found: Vec<_> = steps.iter().map(|step| (step.is_finite(), step.skipped, step.updates, step.lr)).collect();
        let left_out = (false, true, 2048, 2049.0);
        assert_eq!(found, [left_out, left_out, (true, false, 2049, 2049.0)]);
    }

    #[test]
    fn a_step_without_labels_has_a_loss_of_zero() {
        let mut deferred = DeferredMetrics::default();
        deferred.push(StepFacts::default(), measures(0.0, 0.0, 0.0, 0.0, 2049));
        let steps = deferred.drain(|_| 0.0).expect("the CPU answers");
        assert!(steps[0].is_finite() && steps[0].target_tokens == 0, "{steps:?}");
    }
}
