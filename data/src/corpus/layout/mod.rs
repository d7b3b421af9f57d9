//! The layouts of JSON rows that people bring: how Kiln recognizes each one, and the flags that read it.
//!
//! | layout | recognized by | read with |
//! |---|---|---|
//! | preferences | `chosen` and `rejected` | lm, `data.text.format = "preferences"` |
//! | rated answers (KTO) | a conversation and a rating of `text/answers.rs` | nothing: half of the answers are bad |
//! | conversations (OpenAI, ShareGPT) | a list of messages | lm, `data.text.format = "chat"` |
//! | questions and answers (Alpaca and relatives) | the names in `text/answers.rs` | lm, `data.text.format = "chat"` |
//! | tagged words | two lists of equal length | tagging |
//! | lists of labels | a list with a name of labels, for a classifier or a tagger | classification, the first label |
//! | spans of characters | a list of places with labels, for these two | nothing: words with tags are wanted |
//! | labelled pairs | two texts next to such a name, for a classifier | classification |
//! | labelled texts | a text next to a name that recurs | classification |
//! | pairs | two texts | translation |
//! | texts | one text | lm or mlm |
//! | rows by their ids, texts by keys or a list of rows in one object | `by_id.rs`, `by_key.rs`, `wrapped.rs` | nothing: the message says how to make rows of it |
//! | messages in rows of their own, of parts, in a string, with other roles or of persons | `foreign.rs` | nothing: the message says how to make messages of them |
//! | requests with replies, earlier turns with an answer, persons by conversation | `foreign.rs` | the same |
//! | answers with the reasoning before them, texts with replies in objects | `reasoned.rs`, `replied.rs` | nothing: the message says how to make prompts and completions of them |
//! | several answers | `preferred.rs` | nothing: the message says how to make preferences of them |
//! | questions with options | `choices.rs` | nothing: the message says how to make prompts and completions of them |
//! | texts that are lists of words, or strings or lists of parts | `word_lists.rs`, `mixed.rs` | nothing: the message says how to make one text of each |
//! | questions about a text | `extractive.rs` | nothing: the message says how to make prompts and completions of them |
//! | answers at places in a document, or by language | `placed.rs` | nothing: the message says how to make prompts and completions of them |
//! | several answers with marks | `marked.rs` | nothing: the message says how to make completions of the right ones |
//! | answers without texts | `mended.rs` | nothing: the message says how to make texts of them |
//! | several texts with the same class or the same answers | `alternatives.rs` | nothing: the message says how to make a row of each |
//! | pairs with a list of texts on one side | `references.rs` | translation, with a template; or the message says how to make a row of each |
//! | texts that are lists, next to a class or alone | `listed.rs` | the same, with a template of the list |
//! | lists of values without names, and lists of such lists | `unnamed.rs` | nothing: the message says how to name the values |
//! | lists of objects inside of rows | `nested.rs` | the same; the message says how to make a row of each object |
//! | columns in one object | `pandas.rs` | nothing: the message says how to make rows of them |

mod alternatives;
#[cfg(test)]
mod alternatives_tests;
mod as_answers;
mod as_pairs;
mod by_id;
mod by_key;
mod chat_log;
mod choices;
#[cfg(test)]
mod class_tests;
mod classes;
mod columns;
mod converted;
#[cfg(test)]
mod converted_tests;
mod extractive;
mod flags;
mod foreign;
mod html_table;
mod joined;
mod languages;
#[cfg(test)]
mod languages_tests;
mod left_out;
mod listed;
mod lists;
mod marked;
mod mended;
mod mixed;
mod nested;
mod notes;
mod other_spelling;
mod pandas;
mod parts;
mod placed;
mod preferred;
mod reasoned;
mod recognize;
mod references;
mod rejected;
mod replied;
#[cfg(test)]
mod roles_tests;
mod said;
mod scored;
mod second_text;
mod sessions;
mod slack;
mod spans;
mod spelled;
mod splits;
mod table;
#[cfg(test)]
mod tests;
mod unnamed;
mod unsure;
#[cfg(test)]
mod values_tests;
mod word_lists;
mod wrapped;
mod written;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use self::classes::{LabelList, advice_for_marks, of_classes, of_spans, other_classes};
use self::converted::they_have;
use self::foreign::is_history;
use self::recognize::{is_rated, recognize, tagged};
use self::said::name_of;
use self::wrapped::WrappedList;
use super::jq;
use super::json::{FirstRows, usual_rows};
use super::labelled::LabelConfig;
use super::pairs::{CorpusConfig, CorpusFormat, OR_REVERSED};
use super::path::value_at;
use super::share;
use super::text::{Conversation, Rating, Task, TextConfig, TextFormat, files_below};
use crate::error::{Error, Result};
use crate::formats::FileFormat;

