//! `kiln generate`: continues prompts.

use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::Result;
use kiln_data::TextTokenizer;
use kiln_metrics::logging::print::{results, stderr_line};
use kiln_train::config::GenerateConfig;
use kiln_train::generate::{Continuation, EndedBy, TextGenerator};
use serde_json::json;

use super::config_args::{DeviceArgs, GenerateArgs, NoSetArgs, checked};
use super::error::Usage;
use super::lines::{Chunks, note_age, note_lacking, shell_word};

/// Prompts that are continued together.
const PROMPTS_PER_CHUNK: usize = 256;

/// Continues prompts with a language model
///
/// For a single prompt (--prompt, or a line typed at a terminal), prints the text as it is generated. For several
/// prompts (--prompt again, --prompts, or lines of stdin) or several texts per prompt (--num-samples), prints one JSON
/// object per line, in order: prompt, text, number of tokens, and what ended the text. A text depends on the seed, on the
/// position of its prompt in the input and on its number among the samples, not on the other prompts.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln generate runs/lm --prompt 'It is a truth universally'
  kiln generate runs/lm --prompt 'ROMEO:' --temperature 0.8 --top-k 40 --seed 7 --max-new-tokens 200
  kiln generate runs/lm --prompt '742105 is' --greedy --stop .
  kiln generate runs/lm --prompt 'Once upon a time' --num-samples 5
  kiln generate runs/lm --prompts prompts.txt > texts.jsonl")]
pub(super) struct Args {
    /// Run folder, or a checkpoint's folder
    #[arg(value_name = "RUN")]
    run: PathBuf,

    /// Where people write the prompt first; refused with the option's name.
    #[arg(value_name = "TEXT", hide = true)]
    misplaced: Vec<String>,

    /// Text to continue; may be repeated [default: each line of stdin]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Vec<String>,

    /// File with one prompt per line
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompts: Option<PathBuf>,

    /// Sampled texts per prompt
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    num_samples: u32,

    /// Maximum number of tokens after each prompt
    #[arg(long, value_name = "N")]
    max_new_tokens: Option<usize>,

    /// Ends a text before this string; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    /// Ends a text at this token of the vocabulary; may be repeated
    #[arg(long, value_name = "TOKEN")]
    stop_token: Vec<String>,

    /// Prints the prompt in front of its text
    #[arg(long)]
    with_prompt: bool,

    /// Prints JSON for a single prompt too
    #[arg(long, conflicts_with = "with_prompt")]
    json: bool,

    /// best, last, a step's number or its folder's name [default: best, or last without validation]
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,

    #[command(flatten)]
    generate: GenerateArgs,

    #[command(flatten)]
    _no_set: NoSetArgs,

    #[command(flatten)]
    device: DeviceArgs,
}

impl Args {
    /// Returns the run's settings with the given options in their place, validated.
    fn config(&self, of_run: &GenerateConfig) -> Result<GenerateConfig> {
        let config = self.generate.apply(of_run)?;
        let or_runs = |given: &[String], of_run: Vec<String>| if given.is_empty() { of_run } else { given.to_vec() };
        Ok(checked(GenerateConfig {
            max_new_tokens: self.max_new_tokens.unwrap_or(config.max_new_tokens),
            stop: or_runs(&self.stop, config.stop),
            stop_tokens: or_runs(&self.stop_token, config.stop_tokens),
            ..config
        })?)
    }
}

/// Refuses arguments that could only be a mistake.
fn check(args: &Args) -> Result<(), Usage> {
    if let Some(text) = args.misplaced.first() {
        return Err(Usage(format!("{text:?} is not an option: write the prompt as --prompt {}", shell_word(text))));
    }
    Ok(())
}

/// Refuses a prompt without a token, and names the token that texts begin behind.
fn check_prompts(prompts: &[String], tokenizer: &TextTokenizer) -> Result<()> {
    let Some(number) = prompts.iter().position(String::is_empty) else { return Ok(()) };
    let special = tokenizer.special();
    let token = special.bos.or(special.eos).and_then(|id| tokenizer.vocabulary_token(id));
    let from_nothing = token
        .map_or(String::new(), |token| format!(", and --prompt {} begins a text from nothing", shell_word(&token)));
    let number = number + 1;
    let text =
        format!("--prompt {number} is empty: give the model something to continue; a word is enough{from_nothing}");
    Err(Usage(text).into())
}

