//! Marks outliers: steps whose loss or gradient norm is far above earlier steps.
//!
//! The statistics restart when a run is resumed. The marks are information for people; nothing depends on them.

use std::collections::VecDeque;

use super::StepMetrics;

/// Number of earlier steps that a value is compared with.
const WINDOW: usize = 128;
/// Fewer steps do not give a reliable mean.
const MIN_STEPS: usize = 32;
/// Values at least this many standard deviations above the mean are marked.
const THRESHOLD: f64 = 6.0;

/// Marks outliers among the steps of a run.
#[derive(Debug, Default)]
pub struct Outliers {
    loss: Recent,
    grad_norm: Recent,
}

impl Outliers {
    /// Sets [`StepMetrics::loss_z`] and [`StepMetrics::grad_norm_z`] of an outlier. Call it for every step, in order.
    pub fn mark(&mut self, step: &mut StepMetrics) {
        let marked = |z: Option<f64>| z.filter(|z| *z >= THRESHOLD);
        step.loss_z = marked(self.loss.z_score(step.loss));
        step.grad_norm_z = marked(self.grad_norm.z_score(step.grad_norm));
    }
}

/// The last values of one measurement. Outliers join them too, so a lasting change soon stops being an outlier.
#[derive(Debug, Default)]
struct Recent(VecDeque<f64>);

impl Recent {
    /// Returns how far `value` is above the mean of earlier values, in standard deviations, and adds it to them. `None` if
    /// there are too few, or if `value` is not finite, which is reported elsewhere.
    fn z_score(&mut self, value: f64) -> Option<f64> {
        if !value.is_finite() {
            return None;
        }
        let n = self.0.len() as f64;
        let mean = self.0.iter().sum::<f64>() / n;
        let variance = self.0.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
        let z = (self.0.len() >= MIN_STEPS && variance > 0.0).then(|| (value - mean) / variance.sqrt());
        if self.0.len() == WINDOW {
            self.0.pop_front();
        }
        self.0.push_back(value);
        z
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that goes up and down by one.
    fn wave(i: usize) -> f64 {
        3.0 + if i.is_multiple_of(2) { 0.5 } else { -0.5 }
    }

    #[test]
    fn what_stands_out_is_scored_and_the_ordinary_is_not() {
        let mut recent = Recent::default();
        for i in 0..200 {
            let z = recent.z_score(wave(i));
            assert_eq!(z.is_some(), i >= MIN_STEPS, "step {i}");
            assert!(z.is_none_or(|z| z.abs() < 1.1), "step {i}: {z:?}");
        }
        let z = recent.z_score(8.0).expect("enough values");
        assert!((z - 10.0).abs() < 0.1, "five above the mean, half a standard deviation each: {z}");
        assert_eq!(recent.z_score(f64::NAN), None);
        assert_eq!(recent.0.len(), WINDOW, "memory does not grow");
    }

    #[test]
    fn loss_and_norm_are_marked_apart() {
        let mut outliers = Outliers::default();
        let mut step = crate::tests::step(1, 0.0, 10);
        for i in 0..100 {
            (step.loss, step.grad_norm) = (wave(i), wave(i + 1));
            outliers.mark(&mut step);
            assert_eq!((step.loss_z, step.grad_norm_z), (None, None));
        }
        (step.loss, step.grad_norm) = (30.0, 3.0);
        outliers.mark(&mut step);
        assert!(step.loss_z.is_some_and(|z| z > 50.0) && step.grad_norm_z.is_none(), "{step:?}");
        (step.loss, step.grad_norm) = (3.0, 0.0);
        outliers.mark(&mut step);
        assert_eq!((step.loss_z, step.grad_norm_z), (None, None), "a small value is not marked");
    }
}
