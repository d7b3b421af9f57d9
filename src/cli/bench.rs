//! `kiln bench`: times real training steps on synthetic batches, and compares them with PyTorch.

mod operators;
mod together;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use burn::tensor::{Device, FloatDType};

use super::together::{Role, begin};
use crate::config::Precision;
use crate::device::{self, DeviceChoice};
use crate::diagnose::operators::{Peaks, measure as measure_operators, measure_compared};
use crate::diagnose::peer::{Peer, PeerTime};
use crate::diagnose::replay::{Comparison, compare};
use crate::diagnose::step_time::{Effort, StepTime, measure};
use crate::diagnose::workload::{NAMES, Workload};
use crate::distributed::Ranks;
use crate::units::gib;

/// Steps that `--capture` compares.
const COMPARED_STEPS: usize = 24;

/// Times training steps of the headline workloads
///
/// Each step is forward, backward, clipping and AdamW on synthetic tokens. Reported are milliseconds, non-padding tokens per
/// second, MFU, memory and host time. MFU = operations / time / peak of the device. A step has 6 operations per parameter and
/// position; causal attention adds 6 * T * D per position and layer. With --operators each operator of the step is also timed
/// alone and compared with its floor, the least time that the device's peaks allow.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kiln bench gpt mt --peer
  kiln bench gpt --operators
  kiln bench gpt mt link --devices 0,1
  kiln bench tiny --operators --device cpu")]
pub(super) struct Args {
    /// Workloads: gpt (GPT-2 124M, 16 x 1024), gpt64 (64 x 1024), mt (Transformer base, 400 padded pairs), tiny, tiny-mt; with
    /// --devices also link, the bandwidth between the devices
    #[arg(default_values = ["gpt", "mt"])]
    workloads: Vec<String>,
    /// cpu, cuda, cuda:N or auto
    #[arg(long, default_value_t = DeviceChoice::Auto)]
    device: DeviceChoice,
    /// Several devices, with a process for each: GPU numbers (0,1), all, or cpu,cpu. Times each workload on all of them alone at
    /// the same time, then together
    #[arg(long, value_name = "LIST", conflicts_with_all = ["device", "operators", "capture", "peer"])]
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
    /// Also runs the PyTorch baseline on each workload; give it after the workloads
    ///
    /// The binary carries the baseline (benches/pytorch in the repository). It runs in the Python that KILN_PYTHON names
    /// (default: python3), which needs PyTorch with CUDA. FILE is another program that prints the same lines.
    #[arg(long, value_name = "FILE")]
    peer: Option<Option<PathBuf>>,
}

