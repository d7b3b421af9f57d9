//! Tables that a language model reads by their columns, without the column that the configuration names.

use std::path::Path;

use super::RowReader;
use super::recognize::texts_in;
use crate::corpus::json::{FirstRows, first_rows};
use crate::corpus::pairs::flag;
use crate::corpus::path::value_at;
use crate::corpus::share;
use crate::corpus::text::{Task, TextFormat};
use crate::error::{Error, Result};
use crate::formats::FileFormat;

impl RowReader<'_> {
    /// Refuses a table whose text stands in another column, and names it: the one with most of the text.
    pub(super) fn check_columns(&self, file: &Path) -> Result<()> {
        let reads_columns = matches!(self.task, Task::Lm | Task::Mlm) && self.text.format == TextFormat::Records;
        let is_table = |format: &FileFormat| [FileFormat::CSV, FileFormat::TSV].contains(format);
        let Some(format) = FileFormat::by_name(file).filter(is_table).filter(|_| reads_columns) else { return Ok(()) };
        let FirstRows { rows, order, .. } = first_rows(file, format);
        let field = &self.text.field;
        if rows.is_empty() || field.contains('{') || rows.iter().any(|row| value_at(row, field).is_some()) {
            return Ok(());
        }

        let texts = texts_in(&rows, &order);
        let length = |name: &String| rows.iter().filter_map(|row| Some(row.get(name)?.as_str()?.len())).sum::<usize>();
        let Some(longest) = texts.iter().max_by_key(|name| length(name)) else { return Ok(()) };
        let others: Vec<&str> = texts.iter().filter(|name| *name != longest).map(String::as_str).collect();
        let others = if others.is_empty() {
            String::new()
        } else {
            format!("\nother columns with texts: {}", others.join(", "))
        };
        let note = share::note(&rows, longest).map_or(String::new(), |note| format!("\n{note}"));
        Err(Error::corpus(
            file,
            format!(
                "its columns are {}, and none of them is \"{field}\": name the one with the text, {}{note}{others}",
                order.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", "),
                flag("data.text.field", longest)
            ),
        ))
    }
}
