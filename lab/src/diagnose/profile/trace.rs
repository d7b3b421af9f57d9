//! The time line as a file in Chrome's trace event format, which Perfetto and `chrome://tracing` open.
//!
//! Source: "Trace Event Format", Google, 2016. Complete events (`X`) have a start and a duration in microseconds; metadata events
//! (`M`) name processes and threads, counters (`C`) are drawn as areas.

use std::collections::BTreeMap;

use kiln_metrics::units::thousands;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::gpu::GpuWork;
use super::kernels;
use super::memory::MemoryPoint;
use super::recording::{MemoryStep, Recording};
use super::sizes_in_words;

/// The process of the host, and the process of the GPU. Other ranks follow with theirs.
const HOST: u32 = 1;
const GPU: u32 = 2;
const PROCESSES: u32 = 2;
/// The threads of the host: the training thread with its steps, its operators, and the first thread of the loader.
const STEPS: u32 = 1;
const OPERATORS: u32 = 2;
const LOADER: u32 = 10;

/// An event of the trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Event {
    name: String,
    cat: String,
    ph: char,
    /// Microseconds since the first step began.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    ts: Option<f64>,
    /// Microseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    dur: Option<f64>,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Map::is_empty", default)]
    args: Map<String, Value>,
}

/// A trace file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
    #[serde(rename = "displayTimeUnit")]
    unit: String,
    #[serde(rename = "otherData")]
    other: Map<String, Value>,
}

impl Trace {
    /// Lays out a recording; `title` says what was recorded.
    pub(super) fn of(recording: &Recording, title: &str, device: &str) -> Self {
        let mut trace = Self { events: Vec::new(), unit: "ms".into(), other: Map::new() };
        trace.other.insert("title".into(), title.into());
        trace.name("process_name", HOST, STEPS, "host");
        trace.name("thread_name", HOST, STEPS, "training thread");
        trace.name("thread_name", HOST, OPERATORS, "operators");
        trace.steps(recording);
        trace.calls(recording);
        trace.jobs(recording);
        trace.gpu(recording, device);
        trace.memory(recording);
        trace
    }

    /// Puts the traces of several ranks, in their order, on one time line. Each comes with the microseconds at which its first step
    /// began, on a clock that all share.
    pub(super) fn of_ranks(ranks: impl IntoIterator<Item = (Self, f64)>) -> Self {
        let mut ranks = ranks.into_iter();
        let (mut all, zero) = ranks.next().expect("at least one rank");
        all.rename_processes(0);
        for (rank, (mut trace, began)) in (1..).zip(ranks) {
            trace.rename_processes(rank);
            for event in &mut trace.events {
                event.pid += PROCESSES * rank;
                event.ts = event.ts.map(|at| at + began - zero);
            }
            all.events.append(&mut trace.events);
        }
        all
    }

    fn rename_processes(&mut self, rank: u32) {
        for event in self.events.iter_mut().filter(|event| event.name == "process_name") {
            if let Some(Value::String(name)) = event.args.get_mut("name") {
                *name = format!("rank {rank}: {name}");
            }
        }
    }

    fn steps(&mut self, recording: &Recording) {
        for step in &recording.rehearsed.results {
            let shapes: Vec<String> = step.shapes.iter().map(ToString::to_string).collect();
            let args = args(json!({
                "shapes": shapes,
                "tokens": step.facts.tokens,
                "positions": step.facts.padded_tokens,
                "replayed_share": step.replayed_share,
            }));
            let span = [recording.micros(step.started), recording.micros(step.ended)];
            self.slice(format!("step {}", step.facts.step), "step", [HOST, STEPS], span, args);
        }
        for span in &recording.spans {
            let times = [recording.micros(span.started), recording.micros(span.ended)];
            self.slice(span.name.into(), "host", [HOST, STEPS], times, Map::new());
        }
    }

