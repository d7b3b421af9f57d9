//! Columns with a mark of 0 or 1 for each class, as many as there are classes: how the name of the marked one becomes the class.

use std::path::Path;

use serde_json::json;

use super::jq;
use crate::formats::FileFormat;

/// Columns of marks from which they are classes.
const FEWEST: usize = 3;
/// How marks are written: not set, and set.
const MARKS: [[&str; 2]; 4] = [["0", "1"], ["0.0", "1.0"], ["false", "true"], ["no", "yes"]];

/// Says how one class is made of marks. `cells` returns the values of a column in the first rows; empty where a row has none. `None` if few
/// columns have marks, or if fewer than half of the rows have exactly one set.
pub(super) fn advice<'n>(
    names: impl Iterator<Item = &'n str>,
    cells: &dyn Fn(&str) -> Vec<String>,
    label: &str,
    (file, format): (&Path, FileFormat),
) -> Option<String> {
    let columns: Vec<(&str, Vec<String>)> = names.map(|name| (name, cells(name))).collect();
    let marked = |marks: &[&str; 2]| -> Vec<&(&str, Vec<String>)> {
        let is_mark = |cell: &String| marks.contains(&cell.to_lowercase().as_str());
        let are_marks = |(_, cells): &&(&str, Vec<String>)| {
            !cells.is_empty() && cells.iter().all(is_mark) && cells.iter().any(|cell| cell.to_lowercase() == marks[0])
        };
        columns.iter().filter(are_marks).collect()
    };
    let (marks, marked) = MARKS.iter().map(|marks| (marks, marked(marks))).max_by_key(|(_, marked)| marked.len())?;
    let n = marked.iter().map(|(_, cells)| cells.len()).max()?;
    let is_set = |cells: &Vec<String>, row: usize| cells.get(row).is_some_and(|cell| cell.to_lowercase() == marks[1]);
    let n_set = |row: &usize| marked.iter().filter(|(_, cells)| is_set(cells, *row)).count();
    let n_one = (0..n).filter(|row| n_set(row) == 1).count();
    if marked.len() < FEWEST || 2 * n_one < n {
        return None;
    }

    let names: Vec<&str> = marked.iter().map(|(name, _)| *name).collect();
    // Fields of JSON may stand inside of others.
    let (mark, name) = match format == FileFormat::JSON {
        true => ("(. / \".\") as $path | $row | getpath($path)", "($set[0] / \".\" | last)"),
        false => ("$row[.]", "$set[0]"),
    };
    let set = if marks[1] == "1.0" { "1" } else { marks[1] };
    let shown: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    let program = format!(
        ". as $row | [{}[] | select({mark} | tostring | ascii_downcase | sub(\"[.]0$\"; \"\") == {})] as $set | select($set | length == 1) | .[{}] \
         = {name}",
        json!(names),
        json!(set),
        json!(label)
    );
    Some(format!(
        "{} have a mark for each class, and {n_one} of the first {n} rows have exactly one; to make its name the class \"{label}\", and to leave \
         out rows with several or none, which are not supported: {}\n  and read rows.jsonl with \"{label}\" for NAME",
        shown.join(", "),
        jq::command(file, format, &program)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_classes_if_most_rows_have_one() {
        let row = |name: &str, of: fn(usize) -> usize| -> (String, Vec<String>) {
            let mark = |n: usize| usize::from(name == format!("class {}", of(n))).to_string();
            (name.to_owned(), (0..12).map(mark).collect())
        };
        let said = |of: fn(usize) -> usize, n: usize| {
            let columns: Vec<_> = (0..n).map(|at| row(&format!("class {at}"), of)).collect();
            let cells = |name: &str| columns.iter().find(|(own, _)| own == name).map_or(Vec::new(), |(_, c)| c.clone());
            let names = columns.iter().map(|(name, _)| name.as_str());
            advice(names, &cells, "label", (Path::new("a.jsonl"), FileFormat::JSON))
        };
        let found = said(|n| n % 4, 4).expect("one of four");
        assert!(found.contains("12 of the first 12 rows") && found.contains("[\"class 0\",\"class 1\","), "{found}");
        assert_eq!(said(|n| n % 12, 3), None, "most rows have none");
        assert_eq!(said(|n| n % 2, 2), None, "two columns");
    }
}
