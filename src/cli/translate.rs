//! `kiln translate`: translates lines.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use kiln_ranks::{Phase, Ranks};
use kiln_train::device::DeviceChoice;
use kiln_train::generate::{GenerateError, Hypothesis, Translator};
use kiln_train::logging::print::results;
use kiln_train::run::{TrainedModel, compare_use};
use serde_json::{Value, json};

use super::config_args::{GenerateArgs, NoSetArgs};
use super::error::Usage;
use super::lines::{Chunks, note_age, one_line, shell_word};
use super::together::{DevicesArgs, Role};

/// Lines that are translated together.
const LINES_PER_CHUNK: usize = 1000;
/// What rank 0 gives the others.
const LINES: &str = "giving out the lines";

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

    #[command(flatten)]
    _no_set: NoSetArgs,

    /// Prints up to N translations per line with their scores; uses N beams, unless --beam
    /// gives more
    #[arg(long, value_name = "N")]
    n_best: Option<usize>,

    /// Prints a JSON object per line: its number, the source, and the translation or, with --n-best, the translations
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    devices: DevicesArgs,
}

pub(super) fn run(args: Args) -> Result<ExitCode> {
    if let Some(text) = args.misplaced.first() {
        let run = shell_word(&args.run.to_string_lossy());
        let word = shell_word(text);
        let hint = match Path::new(text).is_file() {
            true => format!("pass the file on stdin: kiln translate {run} < {word}"),
            false => format!("pass the text on stdin: echo {word} | kiln translate {run}"),
        };
        return Err(Usage(format!("{text:?}: {hint}")).into());
    }
    if args.n_best == Some(0) {
        return Err(Usage("--n-best 0 would print nothing; use at least 1".into()).into());
    }

    if args.devices.list().is_some() && io::stdin().is_terminal() {
        let text = "with --devices, pass the lines by a pipe or a file: kiln translate RUN --devices all < input.txt";
        return Err(Usage(text.into()).into());
    }
    match args.devices.begin()? {
        Role::Launcher(code) => Ok(code),
        Role::Rank(part) => {
            let result = translate(&args, part.device, &Ranks::over_hosts(part.link.clone()));
            part.end(result)
        }
    }
}

/// Translates together with the other ranks. Rank 0 reads and prints.
fn translate(args: &Args, device: DeviceChoice, ranks: &Ranks) -> Result<()> {
    let device = device.open()?;
    let run = TrainedModel::find(&args.run, args.checkpoint.as_deref())?;
    let mut config = args.generate.apply(&run.config.generate)?;
    if let Some(n_best) = args.n_best
        && args.generate.beam.is_none()
    {
        config.beam_size = config.beam_size.max(n_best);
    }
    compare_use(ranks, &run, &config, "the lines of rank 0")?;
    let (model, tokenizers) = run.translation(run.dtype_on(&device)?, &device)?;
    let translator = Translator::new(&model, tokenizers.clone(), config)?;
    let work = Work { translator, n_best: args.n_best, json: args.json, ranks };
    if !ranks.is_first() {
        work.serve()?;
        return ranks.finish();
    }
    note_age(&run, &args.run, args.checkpoint.as_deref());

    let (typed, spells_bytes) = (io::stdin().is_terminal(), tokenizers.spells_bytes());
    let chunks = Chunks { name: "stdin", size: LINES_PER_CHUNK, typed, spells_bytes };
    let (mut input, mut output) = (io::stdin().lock(), io::BufWriter::new(results()));
    let lacking = |lines: &[String]| tokenizers.lacking_in_sources(lines);
    ranks.enter(Phase::Input);
    chunks.for_each(&mut input, lacking, |lines, n_done| {
        work.translate(lines.to_vec(), n_done)?.iter().try_for_each(|text| output.write_all(text.as_bytes()))?;
        ranks.enter(Phase::Input);
        Ok(output.flush()?)
    })?;
    work.end()?;
    ranks.finish()
}

/// What each rank does with a chunk of lines.
struct Work<'a> {
    translator: Translator,
    n_best: Option<usize>,
    json: bool,
    ranks: &'a Ranks,
}

