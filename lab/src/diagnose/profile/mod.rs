//! Where the time of real training steps goes: by span of the host, by operator, by kernel, and on a time line.
//!
//! The steps are the steps of the training loop, on batches of the run's own data (`run::Rehearsal`). What is called is recorded where it
//! is computed ([`kiln_kernels::calls`]), so that no list of a model's operators is kept. Every row is compared with the roofs of
//! the device (Williams, Waterman and Patterson 2009: "Roofline").

mod cupti;
mod gpu;
mod kernels;
mod memory;
mod recording;
mod roofs;
mod rows;
mod running;
mod sums;
mod trace;

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use burn::tensor::{Device, FloatDType};
use kiln_kernels::calls::Call;
use kiln_metrics::units::{counted, thousands};
use kiln_ranks::Ranks;
use kiln_train::device::{device_name, is_cpu};
use kiln_train::eval::{Init, Model};
use kiln_train::metrics::Span;
use kiln_train::run::Run;
use serde::{Deserialize, Serialize};

use self::gpu::{GpuRecords, Watching};
pub use self::memory::{MemoryLine, MemoryPoint};
use self::recording::Recording;
pub use self::roofs::{RoofSource, Roofs};
pub use self::rows::{Bound, Roof, Row, RowWork};
use self::rows::{Measured, rows};
pub use self::running::StepRecorder;
pub use self::sums::{Sum, sums};
pub use self::trace::Trace;
use super::ledger::dtype_name;

/// Version of [`Profile`] as `profile.json` has it.
pub const SCHEMA: u64 = 1;
/// The row of the time in which the training thread enqueues a step and no operator runs.
pub const OUTSIDE: &str = "outside of Kiln's operators";

/// Spans in which a rank without NCCL exchanges tensors with others.
const EXCHANGES: [&str; 2] = ["exchange", "all_gather"];

/// The steps to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// Steps before the recording: they compile kernels, fill caches and grow memory pools.
    pub warm_up: u64,
    /// Steps that are recorded.
    pub steps: u64,
}

/// Where the time of some steps went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// [`SCHEMA`].
    pub(crate) schema: u64,
    /// Kiln's version.
    pub(crate) kiln: String,
    /// The model, in words.
    pub model: String,
    /// The device.
    pub device: String,
    /// The compute dtype.
    pub dtype: String,
    /// Steps that were taken before.
    pub warm_up: u64,
    /// The steps.
    pub steps: Vec<StepRow>,
    /// Milliseconds of all steps, until the device was done with the last one.
    pub(crate) total_ms: f64,
    /// Non-padding tokens per second.
    pub tokens_per_sec: f64,
    /// Fraction of the positions that were padding, 0 to 1.
    pub padding_ratio: f64,
    /// The time of the training thread by span, in the order of the loop; the last row is everything else.
    pub host: Vec<HostRow>,
    /// The threads of the loader.
    pub loader: Vec<HostRow>,
    /// Calls of operators, longest first: their time on the CPU or on the GPU. Where nothing reports the kernels of a GPU, the time
    /// between events before and after them.
    pub operators: Vec<Row>,
    /// Kernels, copies and fills of a GPU, longest first. Their sizes are the grid and the block of a launch.
    pub kernels: Vec<Row>,
    /// How busy the GPU was; absent on the CPU, or if nothing reports it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gpu: Option<GpuUse>,
    /// The memory in use during a step after the others, of which nothing was replayed; absent where it is not known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory: Option<MemoryLine>,
    /// Several devices: each rank. The tables are rank 0's.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ranks: Vec<RankRow>,
    /// The roofs of the device.
    pub roofs: Roofs,
    /// Sentences for people.
    pub notes: Vec<String>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRow {
    /// Its number.
    pub(crate) step: u64,
    /// Milliseconds of the training thread.
    pub(crate) ms: f64,
    /// The shapes of its micro-batches.
    pub(crate) shapes: Vec<String>,
    /// Non-padding tokens.
    pub(crate) tokens: u64,
    /// Positions, padding included.
    pub(crate) positions: u64,
    /// Fraction of its micro-batches that were replayed as CUDA graphs; absent where nothing can be recorded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub replayed_share: Option<f64>,
}

/// How busy a GPU was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuUse {
    /// Milliseconds in which a kernel, a copy or a fill was running.
    pub(crate) busy_ms: f64,
    /// Fraction of the time of the steps, 0 to 1.
    pub busy_share: f64,
    /// Kernels, copies and fills.
    pub(crate) records: u64,
    /// Fraction of the kernels that were part of a CUDA graph, 0 to 1.
    pub(crate) in_graphs: f64,
    /// What reported them, with its version.
    pub source: String,
}

