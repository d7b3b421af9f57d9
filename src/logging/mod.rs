//! Where a run's numbers go: the console, `metrics.jsonl` and TensorBoard, one file each.
//!
//! The trainer hands over what it measured ([`crate::metrics`]) and never formats or prints anything itself.

pub mod console;
pub mod jsonl;
pub mod tensorboard;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::metrics::{StepMetrics, ValidationMetrics, WindowMetrics};

pub use console::Console;
pub use jsonl::Jsonl;
pub use tensorboard::TensorBoard;

/// The numbers of a run, in its folder.
pub const METRICS_FILE: &str = "metrics.jsonl";

/// Something worth writing down.
#[derive(Debug, Clone, Copy)]
pub enum Record<'a> {
    /// One optimizer step.
    Step(&'a StepMetrics),
    /// The steps since the last window.
    Window(&'a WindowMetrics),
    /// One validation.
    Validation(&'a ValidationMetrics),
    /// Before the first step: what is being done, and how much of how much of it is done.
    Preparing(&'a str, usize, usize),
    /// One sentence for people: a checkpoint was saved, rows were skipped.
    Note(&'a str),
    /// The run is over; nothing follows.
    Finished,
}

/// A place that records go to.
pub trait Sink {
    /// Writes one record, completely: whoever reads the file next sees it.
    fn write(&mut self, record: &Record<'_>) -> Result<()>;
}

/// How far a run goes, for the sinks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Extent {
    /// Optimizer steps done when logging starts: 0, or the checkpoint's step on resume.
    pub start_step: u64,
    /// Optimizer steps at the end.
    pub total_steps: u64,
    /// Wall-clock limit of the training.
    pub max_time: Option<Duration>,
}

/// All sinks of a run.
#[derive(Default)]
pub struct Logging {
    sinks: Vec<Box<dyn Sink>>,
}

impl Logging {
    /// Writes nowhere.
    pub fn silent() -> Self {
        Self::default()
    }

    /// `metrics.jsonl` and `tb/` in the run folder, and the console unless `quiet`. On resume, lines after
    /// `extent.start_step` are taken back: their steps are about to happen again.
    pub fn for_run(run_dir: &Path, extent: Extent, quiet: bool) -> Result<Self> {
        let mut logging = Self::silent();
        let path = run_dir.join(METRICS_FILE);
        logging.add(Jsonl::open(&path, extent.start_step).with_context(|| unwritable(&path))?);
        let folder = run_dir.join("tb");
        logging.add(TensorBoard::create(&folder, extent.start_step).with_context(|| unwritable(&folder))?);
        if !quiet {
            logging.add(Console::new(extent));
        }
        Ok(logging)
    }

    /// One more sink.
    pub fn add(&mut self, sink: impl Sink + 'static) {
        self.sinks.push(Box::new(sink));
    }

    /// Writes `record` to every sink.
    pub fn write(&mut self, record: Record<'_>) -> Result<()> {
        self.sinks.iter_mut().try_for_each(|sink| sink.write(&record))
    }

    /// One optimizer step.
    pub fn step(&mut self, step: &StepMetrics) -> Result<()> {
        self.write(Record::Step(step))
    }

    /// The steps since the last window.
    pub fn window(&mut self, window: &WindowMetrics) -> Result<()> {
        self.write(Record::Window(window))
    }

    /// One validation.
    pub fn validation(&mut self, validation: &ValidationMetrics) -> Result<()> {
        self.write(Record::Validation(validation))
    }

    /// `done` of `of` parts of `what` precedes the first step.
    pub fn preparing(&mut self, what: &str, done: usize, of: usize) -> Result<()> {
        self.write(Record::Preparing(what, done, of))
    }

    /// One sentence for people.
    pub fn note(&mut self, note: &str) -> Result<()> {
        self.write(Record::Note(note))
    }

    /// The run is over.
    pub fn finish(&mut self) -> Result<()> {
        self.write(Record::Finished)
    }
}

fn unwritable(path: &Path) -> String {
    format!(
        "{}: cannot be written; check permissions and free space, or choose another folder with --run",
        path.display()
    )
}

/// Seconds since 1970, for log lines.
fn unix_secs() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0.0, |since| since.as_secs_f64())
}

/// Small records for the tests of the sinks.
#[cfg(test)]
mod samples {
    use crate::metrics::{StepMetrics, Throughput, ValidationMetrics, WindowMetrics};

    pub(super) fn step(step: u64) -> StepMetrics {
        StepMetrics {
            step,
            epoch: 1,
            loss: 2.5,
            nll: 1.5,
            grad_norm: 0.75,
            lr: 3e-4,
            updates: step,
            loss_scale: None,
            skipped: false,
            stopped: false,
            tokens: 2200,
            source_tokens: 1000,
            target_tokens: 1200,
            padded_tokens: 2500,
            loss_z: None,
            grad_norm_z: None,
        }
    }

    pub(super) fn window(step: u64) -> WindowMetrics {
        let throughput = Throughput {
            tokens_per_sec: 1234567.8,
            source_tokens_per_sec: 600000.0,
            target_tokens_per_sec: 634567.8,
            padding_ratio: 0.12,
            steps_per_sec: 2.0,
            flops_per_sec: 3e14,
            mfu: Some(0.3033),
        };
        WindowMetrics::new(&[self::step(step)], throughput, 0.015).expect("one step")
    }

    pub(super) fn validation(step: u64) -> ValidationMetrics {
        ValidationMetrics { step, loss: 2.0, nll: 1.0, target_tokens: 500, bleu: Some(51.234), ..Default::default() }
    }
}
