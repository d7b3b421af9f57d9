//! Measurements that stay on the device until somebody waits anyway.
//!
//! The training step leaves its sums in small device tensors; [`DeferredMetrics::drain`] reads all that have piled up in
//! one transaction. Every value is kept and reported for its true step.

use burn::tensor::{ExecutionError, Tensor, TensorData, Transaction};

use super::StepMetrics;

/// What one optimizer step measured, still on the device.
#[derive(Debug, Clone)]
pub struct Measures {
    /// Smoothed loss, summed over the step's target tokens, `[1]`, f32.
    pub loss_sum: Tensor<1>,
    /// Negative log-likelihood, summed over the step's target tokens, `[1]`, f32.
    pub nll_sum: Tensor<1>,
    /// Global gradient norm before clipping, `[1]`, f32.
    pub grad_norm: Tensor<1>,
}

/// What the host knows about a step without asking the device.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepFacts {
    /// Optimizer steps done, this one included.
    pub step: u64,
    /// Epoch of the step's first batch.
    pub epoch: u64,
    /// Learning rate.
    pub lr: f64,
    /// Source tokens without padding.
    pub source_tokens: u64,
    /// Target tokens without padding.
    pub target_tokens: u64,
    /// Source and target positions, padding included.
    pub padded_tokens: u64,
}

/// The steps whose measurements have not been read yet.
#[derive(Debug, Default)]
pub struct DeferredMetrics {
    pending: Vec<(StepFacts, Tensor<1>)>,
}

impl DeferredMetrics {
    /// Keeps one step's measurements without reading them.
    pub fn push(&mut self, facts: StepFacts, measures: Measures) {
        let Measures { loss_sum, nll_sum, grad_norm } = measures;
        self.pending.push((facts, Tensor::cat(vec![loss_sum, nll_sum, grad_norm], 0)));
    }

    /// Steps waiting to be read.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether no step waits.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Reads everything that is pending, oldest step first: waits for the device. On an error the pending steps are lost;
    /// so is the device.
    pub fn drain(&mut self) -> Result<Vec<StepMetrics>, ExecutionError> {
        let (facts, tensors): (Vec<_>, Vec<_>) = self.pending.drain(..).unzip();
        let values = tensors.into_iter().fold(Transaction::default(), Transaction::register).try_execute()?;
        Ok(facts.into_iter().zip(values).map(|(facts, values)| measured(facts, &values)).collect())
    }
}

fn measured(facts: StepFacts, values: &TensorData) -> StepMetrics {
    let values: &[f32] = values.as_slice().expect("measurements are f32");
    let &[loss_sum, nll_sum, grad_norm] = values else { panic!("three measurements a step, found {}", values.len()) };
    let per_token = |sum: f32| f64::from(sum) / facts.target_tokens.max(1) as f64;
    StepMetrics {
        step: facts.step,
        epoch: facts.epoch,
        loss: per_token(loss_sum),
        nll: per_token(nll_sum),
        grad_norm: f64::from(grad_norm),
        lr: facts.lr,
        source_tokens: facts.source_tokens,
        target_tokens: facts.target_tokens,
        padded_tokens: facts.padded_tokens,
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn measures(loss_sum: f32, nll_sum: f32, grad_norm: f32) -> Measures {
        let scalar = |value: f32| Tensor::<1>::from_data([value], &Device::flex());
        Measures { loss_sum: scalar(loss_sum), nll_sum: scalar(nll_sum), grad_norm: scalar(grad_norm) }
    }

    #[test]
    fn every_value_comes_back_for_its_own_step_and_only_once() {
        let mut deferred = DeferredMetrics::default();
        for step in 1..=5u64 {
            let facts = StepFacts { step, target_tokens: 4 * step, lr: step as f64, ..StepFacts::default() };
            deferred.push(facts, measures(step as f32 * 8.0, step as f32 * 6.0, step as f32 / 3.0));
        }
        assert_eq!(deferred.len(), 5);
        let steps = deferred.drain().expect("the CPU answers");
        assert_eq!(steps.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        for step in &steps {
            assert_eq!((step.loss, step.nll), (2.0, 1.5), "sums divided by the step's own tokens, exactly");
            assert_eq!(step.grad_norm, f64::from(step.step as f32 / 3.0));
            assert_eq!(step.lr, step.step as f64);
        }
        assert!(deferred.is_empty());
        assert_eq!(deferred.drain().expect("nothing to read"), []);
    }

    #[test]
    fn a_value_that_is_not_finite_is_kept() {
        let mut deferred = DeferredMetrics::default();
        deferred.push(StepFacts { step: 1, target_tokens: 1, ..StepFacts::default() }, measures(f32::NAN, 1.0, 2.0));
        deferred
            .push(StepFacts { step: 2, target_tokens: 1, ..StepFacts::default() }, measures(1.0, 1.0, f32::INFINITY));
        deferred.push(StepFacts { step: 3, target_tokens: 1, ..StepFacts::default() }, measures(1.0, 1.0, 2.0));
        let finite: Vec<_> = deferred.drain().expect("the CPU answers").iter().map(StepMetrics::is_finite).collect();
        assert_eq!(finite, [false, false, true]);
    }
}
