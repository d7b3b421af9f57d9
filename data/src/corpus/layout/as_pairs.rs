//! Questions and answers that are translated.

use serde_json::{Map, Value};

use super::recognize::texts_in;
use super::{Layout, RowReader};
use crate::corpus::fields::{names_behind, with_text_behind};
use crate::corpus::pairs::flag;
use crate::corpus::share::listed;
use crate::corpus::text::{Task, is_system};

impl RowReader<'_> {
    /// Returns the settings that this reader lacks to translate questions into answers. A text that belongs to the question, such as
    /// Alpaca's `input`, is part of the source.
    pub(super) fn flags_of_pairs(&self, layout: &Layout, rows: &[Map<String, Value>]) -> Option<String> {
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
        let source = behind.map_or_else(|| question.clone(), |name| with_text_behind(question, name));
        let flags = self.pair_flags(&source, answer).join(" ");
        (!flags.is_empty()).then_some(flags)
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

/// Names further fields with texts; empty if there are none.
pub(super) fn others(rows: &[Map<String, Value>], order: &[String], read: [&String; 2]) -> String {
    let is_read =
        |name: &String| read.contains(&name) || names_behind(read[0]).contains(&name.as_str()) || is_system(name);
    let texts: Vec<String> = texts_in(rows, order).into_iter().filter(|name| !is_read(name)).collect();
    if texts.is_empty() { String::new() } else { format!("\nthat leaves out the texts in {}", listed(&texts)) }
}
