//! `kiln prepare`: builds the token caches of a text.

use std::path::PathBuf;

use anyhow::Result;
use kiln_train::config::Config;
use kiln_train::dataset::RunData;
use kiln_train::device::DeviceChoice;
use kiln_train::logging::print::{stderr_line, stdout_line};
use kiln_train::run::folder;

use super::config_args::ConfigArgs;

/// Parses and tokenizes text into token caches
///
/// Trains the tokenizer if necessary. A second call with the same text and settings does nothing. kiln train prepares
/// its text itself. Rows that cannot be used are counted and reported; too many of them are an error.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln prepare en-it.train.jsonl.gz --cache cache/en-it
  kiln prepare --task lm texts/ --cache cache/lm
  kiln prepare --config en-it.toml
  kiln prepare news.en,news.it --preset small --set data.corpus.max_source_len=256 --cache cache/news")]
pub(super) struct Args {
    /// Training text: .jsonl, .tsv, .csv, or two parallel files joined by a comma. With --task lm or mlm: plain text, .jsonl,
    /// or folders of them. Files may be compressed (.gz, .zst)
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    config: ConfigArgs,

    /// Folder of the caches [default: data.cache_dir, else cache/ in the run folder]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,

    /// Run folder whose cache/ is used [default: as for kiln train]
    #[arg(long, value_name = "DIR", conflicts_with = "cache")]
    run: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> Result<()> {
    let mut config = args.config.load(&args.files, DeviceChoice::Auto)?;
    config.data.direct = false; // there would be nothing to prepare
    config.data.cache_dir = args.cache.or(config.data.cache_dir);
    let run_dir = args.run.unwrap_or_else(|| folder::default_for(&args.config.name()));
    let mut n_notes = 0;
    let data = RunData::open(&config, &run_dir, None, &mut |line| {
        n_notes += 1;
        stderr_line!("{line}");
    })?;
    data.notes.iter().for_each(|line| stderr_line!("{line}"));
    let done = if n_notes == 0 { "up to date" } else { "ready" };
    stdout_line!(
        "{}: {done}, {} batches per epoch",
        cache_dir(&config, &run_dir).display(),
        data.train.batches_per_epoch()
    );
    Ok(())
}

fn cache_dir(config: &Config, run_dir: &std::path::Path) -> PathBuf {
    config.data.cache_dir.clone().unwrap_or_else(|| run_dir.join("cache"))
}