impl Work<'_> {
    /// Returns what to print for each line, on all ranks. Rank 0 gives the lines; `n_done` were translated before.
    fn translate(&self, lines: Vec<String>, n_done: usize) -> Result<Vec<String>> {
        let lines = self.ranks.from_first(LINES, lines)?;
        self.of_all(&lines, n_done)
    }

    /// Takes part in what rank 0 translates, to the last line.
    fn serve(&self) -> Result<()> {
        let mut n_done = 0;
        loop {
            let lines: Vec<String> = self.ranks.from_first(LINES, Vec::new())?;
            if lines.is_empty() {
                return Ok(());
            }
            self.of_all(&lines, n_done)?;
            n_done += lines.len();
        }
    }

    /// Tells the other ranks that the lines have ended.
    fn end(&self) -> Result<()> {
        self.ranks.from_first(LINES, Vec::<String>::new())?;
        Ok(())
    }

    /// Translates a part of the lines, and gathers the parts of the other ranks.
    fn of_all(&self, lines: &[String], n_done: usize) -> Result<Vec<String>> {
        self.ranks.enter(Phase::Translate);
        let own = self.own(lines, n_done).map_err(|error| numbered(error, n_done))?;
        let all = self.ranks.merge("sharing the translations", own)?;
        let shown = all.into_iter().zip(lines).zip(n_done + 1..);
        Ok(shown.map(|((text, line), number)| text.unwrap_or_else(|| self.empty(number, line))).collect())
    }

    fn own(&self, lines: &[String], n_done: usize) -> Result<Vec<Option<String>>, GenerateError> {
        let (translator, part) = (&self.translator, self.ranks.part());
        let numbered = || (n_done + 1..).zip(lines);
        let Some(n_best) = self.n_best else {
            let found = translator.translate_share(lines, n_done as u64, part)?;
            let shown = found.into_iter().zip(numbered());
            return Ok(shown.map(|(text, (number, line))| text.map(|text| self.one(number, line, &text))).collect());
        };
        let found = translator.n_best(lines, n_best, part)?;
        let shown = found.into_iter().zip(numbered());
        Ok(shown.map(|(best, (number, line))| best.map(|best| self.several(number, line, &best))).collect())
    }

    /// What is printed for a translation of `line`.
    fn one(&self, number: usize, line: &str, translation: &str) -> String {
        match self.json {
            true => format!("{}\n", json!({ "line": number, "source": line, "translation": translation })),
            false => one_line(translation) + "\n",
        }
    }

    /// What is printed for the best translations of `line`.
    fn several(&self, number: usize, line: &str, best: &[Hypothesis]) -> String {
        if !self.json {
            return best.iter().map(|one| scored(number, one)).collect();
        }
        let one = |Hypothesis { text, score, log_prob, n_tokens }: &Hypothesis| json!({ "text": text, "score": score, "log_prob": log_prob, "tokens": n_tokens });
        let translations: Vec<Value> = best.iter().map(one).collect();
        format!("{}\n", json!({ "line": number, "source": line, "translations": translations }))
    }

    /// What is printed for a line of white space.
    fn empty(&self, number: usize, line: &str) -> String {
        let nothing = Hypothesis { text: String::new(), score: 0.0, log_prob: 0.0, n_tokens: 0 };
        match (self.n_best, self.json) {
            (None, _) => self.one(number, line, ""),
            (Some(_), false) => self.several(number, line, &[nothing]),
            (Some(_), true) => self.several(number, line, &[]),
        }
    }
}

/// Formats a translation with the number of its line and its score.
fn scored(number: usize, hypothesis: &Hypothesis) -> String {
    format!("{number}\t{:.4}\t{}\n", hypothesis.score, one_line(&hypothesis.text))
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
        let hypothesis = Hypothesis { text: "a\nb".into(), score: -0.12345, log_prob: -1.0, n_tokens: 2 };
        assert_eq!(scored(7, &hypothesis), "7\t-0.1235\ta b\n");
    }
}
