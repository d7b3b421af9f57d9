//! The layouts of JSON rows that people bring: how Kiln recognizes each one, and the flags that read it.
//!
//! | layout | recognized by | read with |
//! |---|---|---|
//! | preferences | `chosen` and `rejected` | lm, `data.text.format = "preferences"` |
//! | rated answers (KTO) | `prompt`, `completion` and a Boolean `label` | nothing: half of the answers are bad |
//! | conversations (OpenAI, ShareGPT) | a list of messages | lm, `data.text.format = "chat"` |
//! | questions and answers (Alpaca and relatives) | the names in `text/answers.rs` | lm, `data.text.format = "chat"` |
//! | tagged words | two lists of equal length | tagging |
//! | labelled texts | a text next to a name that recurs | classification |
//! | pairs | two texts | translation |
//! | texts | one text | lm or mlm |

mod recognize;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use self::recognize::{names_in, recognize};
use super::json::first_rows;
use super::labelled::LabelConfig;
use super::pairs::{CorpusConfig, flag};
use super::text::{ANSWERS, Conversation, Preference, Task, TextConfig, TextFormat, files_below, is_rated};
use crate::error::{Error, Result};

/// What the rows of a file are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Layout {
    Preferences,
    Rated,
    Conversations { field: String },
    Answers { question: String, answer: String },
    Tagged { words: String, tags: String },
    Labelled { text: String, label: String },
    Pairs { source: String, target: String },
    Texts { field: String },
}

/// How a command reads rows.
#[derive(Debug, Clone, Copy)]
pub struct RowReader<'a> {
    /// The task of the run.
    pub task: Task,
    /// The tasks that `--task` can name instead: none for a run that exists.
    pub other_tasks: &'a [Task],
    /// How pairs are read.
    pub corpus: &'a CorpusConfig,
    /// How texts are read.
    pub text: &'a TextConfig,
    /// How labelled rows are read.
    pub labels: &'a LabelConfig,
}

/// Refuses files whose rows another task, format or field reads, and names it. Files that are not JSONL, and rows that the reader
/// understands or that have no known layout, are left to the reader.
///
/// # Errors
///
/// If the rows have a known layout that `reader` does not read.
pub fn check_layout(entries: &[PathBuf], reader: &RowReader<'_>) -> Result<()> {
    let mut files = Vec::new();
    for entry in entries.iter().filter(|entry| entry.exists()) {
        files_below(entry, &mut files)?;
    }
    files.iter().filter(|file| reader.reads_json(file)).try_for_each(|file| reader.check(file))
}

