//! Wall time of the phases of the training loop, on the host's clock.
//!
//! The device works asynchronously. `Step` is the time to enqueue a step. The wait for the device is part of `Drain`, the
//! loop's only regular host sync. `DataWait` is the time the loop waited for a batch; its fraction of the total shows
//! whether the loader keeps up.

use std::time::{Duration, Instant};

/// A phase of the training loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// Waiting for the loader's next batch.
    DataWait,
    /// Copying a batch to the device.
    Upload,
    /// Enqueuing forward, backward and the optimizer.
    Step,
    /// Reading metrics from the device.
    Drain,
    /// Validation.
    Validate,
    /// Writing a checkpoint.
    Save,
}

impl Span {
    /// All spans, in the order of the loop.
    pub const ALL: [Span; 6] = [Span::DataWait, Span::Upload, Span::Step, Span::Drain, Span::Validate, Span::Save];

    /// The name used in logs.
    pub fn name(self) -> &'static str {
        match self {
            Span::DataWait => "data_wait",
            Span::Upload => "upload",
            Span::Step => "step",
            Span::Drain => "drain",
            Span::Validate => "validate",
            Span::Save => "save",
        }
    }
}

/// Adds up the time spent in each [`Span`] since the last [`SpanClock::take`].
#[derive(Debug, Clone)]
pub struct SpanClock {
    since: Instant,
    spent: [Duration; Span::ALL.len()],
}

/// Totals of a [`SpanClock`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SpanTotals {
    /// Wall time of the whole period.
    pub elapsed: Duration,
    spent: [Duration; Span::ALL.len()],
}

impl SpanClock {
    /// Starts the clock.
    pub fn start() -> Self {
        Self { since: Instant::now(), spent: Default::default() }
    }

    /// Runs `work` and adds its time to `span`. Spans do not nest.
    pub fn time<R>(&mut self, span: Span, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = work();
        self.add(span, start.elapsed());
        result
    }

    /// Adds `spent` to `span`.
    pub fn add(&mut self, span: Span, spent: Duration) {
        self.spent[span as usize] += spent;
    }

    /// The totals since the last call. The clock restarts.
    pub fn take(&mut self) -> SpanTotals {
        let now = Instant::now();
        let totals = SpanTotals { elapsed: now - self.since, spent: self.spent };
        *self = Self { since: now, spent: Default::default() };
        totals
    }
}

impl SpanTotals {
    /// Time spent in `span`.
    pub fn spent(&self, span: Span) -> Duration {
        self.spent[span as usize]
    }

    /// Wall time of training without validation and checkpoints. Speeds refer to it.
    pub fn training(&self) -> Duration {
        self.elapsed.saturating_sub(self.spent(Span::Validate)).saturating_sub(self.spent(Span::Save))
    }

    /// Fraction of the training time spent waiting for data, 0 to 1.
    pub fn data_wait_share(&self) -> f64 {
        let training = self.training().as_secs_f64();
        if training > 0.0 { self.spent(Span::DataWait).as_secs_f64() / training } else { 0.0 }
    }

    /// Adds another period, for totals over a run.
    pub fn merge(&mut self, other: &SpanTotals) {
        self.elapsed += other.elapsed;
        for (mine, theirs) in self.spent.iter_mut().zip(other.spent) {
            *mine += theirs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validation_and_saving_do_not_count_as_training_time() {
        let mut totals = SpanTotals { elapsed: Duration::from_secs(10), ..Default::default() };
        totals.spent[Span::Validate as usize] = Duration::from_secs(3);
        totals.spent[Span::Save as usize] = Duration::from_secs(2);
        totals.spent[Span::DataWait as usize] = Duration::from_secs(1);
        assert_eq!(totals.training(), Duration::from_secs(5));
        assert!((totals.data_wait_share() - 0.2).abs() < 1e-12);
        let twice = {
            let mut sum = totals;
            sum.merge(&totals);
            sum
        };
        assert_eq!(twice.training(), Duration::from_secs(10));
        assert_eq!(twice.spent(Span::DataWait), Duration::from_secs(2));
    }

    #[test]
    fn the_clock_adds_time_to_its_span_and_restarts() {
        let mut clock = SpanClock::start();
        let answer = clock.time(Span::DataWait, || {
            std::thread::sleep(Duration::from_millis(5));
            42
        });
        clock.add(Span::Save, Duration::from_secs(1));
        let totals = clock.take();
        assert_eq!(answer, 42);
        assert!(totals.spent(Span::DataWait) >= Duration::from_millis(5));
        assert_eq!(totals.spent(Span::Save), Duration::from_secs(1));
        assert_eq!(clock.take().spent(Span::DataWait), Duration::ZERO);
    }

    #[test]
    fn every_span_has_its_own_slot_and_name() {
        for (slot, span) in Span::ALL.into_iter().enumerate() {
            assert_eq!(span as usize, slot, "{}", span.name());
        }
    }
}
