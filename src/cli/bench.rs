//! `kiln bench`: times real training steps on synthetic batches, and compares them with PyTorch.

mod chosen;
mod decode;
mod operators;
mod print;
mod together;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use burn::tensor::{Device, FloatDType};
use kiln_kernels::is_cuda;
use kiln_lab::diagnose::Effort;
use kiln_lab::diagnose::bench_record::BenchRecord;
use kiln_lab::diagnose::operators::{Peaks, measure as measure_operators, measure_compared};
use kiln_lab::diagnose::peer::Peer;
use kiln_lab::diagnose::replay::compare;
use kiln_lab::diagnose::step_time::measure;
use kiln_lab::diagnose::workload::{NAMES, Workload};
use kiln_metrics::logging::print::stdout_line;
use kiln_ranks::Ranks;
use kiln_train::config::Precision;
use kiln_train::device::{self, DeviceChoice};
use kiln_train::eval::{Init, Model};
use serde_json::{Value, json};

pub(super) use self::chosen::ChosenArgs;
use self::chosen::DECODE;
use super::error::Usage;
use super::together::{Role, begin};

/// Steps that `--capture` compares.
const COMPARED_STEPS: usize = 24;

/// Times training steps, of named workloads or of any model
///
/// Each step is forward, backward, clipping and AdamW on synthetic tokens. Reported are milliseconds, non-padding tokens per
/// second, MFU, memory and host time. MFU = operations / time / peak of the device. A step has 6 operations per parameter and
/// position; causal attention adds 6 * T * D per position and layer. With --operators each operator of the step is also timed
/// alone and compared with its floor, the least time that the device's peaks allow.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kiln bench gpt mt --peer
  kiln bench --preset llama-125m --rows 16 --len 2048
  kiln bench gpt --set model.n_heads=8
  kiln bench --run runs/en-it --peer
  kiln bench gpt --json > before.jsonl
  kiln bench gpt --baseline before.jsonl
  kiln bench gpt --operators
  kiln bench decode --peer
  kiln bench gpt mt link --devices 0,1
  kiln bench tiny --operators --device cpu")]
pub(super) struct Args {
    #[command(flatten)]
    chosen: ChosenArgs,
    /// cpu, cuda, cuda:N or auto
    #[arg(long, default_value_t = DeviceChoice::Auto)]
    device: DeviceChoice,
    /// Several devices, with a process for each: GPU numbers (0,1), all, or cpu,cpu. Times each workload on all of them alone at
    /// the same time, then together
    #[arg(long, value_name = "LIST", conflicts_with_all = ["device", "operators", "capture", "peer", "json", "baseline"])]
    devices: Option<String>,
    /// With --devices: steps from one synchronization to the next, as train.sync_every; it must divide --steps
    #[arg(long, value_name = "N", default_value_t = 1, requires = "devices", value_parser = clap::value_parser!(u64).range(1..))]
    sync_every: u64,
    /// Steps per repeat
    #[arg(long, default_value_t = 30)]
    steps: usize,
    /// Repeats; the median is reported
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Also times every operator of the step alone; with --peer, also the baseline's operators, at
    /// the shapes of its script
    #[arg(long)]
    operators: bool,
    /// Also replays steps as CUDA graphs, compares them with eager steps bit by bit, and times both
    #[arg(long)]
    capture: bool,
    /// Rows per chunk of logits, instead of the model's `logits_chunk_rows`: fewer chunks are faster, smaller chunks take less
    /// memory
    #[arg(long, value_name = "N")]
    logits_chunk_rows: Option<usize>,
    /// Prints a JSON object per workload, one per line, instead of text
    #[arg(long, conflicts_with_all = ["operators", "capture"])]
    json: bool,
    /// Compares each step with the one in FILE, which --json has printed
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Also runs the PyTorch baseline on each workload; give it after the workloads
    ///
    /// The binary carries the baseline (benches/pytorch in the repository). It runs in the Python that KILN_PYTHON names
    /// (default: python3), which needs PyTorch. FILE is another program that prints the same lines.
    #[arg(long, value_name = "FILE")]
    peer: Option<Option<PathBuf>>,
}

pub(super) fn run<M: Model>(mut args: Args, init: &Init<'_, M>) -> Result<ExitCode> {
    refuse_others(&args, init.is_own())?;
    match begin(args.devices.as_deref(), args.device)? {
        Role::Launcher(code) => return Ok(code),
        Role::Rank(part) => {
            args.device = part.device;
            if let Some(link) = part.link.clone() {
                return part.end(together::run(args, link, init));
            }
        }
    }

    args.chosen.decodes = args.chosen.workloads.iter().any(|name| name == DECODE);
    let decodes = args.chosen.decodes;
    let bench = Bench::open(args, init)?;
    if decodes {
        decode::run(&bench)?;
    }
    if !bench.json && !bench.workloads.is_empty() {
        print::header(&bench);
    }
    for workload in &bench.workloads {
        bench.workload(workload, init)?;
    }
    if let Some(peer) = bench.peer.as_ref().filter(|_| bench.operators) {
        let compared = measure_compared(&peer.operators()?, bench.dtype, &bench.device, bench.effort.repeats)?;
        operators::print_peer(&compared);
    }
    Ok(ExitCode::SUCCESS)
}

/// A checked request, on an open device.
struct Bench {
    workloads: Vec<Workload>,
    device: Device,
    dtype: FloatDType,
    effort: Effort,
    operators: bool,
    capture: bool,
    json: bool,
    baseline: Option<Vec<BenchRecord>>,
    peer: Option<Peer>,
    /// `None` if the device's peaks are unknown.
    peaks: Option<Peaks>,
}

