//! Everything that was recorded while the steps of a profile ran.

use std::time::Instant;

use anyhow::Result;
use kiln_data::jobs::{self, JobTime};
use kiln_kernels::calls::{self, Call};

use super::gpu::{GpuRecords, Watching};
use crate::metrics::timeline::{self, TimedSpan};
use crate::run::Rehearsal;
use crate::train::Rehearsed;

/// What was recorded.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) rehearsed: Rehearsed,
    /// Spans of the training thread.
    pub(super) spans: Vec<TimedSpan>,
    /// Calls of operators.
    pub(super) calls: Vec<Call>,
    /// Jobs of the loader's threads.
    pub(super) jobs: Vec<JobTime>,
    /// What the GPU did; `None` without a GPU, or where its driver does not say it.
    pub(super) gpu: Option<GpuRecords>,
    /// Sentences for people.
    pub(super) notes: Vec<String>,
}

impl Recording {
    /// Takes `n_before` steps that are not recorded, then `n_steps` that are, with the kernels of a GPU if it is `watched`.
    ///
    /// # Errors
    /// If data cannot be read, the device fails, or a loss is not finite.
    pub(super) fn take(
        rehearsal: &mut Rehearsal,
        n_before: u64,
        n_steps: u64,
        watched: Option<Result<Watching, String>>,
    ) -> Result<Self> {
        let mut notes = Vec::new();
        let mut note = |reason: String| {
            notes.push(format!(
                "operators have the time to enqueue them, because the times of kernels are not known: {reason}. kiln bench \
                 --operators times each operator alone"
            ));
        };
        let mut watching = watched.and_then(|watched| watched.map_err(&mut note).ok());
        let begin = || {
            if let Some(Err(reason)) = watching.as_ref().map(Watching::forget) {
                note(reason);
                watching = None;
            }
            calls::start();
            jobs::start();
            timeline::start();
            Ok(())
        };
        let rehearsed = rehearsal.trainer.rehearse(n_before, n_steps, begin);
        // Stop them also if a step has failed.
        let (spans, jobs, calls) = (timeline::stop(), jobs::stop(), calls::stop());
        let rehearsed = rehearsed?;
        let mut gpu = watching.and_then(|watching| watching.take().map_err(&mut note).ok());
        if let Some(gpu) = &mut gpu {
            gpu.records.retain(|record| record.started >= rehearsed.started && record.ended <= rehearsed.ended);
            if gpu.records.is_empty() {
                note(format!("{} reported none", gpu.source));
            }
            if gpu.n_dropped > 0 {
                notes.push(format!("{} records of the GPU did not fit: take fewer --steps", gpu.n_dropped));
            }
        }
        let gpu = gpu.filter(|gpu| !gpu.records.is_empty());

        // The last read of metrics comes after the steps.
        let within = |ended: Instant| ended <= rehearsed.ended;
        let spans = spans.into_iter().filter(|span| within(span.ended)).collect();
        let calls = calls.into_iter().filter(|call| within(call.ended)).collect();
        let jobs = jobs.into_iter().filter(|job| within(job.ended)).collect();
        Ok(Self { rehearsed, spans, calls, jobs, gpu, notes })
    }

    /// Returns microseconds since the first step began; negative before.
    pub(super) fn micros(&self, at: Instant) -> f64 {
        let began = self.rehearsed.started;
        match at.checked_duration_since(began) {
            Some(after) => after.as_secs_f64() * 1e6,
            None => -began.duration_since(at).as_secs_f64() * 1e6,
        }
    }

    /// Returns the seconds of all steps, until the device was done.
    pub(super) fn secs(&self) -> f64 {
        (self.rehearsed.ended - self.rehearsed.started).as_secs_f64()
    }
}