impl RowReader<'_> {
    /// Whether the file holds JSON lines for this reader.
    fn reads_json(&self, file: &Path) -> bool {
        let name = file.to_string_lossy().to_ascii_lowercase();
        let name = name.trim_end_matches(".gz").trim_end_matches(".zst");
        let by_name = [".jsonl", ".ndjson", ".json"].iter().any(|ending| name.ends_with(ending));
        let is_text = matches!(self.task, Task::Lm | Task::Mlm);
        by_name
            && !(is_text && matches!(self.text.format, TextFormat::Lines | TextFormat::Files | TextFormat::BlankLines))
    }

    fn check(&self, file: &Path) -> Result<()> {
        let rows = first_rows(file);
        if rows.iter().any(|row| self.reads(row)) {
            return Ok(());
        }

        let Some(layout) = recognize(&rows) else { return Ok(()) };
        let names = names_in(&rows).iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
        let rows_are = format!("{}: its rows are {} (they have {names})", file.display(), layout.name());

        let Some((task, mut flags)) = self.flags(&layout) else {
            let advice = "to learn the good ones alone, keep the rows whose label is true and drop the label: jq -c \
                          'select(.label) | del(.label)'";
            return Err(Error::BadRows(format!(
                "{rows_are}, good and bad ones, which Kiln cannot tell apart\n{advice}"
            )));
        };

        if task != self.task && !self.other_tasks.contains(&task) {
            return Err(Error::BadRows(format!(
                "{rows_are}, and this run has another task; a run of task {} reads them",
                name_of(task)
            )));
        }
        if task != self.task {
            // No other task takes a format of conversations.
            let format = (task != Task::Lm && self.text.is_chat()).then(|| "--set data.text.format=auto".to_owned());
            flags.extend(format);
            flags.insert(0, format!("--task {}", name_of(task)));
        }
        // Nothing to change: the reader says what is wrong with the rows.
        if flags.is_empty() {
            Ok(())
        } else {
            Err(Error::BadRows(format!("{rows_are}: read them as such with {}", flags.join(" "))))
        }
    }

    /// Whether the row has what this reader looks for.
    fn reads(&self, row: &Map<String, Value>) -> bool {
        // A template says by itself what it needs.
        let has = |name: &str| name.contains('{') || recognize::lookup(row, name).is_some();
        let line = || Value::Object(row.clone()).to_string();
        match self.task {
            Task::Translation => {
                let is_rated = is_rated(row) && self.corpus.target_field == "completion";
                has(&self.corpus.source_field) && has(&self.corpus.target_field) && !is_rated
            }
            Task::Lm | Task::Mlm => match self.text.format {
                TextFormat::Chat => Conversation::parse(&line(), &self.text.field).is_ok(),
                TextFormat::Preferences => Preference::parse(&line()).is_ok(),
                _ => has(&self.text.field),
            },
            Task::Classification => has(&self.labels.text_field) && has(&self.labels.label_field),
            Task::Tagging => has(&self.labels.words_field) && has(&self.labels.tags_field),
        }
    }

    /// Returns the task that reads the layout, and the settings that this reader lacks; `None` if nothing reads it.
    fn flags(&self, layout: &Layout) -> Option<(Task, Vec<String>)> {
        let text_task = if self.task == Task::Mlm { Task::Mlm } else { Task::Lm };
        let (field, format) = (&self.text.field, self.text.format);
        let set_format = |wanted, name: &str| (format != wanted).then(|| format!("--set data.text.format={name}"));
        let chat = |wanted: &str| {
            let field = (field != wanted).then(|| flag("data.text.field", wanted));
            (Task::Lm, set_format(TextFormat::Chat, "chat").into_iter().chain(field).collect())
        };
        let named = |fields: [(&str, &String, &String); 2]| -> Vec<String> {
            fields
                .into_iter()
                .filter(|(_, now, wanted)| now != wanted)
                .map(|(key, _, wanted)| flag(key, wanted))
                .collect()
        };
        let as_text = |name: &String| {
            let other = !matches!(format, TextFormat::Auto | TextFormat::Jsonl);
            let format = other.then(|| "--set data.text.format=jsonl".to_owned());
            let field = (field != name).then(|| flag("data.text.field", name));
            (text_task, format.into_iter().chain(field).collect())
        };

        Some(match layout {
            Layout::Rated => return None,
            Layout::Preferences => (Task::Lm, set_format(TextFormat::Preferences, "preferences").into_iter().collect()),
            Layout::Conversations { field } if ["messages", "conversations"].contains(&field.as_str()) => chat("text"),
            Layout::Conversations { field } => chat(field),
            Layout::Answers { question, answer } if ANSWERS.contains(&[question, answer]) => chat("text"),
            Layout::Answers { question, answer } => chat(&format!("{question},{answer}")),
            Layout::Tagged { words, tags } => {
                let now = self.labels;
                let of_words = ("data.labels.words_field", &now.words_field, words);
                (Task::Tagging, named([of_words, ("data.labels.tags_field", &now.tags_field, tags)]))
            }
            Layout::Labelled { text, .. } if matches!(self.task, Task::Lm | Task::Mlm) => as_text(text),
            Layout::Labelled { text, label } => {
                let now = self.labels;
                let of_text = ("data.labels.text_field", &now.text_field, text);
                (Task::Classification, named([of_text, ("data.labels.label_field", &now.label_field, label)]))
            }
            Layout::Pairs { source, target } => {
                let now = self.corpus;
                let of_source = ("data.corpus.source_field", &now.source_field, source);
                (Task::Translation, named([of_source, ("data.corpus.target_field", &now.target_field, target)]))
            }
            Layout::Texts { field } => as_text(field),
        })
    }
}

impl Layout {
    fn name(&self) -> &'static str {
        match self {
            Self::Preferences => "preferences",
            Self::Rated => "answers that are rated (KTO)",
            Self::Conversations { .. } => "conversations",
            Self::Answers { .. } => "questions and answers",
            Self::Tagged { .. } => "words with tags",
            Self::Labelled { .. } => "texts with labels",
            Self::Pairs { .. } => "pairs",
            Self::Texts { .. } => "texts",
        }
    }
}

/// Returns the name of a task in a configuration.
fn name_of(task: Task) -> &'static str {
    match task {
        Task::Translation => "translation",
        Task::Lm => "lm",
        Task::Mlm => "mlm",
        Task::Classification => "classification",
        Task::Tagging => "tagging",
    }
}