impl Bench {
    fn open<M: Model>(args: Args, init: &Init<'_, M>) -> Result<Self> {
        let Args { steps, repeats, operators, capture, json, sync_every, .. } = args;
        let mut workloads = args.chosen.workloads(args.device)?;
        for workload in &mut workloads {
            workload.config.train.sync_every = sync_every;
            workload.model.logits_chunk_rows = args.logits_chunk_rows.or(workload.model.logits_chunk_rows);
            if init.is_own() {
                let parts = init.parts(&workload.model, workload.config.seed);
                workload.describe(parts.iter().map(|part| part.n_params as u64).sum());
            }
        }
        refuse_effort(steps, repeats, sync_every)?;
        let peer = args.peer.map(open_peer).transpose()?;
        let baseline = args.baseline.as_deref().map(BenchRecord::read_all).transpose()?;

        // All workloads were built with the same precision and with the same `--set`. The link alone needs none.
        let first = workloads.first().map(|workload| &workload.config.train);
        if let Some(train) = first {
            train.f32_products.install_in_backend();
        }
        let device = args.device.open()?;
        let dtype = device::compute_dtype(first.map_or(Precision::Auto, |train| train.precision), &device)?;
        let peaks = device::peak_flops_per_sec(&device, dtype).zip(device::peak_bytes_per_sec(&device));
        let peaks = peaks.map(|(flops, bytes)| Peaks { flops, bytes });
        let effort = Effort::new(steps, repeats);
        Ok(Self { workloads, device, dtype, effort, operators, capture, json, baseline, peer, peaks })
    }

    /// Times one workload in every requested way and prints the results.
    fn workload<M: Model>(&self, workload: &Workload, init: &Init<'_, M>) -> Result<()> {
        let Self { device, dtype, effort, .. } = self;
        let ours = measure(workload, init, *dtype, device, *effort, &Ranks::alone())?;
        let name = device::device_name(device);
        let mut record = BenchRecord::new(name, format!("{dtype:?}"), workload, *effort, &ours);
        if !self.json {
            print::ours(workload, &ours);
        }
        // Before any other measurement, including the baseline's process: it needs the memory.
        device.memory_cleanup();

        if self.capture {
            print::replayed(&compare(workload, init, *dtype, device, *effort, COMPARED_STEPS)?);
            device.memory_cleanup();
        }
        if self.operators {
            let _installed = workload.install();
            let (state, batch) = (workload.state(init, *dtype, device)?, workload.batches(device).remove(0));
            let measured = measure_operators(state, &batch, effort.repeats)?;
            operators::print(&measured, ours.step, self.peaks.as_ref());
            device.memory_cleanup();
        }

        let theirs = self.peer.as_ref().map(|peer| peer.step_times(workload, &self.machine())).transpose()?;
        let lacks_workload = theirs.as_ref().is_some_and(Option::is_none);
        record.peer = theirs.flatten().unwrap_or_default();
        if self.json {
            stdout_line!("{}", serde_json::to_string(&record)?);
        } else {
            print::peer(&record, lacks_workload);
        }
        if let Some(baseline) = &self.baseline {
            print::baseline(&record.against(baseline), self.json);
        }
        Ok(())
    }

    /// What the PyTorch baseline needs besides the workload.
    fn machine(&self) -> Value {
        let dtype = match self.dtype {
            FloatDType::BF16 => "bf16",
            FloatDType::F16 => "f16",
            _ => "f32",
        };
        json!({
            "device": if is_cuda(&self.device) { "cuda" } else { "cpu" },
            "dtype": dtype,
            "peak_flops": self.peaks.as_ref().map(|peaks| peaks.flops),
            "steps": self.effort.steps,
            "repeats": self.effort.repeats.min(3),
        })
    }
}

/// Refuses what a program with a model of its own has no counterpart of: named workloads, searches, and PyTorch's model.
fn refuse_others(args: &Args, is_own: bool) -> Result<(), Usage> {
    let named = args.chosen.has_named().then_some("named workloads are Kiln's Transformers");
    let peer = args.peer.as_ref().map(|_| "--peer builds Kiln's Transformers in PyTorch");
    match named.or(peer).filter(|_| is_own) {
        Some(why) => Err(Usage(format!(
            "{why}, and this program has a model of its own: name its configuration alone, with --run, --config or --preset"
        ))),
        None => Ok(()),
    }
}

/// Refuses repeats that take no steps, or not as many synchronizations as others.
fn refuse_effort(steps: usize, repeats: usize, sync_every: u64) -> Result<(), Usage> {
    if steps == 0 || repeats == 0 {
        return Err(Usage(format!("--steps {steps} and --repeats {repeats}: both must be at least 1")));
    }
    if !(steps as u64).is_multiple_of(sync_every) {
        let next = (steps as u64).next_multiple_of(sync_every);
        return Err(Usage(format!(
            "--sync-every {sync_every} does not divide --steps {steps}: each repeat must take as many synchronizations; --steps {next} does"
        )));
    }
    Ok(())
}

/// The baseline that the binary carries, or the program at `script`.
fn open_peer(script: Option<PathBuf>) -> Result<Peer> {
    let Some(script) = script else { return Peer::carried() };
    let is_workload = script.to_str().is_some_and(|name| NAMES.contains(&name));
    if is_workload && !script.exists() {
        bail!(Usage(format!("--peer takes {script:?} as a file, and there is none: give workloads before --peer")));
    }
    Peer::script(&script)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
