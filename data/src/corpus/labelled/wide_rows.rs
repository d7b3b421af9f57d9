//! Rows of a table that are wider than its header, because delimiters in their texts have no quotes.

use std::path::Path;

use super::LabelConfig;
use crate::corpus::jq::fed;
use crate::formats::{CsvRows, FileFormat};

/// Says how the texts of a table are put in quotes, where delimiters in them have made rows wider than the header. `None` for other files.
pub(super) fn advice(file: &Path, config: &LabelConfig) -> Option<String> {
    let is_table = FileFormat::by_name(file).is_some_and(|format| [FileFormat::CSV, FileFormat::TSV].contains(&format));
    let (delimiter, rows) = CsvRows::first_rows_by_name(file).ok().filter(|_| is_table)?;
    let (names, rows) = rows.split_first()?;
    let text = names.iter().position(|name| name.trim() == config.text_field)?;
    let n_wide = rows.iter().filter(|row| row.len() > names.len()).count();
    let is_narrow = |row: &Vec<String>| row.len() < names.len();
    if n_wide == 0 || rows.iter().any(is_narrow) || delimiter == b'\t' {
        return None;
    }

    let (width, options) = (names.len(), CsvRows::options_of_python(file));
    let delimiter = char::from(delimiter);
    let script = format!(
        "python3 -c 'import csv, sys\nout = csv.writer(sys.stdout, delimiter=\"{delimiter}\")\nfor row in csv.reader(open(0, encoding=\"utf-8-sig\", \
         newline=\"\"){options}):\n  end = {text} + max(len(row) - {width}, 0) + 1\n  out.writerow(row[:{text}] + \
         [\"{delimiter}\".join(row[{text}:end])] + row[end:])'"
    );
    Some(format!(
        "{n_wide} of the first {} rows have more columns than the header, as where `{delimiter}` stands in texts without quotes; to put \"{}\" in \
         quotes: {} > rows.csv\nand read rows.csv with the same flags",
        rows.len(),
        config.text_field,
        fed(file, &script)
    ))
}
