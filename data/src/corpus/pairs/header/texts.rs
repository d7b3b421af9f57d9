//! Which columns of a table hold texts, by the cells of its first rows.

use std::path::Path;

use super::Columns;

/// Rows that show that a column has one word only, such as the name of a language.
const ENOUGH_ROWS: usize = 5;
/// Columns that a note names.
const SHOWN: usize = 6;

/// Returns the columns that can be texts: those with a cell that is not a number, a date or an address, and not the same word in all rows.
pub(super) fn columns_of_texts(rows: &[Vec<String>], n_columns: usize) -> Vec<usize> {
    let has_text = |column: &usize| {
        let cells = || rows.iter().filter_map(|row| row.get(*column)).map(|cell| cell.trim());
        let is_constant = rows.len() >= ENOUGH_ROWS
            && cells().next().is_some_and(|first| !first.contains(' ') && cells().all(|cell| cell == first));
        cells().any(is_text) && !is_constant
    };
    (0..n_columns).filter(has_text).collect()
}

/// Whether a cell is more than a number, a date or an address.
fn is_text(cell: &str) -> bool {
    let has_letter = cell.contains(char::is_alphabetic);
    let begins_address = ["http://", "https://", "www."].iter().any(|start| cell.starts_with(start));
    has_letter && cell.parse::<f64>().is_err() && (!begins_address || cell.contains(' '))
}

/// Returns the first two columns with texts if `columns` are the usual ones and one of them has none.
pub(super) fn in_place_of(columns: Columns, texts: &[usize]) -> Option<Columns> {
    let [source, target, ..] = *texts else { return None };
    let is_text = |column| texts.contains(&column);
    let stands = is_text(columns.source) && is_text(columns.target);
    (!stands).then_some(Columns { source, target, ..columns })
}

/// Says which of more than two columns are read, and how others are.
pub(super) fn note(path: &Path, n_columns: usize, read: Columns, usual: Columns, texts: &[usize]) -> String {
    let Columns { source, target, .. } = read;
    let shown = format!(
        "{} has {n_columns} columns: {source} is the source and {target} the target, counted from 0",
        path.display()
    );
    if read != usual {
        let others = (0..n_columns).filter(|column| !texts.contains(column)).take(SHOWN);
        let others: Vec<String> = others.map(|column| column.to_string()).collect();
        return format!(
            "{shown}, because {} {}; to read {} and {}: --set data.corpus.header=no",
            others.join(", "),
            if others.len() == 1 { "has no texts" } else { "have no texts" },
            usual.source,
            usual.target
        );
    }

    let (what, [first, second]) = match *texts {
        [first, second] => ("those with texts", [first, second]),
        [.., first, second] => ("the last two with texts", [first, second]),
        _ => ("the last two", [n_columns - 2, n_columns - 1]),
    };
    if [first, second] == [source, target] {
        return shown;
    }
    format!("{shown}; for {what}: --set data.corpus.source_column={first} --set data.corpus.target_column={second}")
}
