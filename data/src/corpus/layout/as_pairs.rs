//! Questions and answers that are translated.

use std::path::Path;

use serde_json::{Map, Value};

use super::classes::has;
use super::recognize::texts_in;
use super::{Layout, RowReader};
use crate::corpus::asked::Asked;
use crate::corpus::columns::columns_of;
use crate::corpus::fields::{ANSWERS, names_behind, with_text_behind};
use crate::corpus::jq::{self, path_in_jq};
use crate::corpus::pairs::{flag, says_direction};
use crate::corpus::path::value_at;
use crate::corpus::share::listed;
use crate::corpus::text::{Task, is_system};
use crate::formats::FileFormat;

impl RowReader<'_> {
    /// Returns a question in several fields, of which the layout has one with its answer, and the template that reads all of them. `None`
    /// if the user has named the source.
    pub(super) fn asked_of(
        &self,
        layout: &Layout,
        rows: &[Map<String, Value>],
        order: &[String],
    ) -> Option<(Asked, String)> {
        let (Layout::Pairs { source: question, target: answer } | Layout::Answers { question, answer }) = layout else {
            return None;
        };
        let columns = columns_of(rows);
        let in_order = order.iter().filter_map(|name| columns.get_key_value(name));
        let strings = in_order.filter(|(_, column)| column.is_string).map(|(name, column)| (name.as_str(), column));
        let found = Asked::among(strings).filter(|found| found.answer == *answer && found.parts.contains(question))?;
        let is_known = names_behind(question).iter().any(|name| found.parts.iter().any(|part| part == name));
        if is_known || rows.iter().any(|row| has(row, &self.corpus.source_field)) {
            return None;
        }
        let is_blank = |row: &Map<String, Value>, name: &str| {
            value_at(row, name).and_then(Value::as_str).is_none_or(|text| text.trim().is_empty())
        };
        let template = found.template(|name| rows.iter().any(|row| is_blank(row, name)));
        Some((found, template))
    }

    /// Returns the settings that this reader lacks to translate questions into answers. A text that belongs to the question, such as
    /// Alpaca's `input`, is part of the source.
    pub(super) fn flags_of_pairs(
        &self,
        layout: &Layout,
        rows: &[Map<String, Value>],
        asked: Option<&(Asked, String)>,
    ) -> Option<String> {
        let Layout::Answers { question, answer } = layout else { return None };
        let has_text = |row: &Map<String, Value>, name: &str| {
            row.get(name).and_then(Value::as_str).is_some_and(|text| !text.trim().is_empty())
        };
        let are_texts = |row: &Map<String, Value>| {
            [question, answer].into_iter().all(|name| row.get(name).is_some_and(Value::is_string))
        };
        if self.task != Task::Translation || !rows.iter().all(are_texts) {
            return None;
        }

        // A field that the user has named stays.
        let behind = names_behind(question).iter().find(|name| rows.iter().any(|row| has_text(row, name)));
        let behind = behind.filter(|_| self.corpus.source_field != *question);
        let of_asked = || asked.map_or_else(|| question.clone(), |(_, template)| template.clone());
        let source = behind.map_or_else(of_asked, |name| with_text_behind(question, name));
        let flags = self.pair_flags(&source, answer).join(" ");
        (!flags.is_empty()).then_some(flags)
    }

    /// Says which texts a question and its answer leave out. Of a question in several fields it says how one field is read alone, or how a
    /// conversation has all of them.
    pub(super) fn of_other_texts(
        &self,
        layout: &Layout,
        (rows, order): (&[Map<String, Value>], &[String]),
        asked: Option<&Asked>,
        (file, format): (&Path, FileFormat),
    ) -> String {
        let (Layout::Pairs { source: question, target: answer } | Layout::Answers { question, answer }) = layout else {
            return String::new();
        };
        let Some(asked) = asked else { return others(rows, order, &[question, answer]) };
        if matches!(layout, Layout::Answers { .. }) {
            return others(rows, order, &[question, answer]) + &command_for_chat(asked, file, format);
        }
        let read: Vec<&String> = asked.parts.iter().chain([answer]).collect();
        let task = if self.task == Task::Translation { "" } else { "--task translation " };
        format!(
            "\nthat reads {}; to read \"{question}\" alone: {task}{}{}",
            asked.named(),
            self.pair_flags(question, answer).join(" "),
            others(rows, order, &read)
        )
    }

    /// Says how a language model learns one text of a pair, where the user has asked for one that reads plain texts.
    pub(super) fn one_text(&self, rows: &[Map<String, Value>], order: &[String]) -> String {
        if !matches!(self.task, Task::Lm | Task::Mlm) || self.text.is_chat() {
            return String::new();
        }
        let columns = columns_of(rows);
        let mut texts = texts_in(rows, order);
        texts.sort_by_key(|name| std::cmp::Reverse(columns.get(name).map_or(0, |column| column.n_bytes)));
        let Some((longest, others)) = texts.split_first() else { return String::new() };
        let (_, flags) = self.flags(&Layout::Texts { field: longest.clone() }).unwrap_or((self.task, Vec::new()));
        let others = if others.is_empty() { String::new() } else { format!(" (other texts: {})", others.join(", ")) };
        format!("\nto learn one text alone: {}{others}", flags.join(" "))
    }

    /// Turns a pair round if the configuration has one of its fields on the other side. Fields of the configuration that the rows have
    /// stay.
    pub(super) fn turned(&self, layout: Layout, rows: &[Map<String, Value>]) -> Layout {
        let now = self.corpus;
        let Layout::Pairs { source, target } = layout else { return layout };
        let is_turned = now.source_field == target || now.target_field == source;
        let [source, target] = if is_turned { [target, source] } else { [source, target] };
        let kept = |now: &String, found| if rows.iter().any(|row| has(row, now)) { now.clone() } else { found };
        Layout::Pairs { source: kept(&now.source_field, source), target: kept(&now.target_field, target) }
    }

    /// Whether the names of a pair, or the configuration, say which text is the source. Other layouts have no direction.
    pub(super) fn knows_direction(&self, layout: &Layout) -> bool {
        let (Layout::Pairs { source, target } | Layout::Answers { question: source, answer: target }) = layout else {
            return true;
        };
        if ANSWERS.contains(&[source.as_str(), target.as_str()]) {
            return true;
        }
        let is_set = self.corpus.source_field == *source || self.corpus.target_field == *target;
        is_set || says_direction(source, target)
    }

    /// Returns the settings that this reader lacks to read pairs with these fields.
    pub(super) fn pair_flags(&self, source: &str, target: &str) -> Vec<String> {
        let of_source = ("data.corpus.source_field", &self.corpus.source_field, source);
        let of_target = ("data.corpus.target_field", &self.corpus.target_field, target);
        let others = [of_source, of_target].into_iter().filter(|(_, now, wanted)| now.as_str() != *wanted);
        others.map(|(key, _, wanted)| flag(key, wanted)).collect()
    }
}

