//! Everything that was recorded while the steps of a profile ran.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use burn::tensor::{Device, FloatDType};
use kiln_data::jobs::{self, JobTime};
use kiln_kernels::calls::{self, Call, Watch};
use kiln_model::flops::TrainBytes;
use kiln_train::device::{is_cpu, live_bytes};
use kiln_train::eval::Model;
use kiln_train::metrics::timeline::{self, TimedSpan};
use kiln_train::run::Rehearsal;
use kiln_train::train::Rehearsed;

use super::gpu::{GpuRecords, Watching};
use super::memory::{MemoryLine, Watched};

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
    /// A step after the others; `None` if a run has ended before it.
    pub(super) memory: Option<MemoryStep>,
    /// Sentences for people.
    pub(super) notes: Vec<String>,
}

/// A step whose memory was watched, and of which nothing was replayed. It took longer than the others.
#[derive(Debug)]
pub(super) struct MemoryStep {
    pub(super) rehearsed: Rehearsed,
    pub(super) calls: Vec<Call>,
    /// `None` where the memory in use is not known.
    pub(super) line: Option<MemoryLine>,
}

/// What says how the bytes of a step are divided.
#[derive(Debug, Clone, Copy)]
pub(super) struct Predicted<'a> {
    /// The bytes of the run, from its configuration.
    pub(super) bytes: &'a TrainBytes,
    /// The compute dtype.
    pub(super) dtype: FloatDType,
}

/// Records where the time of steps goes.
pub(super) struct Recorder {
    device: Device,
    watching: Option<Watching>,
    notes: Vec<String>,
}

impl Recorder {
    /// Prepares to record, with the kernels of a GPU if it is `watched`.
    pub(super) fn new(device: &Device, watched: Option<Result<Watching, String>>) -> Self {
        let mut recorder = Self { device: device.clone(), watching: None, notes: Vec::new() };
        recorder.watching = watched.and_then(|watched| watched.map_err(|reason| recorder.note(&reason)).ok());
        recorder
    }

    /// Starts to record. The device must have nothing to do.
    pub(super) fn begin(&mut self) {
        if let Some(Err(reason)) = self.watching.as_ref().map(Watching::forget) {
            self.note(&reason);
            self.watching = None;
        }
        calls::start(match self.watching.is_some() || is_cpu(&self.device) {
            true => Watch::Host,
            false => Watch::DeviceTime(self.device.clone()),
        });
        jobs::start();
        timeline::start();
    }

    /// Stops to record; also after steps that have failed. The device must have nothing to do.
    ///
    /// # Errors
    /// The failure of the steps.
    pub(super) fn end(mut self, rehearsed: Result<Rehearsed>) -> Result<Recording> {
        let (spans, jobs, calls) = (timeline::stop(), jobs::stop(), calls::stop());
        let rehearsed = rehearsed?;
        let taken = self.watching.take().map(|watching| watching.take());
        let mut gpu = taken.and_then(|taken| taken.map_err(|reason| self.note(&reason)).ok());
        if let Some(gpu) = &mut gpu {
            gpu.records.retain(|record| record.started >= rehearsed.started && record.ended <= rehearsed.ended);
            if gpu.records.is_empty() {
                self.note(&format!("{} reported none", gpu.source));
            }
            if gpu.n_dropped > 0 {
                self.notes.push(format!("{} records of the GPU did not fit: take fewer --steps", gpu.n_dropped));
            }
        }
        let gpu = gpu.filter(|gpu| !gpu.records.is_empty());

        // The last read of metrics comes after the steps.
        let within = |ended: Instant| ended <= rehearsed.ended;
        let spans = spans.into_iter().filter(|span| within(span.ended)).collect();
        let calls = calls.into_iter().filter(|call| within(call.ended)).collect();
        let jobs = jobs.into_iter().filter(|job| within(job.ended)).collect();
        Ok(Recording { rehearsed, spans, calls, jobs, gpu, memory: None, notes: self.notes })
    }

    fn note(&mut self, reason: &str) {
        self.notes.push(format!(
            "operators have the time between events before and after their kernels, because the times of kernels are not known: \
             {reason}"
        ));
    }
}

