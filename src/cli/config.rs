//! `kiln config`: a configuration file with a comment for each key.

use anyhow::Result;
use kiln_train::config::{Sources, resolve};
use kiln_train::logging::print::stdout_text;

use super::config_args::{ConfigArgs, DeviceArgs};

/// Prints a configuration file that describes every key
///
/// The keys that --config and --set give are set in it. All others are commented out and show their defaults, which are the
/// values of the preset.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln config --preset base
  kiln config --preset small --set data.train=pairs.tsv --set data.valid=dev.tsv > pairs.toml
  kiln train --config pairs.toml")]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    #[command(flatten)]
    device: DeviceArgs,
}

pub(super) fn run(args: Args) -> Result<()> {
    // The file may be written before the data is there, and for another machine.
    let sources = Sources { only_shown: true, ..args.config.sources(&[], args.device.choice()) };
    stdout_text!("{}", resolve(&sources)?.commented());
    Ok(())
}
