//! `kiln translate`: translates lines.

mod input;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use kiln_data::PairTokenizers;
use kiln_metrics::logging::print::{results, stderr_line};
use kiln_ranks::{Phase, Ranks};
use kiln_train::dataset::mix::missing_tags_in;
use kiln_train::device::DeviceChoice;
use kiln_train::generate::{GenerateError, Hypothesis, TokenScore, Translator};
use kiln_train::run::{TrainedModel, compare_use};
use serde_json::{Map, Value, json};

use self::input::Input;
use super::config_args::{GenerateArgs, NoSetArgs};
use super::error::Usage;
use super::lines::{Chunks, note_age, one_line, shell_path, shell_word};
use super::other_input::{check_sources, way_of_sources};
use super::together::{DevicesArgs, Role};

/// What rank 0 gives the others.
const LINES: &str = "giving out the lines";

/// Translates the lines of stdin to stdout
///
/// Prints one line per input line, in order; an empty line stays empty. With --n-best N, prints up to N lines per input
/// line instead: line number from 1, score and text, separated by tabs. On a pipe, a line with a JSON object that has
/// `source` is a text of its own, with its line breaks. It comes back as a line with the translation, as with --json.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  echo 742105 | kiln translate runs/numbers\n  kiln translate runs/en-it --beam 5 < in.en > out.it\n  kiln translate runs/code < sources.jsonl > translations.jsonl"
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

    /// Reads, behind a tab in each line, the words that its translation begins with
    #[arg(long)]
    target_prefix: bool,

    /// Adds the log-probability of each token to every translation; needs --json
    #[arg(long, requires = "json")]
    token_scores: bool,

    #[command(flatten)]
    devices: DevicesArgs,
}

