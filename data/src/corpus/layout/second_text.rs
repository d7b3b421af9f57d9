//! The second text of rows with a class, where the user has named its field.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::classes::{has, of_classes};
use super::recognize::names_in;
use super::{Layout, RowReader};
use crate::corpus::labelled::LabelConfig;
use crate::corpus::pairs::flag;
use crate::corpus::text::Task;
use crate::error::{Error, Result};
use crate::formats::{FileFormat, Wanted};

impl RowReader<'_> {
    /// Refuses a second text that the user has named and that no row of the `files` has. `rows` are the first ones of a file, with the
    /// order of their fields.
    pub(super) fn check_second_text(
        &self,
        (rows, order): (&[Map<String, Value>], &[String]),
        files: &[PathBuf],
    ) -> Result<()> {
        let field = &self.labels.pair_field;
        let is_named = self.task == Task::Classification && *field != LabelConfig::default().pair_field;
        // Rows may lack a second text: whether all do is known at the end.
        if !is_named || rows.is_empty() || rows.iter().any(|row| has(row, field)) || is_in(files, field)? {
            return Ok(());
        }

        let names = names_in(rows).iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
        let file = files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ");
        let remedy = match of_classes(rows, order, self.labels) {
            Some(Layout::LabelledPairs { pair, .. }) => flag("data.labels.pair_field", &pair),
            _ => "name the field with the second text, or leave data.labels.pair_field out if rows have one text"
                .to_owned(),
        };
        Err(Error::BadRows(format!(
            "{file}: no row has the field \"{field}\" of data.labels.pair_field (they have {names}): {remedy}"
        )))
    }
}

/// Whether a row of the files has the field.
fn is_in(files: &[PathBuf], field: &str) -> Result<bool> {
    for file in files {
        let format = FileFormat::by_name(file).unwrap_or(FileFormat::JSON);
        let (mut records, mut json) = (format.open(file, &Wanted::all())?, Vec::new());
        while records.next(&mut json)?.is_some() {
            if serde_json::from_slice::<Map<String, Value>>(&json).is_ok_and(|row| has(&row, field)) {
                return Ok(true);
            }
            json.clear();
        }
    }
    Ok(false)
}
