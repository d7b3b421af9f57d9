//! Lines of metrics: the numbers of the steps since the last line, read from the device and passed to the sinks.
//!
//! On a GPU a line is read some steps after its last one: the host enqueues the copies of its numbers, then the next steps,
//! and reads what the device has passed by then. The device always has work, so a line does not empty the pipeline.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Error, Result};
use burn::tensor::Device;
use kiln_data::{BatchSource, Rank, Shape};
use kiln_metrics::logging::Logging;

use super::capture::Replayed;
use super::course::Course;
use super::device_time::DeviceClock;
use super::guard::{Watch, in_step};
use super::measured::Measured;
use super::memory_limit::MemoryLimit;
use super::slow_link::LinkWatch;
use super::state::TrainState;
use super::together::{losses_of_sources, of_replicas};
use crate::config::Config;
use crate::device::{Telemetry, device_memory, is_cpu};
use crate::eval::Model;
use crate::metrics::deferred::DeferredMetrics;
use crate::metrics::{CollectiveMetrics, Outliers, Span, WindowMetrics};

/// Steps that a GPU has been given after the last one of a line when the line is read. While the host reads one, the device has
/// the other to go on with.
pub const STEPS_BEHIND: u64 = 2;

/// A line whose numbers are being copied to the host.
#[derive(Debug)]
struct Line {
    /// Its last step.
    step: u64,
    n_steps: usize,
    /// Largest batch of its steps.
    largest: Option<Shape>,
    replayed: Replayed,
}

/// The sinks and meters of a run.
pub(super) struct Reporting {
    pub(super) logging: Logging,
    pub(super) deferred: DeferredMetrics,
    pub(super) outliers: Outliers,
    pub(super) watch: Watch,
    pub(super) link: LinkWatch,
    pub(super) measured: Measured,
    pub(super) course: Course,
    pub(super) limit: MemoryLimit,
    telemetry: Telemetry,
    pub(super) device_clock: DeviceClock,
    /// Lines that have not been read, oldest first.
    lines: VecDeque<Line>,
    n_in_lines: usize,
    /// Steps after a line before it is read.
    pub(super) steps_behind: u64,
    /// Sum over the samples of the GPU's busy share, and their number.
    busy: [f64; 2],
    /// Whether a line has failed: the steps after it do not count.
    has_failed: bool,
    /// Whether the run is failing: other ranks share nothing any more.
    is_last: bool,
}

impl Reporting {
    pub(super) fn new(
        logging: Logging,
        config: &Config,
        run_dir: &Path,
        train: Arc<dyn BatchSource>,
        rank: Rank,
        peak: Option<f64>,
        device: &Device,
    ) -> Self {
        // The CPU has completed a step when it returns.
        let steps_behind = if is_cpu(device) { 0 } else { STEPS_BEHIND };

        Self {
            logging,
            deferred: DeferredMetrics::of_sources(config.data.mix.iter().map(|source| source.name.clone()).collect()),
            outliers: Outliers::default(),
            watch: Watch::new(config, run_dir, train, rank),
            link: LinkWatch::new(config.train.grad_accum_steps),
            measured: Measured::start(peak),
            course: Course::of(config),
            limit: MemoryLimit::of(config, device),
            telemetry: Telemetry::start(device),
            device_clock: DeviceClock::of(device),
            lines: VecDeque::new(),
            n_in_lines: 0,
            steps_behind,
            busy: [0.0; 2],
            has_failed: false,
            is_last: false,
        }
    }

    /// Ends a line with the step that was just enqueued, and enqueues the copies of its numbers.
    pub(super) fn end_line(&mut self, step: u64, replayed: Replayed) {
        let n_steps = self.deferred.len() - self.n_in_lines;
        self.n_in_lines += n_steps;
        let largest = self.measured.largest.take();
        self.lines.push_back(Line { step, n_steps, largest, replayed });
        let Self { measured, deferred, .. } = self;
        measured.clock.time(Span::Drain, || deferred.begin());
    }

