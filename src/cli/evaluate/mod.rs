//! `kiln evaluate`: how good a checkpoint is on raw text.

mod pairs;
mod text;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::config_args::{DeviceArgs, GenerateArgs};
use crate::config::Task;
use crate::run::TrainedModel;

/// Scores a checkpoint on raw text
///
/// Translation: loss, perplexity, and BLEU and chrF2, which equal sacreBLEU's; the line below each score is its signature. The
/// text is translated greedily unless the run's configuration or --beam says otherwise.
///
/// lm: loss, perplexity and bits per byte. mlm: loss, and how often a masked token is guessed right, beside the guess that is
/// always the most frequent token; the masks are the same every time.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kiln evaluate runs/numbers\n  kiln evaluate runs/en-it --data en-it.test.jsonl --beam 5\n  kiln evaluate runs/lm --data test.txt"
)]
pub(super) struct Args {
    /// Run folder, or a checkpoint's folder
    #[arg(value_name = "RUN")]
    run: PathBuf,

    /// Text to score on, read as the run's data.corpus (pairs) or data.text says; may be repeated [default: the run's
    /// validation text]
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,

    /// best, last, a step's number or its folder's name [default: best, or last without validation]
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,

    #[command(flatten)]
    generate: GenerateArgs,

    /// Translation: writes the translations to FILE, one a line
    #[arg(long, value_name = "FILE")]
    hypotheses: Option<PathBuf>,

    /// Prints one JSON object instead of lines for people
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    device: DeviceArgs,
}

pub(super) fn run(args: Args) -> Result<()> {
    let device = args.device.open()?;
    let run = TrainedModel::find(&args.run, args.checkpoint.as_deref())?;
    let dtype = run.dtype_on(&device)?;
    match run.config.task {
        Task::Translation => pairs::run(&args, &run, dtype, &device),
        Task::Lm | Task::Mlm => text::run(&args, &run, dtype, &device),
    }
}

/// A temporary folder, for the token cache of the text. Removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("kiln-evaluate-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| {
            format!("{}: cannot make this folder; set TMPDIR to one that can be written", folder.display())
        })?;
        Ok(Self(folder))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
