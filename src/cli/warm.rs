//! `kiln warm`: compiles kernels before they are needed, and writes them to a file for other machines.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use kiln_kernels::compilation::{KernelCount, export_kernels};
use kiln_lab::diagnose::warm::{Warmed, warm};
use kiln_metrics::logging::print::{over_line, stderr_line, stdout_line};
use kiln_train::config::Precision;
use kiln_train::device::{self, DeviceChoice, KERNEL_FILE, KERNEL_FILE_VARIABLE};
use kiln_train::eval::{Init, Model};

use super::bench::ChosenArgs;
use super::error::Usage;

/// Compiles the kernels of training steps, for later runs on this machine or on others
///
/// A run compiles the kernels that are not in the cache of this machine (~/.cache/kiln). This command compiles the
/// kernels of a workload or of a model before. With --to it writes all kernels that this executable has in the cache, including
/// kernels of earlier runs, to a file. The same executable uses the file on another machine if it lies next to it as kiln.kernels, or if
/// KILN_KERNEL_FILE names it. It helps GPUs of the same architecture with a driver of the same CUDA version; others compile.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln warm gpt mt
  kiln warm --preset llama-125m --rows 16 --len 2048
  kiln warm --run runs/en-it --to kiln.kernels
  kiln warm --to kiln.kernels")]
pub(super) struct Args {
    #[command(flatten)]
    chosen: ChosenArgs,
    /// cuda, cuda:N or auto
    #[arg(long, default_value_t = DeviceChoice::Auto)]
    device: DeviceChoice,
    /// Writes the kernels to FILE; without a workload or a model nothing more is compiled
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

pub(super) fn run<M: Model>(args: Args, init: &Init<'_, M>) -> Result<()> {
    let Args { chosen, device: choice, to } = args;
    let workloads = match to {
        Some(_) if chosen.is_empty() => Vec::new(),
        _ => chosen.workloads(choice)?,
    };
    let device = choice.open()?;
    if device::is_cpu(&device) {
        let hint = device::gpu_hint().unwrap_or_else(|| "kiln doctor shows what is missing".into());
        return Err(Usage(format!("a CPU has no kernels to compile, and no GPU can be used; {hint}")).into());
    }

    let dtype = device::compute_dtype(Precision::Auto, &device)?;
    for workload in &workloads {
        let Warmed { kernels, elapsed, one_by_one } = warm(workload, init, dtype, &device, show)?;
        if let Some(error) = one_by_one {
            stderr_line!("kernels were compiled one after another, because {error}");
        }
        let KernelCount { compiled, loaded, tuned } = kernels;
        stdout_line!(
            "{}: {compiled} kernels compiled, {loaded} loaded from the cache, {tuned} choices timed in {:.1} s",
            workload.title,
            elapsed.as_secs_f64()
        );
        // The next model needs the memory.
        device.memory_cleanup();
    }

    if let Some(path) = to {
        let exported = export_kernels(&path, &device::device_name(&device)).context("writing the kernels")?;
        ensure!(exported.entries > 0, "{}: the cache holds no kernels of this executable yet", path.display());
        stdout_line!(
            "{}: {} kernels and choices, {:.1} MB; copy it next to the executable as {KERNEL_FILE}, or name it in {KERNEL_FILE_VARIABLE}",
            path.display(),
            exported.entries,
            exported.bytes as f64 / 1e6
        );
    }
    Ok(())
}

/// Shows the progress in a line of its own, if somebody watches.
fn show(done: usize, of: usize) {
    if of > 0 && std::io::stderr().is_terminal() {
        let end = if done == of { "\n" } else { "" };
        over_line(&format!("compiling kernels: {done} of {of}{end}"));
    }
}