pub(super) fn run(mut args: Args) -> Result<ExitCode> {
    match begin(args.devices.as_deref(), args.device)? {
        Role::Launcher(code) => return Ok(code),
        Role::Rank(part) => {
            args.device = part.device;
            if let Some(link) = part.link.clone() {
                return part.end(together::run(args, link));
            }
        }
    }

    let bench = Bench::open(args)?;
    let Effort { steps, repeats } = bench.effort;
    println!("{}, {:?}, {repeats} x {steps} steps", device::device_name(&bench.device), bench.dtype);
    println!("tok/s = non-padding tokens / time; MFU = {}", mfu_formula(bench.peaks.as_ref()));

    for workload in &bench.workloads {
        bench.workload(workload)?;
    }
    if let Some(peer) = bench.peer.as_ref().filter(|_| bench.operators) {
        let compared = measure_compared(&peer.operators()?, bench.dtype, &bench.device, repeats)?;
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
    peer: Option<Peer>,
    /// `None` if the device's peaks are unknown.
    peaks: Option<Peaks>,
}

impl Bench {
    fn open(args: Args) -> Result<Self> {
        let Args { workloads, device, steps, repeats, operators, capture, logits_chunk_rows, peer, sync_every, .. } =
            args;
        let mut workloads: Vec<Workload> = workloads.iter().map(|name| named(name)).collect::<Result<_>>()?;
        if let Some(rows) = logits_chunk_rows {
            workloads.iter_mut().for_each(|workload| workload.model.logits_chunk_rows = Some(rows));
        }
        ensure!(
            (steps as u64).is_multiple_of(sync_every),
            "--sync-every {sync_every} does not divide --steps {steps}: each repeat must take as many synchronizations; --steps {} does",
            (steps as u64).next_multiple_of(sync_every)
        );
        workloads.iter_mut().for_each(|workload| workload.config.train.sync_every = sync_every);
        ensure!(steps > 0 && repeats > 0, "--steps {steps} and --repeats {repeats}: both must be at least 1");
        let peer = peer.map(open_peer).transpose()?;

        let device = device.open()?;
        let dtype = device::compute_dtype(Precision::Auto, &device)?;
        let peaks = device::peak_flops_per_sec(&device, dtype).zip(device::peak_bytes_per_sec(&device));
        let peaks = peaks.map(|(flops, bytes)| Peaks { flops, bytes });
        Ok(Self { workloads, device, dtype, effort: Effort { steps, repeats }, operators, capture, peer, peaks })
    }

    /// Times one workload in every requested way and prints the results.
    fn workload(&self, workload: &Workload) -> Result<()> {
        let Self { device, dtype, effort, .. } = self;
        let ours = measure(workload, *dtype, device, *effort, &Ranks::alone())?;
        print_ours(workload, &ours);
        // Before any other measurement, including the baseline's process: it needs the memory.
        device.memory_cleanup();

        if self.capture {
            print_replayed(&compare(workload, *dtype, device, *effort, COMPARED_STEPS)?);
            device.memory_cleanup();
        }
        if self.operators {
            let rows = measure_operators(workload, *dtype, device, effort.repeats)?;
            operators::print(&rows, ours.step, self.peaks.as_ref());
            device.memory_cleanup();
        }
        if let Some(peer) = &self.peer {
            match peer.step_times(workload.name)? {
                Some(times) => times.iter().for_each(|theirs| print_peer(&ours, theirs)),
                None => println!("  torch          has no such workload"),
            }
        }
        Ok(())
    }
}

/// The baseline that the binary carries, or the program at `script`.
fn open_peer(script: Option<PathBuf>) -> Result<Peer> {
    let Some(script) = script else { return Peer::carried() };
    let is_workload = script.to_str().is_some_and(|name| NAMES.contains(&name));
    if is_workload && !script.exists() {
        bail!("--peer takes {0:?} as a file, and there is none: give workloads before --peer", script);
    }
    Peer::script(&script)
}

fn mfu_formula(peaks: Option<&Peaks>) -> String {
    let peak = peaks.map_or("peak".into(), |peaks| format!("{:.0} TFLOP/s", peaks.flops / 1e12));
    format!("(6 x parameters x positions + 6 x T x D x layers x positions, for causal text) / time / {peak}")
}

fn named(name: &str) -> Result<Workload> {
    match Workload::named(name) {
        Some(workload) => Ok(workload),
        None => bail!("no workload {name:?}; choose from {}", NAMES.join(", ")),
    }
}

fn print_ours(workload: &Workload, time: &StepTime) {
    let mfu = time.mfu.map_or_else(|| "unknown".into(), |mfu| format!("{:.1}%", 100.0 * mfu));
    let memory = time.reserved_bytes.map_or_else(|| "unknown".into(), |bytes| format!("{:.2} GiB", gib(bytes)));
    println!("{}", workload.title);
    println!(
        "  kiln           {:>8.2} ms  {:>9.0} tok/s  MFU {mfu:>5}  memory {memory}  host {:.2} ms  warm-up {:.1} s  loss {:.3} -> {:.3}",
        ms(time.step),
        time.tokens_per_sec,
        ms(time.enqueue),
        time.warm_up.as_secs_f64(),
        time.losses[0],
        time.losses[1],
    );

    match &time.replayed {
        Ok(()) => println!("  replayed       forward and backward as a CUDA graph, as in training once a shape recurs"),
        Err(reason) => println!("  eager          {reason}"),
    }
    if let Some(bytes) = time.activation_bytes_per_position {
        println!(
            "  activations    {bytes:.0} bytes per position: memory without weights, gradients, master weights and moments"
        );
    }
}

fn print_replayed(Comparison { steps, eager, replayed }: &Comparison) {
    for (how, pace) in [("eager", eager), ("replayed", replayed)] {
        let memory = pace.added_bytes.map_or_else(|| "unknown".into(), |bytes| format!("{:.2} GiB", gib(bytes)));
        println!("  {how:<14} {:>8.2} ms  host {:.2} ms  memory {memory}", ms(pace.step), ms(pace.enqueue));
    }
    println!("  replayed and eager steps are equal bit for bit: {steps} steps, then all weights and moments");
}

fn print_peer(ours: &StepTime, theirs: &PeerTime) {
    println!(
        "  torch {:<8} {:>8.2} ms  {:>9.0} tok/s  MFU {:>4.1}%  memory {:.2} GiB  kiln is {:.2} x as fast",
        if theirs.compiled { "compiled" } else { "eager" },
        theirs.step_ms,
        theirs.tokens_per_sec,
        theirs.mfu_percent,
        theirs.peak_gib,
        theirs.step_ms / ms(ours.step),
    );
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
