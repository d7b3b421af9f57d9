//! The counters of the loop on the host: time, tokens and FLOPs, since the last line of metrics and since the start.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use kiln_data::Shape;

use super::feed::Group;
use super::new_kernels::NewKernels;
use super::outcome::Outcome;
use crate::metrics::{HostTimes, SpanClock, SpanTotals, StepMetrics, ThroughputMeter, host_sync};

/// The host's clocks and counters.
pub(super) struct Measured {
    /// Peak of the device; `None` if it or the model's FLOPs are not known.
    pub(super) peak_flops_per_sec: Option<f64>,
    pub(super) clock: SpanClock,
    pub(super) window_start: Instant,
    pub(super) window: ThroughputMeter,
    pub(super) run: ThroughputMeter,
    pub(super) run_totals: SpanTotals,
    /// Validation and saving since the last line, which its training time excludes.
    between: SpanTotals,
    /// Host syncs of this thread up to the last line, and up to the first step.
    syncs: [u64; 2],
    /// FLOPs of the pending steps, in order.
    flops: VecDeque<f64>,
    pub(super) new_kernels: NewKernels,
    /// Largest batch of the steps since the last line, for the message when memory runs out.
    pub(super) largest: Option<Shape>,
}

impl Measured {
    pub(super) fn start(peak_flops_per_sec: Option<f64>) -> Self {
        Self {
            peak_flops_per_sec,
            clock: SpanClock::start(),
            window_start: Instant::now(),
            window: ThroughputMeter::default(),
            run: ThroughputMeter::default(),
            run_totals: SpanTotals::default(),
            between: SpanTotals::default(),
            syncs: [host_sync::count(); 2],
            flops: VecDeque::new(),
            new_kernels: NewKernels::start(),
            largest: None,
        }
    }

    /// Starts the clocks anew.
    pub(super) fn restart(&mut self) {
        self.clock.take();
        self.syncs = [host_sync::count(); 2];
        self.new_kernels = NewKernels::start();
        self.window_start = Instant::now();
    }

    /// Excludes the validation and saving that just ended from the training time.
    pub(super) fn exclude_pause(&mut self) {
        let totals = self.clock.take();
        self.run_totals.merge(&totals);
        self.between.merge(&totals);
        self.window_start = Instant::now();
    }

    /// Excludes `spent`, the time until now, from the training time and from every other time.
    pub(super) fn exclude(&mut self, spent: Duration) {
        self.clock.exclude(spent);
        self.window_start += spent;
    }

    /// Returns where the time since the last line went, validation and saving included, and the host syncs. `totals` is
    /// the training since then.
    pub(super) fn since_last_line(&mut self, totals: &SpanTotals) -> (HostTimes, u64) {
        let mut all = std::mem::take(&mut self.between);
        all.merge(totals);
        let count = host_sync::count();
        (HostTimes::from(&all), count - std::mem::replace(&mut self.syncs[0], count))
    }

    /// Returns the same for this process, from the first step on.
    pub(super) fn since_first_step(&self) -> (HostTimes, u64) {
        (HostTimes::from(&self.run_totals), host_sync::count() - self.syncs[1])
    }

    /// Counts a step over `group`, with the FLOPs of all ranks; `None` if they are not known.
    pub(super) fn count(&mut self, group: &Group, flops: Option<f64>) {
        if flops.is_none() {
            self.peak_flops_per_sec = None;
        }
        self.flops.push_back(flops.unwrap_or_default());

        let larger = group.largest_shape().into_iter().chain(self.largest);
        self.largest = larger.max_by_key(Shape::padded_tokens);
    }

    /// Counts `steps`, the metrics of the oldest `n_steps` pending steps as far as they count, and returns how the time since the
    /// last line was spent.
    pub(super) fn end_window(&mut self, n_steps: usize, steps: &[StepMetrics]) -> SpanTotals {
        for (step, flops) in steps.iter().zip(self.flops.drain(..n_steps)) {
            self.window.push(step, flops);
            self.run.push(step, flops);
        }

        let totals = self.clock.take();
        self.run_totals.merge(&totals);
        self.window_start = Instant::now();
        totals
    }

    /// Writes the totals of this process into the outcome.
    pub(super) fn summarize(&self, outcome: &mut Outcome) {
        let training: Duration = self.run_totals.training();
        outcome.throughput = self.run.over(training, self.peak_flops_per_sec);
        outcome.data_wait_share = self.run_totals.data_wait_share();
        outcome.late_kernels = self.new_kernels.late();
    }
}
