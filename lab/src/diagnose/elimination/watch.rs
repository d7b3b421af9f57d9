//! The times of all tests in milliseconds, and a check of the stopwatch.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use burn::tensor::{DType, Device, Distribution, Tensor};
use kiln_train::device::is_cpu;

use crate::diagnose::measure::{Effort, Paced, time};

/// The time of a step of something, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// The median over repeats.
    pub(crate) ms: f64,
    /// The fastest and the slowest repeat.
    pub(crate) spread: [f64; 2],
    /// The host's time until it has enqueued the step: the median over repeats.
    pub(crate) host_ms: f64,
}

/// Times `call`, see [`time`]. Returns the last result, too.
///
/// # Errors
/// If a call or the device fails.
pub(super) fn pace<T>(device: &Device, effort: Effort, call: impl FnMut(usize) -> Result<T>) -> Result<(Pace, T)> {
    let Paced { device, host, last } = time(device, effort, || Ok(()), call)?;
    let pace = Pace {
        ms: 1e3 * device.median(),
        spread: device.spread().map(|secs| 1e3 * secs),
        host_ms: 1e3 * host.median(),
    };
    Ok((pace, last))
}

/// Times calls that return a loss, whose last value must be finite. Returns that value.
///
/// # Errors
/// As [`pace`], and if the loss is not finite.
pub(super) fn pace_loss(
    device: &Device,
    effort: Effort,
    call: impl FnMut(usize) -> Result<Tensor<1>>,
) -> Result<(Pace, f64)> {
    let (pace, last) = pace(device, effort, call)?;
    Ok((pace, read(last)?))
}

/// Reads a number (host sync).
///
/// # Errors
/// If the device fails, or if the number is not finite.
pub(super) fn read(value: Tensor<1>) -> Result<f64> {
    let value: f32 = value.try_into_scalar().context("reading the loss of a timed step")?;
    ensure!(value.is_finite(), "the loss of a timed step is {value}");
    Ok(f64::from(value))
}

/// A sleep and work of known proportions, as this stopwatch measures them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Harness {
    /// Milliseconds that were slept.
    pub(crate) slept_ms: f64,
    /// Milliseconds that were measured for it.
    pub(crate) measured_ms: f64,
    /// The time of 8 matrix products, divided by the time of 4.
    pub(crate) ratio: f64,
}

impl Harness {
    /// Measures both.
    ///
    /// # Errors
    /// If the device fails.
    pub fn measure(device: &Device) -> Result<Self> {
        const SLEEP: Duration = Duration::from_millis(20);
        const PRODUCT_REPEATS: usize = 25;
        let effort = Effort { steps: 1, repeats: 5, warm_up: 1 };
        let (slept, ()) = pace(device, effort, |_| {
            std::thread::sleep(SLEEP);
            Ok(())
        })?;

        let device = device.clone().inner();
        let n = if is_cpu(&device) { 256 } else { 4096 };
        let factor = Tensor::<2>::random([n, n], Distribution::Default, (&device, DType::F32));
        let products = |calls: usize| {
            let effort = Effort { steps: calls, repeats: 1, warm_up: 0 };
            let (pace, _) = pace(&device, effort, |_| Ok(factor.clone().matmul(factor.clone())))?;
            Ok::<_, anyhow::Error>(pace.ms * calls as f64)
        };
        products(8)?; // compiles
        // The fastest of each, in turn: other processes only add time.
        let (mut four, mut eight) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..PRODUCT_REPEATS {
            four = products(4)?.min(four);
            eight = products(8)?.min(eight);
        }
        Ok(Self { slept_ms: 1e3 * SLEEP.as_secs_f64(), measured_ms: slept.ms, ratio: eight / four })
    }

    /// Returns whether the stopwatch measures what is known.
    pub fn is_right(&self) -> bool {
        let sleep = self.measured_ms / self.slept_ms;
        (0.99..1.5).contains(&sleep) && (1.5..2.7).contains(&self.ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_leaves_out_warm_up_and_one_slow_repeat() {
        let effort = Effort { steps: 2, repeats: 3, warm_up: 1 };
        let mut calls = 0;
        let (pace, last) = pace(&Device::flex(), effort, |step| {
            calls += 1;
            // The warm-up, and the last repeat.
            std::thread::sleep(Duration::from_millis(if calls <= 2 || calls > 6 { 60 } else { 10 }));
            Ok((calls, step))
        })
        .expect("it sleeps");
        assert_eq!((calls, last), (8, (8, 1)));
        assert!((10.0..40.0).contains(&pace.ms) && pace.spread[0] >= 10.0 && pace.spread[1] >= 60.0, "{pace:?}");
        assert!(pace.host_ms <= pace.spread[1], "{pace:?}");
    }

    #[test]
    fn a_wrong_clock_is_noticed() {
        let right = Harness { slept_ms: 20.0, measured_ms: 20.4, ratio: 2.1 };
        assert!(right.is_right());
        assert!(!Harness { measured_ms: 0.1, ..right }.is_right(), "a clock that does not wait");
        assert!(!Harness { ratio: 1.0, ..right }.is_right(), "work that is not waited for");
    }

    #[test]
    fn a_loss_that_is_not_finite_is_an_error() {
        let effort = Effort { steps: 1, repeats: 1, warm_up: 0 };
        let nan = |_| Ok(Tensor::<1>::from_data([f32::NAN], &Device::flex()));
        let error = pace_loss(&Device::flex(), effort, nan).expect_err("not a number").to_string();
        assert!(error.contains("NaN"), "{error}");
    }
}