pub(super) fn run(args: Args) -> Result<ExitCode> {
    if let Some(text) = args.misplaced.first() {
        let run = shell_path(&args.run);
        let word = shell_word(text);
        let hint = match Path::new(text).is_file() {
            true => way_of_sources(Path::new(text), &args.run),
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
    let (device, run) = TrainedModel::find_and_open(&args.run, args.checkpoint.as_deref(), device)?;
    let mut config = args.generate.apply(&run.config.generate)?;
    if let Some(n_best) = args.n_best
        && args.generate.beam.is_none()
    {
        config.beam_size = config.beam_size.max(n_best);
    }
    compare_use(ranks, &run, &config, "the lines of rank 0")?;
    let (model, tokenizers) = run.translation(run.dtype_on(&device)?, &device)?;
    let translator = Translator::new(&model, tokenizers.clone(), config)?.in_int8(args.generate.int8)?;
    let translator = translator.reading_prefixes(args.target_prefix);
    let form =
        Form { json: args.json, reads_prefixes: args.target_prefix, translator: &translator, tokenizers: &tokenizers };
    let work = Work { n_best: args.n_best, scores_tokens: args.token_scores, form, ranks };
    if !ranks.is_first() {
        work.serve()?;
        return ranks.finish();
    }
    note_age(&run, &args.run, args.checkpoint.as_deref());

    let (typed, spells_bytes) = (io::stdin().is_terminal(), tokenizers.spells_bytes());
    let chunks = Chunks { name: "stdin", size: translator.lines_per_call(), typed, spells_bytes };
    let (mut input, mut output) = (io::stdin().lock(), io::BufWriter::new(results()));
    // Prefixes have characters of the target.
    let lacking = |lines: &[String]| {
        let inputs = Input::read_all(lines, 0, typed, false).unwrap_or_default();
        tokenizers.lacking_in_sources(&Input::texts(&inputs))
    };
    ranks.enter(Phase::Input);
    chunks.for_each(&mut input, lacking, |lines, n_done| {
        if n_done == 0 && !typed && !args.target_prefix {
            let has_rows = lines.iter().any(|line| Input::is_row(line));
            check_sources(lines, &args.run, &run.config, has_rows)?;
        }
        let inputs = Input::read_all(lines, n_done, typed, args.target_prefix)?;
        if n_done == 0 {
            let sources = inputs.iter().map(|input| input.text.as_str()).filter(|text| !text.trim().is_empty());
            missing_tags_in(&run.config, sources).iter().for_each(|note| stderr_line!("{note}"));
        }
        work.translate(inputs, n_done)?.iter().try_for_each(|text| output.write_all(text.as_bytes()))?;
        ranks.enter(Phase::Input);
        Ok(output.flush()?)
    })?;
    work.end()?;
    ranks.finish()
}

/// What each rank does with a chunk of lines.
struct Work<'a> {
    n_best: Option<usize>,
    scores_tokens: bool,
    form: Form<'a>,
    ranks: &'a Ranks,
}

impl Work<'_> {
    /// Returns what to print for each line, on all ranks. Rank 0 gives the lines; `n_done` were translated before.
    fn translate(&self, lines: Vec<Input>, n_done: usize) -> Result<Vec<String>> {
        let lines = self.ranks.from_first(LINES, lines)?;
        self.of_all(&lines, n_done)
    }

    /// Takes part in what rank 0 translates, to the last line.
    fn serve(&self) -> Result<()> {
        let mut n_done = 0;
        loop {
            let lines: Vec<Input> = self.ranks.from_first(LINES, Vec::new())?;
            if lines.is_empty() {
                return Ok(());
            }
            self.of_all(&lines, n_done)?;
            n_done += lines.len();
        }
    }

    /// Tells the other ranks that the lines have ended.
    fn end(&self) -> Result<()> {
        self.ranks.from_first(LINES, Vec::<Input>::new())?;
        Ok(())
    }

    /// Translates a part of the lines, and gathers the parts of the other ranks.
    fn of_all(&self, lines: &[Input], n_done: usize) -> Result<Vec<String>> {
        self.ranks.enter(Phase::Translate);
        let own = self.own(lines, n_done).map_err(|error| numbered(error, n_done))?;
        let all = self.ranks.merge("sharing the translations", own)?;
        let shown = all.into_iter().zip(lines).zip(n_done + 1..);
        Ok(shown
            .map(|((text, line), number)| text.unwrap_or_else(|| self.form.empty(number, line, self.n_best)))
            .collect())
    }

    fn own(&self, inputs: &[Input], n_done: usize) -> Result<Vec<Option<String>>, GenerateError> {
        let (translator, part) = (self.form.translator, self.ranks.part());
        let (numbered, texts) = ((n_done + 1..).zip(inputs), Input::texts(inputs));
        let lines = texts.as_slice();
        let Some(n_best) = self.n_best else {
            let found = translator.tokens_share(lines, n_done as u64, part)?;
            let scores = self.scores(lines, found.iter().map(|found| found.as_slice()))?;
            let tokens: Vec<&[u32]> = found.iter().map(|found| found.as_deref().unwrap_or_default()).collect();
            let texts = self.form.tokenizers.decode_batch(&tokens)?.into_iter();
            let found = found.iter().map(Option::is_some).zip(texts);
            let shown = found.zip(scores).zip(numbered).map(|(((is_own, text), scores), (number, line))| {
                is_own.then(|| self.form.one(number, line, &text, scores.first()))
            });
            return Ok(shown.collect());
        };
        let found = translator.n_best(lines, n_best, part)?;
        let tokens: Vec<Vec<Vec<u32>>> =
            found.iter().map(|best| best.iter().flatten().map(|one| one.tokens.clone()).collect()).collect();
        let scores = self.scores(lines, tokens.iter().map(Vec::as_slice))?;
        let mut shown = Vec::with_capacity(lines.len());
        for ((best, scores), (number, line)) in found.into_iter().zip(scores).zip(numbered) {
            shown.push(best.map(|best| self.form.several(number, line, &best, &scores)));
        }
        Ok(shown)
    }

    /// Scores the tokens of each line's translations, if asked to.
    fn scores<'t>(
        &self,
        lines: &[&str],
        translations: impl Iterator<Item = &'t [Vec<u32>]>,
    ) -> Result<Vec<Scores>, GenerateError> {
        if !self.scores_tokens {
            return Ok(vec![Scores::new(); lines.len()]);
        }
        let translations: Vec<&[Vec<u32>]> = translations.collect();
        let repeated = lines.iter().zip(&translations).flat_map(|(line, found)| std::iter::repeat_n(line, found.len()));
        let (repeated, flat): (Vec<&&str>, Vec<Vec<u32>>) = (repeated.collect(), translations.concat());
        let mut scores = self.form.translator.token_scores(&repeated, &flat)?.into_iter();
        Ok(translations.iter().map(|found| scores.by_ref().take(found.len()).collect()).collect())
    }
}

