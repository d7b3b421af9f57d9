//! `kiln translate`: lines in, lines out.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use burn::tensor::{Device, FloatDType};
use kiln_data::Tokenizers;
use kiln_model::{EncoderDecoder, Transformer};

use super::config_args::{DeviceArgs, GenerateArgs};
use super::exit::Usage;
use super::run_dir::open_run;
use crate::checkpoint::Run;
use crate::config::{Precision, Task};
use crate::device::compute_dtype;
use crate::generate::{GenerateError, Hypothesis, Translator};

/// Lines that are translated together: enough to sort them by length, few enough that output does not wait long.
const LINES_PER_CHUNK: usize = 1000;

/// Translates the lines of stdin to stdout
///
/// One line of output for each line of input, in order; an empty line stays empty. With --n-best N up to N lines follow for
/// each: line number from 1, score and text, separated by tabs.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  echo 742105 | kiln translate runs/numbers\n  kiln translate runs/en-it --beam 5 < in.en > out.it"
)]
pub(super) struct Args {
    /// Run folder, or a checkpoint's folder
    #[arg(value_name = "RUN")]
    run: PathBuf,

    /// best, last, a step's number or its folder's name [default: best, or last without validation]
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,

    #[command(flatten)]
    generate: GenerateArgs,

    /// Prints up to N translations per line with their scores; needs as many beams
    #[arg(long, value_name = "N")]
    n_best: Option<usize>,

    #[command(flatten)]
    device: DeviceArgs,
}

pub(super) fn run(args: Args) -> Result<()> {
    if args.n_best == Some(0) {
        return Err(Usage("--n-best 0 would print nothing; use at least 1".into()).into());
    }
    let device = args.device.open()?;
    let run = open_run(&args.run, args.checkpoint.as_deref())?;
    let mut config = args.generate.apply(&run.config.generate)?;
    if let Some(n_best) = args.n_best
        && args.generate.beam.is_none()
    {
        config.beam_size = config.beam_size.max(n_best);
    }
    let dtype = compute_dtype(for_inference(run.config.train.precision), &device)?;
    let (model, tokenizers) = translation(&run, dtype, &device)?;
    let translator = Translator::new(&model, tokenizers, config)?;

    let interactive = io::stdin().is_terminal();
    let chunk = if interactive { 1 } else { LINES_PER_CHUNK };
    let (mut input, mut output) = (io::stdin().lock(), io::BufWriter::new(io::stdout().lock()));
    let mut n_done = 0;
    loop {
        let lines = read_lines(&mut input, "stdin", chunk, n_done)?;
        if lines.is_empty() {
            return Ok(());
        }
        match args.n_best {
            None => {
                let found = translator.translate(&lines, n_done as u64).map_err(|error| numbered(error, n_done))?;
                found.iter().try_for_each(|line| writeln!(output, "{}", one_line(line)))?;
            }
            Some(n_best) => {
                let found = translator.n_best(&lines, n_best).map_err(|error| numbered(error, n_done))?;
                for (number, hypotheses) in (n_done + 1..).zip(&found) {
                    hypotheses.iter().try_for_each(|hypothesis| write_scored(&mut output, number, hypothesis))?;
                }
            }
        }
        output.flush()?;
        n_done += lines.len();
    }
}

/// The model and the tokenizers of a run that translates; another run is a mistake of the command line.
pub(super) fn translation(run: &Run, dtype: FloatDType, device: &Device) -> Result<(EncoderDecoder, Tokenizers)> {
    if let (Some(tokenizers), Transformer::EncoderDecoder(model)) =
        (run.vocabulary.pairs(), run.load_model(dtype, device)?)
    {
        return Ok((model, tokenizers.clone()));
    }
    let (task, instead) = match run.config.task {
        Task::Mlm => ("mlm", "it fills in hidden tokens; kiln evaluate scores it"),
        _ => ("lm", "it continues text; use kiln generate"),
    };
    Err(Usage(format!(
        "{} is of a run with task = \"{task}\", which does not translate: {instead}",
        run.path.display()
    ))
    .into())
}

/// A run trained in bf16 can be used on a CPU, which computes in f32.
pub(super) fn for_inference(trained_in: Precision) -> Precision {
    if trained_in == Precision::F32 { Precision::F32 } else { Precision::Auto }
}

fn write_scored(output: &mut impl Write, number: usize, hypothesis: &Hypothesis) -> io::Result<()> {
    writeln!(output, "{number}\t{:.4}\t{}", hypothesis.score, one_line(&hypothesis.text))
}

/// A model may write a line break where its training text had one; the output is one line per line all the same.
pub(super) fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Up to `n` lines of `input`, called `name`, without their ends; none at the end of the input.
pub(super) fn read_lines(input: &mut impl BufRead, name: &str, n: usize, n_before: usize) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    while lines.len() < n {
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line).with_context(|| format!("reading {name}"))? == 0 {
            break;
        }
        let line = String::from_utf8(line).map_err(|error| {
            let byte = error.utf8_error().valid_up_to() + 1;
            NotUtf8 { name: name.into(), line: n_before + lines.len() + 1, byte }
        })?;
        lines.push(line.trim_end_matches(['\n', '\r']).to_owned());
    }
    Ok(lines)
}

/// Counts the lines of earlier chunks in.
fn numbered(error: GenerateError, n_before: usize) -> GenerateError {
    match error {
        GenerateError::TooLong { line, found, limit } => GenerateError::TooLong { line: line + n_before, found, limit },
        other => other,
    }
}

/// Input that is no text.
#[derive(Debug, thiserror::Error)]
#[error(
    "line {line} of {name} is not UTF-8 (at its byte {byte}); convert it first, for example with iconv -f latin1 -t utf-8"
)]
pub(super) struct NotUtf8 {
    name: String,
    line: usize,
    byte: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_chunks_without_their_ends() {
        let mut input = "a\r\n\nb c\nlast".as_bytes();
        assert_eq!(read_lines(&mut input, "stdin", 3, 0).expect("text"), ["a", "", "b c"]);
        assert_eq!(read_lines(&mut input, "stdin", 3, 3).expect("text"), ["last"]);
        assert!(read_lines(&mut input, "stdin", 3, 4).expect("text").is_empty());
    }

    #[test]
    fn a_line_that_is_no_text_is_named() {
        let error = read_lines(&mut b"ok\ncaf\xe9\n".as_slice(), "stdin", 9, 1000).expect_err("latin1");
        assert!(error.to_string().starts_with("line 1002 of stdin is not UTF-8 (at its byte 4)"), "{error}");
    }

    #[test]
    fn scores_stand_in_columns_and_line_breaks_do_not_break_lines() {
        let mut out = Vec::new();
        let hypothesis = Hypothesis { text: "a\nb".into(), score: -0.12345, log_prob: -1.0, n_tokens: 2 };
        write_scored(&mut out, 7, &hypothesis).expect("memory");
        assert_eq!(out, b"7\t-0.1235\ta b\n");
    }
}
