//! How long one call takes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use burn::tensor::Device;

use crate::device::is_cpu;

/// Time of one call, median over repeats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timed {
    /// Seconds until the device is done, many calls in a row: launches hide behind the calls before them. It is the host's
    /// time where that is the longer one.
    pub device: f64,
    /// Seconds until the host has enqueued it.
    pub host: f64,
}

impl Timed {
    /// What is left of a call without a part of it. Noise does not make it negative.
    pub(super) fn without(self, part: Timed) -> Self {
        Self { device: (self.device - part.device).max(0.0), host: (self.host - part.host).max(0.0) }
    }

    /// One of `n` calls.
    pub(super) fn over(self, n: usize) -> Self {
        Self { device: self.device / n as f64, host: self.host / n as f64 }
    }
}

/// Times calls on a device.
#[derive(Debug, Clone)]
pub(super) struct Stopwatch {
    device: Device,
    /// Results that may lie in memory at once.
    kept_bytes: f64,
    calls: usize,
    repeats: usize,
}

impl Stopwatch {
    pub(super) fn new(device: &Device, repeats: usize) -> Self {
        let device = device.clone().inner();
        match is_cpu(&device) {
            // Nothing is enqueued: a call is over when it returns.
            true => Self { device, kept_bytes: 1e9, calls: 3, repeats },
            false => Self { device, kept_bytes: 8e9, calls: 20, repeats },
        }
    }

    /// Times `call`, whose result takes `bytes`. Results are kept until the device is done: what is dropped before is
    /// never computed on a lazy backend.
    pub(super) fn time<T>(&self, bytes: f64, mut call: impl FnMut() -> T) -> Result<Timed> {
        let calls = ((self.kept_bytes / bytes.max(1.0)) as usize).clamp(2, self.calls);
        let mut times = Vec::new();
        // The first round compiles, and makes the pools grow.
        for round in 0..=self.repeats {
            let started = Instant::now();
            let kept: Vec<T> = (0..calls).map(|_| call()).collect();
            let host = started.elapsed();
            self.device.sync().context("waiting for the device")?;
            let device = started.elapsed();
            drop(kept);
            if round > 0 {
                times.push((device, host));
            }
        }
        let median = |mut times: Vec<Duration>| {
            times.sort();
            times[times.len() / 2].as_secs_f64() / calls as f64
        };
        let (device, host) = times.into_iter().unzip();
        Ok(Timed { device: median(device), host: median(host) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_taken_off_and_never_more() {
        let (whole, part) = (Timed { device: 5.0, host: 1.0 }, Timed { device: 2.0, host: 2.0 });
        assert_eq!(whole.without(part), Timed { device: 3.0, host: 0.0 });
        assert_eq!(whole.over(2), Timed { device: 2.5, host: 0.5 });
    }

    #[test]
    fn large_results_are_kept_in_small_numbers() {
        let watch = Stopwatch::new(&Device::flex(), 1);
        for (bytes, wanted) in [(1e12, 2 * 2), (1.0, 2 * 3)] {
            let mut calls = 0;
            watch.time(bytes, || calls += 1).expect("a CPU");
            assert_eq!(calls, wanted, "a round to warm up and one to time");
        }
    }
}
