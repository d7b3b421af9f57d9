//! What the GPU did, as its driver's profiling library (CUPTI) reports it.

use std::time::{Duration, Instant};

use super::cupti::{Activity, Collected, Cupti, What, cupti};

/// What a GPU did while it was watched.
#[derive(Debug, Clone, Default)]
pub(super) struct GpuRecords {
    /// Kernels, copies and fills, in the order of their start.
    pub(super) records: Vec<GpuRecord>,
    /// What reported them.
    pub(super) source: String,
    /// Records that did not fit into the buffers.
    pub(super) n_dropped: u64,
}

/// A kernel, a copy or a fill.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GpuRecord {
    pub(super) work: GpuWork,
    pub(super) started: Instant,
    pub(super) ended: Instant,
    pub(super) stream: u32,
    /// The driver's number of the call that enqueued it.
    pub(super) correlation: u32,
}

/// What a record is about.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum GpuWork {
    Kernel(Kernel),
    Copy { direction: &'static str, bytes: u64 },
    Fill { bytes: u64 },
}

/// A kernel.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Kernel {
    pub(super) name: String,
    pub(super) grid: [i32; 3],
    pub(super) block: [i32; 3],
    pub(super) registers: u16,
    pub(super) shared_bytes: u64,
    /// The CUDA graph that it is part of; 0 for none.
    pub(super) graph: u32,
}

impl GpuRecords {
    /// Returns the time in which at least one record was running.
    pub(super) fn busy(&self) -> Duration {
        let (mut busy, mut until) = (Duration::ZERO, None::<Instant>);
        // In the order of their start.
        for record in &self.records {
            let from = until.map_or(record.started, |until| until.max(record.started));
            busy += record.ended.saturating_duration_since(from);
            until = Some(until.map_or(record.ended, |until| until.max(record.ended)));
        }
        busy
    }

    /// Returns the fraction of the kernels that were part of a CUDA graph.
    pub(super) fn in_graphs(&self) -> f64 {
        let kernels = || {
            self.records.iter().filter_map(|record| match &record.work {
                GpuWork::Kernel(kernel) => Some(kernel),
                _ => None,
            })
        };
        kernels().filter(|kernel| kernel.graph != 0).count() as f64 / kernels().count().max(1) as f64
    }
}

/// The GPUs of this process, which are being watched.
pub(super) struct Watching {
    cupti: &'static Cupti,
}

impl Watching {
    /// Starts to watch, best before the first kernel is compiled.
    ///
    /// # Errors
    /// A sentence, if the driver's profiling library is missing or refuses.
    pub(super) fn start() -> Result<Self, String> {
        let cupti = cupti()?;
        cupti.start().inspect_err(|_| cupti.stop())?;
        Ok(Self { cupti })
    }

    /// Forgets what was recorded so far. The device must have nothing to do.
    ///
    /// # Errors
    /// A sentence, if the library fails.
    pub(super) fn forget(&self) -> Result<(), String> {
        self.cupti.take().map(drop)
    }

    /// Returns what was recorded since [`Self::forget`]. The device must have nothing to do.
    ///
    /// # Errors
    /// A sentence, if the library fails.
    pub(super) fn take(&self) -> Result<GpuRecords, String> {
        let clock = self.cupti.now()?;
        let Collected { activities, n_dropped } = self.cupti.take()?;
        let mut records: Vec<_> =
            activities.into_iter().map(|(activity, name)| record(activity, name, clock)).collect();
        records.sort_by_key(|record| (record.started, record.ended));
        Ok(GpuRecords { records, source: format!("CUPTI, API version {}", self.cupti.version), n_dropped })
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.cupti.stop();
    }
}

/// Puts a record on the host's clock; `clock` is a moment on both.
fn record(activity: Activity, name: String, clock: (u64, Instant)) -> GpuRecord {
    let at = |time: u64| {
        let (nanoseconds, instant) = clock;
        let moved = match time.checked_sub(nanoseconds) {
            Some(after) => instant.checked_add(Duration::from_nanos(after)),
            None => instant.checked_sub(Duration::from_nanos(nanoseconds - time)),
        };
        // Out of the range of the clock: a record without a time.
        moved.unwrap_or(instant)
    };
    let work = match activity.what {
        What::Kernel { grid, block, registers, shared, graph, .. } => {
            let shared_bytes = shared.iter().map(|bytes| u64::try_from(*bytes).unwrap_or(0)).sum();
            GpuWork::Kernel(Kernel { name, grid, block, registers, shared_bytes, graph })
        }
        What::Copy { direction, bytes } => GpuWork::Copy { direction, bytes },
        What::Fill { bytes } => GpuWork::Fill { bytes },
    };
    let (started, ended) = (at(activity.start), at(activity.end));
    GpuRecord { work, started, ended, stream: activity.stream, correlation: activity.correlation }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_records_overlap_is_busy_once() {
        let began = Instant::now();
        let at = |micros| began + Duration::from_micros(micros);
        let record = |started, ended| GpuRecord {
            work: GpuWork::Fill { bytes: 1 },
            started: at(started),
            ended: at(ended),
            stream: 0,
            correlation: 0,
        };
        let records = vec![record(0, 10), record(5, 8), record(9, 12), record(20, 21)];
        let gpu = GpuRecords { records, ..GpuRecords::default() };
        assert_eq!(gpu.busy(), Duration::from_micros(13));
        assert_eq!((gpu.in_graphs(), GpuRecords::default().busy()), (0.0, Duration::ZERO));
    }

    #[test]
    fn records_are_put_on_the_clock_of_the_host() {
        let now = Instant::now() + Duration::from_secs(10);
        let activity = |start, end| Activity { start, end, stream: 7, correlation: 3, what: What::Fill { bytes: 8 } };
        let found = record(activity(999_000, 1_002_000), String::new(), (1_000_000, now));
        assert_eq!(found.started, now - Duration::from_micros(1));
        assert_eq!(found.ended, now + Duration::from_micros(2));
        assert_eq!((found.stream, found.correlation, found.work), (7, 3, GpuWork::Fill { bytes: 8 }));
    }
}
