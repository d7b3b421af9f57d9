//! Fields without texts that the user or their names say are read: what they hold, and how they become texts.

use std::path::Path;

use serde_json::{Map, Value};

use super::references::{each, names_several};
use super::said::{name_of, without};
use super::{Layout, RowReader, extractive};
use crate::corpus::fields::{ANSWERS, words_of};
use crate::corpus::jq::{self, path_in_jq};
use crate::corpus::pairs::flag;
use crate::corpus::path::value_at;
use crate::corpus::roles::{Role, is_changed_into, is_of};
use crate::corpus::text::{Task, TextFormat};
use crate::corpus::values::written_texts;
use crate::formats::FileFormat;

/// Words of a point of a list, on average, rather than of a keyword.
const WORDS_OF_POINT: usize = 3;

/// Words of names of fields with keywords.
const KEYWORDS: [&str; 6] = ["keywords", "keyphrases", "tags", "topics", "labels", "entities"];

/// What a field has in place of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Booleans,
    Numbers,
    Objects,
    /// Lists of texts of several words.
    Points,
    /// Lists of keywords.
    Keywords,
    /// Lists of the words of a text.
    Words,
    /// Lists of texts in strings.
    Written,
}

/// A field with other values than texts.
pub(super) struct Mended {
    field: String,
    form: Form,
}

