//! One labelled row.

use serde_json::{Map, Value};

use super::FAST_TEXT;
use super::config::LabelConfig;
use crate::corpus::path::value_at;
use crate::corpus::template::RowTemplate;
use crate::corpus::text::Task;
use crate::formats::RowProblem;

/// The length of a row for the work that a template may do.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// A row with the ids of its labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labelled {
    /// What the model reads.
    pub input: LabelledInput,
    /// The class of the text, or the tag of each word.
    pub labels: Vec<u32>,
}

/// What a model reads to predict classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelledInput {
    /// A text, and perhaps a second one.
    Text {
        /// The text.
        text: String,
        /// The second text.
        pair: Option<String>,
    },
    /// Words.
    Words(Vec<String>),
}

impl LabelledInput {
    /// Reads a JSON object as a row of `task`, and ignores its labels. A blank text is one.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn from_json(line: &str, task: Task, config: &LabelConfig) -> Result<Self, String> {
        let row = object(line.as_bytes()).map_err(|problem| problem.to_string())?;
        match input(&row, task, config) {
            Err(RowProblem::NoText) if task != Task::Tagging => Ok(Self::Text { text: String::new(), pair: None }),
            found => found.map_err(|problem| problem.to_string()),
        }
    }

    /// Returns its texts: of words, joined by spaces.
    pub fn texts(&self) -> Vec<String> {
        match self {
            Self::Text { text, pair } => [text].into_iter().chain(pair).cloned().collect(),
            Self::Words(words) => vec![words.join(" ")],
        }
    }
}

/// A label as the file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Label {
    name: String,
    number: Option<u32>,
}

impl Label {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn number(&self) -> Option<u32> {
        self.number
    }

    fn of(value: &Value, field: &str) -> Result<Self, RowProblem> {
        match value {
            Value::String(name) if !name.is_empty() => Ok(Self { name: name.clone(), number: None }),
            Value::Bool(flag) => Ok(Self { name: flag.to_string(), number: None }),
            Value::Number(number) if number.is_u64() || number.is_i64() => Ok(Self {
                name: number.to_string(),
                number: number.as_u64().and_then(|number| u32::try_from(number).ok()),
            }),
            // Programs write whole numbers so, such as `5.0`, where another row has no number.
            Value::Number(number) if number.as_f64().is_some_and(|number| number as i64 as f64 == number) => {
                let number = number.as_f64().unwrap_or_default() as i64;
                Ok(Self { name: number.to_string(), number: u32::try_from(number).ok() })
            }
            // Half stars are classes as in tables, where they are texts.
            Value::Number(number) => Ok(Self { name: number.to_string(), number: None }),
            other => Err(RowProblem::Malformed(format!(
                "field \"{field}\" has {} for a label, wanted a name or a number",
                kind(other)
            ))),
        }
    }
}

/// A row whose labels have no ids yet.
#[derive(Debug)]
pub(super) struct Unresolved {
    input: LabelledInput,
    labels: Vec<Label>,
}

impl Unresolved {
    pub(super) fn labels(&self) -> &[Label] {
        &self.labels
    }

    /// Returns its texts: of tagged words, joined by spaces.
    pub(super) fn texts(&self) -> Vec<String> {
        self.input.texts()
    }

    /// Lets labels that are texts of digits stand for numbers, and leaves out blanks around labels, for formats without numbers.
    pub(super) fn with_numbers(mut self) -> Self {
        for label in &mut self.labels {
            let name = label.name.trim();
            if !name.is_empty() && name.len() < label.name.len() {
                label.name = name.to_owned();
            }
            label.number = label.name.parse().ok();
        }
        self
    }

    pub(super) fn with_ids(self, id_of: impl Fn(&Label) -> Result<u32, RowProblem>) -> Result<Labelled, RowProblem> {
        let labels = self.labels.iter().map(id_of).collect::<Result<_, _>>()?;
        Ok(Labelled { input: self.input, labels })
    }
}

/// Returns what a model reads of a row: its texts, as JSON.
pub(super) fn read_of(row: &Unresolved) -> String {
    serde_json::json!(row.texts()).to_string()
}

