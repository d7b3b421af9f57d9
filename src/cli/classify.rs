//! `kiln classify`: predicts the classes of texts, or of their words.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::Result;
use kiln_data::{LabelConfig, LabelledCorpus, LabelledInput, Task};
use kiln_metrics::logging::print::{results, stderr_line};
use kiln_train::config::task::{Classes, traits_of};
use kiln_train::config::{Config, GenerateConfig};
use kiln_train::dataset::labelled;
use kiln_train::generate::{ClassPredictor, Classified};
use serde_json::{Map, Value, json};

use super::config_args::{DeviceArgs, checked};
use super::error::Usage;
use super::line_breaks::{self, EXAMPLE};
use super::lines::{Chunks, note_age, note_lacking, one_line};
use super::other_input;

/// Lines that are classified together.
const LINES_PER_CHUNK: usize = 1000;

/// Predicts the class of texts, or the tag of each of their words
///
/// For a single text, prints the likeliest classes with their probabilities, or each word with its tag. For several texts or
/// lines of stdin, prints one JSON object per line, in order. A model of tags divides a text into words at white space.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln classify runs/reviews 'A fine film, and far too short.'
  kiln classify runs/pairs 'A man sleeps.' --pair 'Nobody is awake.'
  kiln classify runs/names 'Ada Lovelace lived in London .'
  kiln classify runs/reviews < reviews.txt > classes.jsonl
  kiln classify runs/pairs --jsonl < pairs.jsonl > classes.jsonl")]
pub(super) struct Args {
    /// Run folder, or a checkpoint's folder
    #[arg(value_name = "RUN")]
    run: PathBuf,

    /// Text; may be repeated [default: each line of stdin]
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,

    /// A second text for the model to read with the first; needs exactly one TEXT
    #[arg(long, value_name = "TEXT", conflicts_with = "jsonl")]
    pair: Option<String>,

    /// Reads each line of stdin as a JSON object with the fields of the training data: a text, perhaps with a second one, or
    /// a list of words. A label is ignored
    #[arg(long, conflicts_with = "texts")]
    jsonl: bool,

    /// Classes shown for each text
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
        return Err(Usage("--top-k 0 would show no class; use at least 1".into()).into());
    }
    if args.pair.is_some() && args.texts.len() != 1 {
        return Err(Usage(format!("--pair stands next to one TEXT, and there are {}", args.texts.len())).into());
    }
    other_input::check_names(&args.texts, &args.run)?;
    let (device, run) = args.device.open_with(&args.run, args.checkpoint.as_deref())?;
    let (model, tokenizer) = run.class_model(run.dtype_on(&device)?, &device)?;
    note_age(&run, &args.run, args.checkpoint.as_deref());
    let of_run = &run.config.generate;
    let batch_tokens = args.batch_tokens.unwrap_or(of_run.batch_tokens);
    let config = checked(GenerateConfig { batch_tokens, ..of_run.clone() })?;
    let rows = labelled::shape(&run.config, &run.model);
    let predictor = ClassPredictor::new(&model, &tokenizer, rows, config)?;

    let shown = Shown { names: &run.config.data.labels.names, top_k: args.top_k };
    let task = run.config.task;
    if args.pair.is_some() && traits_of(task).classes == Some(Classes::OfWords) {
        return Err(Usage("--pair is for classes of texts, and this run tags words: leave it out".into()).into());
    }
    let spells_bytes = tokenizer.spells_bytes();
    let mut output = io::BufWriter::new(results());
    if !args.texts.is_empty() {
        note_lacking(&tokenizer.lacking_in(&args.texts)?, spells_bytes);
        let inputs: Vec<LabelledInput> = args.texts.iter().map(|text| input(text, args.pair.clone(), task)).collect();
        note_one_text(&run.config, &inputs, "--pair gives the second one");
        let found = predictor.classify(&inputs)?;
        return shown.write(&mut output, &inputs, &found, args.json || args.texts.len() > 1);
    }

    let typed = io::stdin().is_terminal();
    let chunks = Chunks { name: "stdin", size: LINES_PER_CHUNK, typed, spells_bytes };
    let labels = &run.config.data.labels;
    let lacking = |lines: &[String]| {
        if !args.jsonl {
            return tokenizer.lacking_in(lines);
        }
        // What is wrong with a row is said when it is read.
        let rows = lines.iter().filter_map(|line| LabelledInput::from_json(line, task, labels).ok());
        tokenizer.lacking_in(&rows.flat_map(|row| row.texts()).collect::<Vec<_>>())
    };
    chunks.for_each(&mut io::stdin().lock(), lacking, |lines, n_done| {
        if n_done == 0 && args.jsonl {
            other_input::check_rows(lines, &args.run)?;
        } else if n_done == 0 && !typed {
            other_input::check_lines(lines, &args.run, task, labels)?;
            let example = json!({ plain(&labels.text_field, "text"): EXAMPLE });
            line_breaks::note(
                &run.config,
                "texts",
                &format!("--jsonl reads texts with line breaks, such as {example}"),
            );
        }
        let parse = |(number, line): (usize, &String)| match args.jsonl {
            true => LabelledInput::from_json(line, task, labels).map_err(|problem| {
                let way = other_input::way_of_field(line, task, labels, &args.run);
                kiln_data::Error::BadRows(format!("line {number} of stdin: {problem}{way}")).into()
            }),
            false => Ok(input(line, None, task)),
        };
        let inputs = (n_done + 1..).zip(lines).map(parse).collect::<Result<Vec<_>>>()?;
        if n_done == 0 {
            let way = format!("--jsonl reads both, such as {}", row_of_two(labels));
            note_one_text(&run.config, &inputs, &way);
        }
        let found = predictor.classify(&inputs)?;
        shown.write(&mut output, &inputs, &found, args.json || !typed)
    })?;
    Ok(())
}