impl Form {
    /// Says what the values are, what to do, and the expression of jq that does it.
    fn said(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Booleans => (
                "true or false",
                "write yes or no for it",
                r#"if . == true then "yes" elif . == false then "no" else . end"#,
            ),
            Self::Numbers => ("a number", "make a text of it", "tostring"),
            Self::Objects => ("an object", "make a text of its JSON", r#"if type == "string" then . else tojson end"#),
            Self::Points => (
                "a list of texts",
                "write each of them into a line",
                r#"if type == "array" then join("\n") else . end"#,
            ),
            Self::Keywords => {
                ("a list of words", "join them with commas", r#"if type == "array" then join(", ") else . end"#)
            }
            Self::Words => ("a list of words", "join them", r#"if type == "array" then join(" ") else . end"#),
            Self::Written => (
                "a list of texts in a string",
                "keep the first one of each list",
                r#"(fromjson? // .) | if type == "array" then .[0] else . end"#,
            ),
        }
    }
}

impl Mended {
    pub(super) fn is_boolean(&self) -> bool {
        self.form == Form::Booleans
    }

    /// Returns the rows with a text in the field.
    fn with_text(&self, rows: &[Map<String, Value>]) -> Vec<Map<String, Value>> {
        let mut rows = rows.to_vec();
        let values = rows.iter_mut().filter_map(|row| row.get_mut(&self.field));
        values.enumerate().for_each(|(at, value)| *value = format!("a text {at}").into());
        rows
    }

    /// Returns the program of jq that makes texts of the values. Rows whose list has none are left out.
    fn program(&self) -> String {
        let path = path_in_jq(&self.field.split('.').map(str::to_owned).collect::<Vec<_>>());
        let (.., expression) = self.form.said();
        match self.form {
            // jq 1.6 loses values that `|=` updates with `?`.
            Form::Written => {
                format!("{path} = ({path} | {expression}) | select({path} | strings | . != \"\")")
            }
            _ => format!("{path} |= {expression}"),
        }
    }
}

impl RowReader<'_> {
    /// Returns a field of the configuration that has no texts in most `rows`.
    pub(super) fn named_without_texts(&self, rows: &[Map<String, Value>]) -> Option<Mended> {
        let fields: Vec<&str> = match self.task {
            Task::Translation => vec![&self.corpus.source_field, &self.corpus.target_field],
            Task::Lm if self.text.format == TextFormat::Chat => self
                .text
                .field
                .split_once(',')
                .into_iter()
                .flat_map(|(one, other)| [one.trim(), other.trim()])
                .collect(),
            Task::Lm | Task::Mlm | Task::Classification | Task::Tagging => Vec::new(),
        };
        // Numbers have a way of their own, and the user may mean a field of an object, or a list as it is written.
        let is_mended =
            |found: &Mended| matches!(found.form, Form::Booleans | Form::Points | Form::Keywords | Form::Words);
        fields.into_iter().filter_map(|field| of(rows, field)).find(is_mended)
    }

    /// Returns a field that answers a question or is made of another text, by its name, and has no texts.
    pub(super) fn answer_without_texts(&self, rows: &[Map<String, Value>]) -> Option<Mended> {
        let is_chat = self.text.format == TextFormat::Chat;
        if !matches!(self.task, Task::Lm | Task::Translation) {
            return None;
        }
        let first = rows.first()?;
        let has_text = |row: &Map<String, Value>, name: &str| {
            row.get(name).and_then(Value::as_str).is_some_and(|text| !text.trim().is_empty())
        };
        let is_filled = |name: &&String| 2 * rows.iter().filter(|row| has_text(row, name)).count() > rows.len();
        let texts: Vec<&String> = first.keys().filter(is_filled).collect();
        let is_made = |name: &str| {
            let asks = |text: &&String| {
                is_of(Role::Question, text) && is_of(Role::Answer, name) || ANSWERS.contains(&[text.as_str(), name])
            };
            texts.iter().any(|text| text.as_str() != name && (asks(text) || is_changed_into(text, name) == Some(true)))
        };

        let found: Vec<Mended> = first.keys().filter(|name| is_made(name)).filter_map(|name| of(rows, name)).collect();
        let has_text = texts.iter().any(|name| is_made(name) && found.iter().all(|one| one.field != **name));
        // A text next to a list of keywords is a text.
        let is_read = |found: &Mended| match found.form {
            Form::Booleans => true,
            Form::Written => is_plural(&found.field),
            Form::Numbers => is_chat,
            Form::Objects | Form::Points | Form::Keywords | Form::Words => is_chat || self.task == Task::Translation,
        };
        found.into_iter().find(is_read).filter(|_| !has_text)
    }

    /// Warns of lists of texts in strings that this reader learns as they are written.
    pub(super) fn note_on_written(
        &self,
        (file, format): (&Path, FileFormat),
        rows: &[Map<String, Value>],
    ) -> Option<String> {
        let is_preferred = self.task == Task::Lm && self.text.format == TextFormat::Preferences;
        let fields: Vec<&str> = match self.task {
            Task::Translation => vec![self.corpus.target_field.as_str()],
            Task::Lm if self.text.format == TextFormat::Chat => vec![self.text.field.split_once(',')?.1.trim()],
            Task::Lm if is_preferred => vec!["prompt", "chosen", "rejected"],
            _ => return None,
        };
        let is_meant = |found: &Mended| found.form == Form::Written && (is_preferred || is_plural(&found.field));
        let found: Vec<Mended> = fields.into_iter().filter_map(|field| of(rows, field)).filter(is_meant).collect();
        let names: Vec<String> = found.iter().map(|found| format!("\"{}\"", found.field)).collect();
        let programs: Vec<String> = found.iter().map(Mended::program).collect();
        Some(format!(
            "warning: {} learns the lists of texts in {} as they are written; to {}: {}",
            file.display(),
            names.join(", "),
            found.first()?.form.said().1,
            jq::command(file, format, &programs.join(" | "))
        ))
    }

    /// Says what the field has, and how it gets texts. `layout` is what the rows are without the field.
    pub(super) fn advice_for(
        &self,
        (file, format): (&Path, FileFormat),
        they_have: &str,
        found: &Mended,
        rows: &[Map<String, Value>],
        layout: Option<&Layout>,
    ) -> String {
        let (what, to, _) = found.form.said();
        // Other texts of the row may belong to the question.
        let whole = extractive::of(&found.with_text(rows));
        let each_of = self.each_of(found).filter(|_| whole.is_none());
        let (to, program, then) = match whole {
            Some(whole) => (
                format!("{to}, and to put the texts that the question is about into the prompt"),
                format!("{} | {}", found.program(), whole.program),
                format!("{}\n{}", without(&whole.left_out), self.read_with("chat", TextFormat::Chat)),
            ),
            None => (to.to_owned(), found.program(), "\nand train on rows.jsonl".to_owned()),
        };
        let command = |program: &str| jq::command(file, format, program);
        let way = match each_of {
            Some(each) if names_several(&found.field) => {
                format!("make a row of each of them: {}{then}\nor to {to}: {}", command(&each), command(&program))
            }
            Some(each) => {
                format!("{to}: {}{then}\nor to make a row of each of them: {}", command(&program), command(&each))
            }
            None => format!("{to}: {}{then}{}", command(&program), self.template_of(found)),
        };

        let otherwise = layout.map_or_else(String::new, |layout| self.otherwise(layout, found));
        format!(
            "{}: its field \"{}\" is {what}{they_have}, and a text is wanted\nto {way}{otherwise}",
            file.display(),
            found.field
        )
    }

    /// Returns the program of jq that makes a row of each text of a list that this reader wants as the target or the answer.
    fn each_of(&self, found: &Mended) -> Option<String> {
        let is_list = match found.form {
            Form::Points => true,
            Form::Words => names_several(&found.field),
            _ => false,
        };
        let path = path_in_jq(&found.field.split('.').map(str::to_owned).collect::<Vec<_>>());
        let is_source = self.task == Task::Translation && found.field == self.corpus.source_field;
        (is_list && !is_source).then(|| each(&path, &format!("{path} = $text")))
    }

    /// Names the template that joins the lists of a source.
    fn template_of(&self, found: &Mended) -> String {
        let is_source = self.task == Task::Translation && found.field == self.corpus.source_field;
        let is_list = matches!(found.form, Form::Points | Form::Keywords | Form::Words);
        match is_source && is_list {
            true => {
                let template = flag("data.corpus.source_field", &format!("{{{}}}", found.field));
                format!("\nor to read the file as it is, with each list joined by spaces: {template}")
            }
            false => String::new(),
        }
    }

    /// Says how the rows are read without a text in such a field.
    fn otherwise(&self, layout: &Layout, found: &Mended) -> String {
        let what = match layout {
            Layout::Labelled { label, .. } | Layout::LabelledPairs { label, .. } if *label == found.field => {
                "to learn it as a class"
            }
            Layout::Texts { .. } => "to learn the other texts alone",
            _ => return String::new(),
        };
        let Some((task, mut flags)) = self.flags(layout).filter(|(task, _)| self.other_tasks.contains(task)) else {
            return String::new();
        };
        flags.extend(self.without_format(task));
        format!("\n{what}: --task {} {}", name_of(task), flags.join(" "))
    }
}

/// Whether a name says that a field has several answers.
fn is_plural(name: &str) -> bool {
    name.ends_with('s')
}

/// Returns what a field has in place of texts, if it has it in most rows.
fn of(rows: &[Map<String, Value>], field: &str) -> Option<Mended> {
    let values: Vec<&Value> =
        rows.iter().filter_map(|row| value_at(row, field)).filter(|value| !value.is_null()).collect();
    let most = |fits: &dyn Fn(&Value) -> bool| 2 * values.iter().filter(|value| fits(value)).count() > values.len();
    let texts = || values.iter().filter_map(|value| value.as_array()).flatten().filter_map(Value::as_str);

    let form = match () {
        () if most(&Value::is_boolean) => Form::Booleans,
        () if most(&Value::is_number) => Form::Numbers,
        () if most(&Value::is_object) => Form::Objects,
        () if most(&|value| {
            value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(Value::is_string))
        }) =>
        {
            let n_words: usize = texts().map(|text| text.split_whitespace().count()).sum();
            let is_of_keywords = words_of(field).iter().any(|word| KEYWORDS.contains(&word.as_str()));
            match n_words >= WORDS_OF_POINT * texts().count() {
                true => Form::Points,
                false if is_of_keywords => Form::Keywords,
                false => Form::Words,
            }
        }
        () if most(&|value| value.as_str().is_some_and(|text| written_texts(text).is_some())) => Form::Written,
        () => return None,
    };
    Some(Mended { field: field.to_owned(), form })
}
