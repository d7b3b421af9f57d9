//! Checks the loss scale of fp16.

use super::LossScaleConfig;

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
