//! Where the time of a GPU went, from events in its queue that are read once it has passed them.

use burn::tensor::Device;
use kiln_kernels::laps::{Lap, LapClock};

use crate::metrics::DeviceTime;

/// Names of the time before a mark.
const BETWEEN: &str = "between steps";
const STEP: &str = "step";
const LEFT_OUT: &str = "validation and saving";

/// Marks the steps of the loop in the GPU's queue. On the CPU it does nothing.
pub(super) struct DeviceClock {
    laps: Option<LapClock>,
    /// Milliseconds so far, of all time and of steps.
    total: [f64; 2],
}

impl DeviceClock {
    pub(super) fn of(device: &Device) -> Self {
        Self { laps: LapClock::of(device), total: [0.0; 2] }
    }

    /// Marks the begin of a step, before its work is enqueued.
    pub(super) fn begin_step(&mut self) {
        self.mark(BETWEEN);
    }

    /// Marks the end of a step, whose work has been enqueued.
    pub(super) fn end_step(&mut self) {
        self.mark(STEP);
    }

    /// Leaves out the work since the last step.
    pub(super) fn exclude_pause(&mut self) {
        self.mark(LEFT_OUT);
    }

    fn mark(&mut self, what: &'static str) {
        if let Some(laps) = &mut self.laps {
            laps.mark(what);
        }
    }

    /// Takes the time since the last call, as far as the GPU has passed its marks; `None` if it has passed none.
    pub(super) fn take(&mut self) -> Option<DeviceTime> {
        let [elapsed, steps] = sums(&self.laps.as_ref()?.take());
        self.total = [self.total[0] + elapsed, self.total[1] + steps];
        DeviceTime::of(elapsed, steps)
    }

    /// Returns the fraction of the time so far in which the GPU was in a step; `None` if it is not known.
    pub(super) fn busy_share(&self) -> Option<f64> {
        let [elapsed, steps] = self.total;
        DeviceTime::of(elapsed, steps).map(|time| time.busy_share)
    }
}

/// Returns the milliseconds of steps with the time between them, and of steps alone.
fn sums(laps: &[Lap]) -> [f64; 2] {
    let sum = |of: &[&str]| laps.iter().filter(|lap| of.contains(&lap.what)).map(|lap| f64::from(lap.ms)).sum();
    [sum(&[BETWEEN, STEP]), sum(&[STEP])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_between_steps_is_not_busy_and_validation_is_left_out() {
        let lap = |what, ms| Lap { what, ms };
        let laps = [lap(STEP, 6.0), lap(BETWEEN, 1.5), lap(STEP, 7.5), lap(LEFT_OUT, 500.0), lap(BETWEEN, 0.0)];
        let [elapsed, steps] = sums(&laps);
        assert_eq!([elapsed, steps], [15.0, 13.5]);
        assert_eq!(DeviceTime::of(elapsed, steps).map(|time| time.busy_share), Some(0.9));
        assert_eq!(DeviceTime::of(0.0, 0.0), None);
    }

    #[test]
    fn the_cpu_has_no_marks() {
        let mut clock = DeviceClock::of(&Device::flex());
        clock.begin_step();
        clock.end_step();
        assert_eq!((clock.take(), clock.busy_share()), (None, None));
    }
}
