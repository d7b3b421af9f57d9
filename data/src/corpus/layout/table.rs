//! Tables with names of columns, where pairs are wanted: what else their rows are.

use std::path::Path;

use serde_json::{Map, Value};

use super::converted::they_have;
use super::foreign::foreign;
use super::recognize::{recognize, texts_in};
use super::{Layout, RowReader, extractive, preferred, reasoned, replied};
use crate::corpus::jq;
use crate::corpus::json::{FirstRows, usual_rows};
use crate::corpus::pairs::names_columns;
use crate::corpus::text::{Rating, Task, TextFormat};
use crate::corpus::values::is_boolean;
use crate::error::{Error, Result};
use crate::formats::FileFormat;

impl RowReader<'_> {
    /// Refuses a table of texts with classes, of rated or several answers, or of questions about a text, where this reader wants pairs.
    pub(super) fn check_table(&self, file: &Path) -> Result<()> {
        let is_table = |format: &FileFormat| [FileFormat::CSV, FileFormat::TSV].contains(format);
        let format = FileFormat::by_name(file).filter(is_table).filter(|_| self.task == Task::Translation);
        let Some(format) = format.filter(|_| names_columns(file, self.corpus)) else { return Ok(()) };
        let FirstRows { rows, order, .. } = usual_rows(file, format);
        if rows.is_empty() || self.has_named_a_field(&rows) {
            return Ok(());
        }

        let they_have = they_have(&rows, format);
        if let Some(found) = preferred::of(&rows) {
            return Err(Error::BadRows(self.of_preferred(&found, (file, format), &they_have)));
        }
        if let Some(found) = foreign(&rows, false) {
            return Err(Error::BadRows(self.of_foreign(found, (file, format), &they_have)));
        }
        if let Some(found) = reasoned::of(&rows) {
            return Err(Error::BadRows(self.of_reasoned(&found, (file, format), &they_have)));
        }
        if let Some(found) = extractive::of(&rows) {
            return Err(Error::BadRows(self.of_extractive(&found, (file, format), &they_have)));
        }
        if let Some(found) = replied::of(&rows) {
            return Err(Error::BadRows(self.of_replied(&found, (file, format), &they_have)));
        }
        let typed = typed(&rows);
        let layout = recognize(&typed, &order);
        let n_texts = texts_in(&typed, &order).len();
        let layout = match layout {
            Some(layout @ (Layout::LabelledPairs { .. } | Layout::Rated)) => layout,
            Some(layout @ Layout::Labelled { .. }) if n_texts < 2 => layout,
            _ => return Ok(()),
        };
        let layout = self.with_unclear_class(layout, &typed, &order);
        let rows_are = format!("{}: its rows are {}{they_have}", file.display(), layout.name());
        match self.flags(&layout) {
            Some(found) => self.answer(&rows_are, &layout, (&typed, &order), found, (file, format)),
            None => {
                let advice = self.advice_for_ratings(&rows, file, format);
                Err(Error::BadRows(format!("{rows_are}, good and bad ones, which Kiln cannot tell apart\n{advice}")))
            }
        }
    }

    /// Says what becomes of answers that are rated, if rows have some.
    pub(super) fn advice_for_ratings(&self, rows: &[Map<String, Value>], file: &Path, format: FileFormat) -> String {
        let command = |program: &str| jq::command(file, format, program);
        let advice = rows.iter().find_map(Rating::of).map(|rating| rating.advice(rows, &command));
        advice.map_or_else(String::new, |advice| format!("{advice}\n{}", self.read_with("chat", TextFormat::Chat)))
    }
}

/// Returns rows of texts with numbers and Booleans in the columns that have nothing else.
fn typed(rows: &[Map<String, Value>]) -> Vec<Map<String, Value>> {
    fn cells<'r>(rows: &'r [Map<String, Value>], name: &str) -> Vec<&'r str> {
        let cells = rows.iter().filter_map(|row| row.get(name)?.as_str());
        cells.map(str::trim).filter(|cell| !cell.is_empty()).collect()
    }
    let number = |cell: &str| serde_json::from_str::<Value>(cell).ok().filter(Value::is_number);
    let boolean = |cell: &str| (!cell.is_empty()).then(|| Value::Bool(cell.eq_ignore_ascii_case("true")));
    let mut typed = rows.to_vec();
    for name in rows.iter().take(1).flat_map(Map::keys) {
        let cells = cells(rows, name);
        let are_numbers = cells.iter().all(|cell| number(cell).is_some());
        if cells.is_empty() || !are_numbers && !cells.iter().all(|cell| is_boolean(cell)) {
            continue;
        }
        for row in &mut typed {
            let cell = row.get(name).and_then(Value::as_str).map(str::trim);
            let cell = cell.and_then(|cell| if are_numbers { number(cell) } else { boolean(cell) });
            row.insert(name.clone(), cell.unwrap_or(Value::Null));
        }
    }
    typed
}
