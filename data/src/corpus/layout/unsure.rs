//! Rows whose names do not tell what to learn: the fields with an example of each, for the user to choose.

use std::path::Path;

use serde_json::{Map, Value};

use super::recognize::texts_in;
use super::{Layout, RowReader};
use crate::corpus::columns::{columns_of, rank_of_class, with_examples};
use crate::corpus::compared::is_fit;
use crate::corpus::jq;
use crate::corpus::path::value_at;
use crate::corpus::text::Task;
use crate::formats::FileFormat;

impl RowReader<'_> {
    /// Returns what to say of two texts in no known direction next to values that recur: these may be a class of one of them.
    pub(super) fn unsure(&self, layout: &Layout, rows: &[Map<String, Value>], order: &[String]) -> Option<String> {
        if !matches!(layout, Layout::Pairs { .. }) || self.knows_direction(layout) || self.has_named_a_field(rows) {
            return None;
        }
        let columns = columns_of(rows);
        let texts = texts_in(rows, order);
        let columns = || {
            order.iter().filter_map(|name| columns.get_key_value(name)).map(|(name, column)| (name.as_str(), column))
        };
        let is_text = |name: &str| texts.iter().any(|text| text == name);
        let classes = || columns().filter(|(name, column)| !is_text(name) && rank_of_class(name, column) > 0);
        classes().next().filter(|_| texts.len() > 1)?;
        let tasks = [
            (Task::Lm, "to learn one of the texts: --task lm --set data.text.field=NAME"),
            (
                Task::Translation,
                "to learn to write one of them from another: --task translation --set data.corpus.source_field=NAME --set \
                 data.corpus.target_field=NAME",
            ),
            (
                Task::Classification,
                "to learn a class of one of them: --task classification --set data.labels.text_field=NAME --set data.labels.label_field=NAME",
            ),
        ];
        let ways: Vec<&str> = tasks
            .iter()
            .filter(|(task, _)| *task == self.task || self.other_tasks.contains(task))
            .map(|(_, way)| *way)
            .collect();
        Some(format!(
            ", and their names do not tell what to learn: write your choice for NAME\ntexts: {}\nvalues that recur: {}\n{}",
            with_examples(columns().filter(|(name, _)| is_text(name))),
            with_examples(classes()),
            ways.join("\n")
        ))
    }

    /// Says which rows of compared texts are fit to learn one of them from the other; empty if the values do not tell.
    pub(super) fn fit_pairs(
        &self,
        layout: &Layout,
        rows: &[Map<String, Value>],
        (file, format): (&Path, FileFormat),
    ) -> String {
        let Layout::LabelledPairs { text, pair, label } = layout else { return String::new() };
        let translates = self.task == Task::Translation || self.other_tasks.contains(&Task::Translation);
        if matches!(self.task, Task::Classification | Task::Tagging) || !translates || label.contains('.') {
            return String::new();
        }
        let fit = rows.iter().filter_map(|row| value_at(row, label)).find(|value| is_fit(label, value));
        let Some(fit) = fit else {
            return format!(
                "\nnot all of these pairs are fit to learn \"{pair}\" from \"{text}\": \"{label}\" says which ones are"
            );
        };
        // The cells of a table are texts.
        let is_table = [FileFormat::CSV, FileFormat::TSV].contains(&format);
        let value = if is_table && !fit.is_string() { Value::from(said(fit)) } else { fit.clone() };
        let task = if self.task == Task::Translation { "" } else { "--task translation " };
        format!(
            "\nto learn \"{pair}\" from \"{text}\", keep the rows whose \"{label}\" is {fit}: {}\nand read rows.jsonl with {task}{}",
            jq::command(file, format, &format!("select({} == {value})", jq::in_jq(label))),
            self.pair_flags(text, pair).join(" ")
        )
    }
}

/// Returns a Boolean as tables have it.
fn said(value: &Value) -> String {
    match value {
        Value::Bool(true) => "True".to_owned(),
        other => other.to_string(),
    }
}