    /// Reads and logs the lines that are old enough, or `all` lines. Returns the padded tokens of their steps, if there
    /// were any lines.
    ///
    /// # Errors
    /// If the device failed, if a loss or gradient ended the run, or if a sink cannot be written.
    pub(super) fn read_lines<M: Model>(&mut self, state: &mut TrainState<M>, all: bool) -> Result<Option<u64>> {
        let mut read = None;
        while let Some(line) = self.lines.pop_front_if(|line| all || state.step >= line.step + self.steps_behind) {
            self.n_in_lines -= line.n_steps;
            let padded_tokens = self.log(state, &line).inspect_err(|_| self.has_failed = true)?;
            *read.get_or_insert(0) += padded_tokens;
        }
        // The CPU has completed the step, and its heap is sampled anyway.
        if read.is_some() || is_cpu(&state.device) {
            self.limit.check(state.step)?;
        }
        Ok(read)
    }

    /// Returns the share of the time in which the GPU ran kernels, as its driver counts it; without the driver's word, in which it was in a
    /// step. `None` if neither is known.
    pub(super) fn gpu_busy(&self) -> Option<f64> {
        let [sum, samples] = self.busy;
        if samples > 0.0 { Some(sum / samples) } else { self.device_clock.busy_share() }
    }

    /// After `failure` of something else: logs the steps that the device has completed.
    pub(super) fn log_completed_steps<M: Model>(&mut self, state: &mut TrainState<M>, failure: &Error) {
        // If another rank has failed, the sums of the last steps are undefined. Other ranks do not come to share what
        // replicas measure.
        let is_own = !state.ranks.are_many() || failure.chain().any(|cause| cause.is::<kiln_data::Error>());
        if is_own && !self.has_failed && state.exchange.replicas().is_none() {
            self.is_last = true;
            // The failure that is reported is the first one.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                self.end_line(state.step, Replayed::default());
                self.read_lines(state, true)
            }));
        }
        let _ = self.logging.flush();
    }

    /// Reads and logs the oldest line. Returns the padded tokens of its steps.
    fn log<M: Model>(&mut self, state: &mut TrainState<M>, line: &Line) -> Result<u64> {
        let Self { logging, deferred, outliers, watch, link, measured, course, .. } = self;
        let Self { telemetry, device_clock, busy, is_last, .. } = self;
        let rate = state.optimizer.learning_rate();
        // Host sync: a few numbers per step.
        let steps = measured.clock.time(Span::Drain, || deferred.finish(|update| rate.at(update)));
        let started = Instant::now();
        let mut own = steps.map_err(|error| in_step(error.into(), line.largest))?;
        if let Some(last) = own.last() {
            state.optimizer.observe(last.updates, state.step - last.step);
        }

        own.truncate(Watch::n_valid(&own));
        let mut steps =
            if state.exchange.replicas().is_some() { of_replicas(&state.ranks, &own)? } else { own.clone() };
        if state.is_mixed && !*is_last {
            losses_of_sources(&state.ranks, &mut steps)?;
        }
        steps.iter_mut().for_each(|step| outliers.mark(step));
        let totals = measured.end_window(line.n_steps, &steps);
        state.train_secs += totals.training().as_secs_f64();
        let throughput = measured.window.take(totals.training(), measured.peak_flops_per_sec);

        steps.iter().try_for_each(|step| logging.step(step))?;
        if let Some(mut window) = WindowMetrics::new(&steps, throughput, totals.data_wait_share()) {
            course.add(&steps, &window);
            window.new_kernels = measured.new_kernels.take();
            (window.host, window.host_syncs) = measured.since_last_line(&totals);
            (window.replayed_share, window.recorded_graphs) = (line.replayed.share, line.replayed.graphs);
            window.device_memory = device_memory(&state.device);
            window.memory_bytes = window.device_memory.map(|memory| memory.reserved_bytes);
            window.device_time = device_clock.take();
            (window.host_memory, window.host_use, window.gpu) = telemetry.take();
            if let Some((share, gpu)) = window.gpu.and_then(|gpu| gpu.busy_share.zip(Some(gpu))) {
                *busy = [busy[0] + share * gpu.samples as f64, busy[1] + gpu.samples as f64];
            }
            let timed = state.ranks.take_timings();
            window.collectives = CollectiveMetrics::sums(timed.iter().map(|it| (it.what, it.bytes, f64::from(it.ms))));
            logging.window(&window)?;
            let slow = link.note(&timed, totals.training());
            slow.iter().try_for_each(|note| logging.note(note))?;
            let notes = watch.check(&own, state, state.non_finite_steps)?;
            notes.iter().try_for_each(|note| logging.note(note))?;
            state.non_finite_steps += window.non_finite_steps;
        }
        measured.clock.add(Span::Log, started.elapsed());
        Ok(steps.iter().map(|step| step.padded_tokens).sum())
    }
}