/// Names the fields with texts, where several could be source and target; empty for one text.
pub(super) fn unclear(rows: &[Map<String, Value>], order: &[String]) -> String {
    let texts = texts_in(rows, order);
    if texts.len() < 2 {
        return String::new();
    }
    let names = listed(&texts.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>());
    format!(
        "\nits texts are in {names}; to learn to write one of them from another: --set data.corpus.source_field=NAME --set \
         data.corpus.target_field=NAME"
    )
}

/// Returns the command that makes prompts of all parts of a question, with its answers as their completions, and the flags that read them.
fn command_for_chat(asked: &Asked, file: &Path, format: FileFormat) -> String {
    let path = |name: &String| path_in_jq(&name.split('.').map(str::to_owned).collect::<Vec<_>>());
    let parts: Vec<String> = asked.parts.iter().map(path).collect();
    let program = format!(
        "{{prompt: ([{}] | map(strings | select(. != \"\")) | join(\"\\n\")), completion: {}}} | select(.completion | strings | . != \"\")",
        parts.join(", "),
        path(&asked.answer)
    );
    format!(
        "\nto read {} as one question: {}\nand read rows.jsonl with --task lm --set data.text.format=chat",
        asked.named(),
        jq::command(file, format, &program)
    )
}

/// Names further fields with texts than those that are `read`; empty if there are none.
fn others(rows: &[Map<String, Value>], order: &[String], read: &[&String]) -> String {
    let is_behind = |name: &String| read.iter().any(|other| names_behind(other).contains(&name.as_str()));
    let is_read = |name: &String| read.contains(&name) || is_behind(name) || is_system(name);
    let texts: Vec<String> = texts_in(rows, order).into_iter().filter(|name| !is_read(name)).collect();
    if texts.is_empty() { String::new() } else { format!("\nthat leaves out the texts in {}", listed(&texts)) }
}