pub use self::notes::layout_notes;

/// Stands for a field that the user must name.
const UNKNOWN: &str = "NAME";

/// What the rows of a file are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Layout {
    Preferences,
    Rated,
    Conversations { field: String },
    Answers { question: String, answer: String },
    Tagged { words: String, tags: String },
    Labelled { text: String, label: String },
    LabelledPairs { text: String, pair: String, label: String },
    LabelLists { text: String, list: LabelList },
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

/// Refuses files whose rows another task, format or field reads, and names it. Files that are neither JSONL nor
/// CoNLL, and rows that the reader understands or that have no known layout, are left to the reader.
///
/// # Errors
///
/// If the rows have a known layout that `reader` does not read.
pub fn check_layout(entries: &[PathBuf], reader: &RowReader<'_>) -> Result<()> {
    let mut files = Vec::new();
    for entry in entries.iter().filter(|entry| entry.exists()) {
        reader.check_export(entry)?;
        files_below(entry, &mut files)?;
    }
    if let Some(found) = other_spelling::one_in_each(&files) {
        return Err(Error::BadRows(found));
    }
    files.iter().try_for_each(|file| {
        reader.check_file(file, &files).map_err(|error| match error {
            Error::BadRows(found) => Error::BadRows(jq::kept_apart(file, &splits::divided_first(file, found))),
            other => other,
        })
    })
}

