//! `kiln profile`: where the time of a training step goes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use kiln_lab::diagnose::profile::{Schedule, take};
use kiln_lab::profiled::{text, write};
use kiln_metrics::logging::print::{stderr_line, stdout_line, stdout_text};
use kiln_ranks::Ranks;
use kiln_train::eval::{Init, Model};

use super::config_args::ConfigArgs;
use super::of_run::OfRunArgs;
use super::together::{DevicesArgs, Part, Role};

/// Takes training steps and shows where their time goes: by operator, by kernel, against the roofs of the device
///
/// The steps are the steps of kiln train, on batches of the run's own data; nothing of them is kept. Written are a time line for
/// Perfetto or chrome://tracing (trace.json), all rows (profile.json) and two pictures (roofline.svg, memory.svg).
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kiln profile --run runs/en-it
  kiln profile --preset base --set data.train=pairs.jsonl --steps 10
  kiln profile --task lm --device cpu --out profile
  kiln profile --run runs/lm --set train.capture=on --warm-up 20
  kiln profile --run runs/lm --devices 0,1")]
pub(super) struct Args {
    #[command(flatten)]
    of: OfRunArgs,

    #[command(flatten)]
    config: ConfigArgs,

    /// Steps before the recording: they compile kernels and grow memory pools
    #[arg(long, value_name = "N", default_value_t = 5)]
    warm_up: u64,

    /// Steps that are recorded
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    steps: u64,

    /// Folder of the results [default: profile in the run folder, or here]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Prints all results as one JSON object instead of tables
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    devices: DevicesArgs,
}

pub(super) fn run<M: Model>(args: Args, init: &Init<'_, M>) -> Result<ExitCode> {
    match args.devices.begin()? {
        Role::Launcher(code) => Ok(code),
        Role::Rank(part) => {
            let result = profile(args, &part, init);
            part.end(result)
        }
    }
}

/// Takes the steps together with the other ranks. Rank 0 writes and speaks.
fn profile<M: Model>(args: Args, part: &Part, init: &Init<'_, M>) -> Result<()> {
    let out = args.out.or_else(|| args.of.run.as_ref().map(|run| run.join("profile"))).unwrap_or("profile".into());
    let mut run = args.config.of_run(&args.of, part.device)?;
    run.options.link.clone_from(&part.link);
    run.options.data = init.data();
    if part.is_first() {
        make_folder(&out)?;
    }
    let device = part.device.open()?;
    let ranks = part.link.clone().map_or(Ok(Ranks::alone()), |link| Ranks::over(link, &device))?;

    let schedule = Schedule { warm_up: args.warm_up, steps: args.steps };
    let (profile, trace) = ranks.or_abort(take(&run, init, schedule, &ranks))?;
    ranks.finish()?;
    if !part.is_first() {
        return Ok(());
    }

    let files = write(&out, &profile, &trace)?;
    if args.json {
        stdout_line!("{}", serde_json::to_string(&profile)?);
    } else {
        stdout_text!("{}", text(&profile));
    }
    let pictures = files.iter().filter(|name| name.ends_with(".svg")).copied().collect::<Vec<_>>().join(", ");
    stderr_line!("written to {}: trace.json (time line), profile.json (all rows), {pictures}", out.display());
    Ok(())
}

/// Makes the folder before the steps are taken.
fn make_folder(out: &Path) -> Result<()> {
    fs::create_dir_all(out)
        .with_context(|| format!("{}: cannot make this folder for the results; --out names another one", out.display()))
}
