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

/// How long a device rests before a burst.
const REST: Duration = Duration::from_millis(200);

/// Times calls on a device.
#[derive(Debug, Clone)]
pub(super) struct Stopwatch {
    device: Device,
    /// Results that may lie in memory at once.
    kept_bytes: f64,
    calls: usize,
    repeats: usize,
    /// Calls come in bursts after rests, see [`Self::in_bursts`].
    bursts: bool,
}

impl Stopwatch {
    pub(super) fn new(device: &Device, repeats: usize) -> Self {
        let device = device.clone().inner();
        match is_cpu(&device) {
            // Nothing is enqueued: a call is over when it returns.
            true => Self { device, kept_bytes: 1e9, calls: 3, repeats, bursts: false },
            false => Self { device, kept_bytes: 8e9, calls: 20, repeats, bursts: false },
        }
    }

    /// Times bursts of about as many calls as the peer's script makes of an operator (28), each after a rest: for longer a device
    /// under full load does not keep its clock. What a burst takes apart from its calls is the same for one of a quarter as many,
    /// whose time is taken off.
    pub(super) fn in_bursts(self) -> Self {
        Self { bursts: true, ..self }
    }

    /// Times `call`, whose result takes `bytes`.
    pub(super) fn time<T>(&self, bytes: f64, mut call: impl FnMut() -> T) -> Result<Timed> {
        let calls = ((self.kept_bytes / bytes.max(1.0)) as usize).clamp(2, self.calls);
        let taken_off = if self.bursts { calls.div_ceil(4) } else { 0 };
        let (mut rounds, mut short_rounds) = (Vec::new(), Vec::new());
        // The first round compiles, and makes the pools grow.
        for round in 0..=self.repeats {
            if self.bursts {
                std::thread::sleep(REST);
                short_rounds.push(self.round(taken_off, &mut call)?);
            }
            rounds.push(self.round(calls, &mut call)?);
            if round == 0 {
                rounds.clear();
                short_rounds.clear();
            }
        }
        let (whole, part) = (median(&rounds), median(&short_rounds));
        Ok(whole.without(part).over(calls - taken_off))
    }

    /// Results are kept until the device is done: what is dropped before is never computed on a lazy backend.
    fn round<T>(&self, calls: usize, call: &mut impl FnMut() -> T) -> Result<Timed> {
        let started = Instant::now();
        let kept: Vec<T> = (0..calls).map(|_| call()).collect();
        let host = started.elapsed().as_secs_f64();
        self.device.sync().context("waiting for the device")?;
        let device = started.elapsed().as_secs_f64();
        drop(kept);
        Ok(Timed { device, host })
    }
}

/// 0 for no rounds.
fn median(rounds: &[Timed]) -> Timed {
    let middle = |seconds: fn(&Timed) -> f64| {
        let mut times: Vec<f64> = rounds.iter().map(seconds).collect();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().unwrap_or(0.0)
    };
    Timed { device: middle(|round| round.device), host: middle(|round| round.host) }
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

    /// A call takes 20 ms, and each round 80 more.
    #[test]
    fn what_a_burst_takes_beside_its_calls_is_no_part_of_a_call() {
        let nap = Duration::from_millis(20);
        let mut calls = 0;
        let watch = Stopwatch::new(&Device::flex(), 1).in_bursts();
        // Rounds of one call and of three, each twice.
        let timed = watch.time(1.0, || {
            let first_of_round = [0, 1, 4, 5].contains(&calls);
            calls += 1;
            std::thread::sleep(if first_of_round { 5 * nap } else { nap });
        });
        let per_call = timed.expect("a CPU").device;
        assert_eq!(calls, 8);
        assert!((0.01..0.035).contains(&per_call), "{per_call}");
    }

    #[test]
    fn the_median_of_rounds_is_taken_of_each_time() {
        let rounds = [(3.0, 1.0), (1.0, 2.0), (2.0, 3.0)].map(|(device, host)| Timed { device, host });
        assert_eq!(median(&rounds), Timed { device: 2.0, host: 2.0 });
        assert_eq!(median(&[]), Timed { device: 0.0, host: 0.0 });
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
