//! Rows whose names do not tell what to learn: the fields with an example of each, for the user to choose.

use std::path::Path;

use serde_json::{Map, Value};

use super::recognize::texts_in;
use super::{Layout, RowReader};
use crate::corpus::columns::{Column, columns_of, rank_of_class, with_examples};
use crate::corpus::compared::is_fit;
use crate::corpus::jq;
use crate::corpus::pairs::are_of_languages;
use crate::corpus::path::value_at;
use crate::corpus::share;
use crate::corpus::text::Task;
use crate::formats::FileFormat;

/// What can be learned of rows, with flags that the user completes.
const WAYS: [(Task, &str); 3] = [
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

impl RowReader<'_> {
    /// Returns what to say of two texts in no known direction next to values that recur, which may be a class of one of them, and of texts
    /// next to lists with more text where pairs are wanted.
    pub(super) fn unsure(&self, layout: &Layout, rows: &[Map<String, Value>], order: &[String]) -> Option<String> {
        let fields: Vec<&str> = match layout {
            Layout::Pairs { source, target } if !self.knows_direction(layout) => vec![source, target],
            Layout::Texts { field } if self.task == Task::Translation => vec![field],
            _ => return None,
        };
        if self.has_named_a_field(rows) {
            return None;
        }
        // Fields next to lists with more text are seldom what to learn.
        let are_named = matches!(fields[..], [source, target] if are_of_languages(source, target));
        let key = if self.task == Task::Translation { "data.corpus.source_field" } else { "data.text.field" };
        let elsewhere = share::elsewhere(rows, &fields, key).filter(|_| !are_named);
        let columns = columns_of(rows);
        let texts = texts_in(rows, order);
        let columns = || {
            order.iter().filter_map(|name| columns.get_key_value(name)).map(|(name, column)| (name.as_str(), column))
        };
        let is_text = |name: &str| texts.iter().any(|text| text == name);
        // The same word in all rows says nothing.
        let can_be = |name: &str, column: &Column| !column.is_constant() && rank_of_class(name, column) > 0;
        let classes = || columns().filter(|(name, column)| !is_text(name) && can_be(name, column));
        let is_choice = fields.len() > 1 && texts.len() > 1 && classes().next().is_some();
        if !is_choice && elsewhere.is_none() {
            return None;
        }
        let recurring =
            classes().next().map_or(String::new(), |_| format!("\nvalues that recur: {}", with_examples(classes())));

        let ways: Vec<&str> = WAYS
            .iter()
            .filter(|(task, _)| *task == self.task || self.other_tasks.contains(task))
            .map(|(_, way)| *way)
            .collect();
        Some(format!(
            ", and their names do not tell what to learn: write your choice for NAME\ntexts: {}{recurring}{}\n{}",
            with_examples(columns().filter(|(name, _)| is_text(name))),
            elsewhere.unwrap_or_default(),
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
        let field = jq::in_jq(label);
        let condition = match fit {
            Value::Bool(_) if is_table => format!("({field} | ascii_downcase) == \"true\""),
            Value::Number(number) if is_table => format!("{field} == \"{number}\""),
            fit => format!("{field} == {fit}"),
        };
        let task = if self.task == Task::Translation { "" } else { "--task translation " };
        let flags: Vec<String> =
            self.pair_flags(text, pair).into_iter().chain(self.without_format(Task::Translation)).collect();
        format!(
            "\nto learn \"{pair}\" from \"{text}\", keep the rows whose \"{label}\" is {fit}: {}\nand read rows.jsonl with {task}{}",
            jq::command(file, format, &format!("select({condition})")),
            flags.join(" ")
        )
    }
}
