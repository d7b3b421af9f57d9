//! Sinks for the metrics of a run: the console, `metrics.jsonl` and TensorBoard, one file each.
//!
//! The trainer passes its measurements ([`crate`]) to the sinks and never formats or prints anything itself.

pub mod console;
pub mod jsonl;
mod mlflow;
pub mod print;
mod pulse;
mod scalars;
pub mod tensorboard;
mod trend;
pub mod wrap;
mod writer;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::{RunMetrics, SampleMetrics, StartMetrics, StepMetrics, ValidationMetrics, WindowMetrics};

use mlflow::Mlflow;
use writer::{Delivery, Writer};

pub use console::Console;
pub use jsonl::Jsonl;
pub use tensorboard::TensorBoard;

/// Name of the metrics file in the run folder.
pub const METRICS_FILE: &str = "metrics.jsonl";

/// Time that the end of a run waits for a tracking server.
const TRACKER_TIME: Duration = Duration::from_secs(10);

/// A record for the sinks.
#[derive(Debug, Clone, Copy)]
pub enum Record<'a> {
    /// A process begins.
    Start(&'a StartMetrics),
    /// One optimizer step.
    Step(&'a StepMetrics),
    /// The steps since the last window.
    Window(&'a WindowMetrics),
    /// One validation.
    Validation(&'a ValidationMetrics),
    /// A text that the model wrote at a validation.
    Sample(&'a SampleMetrics),
    /// Work before the first step: its name, the parts done, and all parts.
    Preparing(&'a str, usize, usize),
    /// What begins to be computed now. Files do not record it.
    Begin(Activity),
    /// One sentence for people, for example that a checkpoint was saved.
    Note(&'a str),
    /// The training of this process is over, with the totals of the run.
    End(&'a RunMetrics),
    /// The run is over. No record follows.
    Finished,
}

/// Work that may take long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// A micro-batch of an optimizer step, both counted from 1.
    Step {
        /// The step.
        step: u64,
        /// The micro-batch.
        micro_batch: usize,
        /// Micro-batches of the step.
        of: usize,
    },
    /// Anything else, for example "validating".
    Work(&'static str),
}

impl Activity {
    /// Returns whether `self` and `other` belong to the same step.
    fn is_part_of(self, other: Self) -> bool {
        match (self, other) {
            (Self::Step { step: one, .. }, Self::Step { step: other, .. }) => one == other,
            _ => self == other,
        }
    }
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step { step, of: 1, .. } => write!(f, "step {step}"),
            Self::Step { step, micro_batch, of } => write!(f, "step {step}, micro-batch {micro_batch} of {of}"),
            Self::Work(what) => f.write_str(what),
        }
    }
}

/// A destination of records.
pub trait Sink {
    /// Writes one record completely, so that the next reader of the file sees it.
    fn write(&mut self, record: &Record<'_>) -> Result<()>;

    /// Waits until all records so far are where a reader finds them.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns what has gone wrong with this sink since the last call, for the other sinks to note.
    fn trouble(&mut self) -> Option<String> {
        None
    }
}

/// The first and the last step of a run.
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
    /// Creates a logging without sinks.
    pub fn silent() -> Self {
        Self::default()
    }

    /// Creates `metrics.jsonl` and `tb/` in the run folder; a thread writes them. On resume, it removes the records after
    /// `extent.start_step`, because the run repeats their steps.
    ///
    /// # Errors
    /// If one of them cannot be written.
    pub fn for_run(run_dir: &Path, extent: Extent) -> Result<Self> {
        let path = run_dir.join(METRICS_FILE);
        let jsonl = Jsonl::open(&path, extent.start_step).with_context(|| unwritable(&path))?;
        let folder = run_dir.join("tb");
        let board = TensorBoard::create(&folder, extent.start_step).with_context(|| unwritable(&folder))?;
        let mut logging = Self::silent();
        logging.add(Writer::start(vec![Box::new(jsonl), Box::new(board)], Delivery::Complete)?);
        Ok(logging)
    }

    /// Adds the tracking servers that the environment names, for a run with the configuration `config`. A server never ends or
    /// delays the run.
    ///
    /// # Errors
    /// If another sink cannot be written.
    pub fn add_trackers(&mut self, run_dir: &Path, config: &serde_json::Value) -> Result<()> {
        match Mlflow::from_environment(run_dir, config) {
            Ok(None) => Ok(()),
            Ok(Some(mlflow)) => {
                self.add(Writer::start(vec![Box::new(mlflow)], Delivery::WithinTime(TRACKER_TIME))?);
                Ok(())
            }
            Err(error) => self.note(&format!("{error:#}")),
        }
    }

    /// Adds a console, which acknowledges that `stop` was set.
    pub fn add_console(&mut self, extent: Extent, stop: Arc<AtomicBool>) {
        self.add(Console::new(extent, stop));
    }

    /// Adds a sink.
    pub fn add(&mut self, sink: impl Sink + 'static) {
        self.sinks.push(Box::new(sink));
    }

    /// Writes `record` to every sink.
    pub fn write(&mut self, record: Record<'_>) -> Result<()> {
        self.sinks.iter_mut().try_for_each(|sink| sink.write(&record))?;
        let trouble: Vec<String> = self.sinks.iter_mut().filter_map(|sink| sink.trouble()).collect();
        trouble.iter().try_for_each(|note| self.write(Record::Note(note)))
    }

    /// Writes which process begins.
    pub fn start(&mut self, start: &StartMetrics) -> Result<()> {
        self.write(Record::Start(start))
    }

    /// Writes an optimizer step.
    pub fn step(&mut self, step: &StepMetrics) -> Result<()> {
        self.write(Record::Step(step))
    }

    /// Writes the steps since the last window.
    pub fn window(&mut self, window: &WindowMetrics) -> Result<()> {
        self.write(Record::Window(window))
    }

    /// Writes a validation.
    pub fn validation(&mut self, validation: &ValidationMetrics) -> Result<()> {
        self.write(Record::Validation(validation))
    }

    /// Writes a text of the model.
    pub fn sample(&mut self, sample: &SampleMetrics) -> Result<()> {
        self.write(Record::Sample(sample))
    }

    /// Reports that `done` of `of` parts of `what` are done; all of them precede the first step.
    pub fn preparing(&mut self, what: &str, done: usize, of: usize) -> Result<()> {
        self.write(Record::Preparing(what, done, of))
    }

    /// Says what begins to be computed now.
    pub fn begin(&mut self, activity: Activity) -> Result<()> {
        self.write(Record::Begin(activity))
    }

    /// Writes one sentence for people.
    pub fn note(&mut self, note: &str) -> Result<()> {
        self.write(Record::Note(note))
    }

    /// Writes the totals of the run.
    pub fn end(&mut self, run: &RunMetrics) -> Result<()> {
        self.write(Record::End(run))
    }

    /// Waits until all records so far are in their files.
    pub fn flush(&mut self) -> Result<()> {
        self.sinks.iter_mut().try_for_each(|sink| sink.flush())
    }

    /// Ends the run in all sinks.
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

/// Returns the seconds since 1970.
fn unix_secs() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0.0, |since| since.as_secs_f64())
}

/// Records for the tests of the sinks.
#[cfg(test)]
mod samples {
    use super::Record;
    use crate::{
        CollectiveMetrics, DeviceMemory, DeviceTime, GpuUse, HostMemory, HostTimes, HostUse, RunMetrics, SCHEMA,
        SampleMetrics, SourceMetrics, StartMetrics, StepMetrics, Throughput, ValidationMetrics, WindowMetrics,
    };

    fn sources() -> SourceMetrics {
        let mut sources = SourceMetrics::default();
        sources.count(&[kiln_data::SourceCount { name: "NAME".into(), rows: 4, tokens: 40 }]);
        sources.add_loss("NAME", 60.0, 20);
        sources
    }

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
            sources: sources(),
            samples: 50,
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
            samples_per_sec: 100.0,
            flops_per_sec: 3e14,
            mfu: Some(0.3033),
        };
        WindowMetrics::new(&[self::step(step)], throughput, 0.015).expect("one step")
    }

    /// Calls `write` with a record of each kind in which every field is present.
    pub(super) fn complete(mut write: impl FnMut(&Record<'_>)) {
        let lengths = vec![kiln_data::Lengths::of("source", 3, 3, |row| row)];
        let start = StartMetrics { schema: SCHEMA, kiln: "0.1.0".into(), lengths, ..StartMetrics::default() };
        let (some, number) = (Some(0.5), Some(1.0));
        let step =
            StepMetrics { loss_scale: some, skipped: true, stopped: true, loss_z: some, grad_norm_z: some, ..step(8) };

        let gpu = GpuUse {
            samples: 2,
            busy_share: some,
            power_w: number,
            power_limit_w: number,
            sm_clock_mhz: number,
            max_sm_clock_mhz: number,
            temperature_c: number,
            throttled_share: some,
        };
        let host_use = HostUse {
            cpus: Some(8),
            process_cpu_share: some,
            machine_cpu_share: some,
            read_bytes_per_sec: number,
            written_bytes_per_sec: number,
            received_bytes_per_sec: number,
            sent_bytes_per_sec: number,
            swapin_pages_per_sec: number,
            swapout_pages_per_sec: number,
        };
        let window = WindowMetrics {
            loss_scale: some,
            overflows: 1,
            new_kernels: Some(1),
            memory_bytes: Some(1),
            replayed_share: some,
            recorded_graphs: Some(1),
            device_memory: Some(DeviceMemory::default()),
            host_memory: Some(HostMemory { line_peak_bytes: Some(1), ..HostMemory::default() }),
            host_use: Some(host_use),
            device_time: DeviceTime::of(2.0, 1.0),
            gpu: Some(gpu),
            collectives: CollectiveMetrics::sums([("exchange", 1, 1.0)]),
            ..window(8)
        };
        let validation = ValidationMetrics {
            bits_per_byte: some,
            masked_accuracy: some,
            unigram_accuracy: some,
            reward_accuracy: some,
            reward_margin: some,
            accuracy: some,
            macro_f1: some,
            micro_f1: some,
            entity_f1: some,
            no_four_grams: true,
            chrf: some,
            exact_match: some,
            figures: [("NAME".to_owned(), 0.5)].into(),
            ..validation(8)
        };
        write(&Record::Start(&start));
        write(&Record::Step(&step));
        write(&Record::Window(&window));
        write(&Record::Validation(&validation));
        let text = || "text".to_owned();
        write(&Record::Sample(&SampleMetrics { step: 8, source: text(), output: text(), reference: Some(text()) }));
        write(&Record::Note("saved"));
        write(&Record::End(&end()));
        write(&Record::Finished);
    }

    pub(super) fn end() -> RunMetrics {
        RunMetrics {
            step: 8,
            outcome: "steps".into(),
            train_secs: 2.0,
            tokens: 100,
            tokens_per_sec: 50.0,
            padding_ratio: 0.1,
            data_wait_share: 0.2,
            best_step: Some(8),
            sources: SourceMetrics::default(),
            host: HostTimes::default(),
            host_syncs: 3,
            summary: "the loader cost 0.4 %".into(),
        }
    }

    pub(super) fn validation(step: u64) -> ValidationMetrics {
        ValidationMetrics { step, loss: 2.0, nll: 1.0, target_tokens: 500, bleu: Some(51.234), ..Default::default() }
    }
}
