//! What to do about rows that cannot be used.

#[cfg(test)]
mod tests;

use std::path::Path;

use serde_json::Value;

use super::header::{Columns, field_flags};
use super::{CorpusInput, OR_REVERSED, PairCorpus, Table, flag, says_direction, texts_of};
use crate::corpus::fields::is_id_name;
use crate::corpus::path::value_at;
use crate::corpus::template::is_of_template;
use crate::corpus::{RowReport, json, merged};
use crate::formats::{FileFormat, RowProblem};

/// Says how blank cells below filled ones are filled.
fn merged_cells(table: &Table) -> Option<String> {
    let Columns { source, target, .. } = table.columns;
    [source, target].into_iter().find_map(|column| merged::advice(&table.path, column))
}

impl PairCorpus {
    /// Returns what to do about the bad rows of `report`.
    pub(super) fn remedy(&self, report: &RowReport) -> String {
        if report.shown.iter().any(|row| is_of_template(&row.problem)) {
            return "correct the templates (data.corpus.source_field, data.corpus.target_field), or the rows"
                .to_owned();
        }
        if report.shown.iter().any(|row| RowProblem::is_of_format(&row.problem)) {
            return "cells seem to be in quotes and to have line breaks, and TSV has no quoting: --set data.corpus.format=csv"
                .to_owned();
        }
        if let Some(flags) = self.flags_for_quoted_table().or_else(|| self.flags_for_narrow_table()) {
            return flags;
        }

        if let Some(fields) = self.names_of_first_row() {
            let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
            let or_reversed = match texts_of(&fields) {
                [Some(source), Some(target)] if !says_direction(fields[source], fields[target]) => OR_REVERSED,
                _ => "",
            };
            return format!("name the fields of the rows: {}{or_reversed}", field_flags(&fields));
        }
        if let Some(merged) = self.tables().find_map(merged_cells).filter(|_| 2 * report.one_sided > report.bad()) {
            return merged;
        }
        match self.flags_for_numbers() {
            Some(flags) => format!("correct them, or write the numbers as texts: {flags}"),
            None => "correct them, or set data.corpus.format if it is not the right one".to_owned(),
        }
    }

    fn tables(&self) -> impl Iterator<Item = &Table> {
        self.inputs.iter().filter_map(|input| match input {
            CorpusInput::Table(table) => Some(table),
            _ => None,
        })
    }

    /// Returns the flag for a TSV file whose cells are in quotes.
    fn flags_for_quoted_table(&self) -> Option<String> {
        let table = self.tables().find(|table| table.is_quoted)?;
        Some(format!(
            "cells of {} are in quotes, which TSV does not have; if a program has quoted them: --set data.corpus.format=csv",
            table.path.display()
        ))
    }

    /// Returns the flags for a table whose first row lacks a column that the numbers of the configuration mean.
    fn flags_for_narrow_table(&self) -> Option<String> {
        let lacks_one = |table: &&Table| table.columns.source.max(table.columns.target) >= table.n_columns;
        let Table { path, n_columns, .. } = self.tables().filter(lacks_one).find(|table| table.n_columns > 1)?;
        Some(format!(
            "{} has {n_columns} columns: count those with the texts from 0, for example --set data.corpus.source_column={} --set \
             data.corpus.target_column={}",
            path.display(),
            n_columns - 2,
            n_columns - 1
        ))
    }

    /// Returns the names of the fields in the first JSON row, unless it has the wanted ones.
    fn names_of_first_row(&self) -> Option<Vec<String>> {
        let (path, format) = self.records().next()?;
        let row = json::first_rows(path, format).rows.into_iter().next()?;
        let has = |field: &String| field.contains('{') || value_at(&row, field).is_some();
        // Nobody learns the number or the name of a row, or a list.
        let is_text = |name: &String| {
            !is_id_name(name) && value_at(&row, name).is_none_or(|value| !value.is_array() && !value.is_object())
        };
        let fields = json::fields_of_first_row(path, format)?.into_iter().map(|field| field.name);
        let names: Vec<String> = fields.filter(is_text).collect();
        if names.len() < 2 {
            return None;
        }
        (!has(&self.config.source_field) || !has(&self.config.target_field)).then_some(names)
    }

    /// Returns the files of JSON rows and other records with their formats.
    fn records(&self) -> impl Iterator<Item = (&Path, FileFormat)> {
        self.inputs.iter().filter_map(|input| match input {
            CorpusInput::Jsonl(path) => Some((path.as_path(), FileFormat::JSON)),
            CorpusInput::Records(path, format) => Some((path.as_path(), *format)),
            _ => None,
        })
    }

    /// Returns the flags that make texts of numbers, for fields that have numbers in the first rows.
    fn flags_for_numbers(&self) -> Option<String> {
        let rows: Vec<_> = self.records().flat_map(|(path, format)| json::first_rows(path, format).rows).collect();
        let is_number = |field: &str| rows.iter().any(|row| value_at(row, field).is_some_and(Value::is_number));
        let keys = [
            ("data.corpus.source_field", &self.config.source_field),
            ("data.corpus.target_field", &self.config.target_field),
        ];
        let with_numbers = keys.into_iter().filter(|(_, field)| is_number(field));
        let flags: Vec<String> = with_numbers.map(|(key, field)| flag(key, &format!("{{{field}}}"))).collect();
        (!flags.is_empty()).then(|| flags.join(" "))
    }
}
