//! `kiln config`: a configuration file with a comment for each key.

use anyhow::Result;

use super::config_args::{ConfigArgs, DeviceArgs};
use crate::config::resolve;

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
    let mut sources = args.config.sources(&[], args.device.choice());
    if sources.preset.is_some() {
        // The file may be written before the data is there.
        sources.machine = None;
    }
    print!("{}", resolve(&sources)?.commented());
    Ok(())
}
