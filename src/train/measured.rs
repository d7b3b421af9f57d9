//! What the loop counts on the host: time, tokens and FLOPs, since the last line and since the start.

use std::time::{Duration, Instant};

use kiln_data::Shape;
use kiln_kernels::kernel_count;
use kiln_model::{TransformerConfig, flops};

use super::feed::Group;
use super::trainer::Outcome;
use crate::metrics::{SpanClock, SpanTotals, StepMetrics, ThroughputMeter};

/// The host's clocks and counters since the last line, and since the start.
pub(super) struct Measured {
    pub(super) peak_flops_per_sec: Option<f64>,
    pub(super) clock: SpanClock,
    pub(super) window_start: Instant,
    pub(super) window: ThroughputMeter,
    pub(super) run: ThroughputMeter,
    pub(super) run_totals: SpanTotals,
    /// FLOPs of the pending steps, in their order.
    pub(super) flops: Vec<f64>,
    pub(super) new_kernels: NewKernels,
    /// Largest batch among the pending steps, for the message when memory runs out.
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
            flops: Vec::new(),
            new_kernels: NewKernels::default(),
            largest: None,
        }
    }

    /// Forgets the time since the last window.
    pub(super) fn restart(&mut self) {
        self.clock.take();
        self.new_kernels = NewKernels::start();
        self.window_start = Instant::now();
    }

    /// Ends a stretch of validation and saving, which is no training time.
    pub(super) fn leave_out(&mut self) {
        self.run_totals.merge(&self.clock.take());
        self.window_start = Instant::now();
    }

    pub(super) fn count(&mut self, group: &Group, model: &TransformerConfig) {
        let of_shape = |Shape { batch_size, source_len, target_len }| {
            flops::train_flops_per_batch(model, [batch_size, source_len, target_len]).total()
        };
        self.flops.push(group.shapes().map(of_shape).sum());
        let larger = group.largest_shape().into_iter().chain(self.largest);
        self.largest = larger.max_by_key(Shape::padded_tokens);
    }

    /// Counts the steps of a window and returns where its time went.
    pub(super) fn end_window(&mut self, steps: &[StepMetrics]) -> SpanTotals {
        for (step, flops) in steps.iter().zip(self.flops.drain(..)) {
            self.window.push(step, flops);
            self.run.push(step, flops);
        }
        self.largest = None;
        let totals = self.clock.take();
        self.run_totals.merge(&totals);
        self.window_start = Instant::now();
        totals
    }

    pub(super) fn summarize(&self, outcome: &mut Outcome) {
        let training: Duration = self.run_totals.training();
        outcome.throughput = self.run.over(training, self.peak_flops_per_sec);
        outcome.data_wait_share = self.run_totals.data_wait_share();
        outcome.late_kernels = self.new_kernels.late();
    }
}

/// Kernels that were launched for the first time since the loop began.
#[derive(Debug, Default)]
pub(super) struct NewKernels {
    /// At the last line.
    last: usize,
    /// At the first line of the loop, before which the last few kernels have their turn.
    first_line: Option<usize>,
}

impl NewKernels {
    fn total() -> Option<usize> {
        kernel_count().map(|count| count.first_launched())
    }

    fn start() -> Self {
        Self { last: Self::total().unwrap_or(0), first_line: None }
    }

    /// Those since the last line.
    pub(super) fn take(&mut self) -> Option<usize> {
        let total = Self::total()?;
        self.first_line.get_or_insert(total);
        Some(total - std::mem::replace(&mut self.last, total))
    }

    /// Leaves out what `work` launches for the first time: text that is generated at the end of a run has shapes of its own.
    pub(super) fn without<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = Self::total().unwrap_or(0);
        let done = work();
        let new = Self::total().unwrap_or(0) - before;
        self.last += new;
        self.first_line = self.first_line.map(|first| first + new);
        done
    }

    /// Those since the first line.
    fn late(&self) -> Option<usize> {
        Some(Self::total()? - self.first_line?)
    }
}