/// The scores of the tokens of each translation of a line; none if they are not printed.
type Scores = Vec<Vec<TokenScore>>;

/// How translations are printed.
struct Form<'a> {
    json: bool,
    reads_prefixes: bool,
    translator: &'a Translator,
    tokenizers: &'a PairTokenizers,
}

impl Form<'_> {
    /// What is printed for a translation of `line`.
    fn one(&self, number: usize, line: &Input, translation: &str, scores: Option<&Vec<TokenScore>>) -> String {
        if !self.json && !line.is_row {
            return one_line(translation) + "\n";
        }
        let mut object = self.object(number, line);
        object.insert("translation".to_owned(), json!(translation));
        object.extend(scores.map(|scores| (TOKEN_SCORES.to_owned(), in_pairs(scores))));
        format!("{}\n", Value::Object(object))
    }

    /// What is printed for the best translations of `line`.
    fn several(&self, number: usize, line: &Input, best: &[Hypothesis], scores: &Scores) -> String {
        if !self.json && !line.is_row {
            return best.iter().map(|one| scored(number, one)).collect();
        }
        let one = |(i, Hypothesis { text, score, log_prob, tokens }): (usize, &Hypothesis)| {
            let mut one = json!({ "text": text, "score": score, "log_prob": log_prob, "tokens": tokens.len() });
            scores.get(i).into_iter().for_each(|scores| one[TOKEN_SCORES] = in_pairs(scores));
            one
        };
        let mut object = self.object(number, line);
        object.insert("translations".to_owned(), best.iter().enumerate().map(one).collect());
        format!("{}\n", Value::Object(object))
    }

    /// What is printed for a line of white space.
    fn empty(&self, number: usize, line: &Input, n_best: Option<usize>) -> String {
        let nothing = Hypothesis { text: String::new(), score: 0.0, log_prob: 0.0, tokens: Vec::new() };
        match (n_best, self.json || line.is_row) {
            (None, _) => self.one(number, line, "", None),
            (Some(_), false) => self.several(number, line, &[nothing], &Scores::new()),
            (Some(_), true) => self.several(number, line, &[], &Scores::new()),
        }
    }

    /// The fields of a line, without its translations.
    fn object(&self, number: usize, line: &Input) -> Map<String, Value> {
        let (source, prefix) = self.translator.parts(&line.text);
        let prefix = self.reads_prefixes.then(|| ("target_prefix".to_owned(), json!(prefix)));
        let line = [("line".to_owned(), json!(number)), ("source".to_owned(), json!(source))];
        line.into_iter().chain(prefix).collect()
    }
}

/// The key of what `--token-scores` adds.
const TOKEN_SCORES: &str = "token_scores";

fn in_pairs(scores: &[TokenScore]) -> Value {
    scores.iter().map(|TokenScore { token, log_prob }| json!([token, log_prob])).collect()
}

/// Formats a translation with the number of its line and its score.
fn scored(number: usize, hypothesis: &Hypothesis) -> String {
    format!("{number}\t{:.4}\t{}\n", hypothesis.score, one_line(&hypothesis.text))
}

/// Adds the lines of earlier chunks to the line number.
fn numbered(error: GenerateError, n_before: usize) -> GenerateError {
    match error {
        GenerateError::TooLong { line, found, limit, others } => {
            let others = others.into_iter().map(|other| other + n_before).collect();
            GenerateError::TooLong { line: line + n_before, found, limit, others }
        }
        GenerateError::PrefixTooLong { line, found, limit } => {
            GenerateError::PrefixTooLong { line: line + n_before, found, limit }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_stand_in_columns_and_line_breaks_do_not_break_lines() {
        let hypothesis = Hypothesis { text: "a\nb".into(), score: -0.12345, log_prob: -1.0, tokens: vec![7, 8] };
        assert_eq!(scored(7, &hypothesis), "7\t-0.1235\ta b\n");
    }
}
