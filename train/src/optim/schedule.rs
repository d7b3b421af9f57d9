//! The learning rate as a pure function of the optimizer step. It has no state that a checkpoint would have to save.

use std::f64::consts::PI;

use crate::config::{DecayEnd, OptimConfig, Schedule};

/// A learning-rate schedule and its numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct LearningRate {
    schedule: Schedule,
    lr: f64,
    min_lr: f64,
    warmup_steps: u64,
    steps: u64,
    decay_steps: u64,
    decay_end: DecayEnd,
    d_model: usize,
}

impl LearningRate {
    /// The schedule of `config` over `steps` optimizer steps. Only `noam` uses `d_model`.
    pub(crate) fn new(config: &OptimConfig, steps: u64, d_model: usize) -> Self {
        Self {
            schedule: config.schedule,
            lr: config.lr,
            min_lr: config.lr * config.min_lr_ratio,
            warmup_steps: config.warmup_steps,
            steps,
            decay_steps: ((steps as f64 * config.decay_fraction).round() as u64).clamp(1, steps.max(1)),
            decay_end: config.decay_end,
            d_model,
        }
    }

    /// The learning rate of optimizer step `step`, counted from 1. Warm-up reaches `lr` at step `warmup_steps`. Decay ends one
    /// step after the last, or at the last step, as [`DecayEnd`] says. Later steps keep the final rate.
    ///
    /// - `constant`, `cosine`, `linear`, `warmup_stable_decay`: during warm-up `lr * step / warmup_steps`, then their shape
    /// - `noam`: `lr * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)` (Vaswani et al. 2017, section 5.3)
    pub fn at(&self, step: u64) -> f64 {
        let step = step.max(1);
        if self.schedule == Schedule::Noam {
            let s = step as f64;
            let warmup = self.warmup_steps.max(1) as f64;
            return self.lr * (self.d_model as f64).powf(-0.5) * s.powf(-0.5).min(s * warmup.powf(-1.5));
        }
        if step < self.warmup_steps {
            return self.lr * step as f64 / self.warmup_steps as f64;
        }
        match self.schedule {
            Schedule::Constant => self.lr,
            Schedule::Cosine => self.decayed(0.5 * (1.0 + (PI * self.progress(self.warmup_steps, step)).cos())),
            Schedule::Linear => self.decayed(1.0 - self.progress(self.warmup_steps, step)),
            Schedule::WarmupStableDecay => {
                let start = (self.steps - self.decay_steps.min(self.steps)).max(self.warmup_steps);
                self.decayed(1.0 - self.progress(start, step))
            }
            Schedule::Noam => unreachable!("noam returned above"),
        }
    }

    /// Progress from step `start` to the end of the decay, 0 to 1.
    fn progress(&self, start: u64, step: u64) -> f64 {
        let (start, end) = match self.decay_end {
            // Without warm-up, the first step has the peak.
            DecayEnd::AfterLastStep => (start.max(1), self.steps.saturating_add(1)),
            DecayEnd::LastStep => (start, self.steps),
        };
        let (done, all) = (step.saturating_sub(start), end.saturating_sub(start).max(1));
        (done as f64 / all as f64).min(1.0)
    }

