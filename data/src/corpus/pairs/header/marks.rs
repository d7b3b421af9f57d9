//! A column that judges the pairs of a table, such as 1 for a paraphrase: all of them are learned.

use std::path::Path;

use super::Columns;
use crate::corpus::columns::Column;
use crate::corpus::jq::{fed, piped};
use crate::corpus::judgements::judges;
use crate::formats::CsvRows;

/// Values for texts that belong together.
const RIGHT: [&str; 4] = ["1", "true", "entailment", "entails"];

/// Warns of a column of judgements that is not read. The first row may have names.
pub(in crate::corpus::pairs) fn warning(path: &Path, rows: &[Vec<String>], read: Columns) -> Option<String> {
    let below = if read.header { rows.get(1..)? } else { rows };
    let n = rows.first()?.len();
    let column = |at: usize| Column::of_cells(below.iter().filter_map(|row| row.get(at)).map(String::as_str));
    let name = |at: usize| if read.header { rows[0][at].trim() } else { "" };
    let others = (0..n).filter(|at| ![read.source, read.target].contains(at));
    let (at, column) = others.map(|at| (at, column(at))).find(|(at, column)| judges(name(*at), column))?;

    let called = if read.header { format!("\"{}\"", name(at)) } else { format!("{at}, counted from 0,") };
    let said = format!(
        "warning: column {called} of {} seems to say which of its pairs belong together, and all of them are learned; to learn what it says: \
         --task classification",
        path.display()
    );
    let right = column.values().find(|value| RIGHT.contains(&&*value.trim().to_lowercase()));
    let Some(right) = right else { return Some(said) };
    let way = match CsvRows::first_rows_by_name(path) {
        Ok((b'\t', _)) => {
            let header = if read.header { " || NR == 1" } else { "" };
            let condition = format!("awk -F '\\t' '{{ sub(/\\r$/, \"\") }} ${} == \"{right}\"{header}'", at + 1);
            format!("{} > rows.tsv\nand read rows.tsv", piped(path, &condition))
        }
        _ => {
            let header = if read.header { " or n == 0" } else { "" };
            let script = format!(
                "python3 -c 'import csv, sys; [csv.writer(sys.stdout).writerow(row) for n, row in enumerate(csv.reader(open(0, \
                 encoding=\"utf-8-sig\", newline=\"\"){})) if row[{at}].strip() == \"{right}\"{header}]'",
                CsvRows::options_of_python(path)
            );
            format!("{} > rows.csv\nand read rows.csv", fed(path, &script))
        }
    };
    Some(format!("{said}\nto keep those with {right} alone: {way} with the same flags"))
}
