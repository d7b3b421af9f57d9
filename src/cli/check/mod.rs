//! `kiln check`: verifies the files of a run folder or, with `--precision`, that a precision trains as f32 does.

mod caches;
mod checkpoints;
mod findings;
mod parts;
mod precision;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kiln_data::files::read_text;
use kiln_metrics::logging::print::stdout_line;
use kiln_train::checkpoint::{MANIFEST_FILE, RUN_CONFIG_FILE};
use kiln_train::eval::{Init, Model};
use kiln_train::run::RunError;

use self::findings::{Finding, Verdict};
use super::error::Usage;

/// Verifies a run folder with its caches and checkpoints, or, with --precision, training in that precision
///
/// Reads the files of the run and compares them with the hashes from when they were written. Changes nothing. Each
/// finding is a line on stdout. The last line names the files that it cannot vouch for, because nothing records what they
/// held. The exit code is 0 if everything else is sound and 1 if something is damaged.
///
/// With --precision, trains the first steps in that precision and in f32, from the same seed. Compares losses, speed,
/// memory and overflows, and checks the computations that must be in f32. Keeps nothing. The exit code is 1 if the
/// precision fails a check.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln check runs/en-it
  kiln check runs/en-it/checkpoints/step-00002000
  kiln check --precision fp16 --preset base --set data.train=en-it.train.jsonl --steps 200")]
pub(super) struct Args {
    /// Run folder, or a checkpoint's own folder
    #[arg(value_name = "RUN", required_unless_present = "precision", conflicts_with = "precision")]
    run: Option<PathBuf>,

    #[command(flatten)]
    audit: precision::AuditArgs,
}

pub(super) fn run<M: Model>(args: Args, init: &Init<'_, M>) -> Result<()> {
    match &args.run {
        Some(_) if args.audit.is_given() => {
            Err(Usage("configuration and --device are options of --precision; a run folder needs neither".into())
                .into())
        }
        Some(dir) => run_folder(dir),
        None => precision::run(&args.audit, init),
    }
}

fn run_folder(dir: &Path) -> Result<()> {
    // `last` and `best` are files that name a folder next to them.
    let pointed = read_text(dir).ok().map(|name| dir.with_file_name(name.trim())).filter(|dir| dir.is_dir());
    let dir = pointed.as_deref().unwrap_or(dir);
    let findings = if dir.join(MANIFEST_FILE).is_file() {
        checkpoints::of_checkpoint(dir)
    } else if dir.join(RUN_CONFIG_FILE).is_file() || dir.join("checkpoints").is_dir() {
        parts::of_run(dir)
    } else {
        return Err(RunError::NoRun(dir.to_path_buf()).into());
    };

    for Finding { part, verdict } in &findings {
        match verdict {
            Verdict::Sound(what) => stdout_line!("sound    {part}: {what}"),
            Verdict::Note(what) => stdout_line!("note     {part}: {what}"),
            Verdict::Damaged(what) => stdout_line!("DAMAGED  {part}: {what}"),
        }
    }

    let is_damaged = |finding: &&Finding| matches!(finding.verdict, Verdict::Damaged(_));
    match findings.iter().filter(is_damaged).count() {
        0 => Ok(()),
        1 => bail!("one part of {} is damaged; its line says what to do", dir.display()),
        n => bail!("{n} parts of {} are damaged; their lines say what to do", dir.display()),
    }
}