pub(super) fn run(args: Args) -> Result<()> {
    check(&args)?;
    let (device, run) = args.device.open_with(&args.run, args.checkpoint.as_deref())?;
    run.check_language_model()?;
    note_age(&run, &args.run, args.checkpoint.as_deref());
    let config = args.config(&run.config.generate)?;
    if args.num_samples > 1 && !config.draws() {
        return Err(Usage(format!(
            "--num-samples {} would print the same text again and again, because nothing is sampled: add --sample or \
             --temperature 0.8",
            args.num_samples
        ))
        .into());
    }
    let (model, tokenizer) = run.language_model(run.dtype_on(&device)?, &device)?;
    check_prompts(&args.prompt, &tokenizer)?;
    let generator = TextGenerator::new(&model, tokenizer, config)?.in_int8(args.generate.int8)?;

    let mut output = results();

    if let Some(file) = &args.prompts {
        let file = fs::File::open(file)
            .map_err(|error| Usage(format!("{}: cannot read the prompts: {error}; check --prompts", file.display())))?;
        return continue_lines(&generator, io::BufReader::new(file), &mut output, &args);
    }
    note_lacking(&generator.tokenizer().lacking_in(&args.prompt)?, generator.tokenizer().spells_bytes());
    match args.prompt.as_slice() {
        [] => continue_lines(&generator, io::stdin().lock(), &mut output, &args),
        [prompt] if !args.json && args.num_samples == 1 => continue_one(&generator, prompt, 0, &mut output, &args),
        prompts => {
            let found = generator.samples(prompts, 0, args.num_samples)?;
            write_json(&mut output, prompts, &found)
        }
    }
}

/// Continues each line of `input`.
fn continue_lines(
    generator: &TextGenerator,
    mut input: impl BufRead,
    output: &mut impl Write,
    args: &Args,
) -> Result<()> {
    let typed = args.prompts.is_none() && io::stdin().is_terminal();
    let name = args.prompts.as_ref().map_or("stdin".into(), |file| file.display().to_string());
    let spells_bytes = generator.tokenizer().spells_bytes();
    let chunks = Chunks { name: &name, size: PROMPTS_PER_CHUNK, typed, spells_bytes };
    let lacking = |lines: &[String]| generator.tokenizer().lacking_in(lines);

    let mut n_prompts = 0;
    chunks.for_each(&mut input, lacking, |lines, n_lines| {
        let empty = |line: &String| line.trim().is_empty();
        if let Some(at) = lines.iter().position(empty).filter(|_| !typed) {
            let n = lines.iter().filter(|line| empty(line)).count();
            stderr_line!("note: empty lines of {name} are left out: {n}, the first is line {}", n_lines + at + 1);
        }

        let prompts: Vec<String> = lines.iter().filter(|line| !empty(line)).cloned().collect();
        let first = n_prompts;
        n_prompts += prompts.len() as u64;
        match prompts.as_slice() {
            [] => Ok(()),
            [prompt] if typed && !args.json && args.num_samples == 1 => {
                continue_one(generator, prompt, first, output, args)
            }
            prompts => write_json(output, prompts, &generator.samples(prompts, first, args.num_samples)?),
        }
    })?;
    if n_prompts == 0 && !typed {
        stderr_line!("{name} is empty: write a prompt per line, or --prompt 'TEXT'");
    }
    Ok(())
}

/// Prints the text of one prompt as it is generated.
fn continue_one(generator: &TextGenerator, prompt: &str, row: u64, output: &mut impl Write, args: &Args) -> Result<()> {
    if args.with_prompt {
        write!(output, "{prompt}")?;
    }
    let found = generator.stream(prompt, row, &mut |piece| {
        output.write_all(piece.as_bytes())?;
        output.flush()
    })?;
    writeln!(output)?;
    note_empty(&[found]);
    Ok(())
}

/// Says that texts are empty, and what ended the first of them.
fn note_empty(found: &[Continuation]) {
    let mut empty = found.iter().filter(|found| found.text.trim().is_empty());
    let Some(first) = empty.next() else { return };
    let what = match found.len() {
        1 => "the text is empty".to_owned(),
        all => format!("{} of {all} texts are empty", 1 + empty.count()),
    };
    let why = match first.ended {
        EndedBy::Token => "the model ended it at once, as documents of its training text end there",
        EndedBy::StopString => "it began with a text that --stop or generate.stop names",
        EndedBy::Limit => "the model wrote nothing but spaces",
    };
    stderr_line!("note: {what}: {why}");
}

/// Writes the texts of each prompt, which has equally many.
fn write_json(output: &mut impl Write, prompts: &[String], found: &[Continuation]) -> Result<()> {
    let n_samples = found.len() / prompts.len().max(1);
    for (prompt, samples) in prompts.iter().zip(found.chunks(n_samples.max(1))) {
        for Continuation { text, n_tokens, ended } in samples {
            let line = json!({ "prompt": prompt, "text": text, "n_tokens": n_tokens, "ended": ended.name() });
            writeln!(output, "{line}")?;
        }
    }
    output.flush()?;
    note_empty(found);
    Ok(())
}