    /// `min_lr + fraction * (lr - min_lr)`.
    fn decayed(&self, fraction: f64) -> f64 {
        self.min_lr + fraction * (self.lr - self.min_lr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A schedule over 99 steps, so that decay ends after the last step at the hundredth, or over 100 that ends there.
    fn rates(schedule: Schedule, warmup_steps: u64, min_lr_ratio: f64, decay_fraction: f64) -> [LearningRate; 2] {
        let config =
            OptimConfig { lr: 2.0, schedule, warmup_steps, min_lr_ratio, decay_fraction, ..OptimConfig::default() };
        let of = |decay_end, steps| LearningRate::new(&OptimConfig { decay_end, ..config.clone() }, steps, 64);
        [of(DecayEnd::AfterLastStep, 99), of(DecayEnd::LastStep, 100)]
    }

    fn rate(schedule: Schedule, warmup_steps: u64, min_lr_ratio: f64, decay_fraction: f64) -> LearningRate {
        rates(schedule, warmup_steps, min_lr_ratio, decay_fraction)[1].clone()
    }

    fn close(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 1e-12, "{found} instead of {wanted}");
    }

    #[test]
    fn warm_up_is_a_straight_line_to_the_peak() {
        for schedule in [Schedule::Constant, Schedule::Cosine, Schedule::Linear, Schedule::WarmupStableDecay] {
            let rate = rate(schedule, 10, 0.1, 0.2);
            close(rate.at(1), 0.2);
            close(rate.at(5), 1.0);
            close(rate.at(10), 2.0);
        }
    }

    #[test]
    fn constant_stays() {
        let rate = rate(Schedule::Constant, 0, 0.1, 0.2);
        close(rate.at(1), 2.0);
        close(rate.at(1_000_000), 2.0);
    }

    #[test]
    fn cosine_passes_the_middle_and_ends_at_the_minimum() {
        for rate in rates(Schedule::Cosine, 20, 0.1, 0.2) {
            close(rate.at(60), (2.0 + 0.2) / 2.0);
            close(rate.at(100), 0.2);
            close(rate.at(500), 0.2);
            close(rate.at(40), 0.2 + 1.8 * 0.5 * (1.0 + (PI / 4.0).cos()));
        }
    }

    #[test]
    fn linear_falls_evenly() {
        for rate in rates(Schedule::Linear, 20, 0.0, 0.2) {
            close(rate.at(20), 2.0);
            close(rate.at(60), 1.0);
            close(rate.at(80), 0.5);
            close(rate.at(100), 0.0);
        }
    }

    #[test]
    fn warmup_stable_decay_holds_then_falls_over_its_fraction() {
        let stable = rate(Schedule::WarmupStableDecay, 10, 0.5, 0.2);
        close(stable.at(11), 2.0);
        close(stable.at(80), 2.0);
        close(stable.at(90), 1.5);
        close(stable.at(100), 1.0);
        // Decay does not begin before the end of the warm-up.
        let all_decay = rate(Schedule::WarmupStableDecay, 10, 0.0, 1.0);
        close(all_decay.at(10), 2.0);
        close(all_decay.at(55), 1.0);
    }

    /// The rates of PyTorch's `LambdaLR` with the linear and the cosine schedule of `transformers`, 4 steps, no warm-up.
    #[test]
    fn without_warm_up_the_first_step_has_the_peak_and_the_last_one_trains() {
        let config = |schedule| OptimConfig { lr: 1.0, schedule, warmup_steps: 0, ..OptimConfig::default() };
        let linear = LearningRate::new(&config(Schedule::Linear), 4, 64);
        let cosine = LearningRate::new(&config(Schedule::Cosine), 4, 64);
        for (step, [on_the_line, on_the_cosine]) in
            [[1.0, 1.0], [0.75, 0.853_553_390_593_273_8], [0.5, 0.5], [0.25, 0.146_446_609_406_726_24], [0.0, 0.0]]
                .into_iter()
                .enumerate()
        {
            close(linear.at(step as u64 + 1), on_the_line);
            close(cosine.at(step as u64 + 1), on_the_cosine);
        }
    }

    #[test]
    fn every_step_of_a_new_run_moves_the_weights() {
        for schedule in [Schedule::Cosine, Schedule::Linear, Schedule::WarmupStableDecay] {
            for (steps, warmup_steps) in [(1, 0), (1, 1), (2, 0), (7, 3), (100, 10)] {
                let config = OptimConfig { schedule, warmup_steps, ..OptimConfig::default() };
                let rate = LearningRate::new(&config, steps, 64);
                assert!((1..=steps).all(|step| rate.at(step) > 0.0), "{schedule:?}, {steps} steps");
                close(rate.at(steps + 1), 0.0);
            }
        }
    }

    #[test]
    fn noam_peaks_at_the_end_of_warm_up() {
        let rate = rate(Schedule::Noam, 16, 0.0, 0.2);
        close(rate.at(4), 2.0 / 8.0 * 4.0 / 64.0);
        close(rate.at(16), 2.0 / 8.0 / 4.0);
        close(rate.at(64), 2.0 / 8.0 / 8.0);
        assert!(rate.at(15) < rate.at(16) && rate.at(17) < rate.at(16));
    }

    #[test]
    fn corner_cases_give_finite_rates() {
        for schedule in
            [Schedule::Constant, Schedule::Cosine, Schedule::Linear, Schedule::Noam, Schedule::WarmupStableDecay]
        {
            for (steps, warmup_steps) in [(0, 0), (1, 0), (1, 1), (5, 50), (1, 10)] {
                let config = OptimConfig { schedule, warmup_steps, ..OptimConfig::default() };
                let rate = LearningRate::new(&config, steps, 8);
                for step in 0..=steps + 2 {
                    let lr = rate.at(step);
                    assert!(lr.is_finite() && lr >= 0.0, "{schedule:?} over {steps} steps gives {lr} at {step}");
                }
            }
        }
    }
}
