//! The time of one call.

use anyhow::Result;
use burn::tensor::Device;
use kiln_train::device::is_cpu;

use crate::diagnose::measure::{Effort, time};

/// The time of one call: the median over repeats; of an even number of them, the lower of the two in the middle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timed {
    /// Seconds per call until the device is done with many calls in a row, so that launches overlap with earlier calls. If the
    /// host takes longer than the device, this is the host's time.
    pub device: f64,
    /// Seconds per call until the host has enqueued all of them.
    pub host: f64,
}

impl Timed {
    /// Subtracts the time of a part of the call. If the part took no less than the whole, something else kept the machine busy:
    /// the result is not a number.
    pub(super) fn without(self, part: Timed) -> Self {
        let device = self.device - part.device;
        Self { device: if device > 0.0 { device } else { f64::NAN }, host: (self.host - part.host).max(0.0) }
    }

    /// Whether the time was measured.
    pub fn is_known(self) -> bool {
        self.device.is_finite()
    }

    /// Divides by `n` calls.
    pub(super) fn over(self, n: usize) -> Self {
        Self { device: self.device / n as f64, host: self.host / n as f64 }
    }
}

/// Times calls on a device.
#[derive(Debug, Clone)]
pub(super) struct Stopwatch {
    device: Device,
    /// Bytes of results that may be in memory at once.
    kept_bytes: f64,
    calls: usize,
    repeats: usize,
}

impl Stopwatch {
    pub(super) fn new(device: &Device, repeats: usize) -> Self {
        let device = device.clone().inner();
        match is_cpu(&device) {
            // The CPU has no queue: a call is over when it returns.
            true => Self { device, kept_bytes: 1e9, calls: 3, repeats },
            false => Self { device, kept_bytes: 8e9, calls: 20, repeats },
        }
    }

    /// Times `call`, whose result takes `bytes`. Results are kept until the device is done, because a lazy backend never
    /// computes a result that is dropped before.
    pub(super) fn time<T>(&self, bytes: f64, mut call: impl FnMut() -> T) -> Result<Timed> {
        let calls = ((self.kept_bytes / bytes.max(1.0)) as usize).clamp(2, self.calls);

        // The first round is a warm-up: it compiles kernels and grows the memory pools.
        let effort = Effort { steps: calls, repeats: self.repeats, warm_up: 1 };
        let paced = time(&self.device, effort, || Ok(()), |_| Ok(call()))?;
        Ok(Timed { device: paced.device.lower_median(), host: paced.host.lower_median() })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_part_that_takes_longer_than_the_whole_leaves_no_time() {
        let (whole, part) = (Timed { device: 5.0, host: 1.0 }, Timed { device: 2.0, host: 2.0 });
        assert_eq!(whole.without(part), Timed { device: 3.0, host: 0.0 });
        assert_eq!(whole.over(2), Timed { device: 2.5, host: 0.5 });
        assert!(!whole.without(whole).is_known() && !part.without(whole).over(2).is_known());
    }

    #[test]
    fn one_slow_round_of_two_is_not_the_median() {
        let mut calls = 0;
        let time = Stopwatch::new(&Device::flex(), 2).time(1e12, || {
            calls += 1;
            // Two calls a round; the first round is the warm-up.
            std::thread::sleep(Duration::from_millis(if calls == 3 { 200 } else { 1 }));
        });
        assert!(time.expect("a CPU").device < 0.05);
    }

    #[test]
    fn fewer_calls_are_made_at_once_if_results_are_large() {
        let watch = Stopwatch::new(&Device::flex(), 1);
        for (bytes, wanted) in [(1e12, 2 * 2), (1.0, 2 * 3)] {
            let mut calls = 0;
            watch.time(bytes, || calls += 1).expect("a CPU");
            assert_eq!(calls, wanted, "one round of warm-up and one timed round");
        }
    }
}
