//! Blank cells of a table that stand below filled ones, as merged cells of a spreadsheet do.

use std::path::Path;

use super::jq::fed;
use crate::formats::CsvRows;

/// Blank cells of a column from which somebody has merged cells, as a fraction.
const MANY: f64 = 0.15;
/// Filled cells that equal the filled one above them, at most, as a fraction.
const EQUAL: f64 = 0.2;

/// Returns the command that fills the blank cells of a column with the cell above. `None` if few are blank, if the first row is, if
/// all cells of such rows are blank, or if filled cells are equal one below the other, as labels are that some rows lack.
pub(super) fn advice(path: &Path, column: usize) -> Option<String> {
    let (delimiter, rows) = CsvRows::first_rows_by_name(path).ok()?;
    let name = rows.first()?.get(column)?.trim();
    let rows: Vec<&Vec<String>> = rows.iter().skip(1).filter(|row| row.len() > column).collect();
    let is_blank = |row: &&Vec<String>| row[column].trim().is_empty();
    let blank: Vec<&Vec<String>> = rows.iter().copied().filter(|row| is_blank(row)).collect();
    let have_others = blank.iter().all(|row| row.iter().any(|cell| !cell.trim().is_empty()));
    // Equal cells would have been merged into one.
    let filled: Vec<&str> = rows.iter().map(|row| row[column].trim()).filter(|cell| !cell.is_empty()).collect();
    let n_equal = filled.windows(2).filter(|pair| pair[0] == pair[1]).count();
    let have_others = have_others && n_equal as f64 <= EQUAL * filled.len() as f64;
    let is_merged = blank.len() as f64 >= MANY * rows.len() as f64 && !is_blank(rows.first()?) && have_others;
    if !is_merged || blank.is_empty() {
        return None;
    }

    let (delimiter, ending) = match delimiter {
        b'\t' => ("\\t".to_owned(), "tsv"),
        other => (char::from(other).to_string(), "csv"),
    };
    let script = format!(
        "python3 -c 'import csv, sys\nabove, out = \"\", csv.writer(sys.stdout, delimiter=\"{delimiter}\")\nfor row in csv.reader(open(0, \
         encoding=\"utf-8-sig\", newline=\"\"), delimiter=\"{delimiter}\"):\n  if len(row) > {column}: above = row[{column}] = row[{column}] if \
         row[{column}].strip() else above\n  out.writerow(row)'"
    );
    Some(format!(
        "blank cells of column {column} ({name:?}) stand below filled ones, as merged cells of a spreadsheet do; if a blank cell means the one \
         above it: {} > filled.{ending}",
        fed(path, &script)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blank_cells_below_filled_ones_can_be_merged() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.csv");
        let of = |rows: &[&str]| {
            std::fs::write(&file, rows.join("\n") + "\n").expect("writable");
            [0, 1].map(|column| advice(&file, column).is_some())
        };
        assert_eq!(of(&["en;de", "a;b", ";c", "d;e", ";f"]), [true, false]);
        assert_eq!(of(&["en;de", "a;b", "c;", "d;e", "f;"]), [false, true]);
        assert_eq!(of(&["en;de", ";b", ";c", "d;e"]), [false, false], "the first is blank");
        assert_eq!(of(&["en;de", "a;b", ";", "d;e"]), [false, false], "a blank row");
        assert_eq!(of(&["en;de", "a;b", "c;d"]), [false, false]);
        let missing = ["label;text", "1;a", ";b", "0;c", "0;d", ";e", "1;f", "1;g", "1;h"];
        assert_eq!(of(&missing), [false, false], "labels that are missing recur next to each other");
    }
}
