//! A measured workload as one line of JSON, and what two such lines say about each other.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use kiln_data::files::read_text;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::measure::Effort;
use super::peer::PeerTime;
use super::step_time::StepTime;
use super::workload::Workload;

/// A line of `kiln bench --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchRecord {
    /// The version of Kiln.
    pub(crate) kiln: String,
    /// The name of the device.
    pub(crate) device: String,
    /// The compute dtype.
    pub(crate) dtype: String,
    /// [`Workload::as_json`].
    pub(crate) workload: Value,
    /// Steps per repeat, and repeats.
    pub(crate) effort: [usize; 2],
    /// Milliseconds per step: the median of the repeats.
    pub step_ms: f64,
    /// The fastest and the slowest repeat.
    pub(crate) spread_ms: [f64; 2],
    /// Milliseconds that the host needs to enqueue a step.
    pub(crate) host_ms: f64,
    /// Non-padding tokens per second.
    pub(crate) tokens_per_sec: f64,
    /// Pairs, or rows of text, per second. Lines of earlier versions lack it.
    #[serde(default)]
    pub samples_per_sec: Option<f64>,
    /// From 0 to 1; null if the peak of the device is unknown.
    pub(crate) mfu: Option<f64>,
    /// Device memory at the end, which is the peak; null if unknown.
    pub(crate) reserved_bytes: Option<u64>,
    /// Seconds from the first step to the end of the warm-up.
    pub(crate) warm_up_secs: f64,
    /// Mean loss per label of the first and of the last step.
    pub(crate) losses: [f64; 2],
    /// Whether steps were replayed as CUDA graphs.
    pub(crate) replayed: bool,
    /// PyTorch, if it was asked for and has the workload.
    pub peer: Vec<PeerTime>,
}

impl BenchRecord {
    /// Gathers what was measured.
    pub fn new(device: String, dtype: String, workload: &Workload, effort: Effort, time: &StepTime) -> Self {
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        Self {
            kiln: env!("CARGO_PKG_VERSION").into(),
            device,
            dtype,
            workload: workload.as_json(),
            effort: [effort.steps, effort.repeats],
            step_ms: ms(time.step),
            spread_ms: time.spread.map(ms),
            host_ms: ms(time.enqueue),
            tokens_per_sec: time.tokens_per_sec,
            samples_per_sec: Some(time.samples_per_sec),
            mfu: time.mfu,
            reserved_bytes: time.reserved_bytes,
            warm_up_secs: time.warm_up.as_secs_f64(),
            losses: time.losses,
            replayed: time.replayed.is_ok(),
            peer: Vec::new(),
        }
    }

    /// Reads the lines that `kiln bench --json` printed to `path`.
    ///
    /// # Errors
    /// If the file cannot be read, is empty, or has another line.
    pub fn read_all(path: &Path) -> Result<Vec<Self>> {
        let text = read_text(path).with_context(|| format!("--baseline {}", path.display()))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let records: Vec<Self> = lines
            .map(|(at, line)| {
                serde_json::from_str(line).with_context(|| {
                    format!("--baseline {}:{}: not a line of kiln bench --json", path.display(), at + 1)
                })
            })
            .collect::<Result<_>>()?;
        ensure!(!records.is_empty(), "--baseline {}: the file is empty; kiln bench --json writes one", path.display());
        Ok(records)
    }