/// The steps as one rank saw them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankRow {
    /// The device.
    pub device: String,
    /// Milliseconds of all steps, until the device was done with the last one.
    pub total_ms: f64,
    /// Non-padding tokens of its micro-batches and of the others'.
    pub(crate) tokens: u64,
    /// Fraction of the time in which its GPU was busy; absent if nothing reports it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub busy_share: Option<f64>,
    /// Fraction of the time in which it exchanged tensors with the other ranks, their lateness included: on a GPU the kernels of NCCL.
    pub exchange_share: f64,
    /// The peak of the memory in use during a step, in bytes; absent where it is not known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub peak_bytes: Option<u64>,
}

impl GpuUse {
    fn of(gpu: &GpuRecords, secs: f64) -> Self {
        let busy = gpu.busy().as_secs_f64();
        Self {
            busy_ms: busy * 1e3,
            busy_share: busy / secs.max(1e-12),
            records: gpu.records.len() as u64,
            in_graphs: gpu.in_graphs(),
            source: gpu.source.clone(),
        }
    }
}

/// The time of a thread of the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostRow {
    /// The span, or the thread.
    pub name: String,
    /// Milliseconds in all steps.
    pub ms: f64,
    /// Fraction of the time of the steps, 0 to 1.
    pub share: f64,
}

/// Takes steps of `run` together with the other ranks and returns where their time went, with the time line of all ranks. Leaves nothing
/// behind.
///
/// # Errors
/// If the data cannot be used, a batch does not fit into memory, the device or another rank fails, or a loss is not finite.
pub fn take<M: Model>(run: &Run, init: &Init<'_, M>, schedule: Schedule, ranks: &Ranks) -> Result<(Profile, Trace)> {
    ensure!(schedule.steps > 0, "--steps 0: there is nothing to look at; give at least 1");
    let device = run.options.device.open()?;
    let watched = (!is_cpu(&device)).then(Watching::start);
    let mut rehearsal = run.rehearsal(ranks, init)?;
    let roofs = Roofs::of(&device, rehearsal.plan.dtype)?;
    let recording = Recording::take(&mut rehearsal, schedule.warm_up, schedule.steps, watched)?;

    let state = rehearsal.trainer.state();
    let n_params = state.optimizer.table().n_params();
    let subject = Subject { n_params, device: &state.device, dtype: rehearsal.plan.dtype, warm_up: schedule.warm_up };
    let profile = of(&recording, subject, roofs);
    of_all_ranks(&recording, profile, ranks)
}

/// What is profiled.
#[derive(Clone, Copy)]
struct Subject<'a> {
    n_params: usize,
    device: &'a Device,
    dtype: FloatDType,
    /// Steps that were taken before.
    warm_up: u64,
}

/// Lays out the time line of a profile, and joins both with the other ranks'.
fn of_all_ranks(recording: &Recording, mut profile: Profile, ranks: &Ranks) -> Result<(Profile, Trace)> {
    let steps = counted(profile.steps.len() as u64, "step");
    let title = format!("{steps} of {} after {}", profile.model, profile.warm_up);
    let trace = Trace::of(recording, &title, &profile.device);
    if !ranks.are_many() {
        return Ok((profile, trace));
    }

    // Ranks of one machine share this clock; clocks of several machines are as close as the machines keep them.
    let began = SystemTime::now().checked_sub(recording.rehearsed.started.elapsed()).unwrap_or(UNIX_EPOCH);
    let began = began.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e6;
    let (rows, traces): (Vec<_>, Vec<_>) =
        ranks.share("sharing the profile", (RankRow::of(recording, &profile), (trace, began)))?.into_iter().unzip();
    profile.ranks = rows;
    Ok((profile, Trace::of_ranks(traces)))
}

fn of(recording: &Recording, subject: Subject<'_>, roofs: Roofs) -> Profile {
    let (secs, Subject { n_params, device, dtype, warm_up }) = (recording.secs(), subject);
    let facts = || recording.rehearsed.results.iter().map(|step| &step.facts);
    let [tokens, positions] =
        [facts().map(|facts| facts.tokens).sum::<u64>(), facts().map(|facts| facts.padded_tokens).sum()];

    Profile {
        schema: SCHEMA,
        kiln: env!("CARGO_PKG_VERSION").into(),
        model: format!("{} parameters", thousands(n_params as f64)),
        device: device_name(device),
        dtype: dtype_name(dtype),
        warm_up,
        steps: recording.rehearsed.results.iter().map(StepRow::of).collect(),
        total_ms: secs * 1e3,
        tokens_per_sec: tokens as f64 / secs.max(1e-12),
        padding_ratio: 1.0 - tokens as f64 / (positions as f64).max(1.0),
        host: host_rows(recording),
        loader: loader_rows(recording),
        operators: match &recording.gpu {
            Some(gpu) => rows(kernels::by_operator(gpu, &recording.calls, &recording.replayed_calls()), secs, &roofs),
            None if is_cpu(device) => operator_rows(recording, &roofs),
            None => rows(recording.calls.iter().filter_map(between_events), secs, &roofs),
        },
        kernels: recording.gpu.as_ref().map_or(Vec::new(), |gpu| rows(kernels::by_kernel(gpu), secs, &roofs)),
        gpu: recording.gpu.as_ref().map(|gpu| GpuUse::of(gpu, secs)),
        memory: recording.memory.as_ref().and_then(|memory| memory.line.clone()),
        ranks: Vec::new(),
        roofs,
        notes: recording.notes.clone(),
    }
}