impl RowReader<'_> {
    /// Returns the format of a file of words with tags, where this reader takes it for something else.
    fn other_tags(&self, file: &Path) -> Option<FileFormat> {
        let is_read = match self.task {
            Task::Translation => self.corpus.format == CorpusFormat::Auto,
            Task::Classification => true,
            // For these, such a file is plain text or what it is.
            Task::Lm | Task::Mlm | Task::Tagging => false,
        };
        FileFormat::by_name(file).filter(|format| is_read && format.has_tags())
    }

    fn check_file(&self, file: &Path, files: &[PathBuf]) -> Result<()> {
        self.check_text_file(file)?;
        self.check_columns(file)?;
        self.check_options(file)?;
        self.check_table(file)?;
        let json = self.reads_json(file).then_some(FileFormat::JSON);
        let other = || self.other_tags(file).or_else(|| self.table_of_rows(file));
        json.or_else(other).map_or(Ok(()), |format| self.check(file, format, files))
    }

    fn check(&self, file: &Path, format: FileFormat, files: &[PathBuf]) -> Result<()> {
        let FirstRows { rows, order, lists } = self.without_parts(usual_rows(file, format));
        let bad = |found: String| Err(Error::BadRows(found));
        if let Some(advice) = self.other_spelling(file, &rows).filter(|_| format == FileFormat::JSON) {
            return bad(advice);
        }
        let is_json = format == FileFormat::JSON;
        let is_read = rows.iter().any(|row| self.reads(row) && (!is_json || self.has_lists(row)));
        if let Some(advice) = self.rows_by_id((file, format), &rows).filter(|_| !is_read) {
            return bad(advice);
        }
        if let Some(advice) = pandas::advice_for(file, format, &rows) {
            return bad(advice);
        }
        if let Some(found) = self.mixed_text(&rows) {
            return bad(mixed::advice(file, format, &found));
        }
        let wrapped = wrapped::list_in(file, format, &rows);
        let is_list = |list: &&WrappedList| list.is_certain || is_history(list.rows(), list.len());
        let of_list = || wrapped.as_ref().filter(is_list).map(|list| list.advice(file));
        let of_alternatives = self.advice_for_alternatives((file, format), &rows, wrapped.as_ref(), is_read);
        let by_key = || by_key::texts_in(file, format, &rows).filter(|_| !is_read)?.advice(file, self.task);
        let unnamed = || self.unnamed((file, format), &rows, lists).filter(|_| !is_read);
        if let Some(advice) = of_alternatives.or_else(of_list).or_else(by_key).or_else(unnamed) {
            return bad(advice);
        }
        self.check_named(file, format, &rows)?;
        self.check_unread_answer(file, format, &rows)?;
        if rows.is_empty() || is_read {
            return self.check_second_text((&rows, &order), files);
        }

        self.check_spelling(file, &rows)?;
        self.check_converted(file, format, &rows)?;
        if let Some(found) = word_lists::of(&rows, &order).filter(|_| is_json) {
            return bad(self.of_word_lists((file, format), &they_have(&rows, format), &found));
        }
        let layout = self.layout(&rows, &order, format);
        if let Some(found) = self.answer_without_texts(&rows) {
            let layout = if found.is_boolean() { of_classes(&rows, &order, self.labels) } else { layout };
            return bad(self.advice_for((file, format), &they_have(&rows, format), &found, &rows, layout.as_ref()));
        }
        if let Some(list) = wrapped.filter(|_| wrapped::has_most_text(&rows, layout.as_ref())) {
            return bad(list.advice(file));
        }
        if let Some(advice) = self.advice_for_references((file, format), (&rows, &order), layout.as_ref()) {
            return bad(advice);
        }
        let Some(layout) = layout.map(|layout| self.turned(layout, &rows)) else {
            return self.check_second_text((&rows, &order), files);
        };
        let layout = self.with_unclear_class(layout, &rows, &order);
        let layout = match self.of_lists(&layout, &rows, &order) {
            Some(listed) => listed,
            None => self.with_most_text(layout, &rows),
        };
        let layout = self.as_answers(file, layout, (&rows, &order))?;
        // The reader of tables names the other columns.
        let is_said = matches!(layout, Layout::Answers { .. } | Layout::LabelledPairs { .. } | Layout::Rated);
        if format != FileFormat::JSON && !format.has_tags() && !is_said {
            return Ok(());
        }
        let rows_are = format!("{}: its rows are {}{}", file.display(), layout.name(), they_have(&rows, format));

        if let Layout::LabelLists { text, list: LabelList::Spans(spans) } = &layout {
            // Marks of annotators are among the fields that were left out.
            let advice = spans.advice(file, text, &usual_rows(file, format).rows);
            return bad(format!("{rows_are}, which no task reads\n{advice}"));
        }
        if let Layout::LabelLists { list: LabelList::Names(label), .. } = &layout
            && let Some(advice) = advice_for_marks(file, format, &rows, label)
        {
            return bad(advice);
        }
        let Some((task, flags)) = self.flags(&layout) else {
            let advice = self.advice_for_ratings(&rows, file, format);
            return bad(format!("{rows_are}, good and bad ones, which Kiln cannot tell apart\n{advice}"));
        };
        self.answer(&rows_are, &layout, (&rows, &order), (task, flags), (file, format))
    }

    /// Refuses rows that another task or other settings read, and names both.
    fn answer(
        &self,
        rows_are: &str,
        layout: &Layout,
        (rows, order): (&[Map<String, Value>], &[String]),
        (task, mut flags): (Task, Vec<String>),
        source: (&Path, FileFormat),
    ) -> Result<()> {
        if let Some(unsure) = self.unsure(layout, rows, order) {
            return Err(Error::BadRows(format!("{rows_are}{unsure}{}", nested::advice(rows, source))));
        }
        let asked = self.asked_of(layout, rows, order);
        let as_pairs = self.flags_of_pairs(layout, rows, asked.as_ref());
        if let (Layout::Pairs { target, .. }, Some((_, template))) = (layout, &asked) {
            flags = self.pair_flags(template, target);
        }
        if task != self.task && !self.other_tasks.contains(&task) {
            if let Some(flags) = as_pairs {
                return Err(Error::BadRows(format!("{rows_are}: read them as pairs with {flags}")));
            }
            return Err(Error::BadRows(format!(
                "{rows_are}, and this run has another task; a run of task {} reads them",
                name_of(task)
            )));
        }
        if task != self.task {
            flags.extend(self.without_format(task));
            flags.insert(0, format!("--task {}", name_of(task)));
        }
        // Nothing to change: the reader says what is wrong with the rows.
        if flags.is_empty() {
            return Ok(());
        }

        let or_reversed = if self.knows_direction(layout) { "" } else { OR_REVERSED };
        let or_pairs = as_pairs.map(|flags| format!("\nto translate with them, read them as pairs with {flags}"));
        let more = match layout {
            Layout::LabelLists { .. } => {
                "\nthat reads the first label of each list: several labels of one text are not supported".to_owned()
            }
            Layout::Labelled { label, .. } | Layout::LabelledPairs { label, .. } if label == UNKNOWN => {
                self.unclear_class(rows, order, source)
            }
            Layout::Labelled { text, label } if task == Task::Classification => {
                let nested = if self.task == Task::Translation { nested::advice(rows, source) } else { String::new() };
                other_classes(rows, label, &[text], self.labels)
                    + &left_out::other_texts(rows, order, &[text, label])
                    + &scored::note(rows, label, &flags, source)
                    + &nested
            }
            Layout::LabelledPairs { text, pair, label } if task == Task::Classification => {
                other_classes(rows, label, &[text, pair], self.labels)
                    + &left_out::other_texts(rows, order, &[text, pair, label])
                    + &self.fit_pairs(layout, rows, source)
                    + &scored::note(rows, label, &flags, source)
            }
            Layout::Texts { .. } if self.task == Task::Translation => {
                as_pairs::unclear(rows, order) + &nested::advice(rows, source)
            }
            Layout::Texts { .. } if self.task == Task::Classification => nested::advice(rows, source),
            Layout::Pairs { .. } | Layout::Answers { .. } => {
                let alone = match layout {
                    Layout::Pairs { .. } => self.one_text(rows, order),
                    _ => String::new(),
                };
                alone + &self.of_other_texts(layout, (rows, order), asked.as_ref().map(|(asked, _)| asked), source)
            }
            Layout::Texts { field: text } | Layout::Labelled { text, .. }
                if matches!(task, Task::Lm | Task::Mlm) && !text.contains('{') =>
            {
                share::note(rows, text).map_or(String::new(), |note| format!("\n{note}"))
            }
            _ => String::new(),
        };
        Err(Error::BadRows(format!(
            "{rows_are}: read them as such with {}{or_reversed}{}{more}",
            flags.join(" "),
            or_pairs.unwrap_or_default()
        )))
    }

    /// Recognizes the layout of rows that this reader does not read. A task that learns classes looks for a class first.
    fn layout(&self, rows: &[Map<String, Value>], order: &[String], format: FileFormat) -> Option<Layout> {
        if format.has_tags() {
            return Some(Layout::Tagged { words: "tokens".into(), tags: "tags".into() });
        }
        if rows.iter().any(|row| self.is_rated(row)) {
            return Some(Layout::Rated);
        }
        let learns_classes = matches!(self.task, Task::Classification | Task::Tagging);
        let words = || tagged(rows, [&self.labels.words_field, &self.labels.tags_field]);
        let spans = || of_spans(rows, order, self.labels).filter(|_| self.task == Task::Tagging);
        let of_classes = || words().or_else(spans).or_else(|| of_classes(rows, order, self.labels));
        learns_classes.then(of_classes).flatten().or_else(|| recognize(rows, order))
    }

    /// Whether a tagger finds lists in the row, or another task reads it.
    fn has_lists(&self, row: &Map<String, Value>) -> bool {
        let is_list = |name: &String| value_at(row, name).is_some_and(Value::is_array);
        self.task != Task::Tagging || is_list(&self.labels.words_field) && is_list(&self.labels.tags_field)
    }

    /// Whether the row has an answer and a rating of it: in a known layout, or in the fields that this reader is set to.
    fn is_rated(&self, row: &Map<String, Value>) -> bool {
        let is_chat = self.task == Task::Lm && self.text.format == TextFormat::Chat;
        let is_conversation = || is_chat && Conversation::of(row, &self.text.field).is_ok();
        is_rated(row) || Rating::of(row).is_some() && is_conversation()
    }
}
