//! The time of a call: rounds of calls, some of them before the clock starts.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use burn::tensor::Device;
use kiln_train::device::is_cpu;
use kiln_train::metrics::Round;

/// How often a call is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Calls of a repeat, which ends with a sync: steps, where steps are timed.
    pub steps: usize,
    /// Repeats, of which the median counts.
    pub repeats: usize,
    /// Repeats before the clock starts: kernels are compiled and chosen, and steps are recorded.
    pub(crate) warm_up: usize,
}

impl Effort {
    /// Returns the effort for a call that is warm already.
    pub fn new(steps: usize, repeats: usize) -> Self {
        Self { steps, repeats, warm_up: 0 }
    }

    /// Returns the effort on `device`: a shape is recorded as a CUDA graph when it comes the fourth time.
    pub fn on(device: &Device, steps: usize, repeats: usize) -> Self {
        Self { steps, repeats, warm_up: if is_cpu(device) { 1 } else { 5 } }
    }
}

/// Seconds of one call, in each repeat; sorted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Repeats(Vec<f64>);

impl Repeats {
    fn of(mut secs: Vec<f64>) -> Self {
        secs.sort_by(f64::total_cmp);
        Self(secs)
    }

    /// The median; of an even number, the higher of the two in the middle.
    pub(crate) fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    /// The median; of an even number, the lower of the two in the middle.
    pub(crate) fn lower_median(&self) -> f64 {
        self.0[(self.0.len() - 1) / 2]
    }

    /// The fastest and the slowest.
    pub(crate) fn spread(&self) -> [f64; 2] {
        [self.0[0], self.0[self.0.len() - 1]]
    }
}

/// What [`time`] has measured.
#[derive(Debug, Clone)]
pub(crate) struct Paced<T> {
    /// Until the device is done with all calls of a repeat, so that launches overlap with earlier calls.
    pub(crate) device: Repeats,
    /// Until the host has enqueued them.
    pub(crate) host: Repeats,
    /// The last result. A caller reads a value of it, because a kernel whose launch fails is fast.
    pub(crate) last: T,
}

/// Times `call`, which gets its number within its repeat. `before` runs before the clock of each repeat starts.
///
/// # Errors
/// If a call or the device fails, or if there is nothing to time.
pub(crate) fn time<T>(
    device: &Device,
    effort: Effort,
    mut before: impl FnMut() -> Result<()>,
    mut call: impl FnMut(usize) -> Result<T>,
) -> Result<Paced<T>> {
    ensure!(effort.steps > 0 && effort.repeats > 0, "nothing is timed without steps and repeats");
    let (mut walls, mut hosts, mut last) = (Vec::new(), Vec::new(), None);
    for repeat in 0..effort.warm_up + effort.repeats {
        before()?;
        let mut round = Round::of(device, effort.steps, &mut call)?;
        last = round.results.pop();
        if repeat >= effort.warm_up {
            let each = |until: Instant| (until - round.started).as_secs_f64() / effort.steps as f64;
            walls.push(each(round.ended));
            hosts.push(each(round.enqueued));
        }
    }
    Ok(Paced { device: Repeats::of(walls), host: Repeats::of(hosts), last: last.context("no step was timed")? })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn warm_up_is_left_out_and_each_repeat_begins_with_its_hook() {
        let effort = Effort { steps: 2, repeats: 3, warm_up: 1 };
        let (mut begun, mut calls) = (0, 0);
        let before = || {
            begun += 1;
            // Not on the clock.
            std::thread::sleep(Duration::from_millis(60));
            Ok(())
        };
        let paced = time(&Device::flex(), effort, before, |step| {
            calls += 1;
            std::thread::sleep(Duration::from_millis(if calls <= 2 || calls > 6 { 60 } else { 10 }));
            Ok(step)
        })
        .expect("it sleeps");
        assert_eq!((begun, calls, paced.last), (4, 8, 1));
        let [fastest, slowest] = paced.device.spread();
        assert!(fastest >= 0.01 && (0.01..0.04).contains(&paced.device.median()) && slowest >= 0.06, "{paced:?}");
        assert!(paced.host.median() <= slowest, "{paced:?}");
    }

    #[test]
    fn medians_of_an_even_number_are_the_two_in_the_middle() {
        let repeats = Repeats::of(vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!((repeats.lower_median(), repeats.median(), repeats.spread()), (2.0, 3.0, [1.0, 4.0]));
        let one = Repeats::of(vec![7.0]);
        assert_eq!((one.lower_median(), one.median()), (7.0, 7.0));
    }

    #[test]
    fn nothing_to_time_is_an_error() {
        let error = time(&Device::flex(), Effort::new(0, 3), || Ok(()), |_| Ok(())).expect_err("no call").to_string();
        assert!(error.contains("without steps and repeats"), "{error}");
    }
}