    fn calls(&mut self, recording: &Recording) {
        for call in &recording.calls {
            let args = args(json!({
                "sizes": sizes_in_words(&call.sizes),
                "flops": call.work.flops,
                "bytes": call.work.bytes,
            }));
            let span = [recording.micros(call.started), recording.micros(call.ended)];
            self.slice(call.operator.into(), "operator", [HOST, OPERATORS], span, args);
        }
    }

    fn jobs(&mut self, recording: &Recording) {
        let mut threads: BTreeMap<&str, u32> = BTreeMap::new();
        for job in &recording.jobs {
            let next = LOADER + threads.len() as u32;
            threads.entry(&job.thread).or_insert(next);
        }
        threads.iter().for_each(|(thread, tid)| self.name("thread_name", HOST, *tid, thread));
        for job in &recording.jobs {
            let span = [recording.micros(job.started), recording.micros(job.ended)];
            self.slice(job.what.into(), "loader", [HOST, threads[job.thread.as_str()]], span, Map::new());
        }
    }

    fn gpu(&mut self, recording: &Recording, device: &str) {
        let Some(gpu) = &recording.gpu else { return };
        self.name("process_name", GPU, 0, device);
        let mut streams: Vec<u32> = gpu.records.iter().map(|record| record.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams.iter().for_each(|stream| self.name("thread_name", GPU, *stream, &format!("stream {stream}")));

        for record in &gpu.records {
            let span = [recording.micros(record.started), recording.micros(record.ended)];
            let place = [GPU, record.stream];
            match &record.work {
                GpuWork::Kernel(kernel) => {
                    let args = args(json!({
                        "kernel": kernel.name,
                        "grid": kernel.grid,
                        "block": kernel.block,
                        "registers": kernel.registers,
                        "shared_bytes": kernel.shared_bytes,
                        "correlation": record.correlation,
                        "graph": kernel.graph,
                    }));
                    self.slice(kernels::title_of(&kernel.name), "kernel", place, span, args);
                }
                GpuWork::Copy { direction, bytes } => {
                    let name = format!("copy {direction}, {} bytes", thousands(*bytes as f64));
                    self.slice(name, "copy", place, span, args(json!({ "bytes": bytes })));
                }
                GpuWork::Fill { bytes } => {
                    self.slice("fill".into(), "fill", place, span, args(json!({ "bytes": bytes })));
                }
            }
        }
    }

    /// Draws the step whose memory was watched, behind the others, and the bytes in use by category.
    fn memory(&mut self, recording: &Recording) {
        let Some(MemoryStep { rehearsed, line: Some(line), .. }) = &recording.memory else { return };
        let began = recording.micros(rehearsed.started);
        let step = format!("step {}, whose memory was watched", rehearsed.results[0].facts.step);
        let span = [began, recording.micros(rehearsed.ended)];
        self.slice(step, "step", [HOST, STEPS], span, Map::new());
        for point in &line.points {
            let parts = MemoryPoint::CATEGORIES.iter().zip(point.parts());
            let args = parts.map(|(name, bytes)| ((*name).to_owned(), bytes.into())).collect();
            let ts = Some(began + point.micros as f64);
            let (name, cat) = ("memory in bytes".into(), "memory".into());
            self.events.push(Event { name, cat, ph: 'C', ts, dur: None, pid: HOST, tid: 0, args });
        }
    }

    fn name(&mut self, what: &str, pid: u32, tid: u32, name: &str) {
        let args = args(json!({ "name": name }));
        self.events.push(Event {
            name: what.into(),
            cat: "__metadata".into(),
            ph: 'M',
            ts: None,
            dur: None,
            pid,
            tid,
            args,
        });
    }

    fn slice(
        &mut self,
        name: String,
        cat: &'static str,
        [pid, tid]: [u32; 2],
        [start, end]: [f64; 2],
        args: Map<String, Value>,
    ) {
        let (ts, dur) = (Some(start), Some((end - start).max(0.0)));
        self.events.push(Event { name, cat: cat.into(), ph: 'X', ts, dur, pid, tid, args });
    }
}

fn args(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
