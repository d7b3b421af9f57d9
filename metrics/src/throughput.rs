//! Effective tokens per second, and model FLOPs utilization.
//!
//! - Effective tokens are non-padding tokens: source tokens (with their end token) and target labels, or tokens of text.
//!   Some trainers count target tokens only, or padding too, so each speed is reported with its padding ratio.
//! - `mfu = flops / (elapsed_secs * peak_flops_per_sec)`. `flops` counts matrix products and attention of the forward and
//!   backward pass at the computed shapes, causal attention by half, without recomputation. The peak is the device's peak
//!   for dense products in the compute precision.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::StepMetrics;

/// Speed over a period of training.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Throughput {
    /// Non-padding tokens per second: source and target, or tokens of text.
    pub tokens_per_sec: f64,
    /// Non-padding source tokens per second; 0 for text.
    pub source_tokens_per_sec: f64,
    /// Labels per second.
    pub target_tokens_per_sec: f64,
    /// Fraction of the computed positions that were padding, 0 to 1.
    pub padding_ratio: f64,
    /// Optimizer steps per second.
    pub steps_per_sec: f64,
    /// Samples per second: pairs, or rows of text.
    #[serde(default)]
    pub samples_per_sec: f64,
    /// Model FLOPs per second, forward and backward.
    pub flops_per_sec: f64,
    /// Fraction of the device's peak, 0 to 1; absent if the peak is not known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mfu: Option<f64>,
}

/// Adds up work; [`ThroughputMeter::over`] divides it by time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ThroughputMeter {
    tokens: u64,
    source_tokens: u64,
    target_tokens: u64,
    padded_tokens: u64,
    samples: u64,
    steps: u64,
    flops: f64,
}

impl ThroughputMeter {
    /// Counts one optimizer step with the FLOPs of its forward and backward passes.
    pub fn push(&mut self, step: &StepMetrics, flops: f64) {
        self.tokens += step.tokens;
        self.source_tokens += step.source_tokens;
        self.target_tokens += step.target_tokens;
        self.padded_tokens += step.padded_tokens;
        self.samples += step.samples;
        self.steps += 1;
        self.flops += flops;
    }

    /// The speed of the counted work over `elapsed`, with the MFU if the peak is known.
    pub fn over(&self, elapsed: Duration, peak_flops_per_sec: Option<f64>) -> Throughput {
        let secs = elapsed.as_secs_f64().max(1e-9);
        let padding = self.padded_tokens.saturating_sub(self.tokens);
        let flops_per_sec = self.flops / secs;
        Throughput {
            tokens_per_sec: self.tokens as f64 / secs,
            source_tokens_per_sec: self.source_tokens as f64 / secs,
            target_tokens_per_sec: self.target_tokens as f64 / secs,
            padding_ratio: padding as f64 / self.padded_tokens.max(1) as f64,
            steps_per_sec: self.steps as f64 / secs,
            samples_per_sec: self.samples as f64 / secs,
            flops_per_sec,
            mfu: peak_flops_per_sec.map(|peak| flops_per_sec / peak),
        }
    }

    /// The speed since the last call. Counting restarts.
    pub fn take(&mut self, elapsed: Duration, peak_flops_per_sec: Option<f64>) -> Throughput {
        std::mem::take(self).over(elapsed, peak_flops_per_sec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step() -> StepMetrics {
        StepMetrics {
            step: 1,
            epoch: 0,
            loss: 1.0,
            nll: 1.0,
            grad_norm: 1.0,
            lr: 1e-3,
            updates: 1,
            loss_scale: None,
            skipped: false,
            stopped: false,
            tokens: 800,
            source_tokens: 300,
            target_tokens: 500,
            loss_z: None,
            grad_norm_z: None,
            padded_tokens: 1000,
            sources: crate::SourceMetrics::default(),
            samples: 40,
        }
    }

    #[test]
    fn padding_is_not_counted_as_speed() {
        let mut meter = ThroughputMeter::default();
        meter.push(&step(), 4e9);
        meter.push(&step(), 4e9);
        let speed = meter.take(Duration::from_secs(2), Some(16e9));
        assert_eq!(speed.tokens_per_sec, 800.0);
        assert_eq!((speed.source_tokens_per_sec, speed.target_tokens_per_sec), (300.0, 500.0));
        assert!((speed.padding_ratio - 0.2).abs() < 1e-12);
        assert_eq!(speed.samples_per_sec, 40.0);
        assert_eq!((speed.steps_per_sec, speed.flops_per_sec, speed.mfu), (1.0, 4e9, Some(0.25)));
        assert_eq!(meter, ThroughputMeter::default(), "taking starts a new window");
    }

    #[test]
    fn without_a_known_peak_there_is_no_mfu() {
        let mut meter = ThroughputMeter::default();
        meter.push(&step(), 1.0);
        let speed = meter.over(Duration::from_secs(1), None);
        assert_eq!(speed.mfu, None);
        assert!(!serde_json::to_string(&speed).expect("plain numbers").contains("mfu"));
    }
}
