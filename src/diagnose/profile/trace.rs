//! The time line as a file in Chrome's trace event format, which Perfetto and `chrome://tracing` open.
//!
//! Source: "Trace Event Format", Google, 2016. Complete events (`X`) have a start and a duration in microseconds; metadata events
//! (`M`) name processes and threads.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::gpu::GpuWork;
use super::kernels;
use super::recording::Recording;
use super::sizes_in_words;
use crate::units::thousands;

/// The process of the host, and the process of the GPU.
const HOST: u32 = 1;
const GPU: u32 = 2;
/// The threads of the host: the training thread with its steps, its operators, and the first thread of the loader.
const STEPS: u32 = 1;
const OPERATORS: u32 = 2;
const LOADER: u32 = 10;

/// An event of the trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Event {
    name: String,
    cat: &'static str,
    ph: &'static str,
    /// Microseconds since the first step began.
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    /// Microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Map::is_empty")]
    args: Map<String, Value>,
}

/// A trace file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trace {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
    #[serde(rename = "otherData")]
    other: Map<String, Value>,
}

impl Trace {
    /// Lays out a recording; `title` says what was recorded.
    pub(super) fn of(recording: &Recording, title: &str, device: &str) -> Self {
        let mut trace = Self { events: Vec::new(), unit: "ms", other: Map::new() };
        trace.other.insert("title".into(), title.into());
        trace.name("process_name", HOST, STEPS, "host");
        trace.name("thread_name", HOST, STEPS, "training thread");
        trace.name("thread_name", HOST, OPERATORS, "operators");
        trace.steps(recording);
        trace.calls(recording);
        trace.jobs(recording);
        trace.gpu(recording, device);
        trace
    }

    fn steps(&mut self, recording: &Recording) {
        for step in &recording.rehearsed.steps {
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

    fn name(&mut self, what: &str, pid: u32, tid: u32, name: &str) {
        let args = args(json!({ "name": name }));
        self.events.push(Event { name: what.into(), cat: "__metadata", ph: "M", ts: None, dur: None, pid, tid, args });
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
        self.events.push(Event { name, cat, ph: "X", ts, dur, pid, tid, args });
    }
}

fn args(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
