//! `kiln check --precision`: the audit of a precision, as a table and a verdict.

use std::fs;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use kiln_lab::diagnose::precision::{Audit, Subject, Trial};
use kiln_metrics::logging::print::{stderr_line, stdout_line};
use kiln_metrics::units::{gib, thousands};
use kiln_train::config::Precision;
use kiln_train::dataset::RunData;
use kiln_train::device::device_name;
use kiln_train::eval::{Init, Model};
use kiln_train::metrics::StepMetrics;
use kiln_train::run::RunError;

use super::super::config_args::{ConfigArgs, DeviceArgs};

/// A precision that can be audited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Audited {
    Fp8,
    Fp16,
    Bf16,
    F32,
}

#[derive(Debug, clap::Args)]
pub(super) struct AuditArgs {
    /// Audits this precision instead of a run
    #[arg(long, value_name = "PRECISION")]
    precision: Option<Audited>,

    /// With --precision: steps to train
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(2..))]
    steps: u64,

    /// With --precision: steps per line of the table
    #[arg(long, value_name = "K", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,

    /// With --precision: largest difference of a step's loss from f32, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    tolerance: f64,

    #[command(flatten)]
    config: ConfigArgs,

    #[command(flatten)]
    device: DeviceArgs,
}

impl AuditArgs {
    /// Returns whether an option of the audit was given.
    pub(super) fn is_given(&self) -> bool {
        !self.config.is_empty() || self.device.device != Default::default()
    }
}

pub(super) fn run<M: Model>(args: &AuditArgs, init: &Init<'_, M>) -> Result<()> {
    let (name, precision) = match args.precision.expect("clap requires a run or a precision") {
        Audited::Fp8 => ("fp8", Precision::Fp8),
        Audited::Fp16 => ("fp16", Precision::Fp16),
        Audited::Bf16 => ("bf16", Precision::Bf16),
        Audited::F32 => ("f32", Precision::F32),
    };
    let mut config = args.config.load(&[], args.device.device)?;
    let device = args.device.open()?;
    // Token caches go where the configuration says, else into a temporary folder.
    let folder = std::env::temp_dir().join(format!("kiln-check-{}", std::process::id()));
    let audited = || -> Result<Audit> {
        let data = match init.data() {
            Some(own) => own.make(&config)?,
            None => RunData::open(&config, &folder, None, &mut |line| stderr_line!("{line}"))?,
        };
        data.vocabulary.complete(&mut config.model).map_err(|problems| RunError::Config(format!("{problems:#}")))?;
        stdout_line!("{name} against f32: {} steps from seed {} on {}", args.steps, config.seed, device_name(&device));
        Subject { config: &config, init, data: &data, n_steps: args.steps, device: &device }.audit(precision)
    };

    let audited = { audited }();
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("{}: cannot be removed", folder.display()))?;
    }
    let audit = audited?;

    print(&audit, name, args.every);
    match audit.problems(args.tolerance / 100.0).as_slice() {
        [] => {
            stdout_line!("sound: {name} trains as f32 does, within {} %", args.tolerance);
            Ok(())
        }
        problems => {
            problems.iter().for_each(|problem| stdout_line!("WRONG  {problem}"));
            bail!("{name} failed the check; the lines above say why")
        }
    }
}

fn print(audit: &Audit, name: &str, every: u64) {
    let Audit { reference, asked, .. } = audit;
    stdout_line!("{:>8}  {:>10}  {:>10}  difference", "step", "loss f32", format!("loss {name}"));
    let n_steps = asked.steps.len() as u64;
    for (f32_step, step) in reference.steps.iter().zip(&asked.steps) {
        if step.step.is_multiple_of(every) || step.step == 1 || step.step == n_steps {
            stdout_line!("{}", line(f32_step, step));
        }
    }
    let (step, difference) = audit.largest_difference();
    stdout_line!("largest difference: {:.3} % at step {step}", 100.0 * difference);

    let tokens = |trial: &Trial| thousands(trial.tokens_per_sec);
    stdout_line!(
        "speed over the later half: f32 {} tok/s, {name} {} tok/s ({:.2} times)",
        tokens(reference),
        tokens(asked),
        asked.tokens_per_sec / reference.tokens_per_sec
    );
    match (reference.reserved_bytes, asked.reserved_bytes) {
        (Some(f32_bytes), Some(bytes)) => {
            stdout_line!("peak of device memory: f32 {:.2} GiB, {name} {:.2} GiB", gib(f32_bytes), gib(bytes))
        }
        _ => stdout_line!("peak of device memory: not known on the CPU"),
    }

    if let Some((first, last)) = asked.steps.first().zip(asked.steps.last())
        && let Some((first, last)) = first.loss_scale.zip(last.loss_scale)
    {
        stdout_line!(
            "loss scale: {first} at first, {last} in the end; {} of {n_steps} steps skipped",
            asked.n_overflows()
        );
    }

    let dtypes = asked.dtypes.iter().map(|(what, dtype)| format!("{what} {dtype:?}"));
    stdout_line!("dtypes: {}", dtypes.collect::<Vec<_>>().join(", "));
    for probe in &audit.probes {
        let verdict = if probe.is_sound() { "computed in f32" } else { "NOT computed in f32" };
        stdout_line!("{}: {verdict} (error {:.1e}, rounding explains {:.1e})", probe.what, probe.error, probe.allowed);
    }
    let integers = if asked.integers_untouched && audit.ids_are_exact { "untouched" } else { "CHANGED" };
    stdout_line!("token numbers: {integers}");
}

fn line(reference: &StepMetrics, step: &StepMetrics) -> String {
    let difference = if step.is_overflow() {
        format!("skipped: the loss scale {} was too high", step.loss_scale.unwrap_or_default())
    } else {
        format!("{:+.3} %", 100.0 * (step.loss / reference.loss - 1.0))
    };
    format!("{:>8}  {:>10.4}  {:>10.4}  {difference}", step.step, reference.loss, step.loss)
}