/// Makes an input of a text, which `task` may need as words.
fn input(text: &str, pair: Option<String>, task: Task) -> LabelledInput {
    match traits_of(task).classes {
        Some(Classes::OfWords) => LabelledInput::Words(text.split_whitespace().map(str::to_owned).collect()),
        _ => LabelledInput::Text { text: text.to_owned(), pair },
    }
}

/// Says that a model reads one text in the place of the two that it has learned from, and how it gets both.
fn note_one_text(config: &Config, inputs: &[LabelledInput], way: &str) {
    let has_one = |input: &LabelledInput| matches!(input, LabelledInput::Text { pair: None, .. });
    let has_learned_two = || LabelledCorpus::first_pair(&config.data.train_files(), &config.data.labels).is_some();
    if !inputs.is_empty() && inputs.iter().all(has_one) && has_learned_two() {
        stderr_line!("note: the model has learned from two texts, and reads one: {way}");
    }
}

/// Returns a row with two texts, as training text has it. Templates have no row.
fn row_of_two(labels: &LabelConfig) -> Value {
    let names = [plain(&labels.text_field, "text"), plain(&labels.pair_field, "text_pair")];
    Value::Object(names.into_iter().map(|name| (name, json!("..."))).collect())
}

/// Returns the name of a field in an example: the `usual` one for a template.
fn plain(name: &str, usual: &str) -> String {
    if name.contains(['{', '.']) { usual.to_owned() } else { name.to_owned() }
}

/// How predictions are shown.
struct Shown<'a> {
    names: &'a [String],
    top_k: usize,
}