    /// Compares this measurement with the one of the same workload in `baseline`.
    pub fn against(&self, baseline: &[Self]) -> Against {
        let Some(before) = baseline.iter().rev().find(|before| before.workload["name"] == self.workload["name"]) else {
            return Against::Missing;
        };

        let mut differs = Vec::new();
        let mut note = |what: &str, before: &Value, now: &Value| {
            if before != now {
                differs.push(format!("{what} was {before}"));
            }
        };
        note("device", &before.device.as_str().into(), &self.device.as_str().into());
        note("dtype", &before.dtype.as_str().into(), &self.dtype.as_str().into());
        for key in ["rows", "len", "shortest", "label_smoothing"] {
            note(key, &before.workload[key], &self.workload[key]);
        }
        for (key, now) in self.workload["model"].as_object().into_iter().flatten() {
            note(&format!("model.{key}"), &before.workload["model"][key], now);
        }
        if !differs.is_empty() {
            return Against::Different(differs);
        }

        let ([fastest, slowest], [was_fastest, was_slowest]) = (self.spread_ms, before.spread_ms);
        Against::Same {
            before_ms: before.step_ms,
            ratio: before.step_ms / self.step_ms,
            within_spread: fastest <= was_slowest && was_fastest <= slowest,
        }
    }
}

/// A measurement compared with an earlier one.
#[derive(Debug, Clone, PartialEq)]
pub enum Against {
    /// The earlier file does not have the workload.
    Missing,
    /// It has another workload, device or precision of that name; each difference.
    Different(Vec<String>),
    /// The same steps on the same device.
    Same {
        /// Milliseconds per step.
        before_ms: f64,
        /// Above 1 if this measurement is faster.
        ratio: f64,
        /// Whether the repeats of the two overlap.
        within_spread: bool,
    },
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn record(step_ms: f64, spread_ms: [f64; 2]) -> BenchRecord {
        BenchRecord {
            kiln: "0.1.0".into(),
            device: "CPU".into(),
            dtype: "F32".into(),
            workload: Workload::named("tiny").expect("a listed name").as_json(),
            effort: [30, 5],
            step_ms,
            spread_ms,
            host_ms: 1.0,
            tokens_per_sec: 100.0,
            samples_per_sec: Some(10.0),
            mfu: None,
            reserved_bytes: None,
            warm_up_secs: 1.0,
            losses: [5.0, 4.0],
            replayed: false,
            peer: Vec::new(),
        }
    }

    #[test]
    fn equal_workloads_are_compared_and_others_are_told_apart() {
        let now = record(8.0, [7.9, 8.2]);
        let same = |before_ms, ratio, within_spread| Against::Same { before_ms, ratio, within_spread };
        assert_eq!(now.against(&[record(10.0, [9.8, 10.1])]), same(10.0, 1.25, false));
        assert_eq!(now.against(&[record(8.2, [8.1, 8.3])]), same(8.2, 8.2 / 8.0, true));
        assert_eq!(now.against(&[record(1.0, [1.0, 1.0]), record(8.0, [8.0, 8.0])]), same(8.0, 1.0, true), "the last");

        let mut other = record(10.0, [9.8, 10.1]);
        other.device = "another".into();
        other.workload["model"]["n_heads"] = json!(8);
        let Against::Different(differs) = now.against(&[other.clone()]) else { panic!("they differ") };
        assert_eq!(differs, ["device was \"another\"", "model.n_heads was 8"]);
        other.workload["name"] = json!("gpt");
        assert_eq!(now.against(&[other]), Against::Missing);
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bench.jsonl");
        let wanted = record(8.0, [7.9, 8.2]);
        fs::write(&path, format!("{}\n\n", serde_json::to_string(&wanted).expect("JSON"))).expect("writable");
        assert_eq!(BenchRecord::read_all(&path).expect("readable"), std::slice::from_ref(&wanted));
        let mut older = serde_json::to_value(&wanted).expect("JSON");
        older.as_object_mut().expect("an object").remove("samples_per_sec");
        fs::write(&path, older.to_string()).expect("writable");
        let wanted = BenchRecord { samples_per_sec: None, ..wanted };
        assert_eq!(BenchRecord::read_all(&path).expect("of an earlier version"), [wanted]);

        for (text, part) in [("", "the file is empty"), ("{}\n", "bench.jsonl:1: not a line of kiln bench --json")] {
            fs::write(&path, text).expect("writable");
            let error = format!("{:#}", BenchRecord::read_all(&path).expect_err("no record"));
            assert!(error.contains(part), "{error}");
        }
    }
}