/// Reads a JSON object as a row of `task`.
pub(super) fn read_row(json: &[u8], task: Task, config: &LabelConfig) -> Result<Unresolved, RowProblem> {
    let row = object(json)?;
    let input = input(&row, task, config)?;

    let labels = match &input {
        LabelledInput::Text { text, pair } => {
            if let Some(label) = [Some(text), pair.as_ref()].into_iter().flatten().find_map(|text| label_in(text)) {
                return Err(RowProblem::Malformed(format!(
                    "the text has the label {label} of fastText in it, which gives the class away: leave it out of the text"
                )));
            }
            vec![Label::of(field(&row, &config.label_field)?, &config.label_field)?]
        }
        LabelledInput::Words(words) => {
            let tags = list(&row, &config.tags_field)?;
            if tags.len() != words.len() {
                return Err(RowProblem::Malformed(format!(
                    "{} words in \"{}\", but {} tags in \"{}\"; each word has one",
                    words.len(),
                    config.words_field,
                    tags.len(),
                    config.tags_field
                )));
            }
            tags.iter().map(|tag| Label::of(tag, &config.tags_field)).collect::<Result<_, _>>()?
        }
    };
    Ok(Unresolved { input, labels })
}

fn object(line: &[u8]) -> Result<Map<String, Value>, RowProblem> {
    match serde_json::from_slice(line) {
        Ok(Value::Object(row)) => Ok(row),
        Ok(other) => Err(RowProblem::Malformed(format!("{}, wanted a JSON object", kind(&other)))),
        Err(error) => {
            let text = error.to_string();
            let text = text.split(" at line ").next().unwrap_or(&text);
            Err(RowProblem::Malformed(format!("not a JSON object: {text} (byte {})", error.column())))
        }
    }
}

fn input(row: &Map<String, Value>, task: Task, config: &LabelConfig) -> Result<LabelledInput, RowProblem> {
    if task == Task::Tagging {
        let words = list(row, &config.words_field)?;
        let word = |word: &Value| match word {
            Value::String(word) => Ok(word.clone()),
            other => Err(RowProblem::Malformed(format!(
                "field \"{}\" has {} for a word, wanted a string",
                config.words_field,
                kind(other)
            ))),
        };
        let words: Vec<String> = words.iter().map(word).collect::<Result<_, _>>()?;
        return if words.is_empty() { Err(RowProblem::NoText) } else { Ok(LabelledInput::Words(words)) };
    }

    let of_template = |name: &str| RowTemplate::of(name).map(|template| template.render(row, MAX_TEXT_BYTES));
    let text = match of_template(&config.text_field) {
        Some(text) => text?,
        None => string(field(row, &config.text_field)?, &config.text_field)?,
    };
    let pair = match (of_template(&config.pair_field), value_at(row, &config.pair_field)) {
        (Some(pair), _) => Some(pair?),
        (None, None | Some(Value::Null)) => None,
        (None, Some(pair)) => Some(string(pair, &config.pair_field)?),
    };
    let is_empty = text.trim().is_empty() && pair.as_ref().is_none_or(|pair| pair.trim().is_empty());
    if is_empty { Err(RowProblem::NoText) } else { Ok(LabelledInput::Text { text, pair }) }
}

/// Returns a label as fastText writes it.
fn label_in(text: &str) -> Option<&str> {
    text.split_whitespace().find(|word| word.strip_prefix(FAST_TEXT).is_some_and(|label| !label.is_empty()))
}

fn field<'a>(row: &'a Map<String, Value>, name: &str) -> Result<&'a Value, RowProblem> {
    value_at(row, name).ok_or_else(|| {
        let names = row.keys().take(8).map(|key| format!("\"{key}\"")).collect::<Vec<_>>().join(", ");
        let has = if names.is_empty() { "no fields".to_owned() } else { names };
        RowProblem::Malformed(format!("no field \"{name}\": the row has {has}"))
    })
}

fn list<'a>(row: &'a Map<String, Value>, name: &str) -> Result<&'a [Value], RowProblem> {
    match field(row, name)? {
        Value::Array(values) => Ok(values),
        other => Err(RowProblem::Malformed(format!("field \"{name}\" is {}, wanted a list", kind(other)))),
    }
}

fn string(value: &Value, name: &str) -> Result<String, RowProblem> {
    match value {
        Value::String(text) => Ok(text.clone()),
        other => Err(RowProblem::Malformed(format!("field \"{name}\" is {}, wanted a string", kind(other)))),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a Boolean",
        Value::Number(number) if number.is_f64() => "a fraction",
        Value::Number(_) => "a number",
        Value::String(text) if text.is_empty() => "an empty string",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
