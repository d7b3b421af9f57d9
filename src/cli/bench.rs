//! `kiln bench`: times real training steps on synthetic batches, beside PyTorch if its script is given.

mod operators;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::config::Precision;
use crate::device::{self, DeviceChoice};
use crate::diagnose::operators::{Peaks, beside, measure as measure_operators};
use crate::diagnose::peer::{self, PeerTime};
use crate::diagnose::replay::{Comparison, compare};
use crate::diagnose::step_time::{Effort, StepTime, measure};
use crate::diagnose::workload::{NAMES, Workload};
use crate::units::gib;

/// Steps over which `--capture` compares.
const COMPARED_STEPS: usize = 24;

/// Times training steps of the headline workloads
///
/// Forward, backward, clipping and AdamW on synthetic tokens: milliseconds, effective tokens per second, MFU, memory, and
/// the host's share. Tokens per second do not count padding. MFU = operations / time / peak of the device, operations
/// being 6 for each parameter and position, and for causal attention 6 * T * D for each position and layer. With --operators
/// also each operator of the step alone, beside its floor: what the device's peaks allow.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  kiln bench gpt mt --peer torch_peer.py\n  kiln bench gpt --operators\n  kiln bench tiny --operators --device cpu"
)]
pub(super) struct Args {
    /// Workloads: gpt (GPT-2 124M, 16 x 1024), gpt64 (64 x 1024), mt (Transformer base, 400 padded pairs), tiny, tiny-mt
    #[arg(default_values = ["gpt", "mt"])]
    workloads: Vec<String>,
    /// cpu, cuda, cuda:N or auto
    #[arg(long, default_value_t = DeviceChoice::Auto)]
    device: DeviceChoice,
    /// Steps of a repeat
    #[arg(long, default_value_t = 30)]
    steps: usize,
    /// Repeats, of which the median counts
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Times every operator of the step alone, too; with --peer also those that its script times, at its shapes
    #[arg(long)]
    operators: bool,
    /// Also replays steps as CUDA graphs: compares them bit by bit with computed ones and times both
    #[arg(long)]
    capture: bool,
    /// Rows whose logits exist at a time, instead of the model's `logits_chunk_rows`: fewer chunks are faster, smaller ones
    /// take less memory
    #[arg(long, value_name = "N")]
    logits_chunk_rows: Option<usize>,
    /// The PyTorch script to run beside each workload
    #[arg(long, value_name = "FILE")]
    peer: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> Result<()> {
    let Args { workloads, device, steps, repeats, operators, capture, logits_chunk_rows, peer } = args;
    let mut workloads: Vec<Workload> = workloads.iter().map(|name| named(name)).collect::<Result<_>>()?;
    if let Some(rows) = logits_chunk_rows {
        workloads.iter_mut().for_each(|workload| workload.model.logits_chunk_rows = Some(rows));
    }
    if steps == 0 || repeats == 0 {
        bail!("--steps {steps} and --repeats {repeats}: both must be at least 1");
    }
    if let Some(script) = peer.as_ref().filter(|script| !script.exists()) {
        bail!("--peer {}: there is no such file", script.display());
    }
    let device = device.open()?;
    let dtype = device::compute_dtype(Precision::Auto, &device)?;
    println!("{}, {dtype:?}, {repeats} x {steps} steps", device::device_name(&device));
    let peaks = device::peak_flops_per_sec(&device, dtype).zip(device::peak_bytes_per_sec(&device));
    let peaks = peaks.map(|(flops, bytes)| Peaks { flops, bytes });
    println!("tok/s = tokens that are no padding / time; MFU = {}", mfu_formula(peaks.as_ref()));
    for workload in &workloads {
        let ours = measure(workload, dtype, &device, Effort { steps, repeats })?;
        print_ours(workload, &ours);
        // Before anything else, the peer's process among it: its memory is its own.
        device.memory_cleanup();
        if capture {
            print_replayed(&compare(workload, dtype, &device, Effort { steps, repeats }, COMPARED_STEPS)?);
            device.memory_cleanup();
        }
        if operators {
            operators::print(&measure_operators(workload, dtype, &device, repeats)?, ours.step, peaks.as_ref());
            device.memory_cleanup();
        }
        if let Some(script) = &peer {
            match peer::run(script, workload.name)? {
                Some(times) => times.iter().for_each(|theirs| print_peer(&ours, theirs)),
                None => println!("  torch          has no such workload"),
            }
        }
    }
    if let Some(script) = peer.filter(|_| operators) {
        operators::print_peer(&beside(&peer::run_operators(&script)?, dtype, &device, repeats)?);
    }
    Ok(())
}

fn mfu_formula(peaks: Option<&Peaks>) -> String {
    let peak = peaks.map_or("peak".into(), |peaks| format!("{:.0} TFLOP/s", peaks.flops / 1e12));
    format!("(6 x parameters x positions + 6 x T x D x layers x positions, for causal text) / time / {peak}")
}

fn named(name: &str) -> Result<Workload> {
    match Workload::named(name) {
        Some(workload) => Ok(workload),
        None => bail!("no workload {name:?}; there are {}", NAMES.join(", ")),
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
        Ok(()) => {
            println!("  replayed       forward and backward as a CUDA graph, as a run does when a shape has come often")
        }
        Err(reason) => println!("  computed       {reason}"),
    }
    if let Some(bytes) = time.activation_bytes_per_position {
        println!(
            "  activations    {bytes:.0} bytes a position: memory less weights, gradients, master weights and moments"
        );
    }
}

fn print_replayed(Comparison { steps, computed, replayed }: &Comparison) {
    for (how, pace) in [("computed", computed), ("replayed", replayed)] {
        let memory = pace.added_bytes.map_or_else(|| "unknown".into(), |bytes| format!("{:.2} GiB", gib(bytes)));
        println!("  {how:<14} {:>8.2} ms  host {:.2} ms  memory {memory}", ms(pace.step), ms(pace.enqueue));
    }
    println!("  {steps} steps, all weights and moments: replayed = computed, bit for bit");
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
