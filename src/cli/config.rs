//! `kiln config`: a configuration file with a comment for each key.

use std::path::PathBuf;

use anyhow::Result;
use kiln_metrics::logging::print::stdout_text;
use kiln_train::checkpoint::RUN_CONFIG_FILE;
use kiln_train::config::{Config, Sources, resolve};
use kiln_train::run::RunError;

use super::config_args::{ConfigArgs, DeviceArgs};

/// Prints a configuration file that describes every key
///
/// The keys that --config and --set give are set in it. All others are commented out and show their defaults, which are the
/// values of the preset.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln config --preset base
  kiln config --preset small --set data.train=pairs.tsv --set data.valid=dev.tsv > pairs.toml
  kiln train --config pairs.toml
  kiln config --run runs/pairs")]
pub(super) struct Args {
    /// Prints the configuration that this run used, every key of it
    #[arg(long, value_name = "RUN", conflicts_with_all = ["config", "task", "preset", "packing", "set"])]
    run: Option<PathBuf>,

    #[command(flatten)]
    config: ConfigArgs,

    #[command(flatten)]
    device: DeviceArgs,
}

pub(super) fn run(args: Args) -> Result<()> {
    if let Some(dir) = &args.run {
        let file = dir.join(RUN_CONFIG_FILE);
        if !file.is_file() {
            return Err(RunError::NoRun(dir.clone()).into());
        }
        stdout_text!("{}", Config::read(&file)?.to_toml());
        return Ok(());
    }
    // The file may be written before the data is there, and for another machine.
    let sources = Sources { only_shown: true, ..args.config.sources(&[], args.device.choice()) };
    stdout_text!("{}", resolve(&sources)?.commented());
    Ok(())
}