/// Watches the memory of a step.
pub(super) struct MemoryWatch {
    /// When it began, and the bytes in use then; `None` where they are not known.
    began: Option<(Instant, u64)>,
}

impl MemoryWatch {
    /// Starts to watch. The device must have nothing to do.
    pub(super) fn begin(device: &Device) -> Self {
        let began = live_bytes(device).map(|bytes| (Instant::now(), bytes));
        let device = device.clone();
        calls::start(Watch::Memory(Arc::new(move || live_bytes(&device))));
        Self { began }
    }

    /// Stops to watch; also after a step that has failed.
    ///
    /// # Errors
    /// The failure of the step.
    pub(super) fn end(self, rehearsed: Result<Rehearsed>, predicted: Predicted<'_>) -> Result<MemoryStep> {
        let calls = calls::stop();
        let rehearsed = rehearsed?;
        let size = burn::tensor::DType::from(predicted.dtype).size();
        let watched = self.began.map(|began| Watched { calls: &calls, began, predicted: predicted.bytes, size });
        let line = watched.and_then(|watched| watched.line());
        Ok(MemoryStep { rehearsed, calls, line })
    }
}

impl Recording {
    /// Takes `n_before` steps that are not recorded, then `n_steps` that are, with the kernels of a GPU if it is `watched`, and one whose
    /// memory is watched.
    ///
    /// # Errors
    /// If data cannot be read, the device fails, or a loss is not finite.
    pub(super) fn take<M: Model>(
        rehearsal: &mut Rehearsal<M>,
        n_before: u64,
        n_steps: u64,
        watched: Option<Result<Watching, String>>,
    ) -> Result<Self> {
        let device = rehearsal.trainer.state().device.clone();
        let mut recorder = Recorder::new(&device, watched);
        let begin = || {
            recorder.begin();
            Ok(())
        };
        let rehearsed = rehearsal.trainer.rehearse(n_before, n_steps, begin);
        let recording = recorder.end(rehearsed)?;

        let mut watch = None;
        let rehearsed = rehearsal.trainer.rehearse_eagerly(|| watch = Some(MemoryWatch::begin(&device)));
        let watch = watch.unwrap_or(MemoryWatch { began: None });
        let predicted = Predicted { bytes: &rehearsal.plan.bytes, dtype: rehearsal.plan.dtype };
        Ok(recording.with_memory(watch.end(rehearsed, predicted)?))
    }

    /// Adds a step whose memory was watched.
    pub(super) fn with_memory(mut self, memory: MemoryStep) -> Self {
        if memory.line.is_none() {
            self.notes.push("the memory in use is not known here: it takes Linux with glibc 2.33, or a GPU".into());
        }
        self.memory = Some(memory);
        self
    }

    /// Returns the calls whose kernels CUDA graphs ran. Replays call no operator. If the micro-batches that were replayed are the ones with
    /// the shape of the step whose memory was watched, they ran the kernels of its first micro-batch; otherwise they are not known.
    pub(super) fn replayed_calls(&self) -> Vec<Call> {
        let Some(memory) = &self.memory else { return Vec::new() };
        let watched = &memory.rehearsed.results[0];
        let steps = || self.rehearsed.results.iter();
        let n_alike = steps().flat_map(|step| &step.shapes).filter(|shape| **shape == watched.shapes[0]).count();
        let n_replayed: f64 = steps().map(|step| step.replayed_share.unwrap_or(0.0) * step.shapes.len() as f64).sum();
        if n_alike != n_replayed.round() as usize {
            return Vec::new();
        }

        // Each operator is called equally often in each micro-batch.
        let mut calls = memory.calls.clone();
        calls.sort_by_key(|call| (call.operator, call.started));
        let of_first = calls.chunk_by(|a, b| a.operator == b.operator).flat_map(|calls| {
            let n = calls.len() / watched.shapes.len();
            calls[..if n * watched.shapes.len() == calls.len() { n } else { 0 }].to_vec()
        });
        let mut of_first: Vec<Call> = of_first.collect();
        of_first.sort_by_key(|call| call.started);
        let times = (0..).map(|number| self.rehearsed.started + Duration::from_nanos(number));
        let repeated = std::iter::repeat_n(of_first, n_alike).flatten();
        repeated.zip(times).map(|(call, started)| Call { started, ended: started, ..call }).collect()
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
