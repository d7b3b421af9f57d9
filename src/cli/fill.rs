//! `kiln fill`: fills in masked tokens.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::Result;
use kiln_metrics::logging::print::results;
use kiln_train::config::GenerateConfig;
use kiln_train::generate::{Candidate, Filled, MaskFiller};
use serde_json::{Value, json};

use super::config_args::{DeviceArgs, checked};
use super::error::Usage;
use super::lines::{Chunks, note_age, note_lacking, one_line};

/// Lines that are filled in together.
const LINES_PER_CHUNK: usize = 1000;

/// Fills in hidden words with a masked language model
///
/// Write [MASK], or the mask token of the run's vocabulary, in place of each hidden token. For a single text, prints the
/// text with the likeliest token in each place, then the likeliest tokens of each mask with their probabilities. For
/// several texts or lines of stdin, prints one JSON object per line, in order: the text, the text filled in, and the
/// tokens of each mask. Each mask is filled in on its own: the tokens of one do not depend on the choice for another.
///
/// Special tokens are never filled in, and the probabilities of all others sum to 1: they are renormalized, so none is
/// lower than in transformers' fill-mask pipeline, which counts special tokens too.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln fill runs/mlm 'It is a [MASK] universally acknowledged.'
  kiln fill runs/mlm --top-k 1 < masked.txt > filled.jsonl")]
pub(super) struct Args {
    /// Run folder, or a checkpoint's folder
    #[arg(value_name = "RUN")]
    run: PathBuf,

    /// Text with one [MASK] or several; may be repeated [default: each line of stdin]
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,

    /// Tokens shown for each mask
    #[arg(long, value_name = "K", default_value_t = 5)]
    top_k: usize,

    /// Prints JSON for a single text too
    #[arg(long)]
    json: bool,

    /// best, last, a step's number or its folder's name [default: best, or last without validation]
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,

    /// Size of a batch in tokens, including padding
    #[arg(long, value_name = "TOKENS")]
    batch_tokens: Option<usize>,

    #[command(flatten)]
    device: DeviceArgs,
}

pub(super) fn run(args: Args) -> Result<()> {
    if args.top_k == 0 {
        return Err(Usage("--top-k 0 would show no token; use at least 1".into()).into());
    }
    let (device, run) = args.device.open_with(&args.run, args.checkpoint.as_deref())?;
    run.check_masked_model()?;
    note_age(&run, &args.run, args.checkpoint.as_deref());
    let of_run = &run.config.generate;
    let batch_tokens = args.batch_tokens.unwrap_or(of_run.batch_tokens);
    let config = checked(GenerateConfig { batch_tokens, ..of_run.clone() })?;
    let (model, tokenizer) = run.masked_model(run.dtype_on(&device)?, &device)?;
    let filler = MaskFiller::new(&model, &tokenizer, config)?;

    let spells_bytes = tokenizer.spells_bytes();
    let lacking = |lines: &[String]| {
        let unmasked: Vec<String> = lines.iter().map(|line| filler.without_masks(line)).collect();
        tokenizer.lacking_in(&unmasked)
    };

    let mut output = io::BufWriter::new(results());
    if !args.texts.is_empty() {
        note_lacking(&lacking(&args.texts)?, spells_bytes);
        let filled = filler.fill(&args.texts, args.top_k, 0)?;
        return write(&mut output, &args.texts, &filled, args.json || args.texts.len() > 1);
    }

    let typed = io::stdin().is_terminal();
    let chunks = Chunks { name: "stdin", size: LINES_PER_CHUNK, typed, spells_bytes };
    chunks.for_each(&mut io::stdin().lock(), lacking, |lines, n_done| {
        let filled = filler.fill(lines, args.top_k, n_done)?;
        write(&mut output, lines, &filled, args.json || !typed)
    })?;
    Ok(())
}

fn write(output: &mut impl Write, texts: &[String], filled: &[Filled], json: bool) -> Result<()> {
    for (text, filled) in texts.iter().zip(filled) {
        match json {
            true => writeln!(output, "{}", as_json(text, filled))?,
            false => write!(output, "{}", as_lines(filled))?,
        }
    }
    Ok(output.flush()?)
}

fn as_lines(filled: &Filled) -> String {
    let mut lines = format!("{}\n", one_line(&filled.text));
    for (number, candidates) in (1..).zip(&filled.masks) {
        let which = if filled.masks.len() > 1 { format!("mask {number}: ") } else { String::new() };
        let one = |Candidate { token, probability }: &Candidate| {
            format!("{} {:.1}%", one_line(token.trim()), 100.0 * probability)
        };
        lines += &format!("  {which}{}\n", candidates.iter().map(one).collect::<Vec<_>>().join(", "));
    }
    lines
}

fn as_json(text: &str, filled: &Filled) -> Value {
    let one = |Candidate { token, probability }: &Candidate| json!({ "token": token, "probability": probability });
    let masks: Vec<Vec<Value>> = filled.masks.iter().map(|mask| mask.iter().map(one).collect()).collect();
    json!({ "text": text, "filled": filled.text, "masks": masks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_shown_with_their_probabilities() {
        let mask = |token: &str| vec![Candidate { token: token.into(), probability: 0.975 }];
        let one = Filled { text: "the old man".into(), masks: vec![mask(" man")] };
        assert_eq!(as_lines(&one), "the old man\n  man 97.5%\n");
        let two = Filled { masks: vec![mask(" man"), mask("##s")], ..one };
        assert_eq!(as_lines(&two), "the old man\n  mask 1: man 97.5%\n  mask 2: ##s 97.5%\n");
        let json = as_json("the old [MASK]", &two);
        assert_eq!(
            (&json["masks"][0][0]["token"], &json["masks"][1][0]["probability"]),
            (&" man".into(), &0.975.into())
        );
    }
}
