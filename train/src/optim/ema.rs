//! Exponential moving average of the weights (Polyak and Juditsky 1992; with the warm-up of TensorFlow's
//! `ExponentialMovingAverage`).

use burn::tensor::{Device, FloatDType, Tensor};
use kiln_kernels::optim::{StepNumbers, is_updated_in_place};

use super::Slices;

/// The average: of all weights, or of one rank's slice where the optimizer is sharded.
#[derive(Debug, Clone)]
pub struct Ema {
    decay: f64,
    /// `[n]` or `[slice]`, f32.
    weights: Tensor<1>,
}

impl Ema {
    /// Starts from `master` (`[n]`, any float dtype), or goes on from the average of an earlier run.
    pub(crate) fn new(decay: f64, master: &Tensor<1>) -> Self {
        // A copy: the optimizer overwrites its weights.
        Self { decay, weights: master.clone().cast(FloatDType::F32) * 1.0 }
    }

    /// Keeps only this rank's slice.
    pub(crate) fn sharded(self, slices: &Slices) -> Self {
        Self { weights: self.weights.slice([slices.own()]) * 1.0, ..self }
    }

    /// Averages the weights of optimizer step `step` (from 1) in: `average += (1 - decay) * (weights - average)`. The decay of the
    /// first steps is at most `(1 + step) / (10 + step)`, so that the initial weights are soon forgotten. A step without an update
    /// changes nothing.
    ///
    /// # Shapes
    /// - `master`: as the average, any float dtype
    pub(crate) fn update(&mut self, step: u64, master: &Tensor<1>, numbers: &StepNumbers) {
        let [n] = self.weights.dims();
        let share = (1.0 - decay_at(step, self.decay)) as f32;
        let share = (numbers.taken() * share).expand([n]);
        self.weights = self.weights.clone() + (master.clone().cast(FloatDType::F32) - self.weights.clone()) * share;
        flush_before_next_step(&master.device());
    }

    /// The averaged weights, f32: this rank's slice of them if the optimizer is sharded.
    pub(crate) fn weights(&self) -> &Tensor<1> {
        &self.weights
    }
}

/// Returns the decay of a step.
fn decay_at(step: u64, decay: f64) -> f64 {
    let step = step as f64;
    decay.min((1.0 + step) / (10.0 + step))
}

/// Makes the average read the weights before the next step overwrites them. The next tensor that is read reports a failure.
fn flush_before_next_step(device: &Device) {
    if is_updated_in_place(device) {
        let _ = device.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_steps_forget_the_initial_weights_and_later_ones_decay_as_configured() {
        assert_eq!(decay_at(1, 0.99), 2.0 / 11.0);
        assert_eq!(decay_at(10, 0.5), 0.5);
        assert!(decay_at(880, 0.99) < 0.99 && decay_at(2000, 0.99) == 0.99);
        assert_eq!(decay_at(0, 0.0), 0.0);
    }
}
