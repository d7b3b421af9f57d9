//! Checks the loss scale of fp16.

use serde::{Deserialize, Serialize};

/// Dynamic loss scaling, as in `torch.amp.GradScaler`. Only `precision = "fp16"` uses it.
///
/// The optimizer multiplies the mean loss by the scale before the backward pass and divides the gradients by it afterwards.
/// After an overflow it skips the update, which moves neither the schedule nor Adam's step count, and lowers the scale. After
/// many steps without an overflow it raises the scale.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LossScaleConfig {
    /// First scale.
    pub init: f32,
    /// Factor when the scale is raised, at least 1.
    pub growth_factor: f32,
    /// Factor after an overflow, in (0, 1).
    pub backoff_factor: f32,
    /// Consecutive steps without an overflow before the scale is raised.
    pub growth_interval: u32,
    /// Lowest scale. If gradients overflow even here, the run stops and names the parameters.
    pub floor: f32,
}

impl Default for LossScaleConfig {
    fn default() -> Self {
        Self { init: 65536.0, growth_factor: 2.0, backoff_factor: 0.5, growth_interval: 2000, floor: 1.0 }
    }
}

impl LossScaleConfig {
    pub(super) fn validate(&self, problems: &mut Vec<String>) {
        let Self { init, growth_factor, backoff_factor, growth_interval, floor } = *self;
        let ordinary = |value: f32| value > 0.0 && value.is_finite();
        let mut unless = |fits: bool, key: &str, problem: String| {
            if !fits {
                problems.push(format!("train.loss_scale.{key} {problem}"));
            }
        };

        unless(ordinary(floor), "floor", format!("{floor} is not a finite number above 0; 1 is usual"));
        unless(
            !ordinary(floor) || (ordinary(init) && init >= floor),
            "init",
            format!("{init} is not a finite number of at least train.loss_scale.floor {floor}; 65536 is usual"),
        );
        unless(
            growth_factor >= 1.0 && growth_factor.is_finite(),
            "growth_factor",
            format!("{growth_factor} is not a finite number of at least 1; 2 is usual, 1 keeps the scale from growing"),
        );
        unless(
            backoff_factor > 0.0 && backoff_factor < 1.0,
            "backoff_factor",
            format!("{backoff_factor} is outside (0, 1); 0.5 is usual"),
        );
        // The device counts in f32, which is exact up to 2^24.
        unless(
            (1..=1 << 24).contains(&growth_interval),
            "growth_interval",
            format!("{growth_interval} is outside 1 to {}; 2000 is usual", 1 << 24),
        );
    }
}
