//! `kiln translate`: translates lines.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::Result;

use super::config_args::{DeviceArgs, GenerateArgs};
use super::error::Usage;
use super::lines::{Chunks, one_line, shell_word};
use crate::generate::{GenerateError, Hypothesis, Translator};
use crate::run::TrainedModel;

/// Lines that are translated together.
const LINES_PER_CHUNK: usize = 1000;

/// Translates the lines of stdin to stdout
///
/// Prints one line per input line, in order; an empty line stays empty. With --n-best N, prints up to N lines per input
/// line instead: line number from 1, score and text, separated by tabs.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  echo 742105 | kiln translate runs/numbers\n  kiln translate runs/en-it --beam 5 < in.en > out.it"
)]
pub(super) struct Args {
    /// Run folder, or a checkpoint's folder
    #[arg(value_name = "RUN")]
    run: PathBuf,

    /// Where people write the text first; refused with the way to pass it.
    #[arg(value_name = "TEXT", hide = true)]
    misplaced: Vec<String>,

    /// best, last, a step's number or its folder's name [default: best, or last without validation]
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,

    #[command(flatten)]
    generate: GenerateArgs,

    /// Prints up to N translations per line with their scores; needs at least N beams
    #[arg(long, value_name = "N")]
    n_best: Option<usize>,

    #[command(flatten)]
    device: DeviceArgs,
}

pub(super) fn run(args: Args) -> Result<()> {
    if let Some(text) = args.misplaced.first() {
        let run = shell_word(&args.run.to_string_lossy());
        return Err(Usage(format!(
            "{text:?}: pass the text on stdin: echo {} | kiln translate {run}",
            shell_word(text)
        ))
        .into());
    }
    if args.n_best == Some(0) {
        return Err(Usage("--n-best 0 would print nothing; use at least 1".into()).into());
    }
    let device = args.device.open()?;
    let run = TrainedModel::find(&args.run, args.checkpoint.as_deref())?;
    let mut config = args.generate.apply(&run.config.generate)?;
    if let Some(n_best) = args.n_best
        && args.generate.beam.is_none()
    {
        config.beam_size = config.beam_size.max(n_best);
    }
    let (model, tokenizers) = run.translation(run.dtype_on(&device)?, &device)?;
    let translator = Translator::new(&model, tokenizers.clone(), config)?;

    let (typed, spells_bytes) = (io::stdin().is_terminal(), tokenizers.spells_bytes());
    let chunks = Chunks { name: "stdin", size: LINES_PER_CHUNK, typed, spells_bytes };
    let (mut input, mut output) = (io::stdin().lock(), io::BufWriter::new(io::stdout().lock()));
    let lacking = |lines: &[String]| tokenizers.lacking_in_sources(lines);
    chunks.for_each(&mut input, lacking, |lines, n_done| {
        match args.n_best {
            None => {
                let found = translator.translate(lines, n_done as u64).map_err(|error| numbered(error, n_done))?;
                found.iter().try_for_each(|line| writeln!(output, "{}", one_line(line)))?;
            }
            Some(n_best) => {
                let found = translator.n_best(lines, n_best).map_err(|error| numbered(error, n_done))?;
                for (number, hypotheses) in (n_done + 1..).zip(&found) {
                    hypotheses.iter().try_for_each(|hypothesis| write_scored(&mut output, number, hypothesis))?;
                }
            }
        }
        Ok(output.flush()?)
    })?;
    Ok(())
}

fn write_scored(output: &mut impl Write, number: usize, hypothesis: &Hypothesis) -> io::Result<()> {
    writeln!(output, "{number}\t{:.4}\t{}", hypothesis.score, one_line(&hypothesis.text))
}

/// Adds the lines of earlier chunks to the line number.
fn numbered(error: GenerateError, n_before: usize) -> GenerateError {
    match error {
        GenerateError::TooLong { line, found, limit } => GenerateError::TooLong { line: line + n_before, found, limit },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_stand_in_columns_and_line_breaks_do_not_break_lines() {
        let mut out = Vec::new();
        let hypothesis = Hypothesis { text: "a\nb".into(), score: -0.12345, log_prob: -1.0, n_tokens: 2 };
        write_scored(&mut out, 7, &hypothesis).expect("memory");
        assert_eq!(out, b"7\t-0.1235\ta b\n");
    }
}
