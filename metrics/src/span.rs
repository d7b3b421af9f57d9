//! Wall time of the phases of the training loop, on the host's clock.
//!
//! The device works asynchronously. `Enqueue` is the time to enqueue a step; on the CPU it is the computation itself. The
//! wait for the device is part of `Drain`, the loop's only regular host sync. `DataWait` is the time the loop waited for a
//! batch; its fraction of the total shows whether the loader keeps up.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A phase of the training loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// Waiting for the next group of batches, which another thread loads and uploads.
    DataWait,
    /// Taking over a group of batches that another thread has uploaded.
    Upload,
    /// Enqueuing forward, backward and the optimizer. The CPU computes them here.
    Enqueue,
    /// Reading metrics from the device.
    Drain,
    /// Summarizing a line of metrics and passing it to the sinks.
    Log,
    /// Validation.
    Validate,
    /// Writing a checkpoint.
    Save,
}

impl Span {
    /// All spans, in the order of the loop.
    pub const ALL: [Span; 7] =
        [Span::DataWait, Span::Upload, Span::Enqueue, Span::Drain, Span::Log, Span::Validate, Span::Save];

    /// The name used in logs.
    pub fn name(self) -> &'static str {
        match self {
            Span::DataWait => "data_wait",
            Span::Upload => "upload",
            Span::Enqueue => "enqueue",
            Span::Drain => "drain",
            Span::Log => "log",
            Span::Validate => "validate",
            Span::Save => "save",
        }
    }
}

/// Time spent in each [`Span`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SpanTotals {
    /// Wall time of the whole period.
    pub elapsed: Duration,
    spent: [Duration; Span::ALL.len()],
}

/// Where the time of the training thread went, in milliseconds of wall time, to the microsecond. The parts add up to
/// `elapsed_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct HostTimes {
    /// The whole period.
    pub elapsed_ms: f64,
    /// Waiting for the next group of batches, which another thread loads and uploads.
    pub data_wait_ms: f64,
    /// Taking over batches that another thread has uploaded.
    pub upload_ms: f64,
    /// Enqueuing forward, backward and the optimizer. The CPU computes them here.
    pub enqueue_ms: f64,
    /// Reading metrics from the device, the wait for the device included.
    pub drain_ms: f64,
    /// Summarizing lines of metrics and passing them to the sinks.
    pub log_ms: f64,
    /// Validation, with the text that it generates.
    pub validate_ms: f64,
    /// Copying weights and optimizer state for a checkpoint, and waiting for an earlier one.
    pub save_ms: f64,
    /// Everything else.
    pub other_ms: f64,
}

impl From<&SpanTotals> for HostTimes {
    fn from(totals: &SpanTotals) -> Self {
        let ms = |time: Duration| time.as_micros() as f64 / 1e3;
        let spent = |span| ms(totals.spent(span));
        Self {
            elapsed_ms: ms(totals.elapsed),
            data_wait_ms: spent(Span::DataWait),
            upload_ms: spent(Span::Upload),
            enqueue_ms: spent(Span::Enqueue),
            drain_ms: spent(Span::Drain),
            log_ms: spent(Span::Log),
            validate_ms: spent(Span::Validate),
            save_ms: spent(Span::Save),
            other_ms: ms(totals.other()),
        }
    }
}

impl SpanTotals {
    /// Totals of a period of length `elapsed`, from the time spent in each span of [`Span::ALL`].
    pub fn new(elapsed: Duration, spent: [Duration; Span::ALL.len()]) -> Self {
        Self { elapsed, spent }
    }

    /// Time spent in `span`.
    pub fn spent(&self, span: Span) -> Duration {
        self.spent[span as usize]
    }

    /// Time outside all spans.
    pub fn other(&self) -> Duration {
        self.elapsed.saturating_sub(self.spent.iter().sum())
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
    fn the_parts_of_the_host_time_add_up_to_the_whole() {
        let mut totals = SpanTotals { elapsed: Duration::from_millis(100), ..Default::default() };
        for (n, span) in (1..).zip(Span::ALL) {
            totals.spent[span as usize] = Duration::from_micros(1500 * n);
        }
        let host = HostTimes::from(&totals);
        assert_eq!((host.data_wait_ms, host.enqueue_ms, host.log_ms, host.save_ms), (1.5, 4.5, 7.5, 10.5));
        let parts = host.data_wait_ms + host.upload_ms + host.enqueue_ms + host.drain_ms + host.log_ms;
        let sum = parts + host.validate_ms + host.save_ms + host.other_ms;
        assert!((sum - host.elapsed_ms).abs() < 1e-9 && host.other_ms == 58.0, "{host:?}");
    }

    #[test]
    fn every_span_has_its_own_slot_and_name() {
        for (slot, span) in Span::ALL.into_iter().enumerate() {
            assert_eq!(span as usize, slot, "{}", span.name());
        }
    }
}
