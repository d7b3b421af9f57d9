//! `kiln prepare`: builds the token caches of a text.

use std::path::{Path, PathBuf};

use anyhow::Result;
use kiln_metrics::logging::print::{stderr_line, stdout_line};
use kiln_train::checkpoint::RUN_CONFIG_FILE;
use kiln_train::config::task::TASKS;
use kiln_train::config::{Config, Resolved, resolve};
use kiln_train::dataset::{RunData, check_rows};
use kiln_train::device::DeviceChoice;
use kiln_train::run::folder;

use super::config_args::ConfigArgs;
use super::error::Usage;
use super::of_run::preset_line;

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
    let Resolved { mut config, base, notes, .. } = resolve(&args.config.sources(&args.files, DeviceChoice::Auto))?;
    config.data.cache_dir = args.cache.or(config.data.cache_dir);
    let run_dir = match args.run {
        Some(dir) => dir,
        None => folder::default_for(&args.config.run_name(&base)),
    };
    if config.data.cache_dir.is_none() {
        refuse_cache_of_another(&run_dir, &config)?;
    }
    check_rows(&config, &config.data.train_files(), &TASKS)?;

    let mut n_notes = 0;
    let mut about_config: Vec<String> = preset_line(&base).into_iter().chain(notes).collect();
    let data = RunData::open(&config, &run_dir, None, &mut |line| {
        // Nothing is said where nothing is to do.
        about_config.drain(..).for_each(|note| stderr_line!("{note}"));
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

/// Refuses to replace the token caches of a run on other text, or with another vocabulary.
fn refuse_cache_of_another(dir: &Path, config: &Config) -> Result<()> {
    let Ok(run) = Config::read(&dir.join(RUN_CONFIG_FILE)) else { return Ok(()) };
    let text_of = |config: &Config| {
        let Config { data, tokenizer, .. } = config;
        (data.train.clone(), data.valid.clone(), data.mix.clone(), data.filter.clone(), tokenizer.clone())
    };
    if text_of(&run) == text_of(config) {
        return Ok(());
    }
    let text = format!(
        "{}: this folder has a run with other text or another vocabulary, whose token caches would be replaced; name another one with \
         --run or --cache",
        dir.display()
    );
    Err(Usage(text).into())
}

fn cache_dir(config: &Config, run_dir: &Path) -> PathBuf {
    config.data.cache_dir.clone().unwrap_or_else(|| run_dir.join("cache"))
}