impl Shown<'_> {
    fn write(&self, output: &mut impl Write, inputs: &[LabelledInput], found: &[Classified], json: bool) -> Result<()> {
        let is_blank = |input: &&LabelledInput| matches!(input, LabelledInput::Text { text, pair: None } if text.trim().is_empty());
        let n_blank = inputs.iter().filter(is_blank).count();
        if n_blank > 0 {
            stderr_line!(
                "note: {n_blank} of {} texts are blank: their classes say nothing, so leave them out",
                inputs.len()
            );
        }
        for (input, found) in inputs.iter().zip(found) {
            if found.is_cut {
                stderr_line!("note: a text is longer than the model reads, and its end was cut off");
            }
            match json {
                true => writeln!(output, "{}", self.as_json(input, found))?,
                false => write!(output, "{}", self.as_lines(input, found))?,
            }
        }
        Ok(output.flush()?)
    }

    /// The likeliest classes, likeliest first; ties by their order.
    fn likeliest(&self, probabilities: &[f64], n: usize) -> Vec<(&str, f64)> {
        let mut classes: Vec<(usize, f64)> = probabilities.iter().copied().enumerate().collect();
        classes.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let name = |class: usize| self.names.get(class).map_or("?", String::as_str);
        classes.into_iter().take(n).map(|(class, p)| (name(class), p)).collect()
    }

    fn as_lines(&self, input: &LabelledInput, found: &Classified) -> String {
        match input {
            LabelledInput::Text { .. } => {
                let line = |(name, p): (&str, f64)| format!("{:6.2}%  {}\n", 100.0 * p, one_line(name));
                let all = found.probabilities.first().map_or(&[][..], Vec::as_slice);
                self.likeliest(all, self.top_k).into_iter().map(line).collect()
            }
            LabelledInput::Words(words) => {
                let width = words.iter().map(|word| word.chars().count()).max().unwrap_or(0);
                let line = |(word, all): (&String, &Vec<f64>)| match self.likeliest(all, 1).first() {
                    Some((name, p)) => format!("{word:<width$}  {}  {:.2}%\n", one_line(name), 100.0 * p),
                    None => format!("{word:<width$}  (not read)\n"),
                };
                words.iter().zip(&found.probabilities).map(line).collect()
            }
        }
    }

    fn as_json(&self, input: &LabelledInput, found: &Classified) -> Value {
        let classes = |all: &[f64]| -> Vec<Value> {
            let one = |(name, p): (&str, f64)| json!({ "label": name, "probability": p });
            self.likeliest(all, self.top_k).into_iter().map(one).collect()
        };
        match input {
            LabelledInput::Text { text, pair } => {
                let all = found.probabilities.first().map_or(&[][..], Vec::as_slice);
                let best = self.likeliest(all, 1).first().map(|(name, _)| *name);
                let mut json = Map::from_iter([("text".to_owned(), json!(text))]);
                json.extend(pair.as_ref().map(|pair| ("text_pair".to_owned(), json!(pair))));
                json.insert("label".into(), json!(best));
                json.insert("classes".into(), json!(classes(all)));
                Value::Object(json)
            }
            LabelledInput::Words(words) => {
                let best = |all: &Vec<f64>| self.likeliest(all, 1).first().map(|(name, p)| ((*name).to_owned(), *p));
                let (tags, probabilities): (Vec<_>, Vec<_>) =
                    found.probabilities.iter().map(|all| best(all).unzip()).unzip();
                json!({ "tokens": words, "tags": tags, "probabilities": probabilities })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_shown_with_their_probabilities() {
        let names = ["bad", "good", "so so"].map(str::to_owned);
        let shown = Shown { names: &names, top_k: 2 };
        let text = LabelledInput::Text { text: "a film".into(), pair: None };
        let found = Classified { probabilities: vec![vec![0.25, 0.5, 0.25]], is_cut: false };
        assert_eq!(shown.as_lines(&text, &found), " 50.00%  good\n 25.00%  bad\n");
        let json = shown.as_json(&text, &found);
        assert_eq!((&json["label"], &json["classes"][1]["label"]), (&"good".into(), &"bad".into()));
        assert!(json.get("text_pair").is_none());

        let words = LabelledInput::Words(["Ada", "ran"].map(str::to_owned).into());
        let found = Classified { probabilities: vec![vec![0.75, 0.25, 0.0], Vec::new()], is_cut: true };
        assert_eq!(shown.as_lines(&words, &found), "Ada  bad  75.00%\nran  (not read)\n");
        assert_eq!(shown.as_json(&words, &found)["tags"], json!(["bad", null]));
    }
}
