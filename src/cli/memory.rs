//! `kiln memory`: what a run needs memory for.

use anyhow::Result;
use burn::tensor::FloatDType;
use kiln_lab::diagnose::ledger::{Ledger, dtype_name, entries};
use kiln_metrics::logging::print::stdout_line;
use kiln_metrics::units::{gib, parse_size, thousands};
use kiln_train::device::machine_of;
use kiln_train::eval::{Init, Model};
use kiln_train::run::Survey;
use kiln_train::run::need::Need;

use super::config_args::{ConfigArgs, DeviceArgs};
use super::of_run::OfRunArgs;

/// Predicts the memory of training: what for, the largest batch that fits, and what other settings would save
///
/// Takes the arguments of kiln train, prepares the text and counts for the batch that needs most, on each device. The sum is the
/// estimate of kiln train --dry-run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kiln memory --set data.train=pairs.jsonl --preset base
  kiln memory --preset gpt2-124m --task lm --memory 24GiB
  kiln memory --run runs/en-it --measure
  kiln memory --from runs/llama --set data.train=texts/ --set model.lora.rank=16")]
pub(super) struct Args {
    #[command(flatten)]
    of: OfRunArgs,

    #[command(flatten)]
    config: ConfigArgs,

    /// Memory that the batch has to fit into, for example 24GiB [default: the device's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,

    /// Takes three steps on the largest batch and shows what they needed next to the prediction
    #[arg(long)]
    measure: bool,

    #[command(flatten)]
    device: DeviceArgs,
}

pub(super) fn run<M: Model>(args: Args, init: &Init<'_, M>) -> Result<()> {
    let mut run = args.config.of_run(&args.of, args.device.choice())?;
    run.options.data = init.data();
    let survey = run.survey_any_size(false)?;
    let (plan, config) = (&survey.plan, &survey.config);
    let need = Need { dtype: plan.dtype, n_devices: 1, checkpointing: plan.checkpointing };
    let ledger = Ledger { config, device: &survey.device, largest: plan.largest, need };
    if init.is_own() {
        return own(&args, &ledger, &survey, init);
    }
    let bytes = ledger.bytes();

    stdout_line!(
        "memory of a step on the largest batch, {}, on {}, {}",
        plan.largest,
        plan.device,
        dtype_name(plan.dtype)
    );
    let line = |name: &str, bytes: u64| stdout_line!("  {name:<42}  {:>12}", mib(bytes));
    entries(&bytes).iter().for_each(|(name, bytes)| line(name, *bytes));
    line("sum", bytes.total());
    if args.measure {
        match ledger.measured(&survey.data, init)? {
            Some(measured) => {
                line("measured", measured);
                let off = 100.0 * (bytes.total() as f64 / measured.max(1) as f64 - 1.0);
                stdout_line!(
                    "  the prediction is {:.0} % {} what was measured",
                    off.abs(),
                    if off < 0.0 { "below" } else { "above" }
                );
            }
            None => stdout_line!("  not measured: the system does not say how much memory the steps took"),
        }
    }
    stdout_line!("Workspaces of operators and fragments of the memory pools are not counted.");

    if let Some(memory) = args.memory.or(config.part_of(machine_of(&survey.device)).memory_bytes) {
        print_largest(&ledger, memory);
    }
    stdout_line!("\n{:<44}  {:>12}  {:>12}", "with", "sum", "saves");
    for other in ledger.alternatives() {
        let (now, then) = (bytes.total() as i64, other.bytes.total() as i64);
        let sign = if then > now { "-" } else { "" };
        let saves = format!("{sign}{}", mib((now - then).unsigned_abs()));
        stdout_line!("{:<44}  {:>12}  {saves:>12}", other.setting, mib(other.bytes.total()));
    }
    Ok(())
}

/// Prints the parts of a model of the program's own, and with --measure what its steps needed. Only a Transformer's activations are
/// predicted.
fn own<M: Model>(args: &Args, ledger: &Ledger<'_>, survey: &Survey, init: &Init<'_, M>) -> Result<()> {
    let (config, dtype) = (ledger.config, ledger.need.dtype);
    let parts = init.parts(&config.model, config.seed);
    let total: usize = parts.iter().map(|part| part.n_params).sum();
    stdout_line!("{:<42}  {:>14}  {:>12}", "part", "parameters", dtype_name(dtype));
    let bytes = if dtype == FloatDType::F32 { 4 } else { 2 };
    let line = |name: &str, n: usize| {
        stdout_line!("{name:<42}  {:>14}  {:>12}", thousands(n as f64), mib(bytes * n as u64));
    };
    parts.iter().for_each(|part| line(&part.name, part.n_params));
    line("sum", total);
    if !args.measure {
        stdout_line!("--measure takes steps on the largest batch, {}, and says what they needed", ledger.largest);
        return Ok(());
    }
    match ledger.measured(&survey.data, init)? {
        Some(measured) => stdout_line!("measured: {} on the largest batch, {}", mib(measured), ledger.largest),
        None => stdout_line!("not measured: the system does not say how much memory the steps took"),
    }
    Ok(())
}

/// Says how large a batch may be in `memory`.
fn print_largest(ledger: &Ledger<'_>, memory: u64) {
    let Some(shape) = ledger.largest_that_fits(memory) else {
        stdout_line!(
            "\nno batch fits into {}: weights, gradients and optimizer state need {}, and a single row needs more than what is left",
            mib(memory),
            mib(ledger.bytes().state())
        );
        return;
    };
    let tokens = shape.batch_size * shape.source_len.max(shape.target_len) * ledger.config.train.split_batches.max(1);
    stdout_line!(
        "\nthe largest batch that fits into {:.1} GiB: {shape}, with loader.batch_tokens={tokens} (now {})",
        gib(memory),
        thousands(ledger.config.loader.batch_tokens as f64)
    );
}

/// `1,234.5 MiB`.
fn mib(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 100.0 { format!("{mib:.1} MiB") } else { format!("{} MiB", thousands(mib)) }
}
