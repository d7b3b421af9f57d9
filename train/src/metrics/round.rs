//! Calls between two moments at which the device has nothing to do: the stopwatch of all measurements of steps.

use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::Device;

use super::host_sync;

/// Calls in a row, until the device was done with them.
#[derive(Debug, Clone)]
pub struct Round<T> {
    /// When the first call began.
    pub started: Instant,
    /// When the last one returned. The device may not have been done.
    pub enqueued: Instant,
    /// When the device was done with all of them.
    pub ended: Instant,
    /// What they returned, in order. It is held until the device is done, because a lazy backend does not compute what nobody holds.
    pub results: Vec<T>,
}

impl<T> Round<T> {
    /// Makes `n` calls, which get their numbers, and waits for the device. Its work before must be done.
    ///
    /// # Errors
    /// If a call or the device fails.
    pub fn of(device: &Device, n: usize, call: impl FnMut(usize) -> Result<T>) -> Result<Self> {
        let started = Instant::now();
        let results = (0..n).map(call).collect::<Result<Vec<T>>>()?;
        let enqueued = Instant::now();
        host_sync::waiting(|| device.clone().inner().sync()).context("waiting for the device")?;
        Ok(Self { started, enqueued, ended: Instant::now(), results })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_round_holds_its_results_and_ends_with_one_wait() {
        let before = host_sync::count();
        let round = Round::of(&Device::flex(), 3, |number| {
            std::thread::sleep(Duration::from_millis(2));
            Ok(10 * number)
        });
        let round = round.expect("it sleeps");
        assert_eq!((round.results, host_sync::count() - before), (vec![0, 10, 20], 1));
        assert!(round.enqueued - round.started >= Duration::from_millis(6) && round.ended >= round.enqueued);

        let failed: Result<Round<()>> = Round::of(&Device::flex(), 3, |number| anyhow::bail!("call {number}"));
        assert_eq!(failed.expect_err("the first call fails").to_string(), "call 0");
    }
}