impl StepRow {
    fn of(step: &kiln_train::train::RehearsedStep) -> Self {
        Self {
            step: step.facts.step,
            ms: (step.ended - step.started).as_secs_f64() * 1e3,
            shapes: step.shapes.iter().map(ToString::to_string).collect(),
            tokens: step.facts.tokens,
            positions: step.facts.padded_tokens,
            replayed_share: step.replayed_share,
        }
    }
}

impl Profile {
    /// Returns milliseconds per step.
    pub fn step_ms(&self) -> f64 {
        self.total_ms / self.steps.len().max(1) as f64
    }
}

impl RankRow {
    fn of(recording: &Recording, profile: &Profile) -> Self {
        let in_spans = || {
            let exchanges = recording.spans.iter().filter(|span| EXCHANGES.contains(&span.name));
            exchanges.map(|span| (span.ended - span.started).as_secs_f64()).sum()
        };
        let exchanged = recording.gpu.as_ref().map_or_else(in_spans, kernels::secs_of_exchanges);
        Self {
            device: profile.device.clone(),
            total_ms: profile.total_ms,
            tokens: recording.rehearsed.results.iter().map(|step| step.facts.tokens).sum(),
            busy_share: profile.gpu.as_ref().map(|gpu| gpu.busy_share),
            exchange_share: exchanged / recording.secs().max(1e-12),
            peak_bytes: profile.memory.as_ref().map(|memory| memory.peak.total()),
        }
    }
}

fn host_rows(recording: &Recording) -> Vec<HostRow> {
    let whole = recording.secs();
    let row = |name: &str, secs: f64| HostRow { name: name.into(), ms: secs * 1e3, share: secs / whole.max(1e-12) };
    let spent = |name: &str| -> f64 {
        let own = recording.spans.iter().filter(|span| span.name == name);
        own.map(|span| (span.ended - span.started).as_secs_f64()).sum()
    };
    let mut rows: Vec<HostRow> = Span::ALL.iter().map(|span| row(span.name(), spent(span.name()))).collect();
    let rest = whole - rows.iter().map(|row| row.ms / 1e3).sum::<f64>();
    rows.retain(|row| row.ms > 0.0);
    rows.push(row("other", rest.max(0.0)));
    rows
}

fn loader_rows(recording: &Recording) -> Vec<HostRow> {
    let whole = recording.secs();
    let mut threads: Vec<&str> = recording.jobs.iter().map(|job| job.thread.as_str()).collect();
    threads.sort_unstable();
    threads.dedup();
    let busy = |thread: &str| -> f64 {
        let own = recording.jobs.iter().filter(|job| job.thread == thread);
        own.map(|job| (job.ended - job.started.max(recording.rehearsed.started)).as_secs_f64()).sum()
    };
    threads
        .into_iter()
        .map(|thread| HostRow { name: thread.into(), ms: busy(thread) * 1e3, share: busy(thread) / whole.max(1e-12) })
        .collect()
}

/// Returns the rows of the calls on the CPU.
fn operator_rows(recording: &Recording, roofs: &Roofs) -> Vec<Row> {
    let calls = recording.calls.iter().map(|call| measured(call, call.own.as_secs_f64()));
    // The time of steps that no operator took.
    let enqueued = recording.spans.iter().filter(|span| span.name == Span::Enqueue.name());
    let enqueued: f64 = enqueued.map(|span| (span.ended - span.started).as_secs_f64()).sum();
    let in_operators: f64 = recording.calls.iter().map(|call| call.own.as_secs_f64()).sum();
    let rest =
        Measured { name: OUTSIDE.into(), sizes: String::new(), secs: (enqueued - in_operators).max(0.0), work: None };
    rows(calls.chain([rest]), recording.secs(), roofs)
}

/// Returns a call on a GPU with the time between the events around its kernels.
fn between_events(call: &Call) -> Option<Measured> {
    Some(measured(call, call.on_device?.as_secs_f64()))
}

fn measured(call: &Call, secs: f64) -> Measured {
    let work = Some([call.work.flops, call.work.bytes]);
    Measured { name: call.operator.into(), sizes: sizes_in_words(&call.sizes), secs, work }
}

/// `16384 x 768 x 2304`.
fn sizes_in_words(sizes: &[usize]) -> String {
    sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x ")
}
