//! Tables as pandas writes them into one JSON value: which orientation it is, and how to get a row per line.

use std::path::Path;

use serde_json::{Map, Value};

use super::wrapped::one_object;
use crate::corpus::jq::{fed, in_jq, piped};
use crate::formats::FileFormat;
use crate::terminal::shell_word;

/// Values of a column from which several lists of one length are columns.
const FEWEST: usize = 5;

/// Says what the table in a file is, also in several lines, and how to get a row per line. `rows` are the first lines that are objects.
pub(super) fn advice_for(file: &Path, format: FileFormat, rows: &[Map<String, Value>]) -> Option<String> {
    let whole = || serde_json::from_slice(&one_object(file, format, rows)?.0).ok();
    let whole: Vec<Map<String, Value>> = if rows.is_empty() { whole().into_iter().collect() } else { Vec::new() };
    let rows = if rows.is_empty() { &whole } else { rows };
    Some(advice(file, orientation(rows)?, &rows[0]))
}

/// Returns the orientation of `DataFrame.to_json` that the only row of a file has. `records` is not among them: Kiln reads it.
fn orientation(rows: &[Map<String, Value>]) -> Option<&'static str> {
    let [row] = rows else { return None };
    let has = |names: &[&str]| names.iter().all(|name| row.contains_key(*name));
    let is_list = |name: &str| row.get(name).is_some_and(Value::is_array);
    if has(&["schema", "data"]) && is_list("data") && row["schema"].get("fields").is_some() {
        return Some("table");
    }
    if has(&["columns", "data"]) && is_list("columns") && is_list("data") {
        return Some("split");
    }

    if are_columns(row) {
        return Some("list");
    }

    // The numbers of the rows are the keys outside or inside.
    let are_numbers = |object: &Map<String, Value>| {
        !object.is_empty() && object.keys().all(|key| key.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let inner: Vec<&Map<String, Value>> = row.values().filter_map(Value::as_object).collect();
    if inner.is_empty() || inner.len() < row.len() {
        return None;
    }
    let have_the_same_keys = inner.iter().all(|object| object.keys().eq(inner[0].keys()));
    match (are_numbers(row), inner.iter().all(|object| are_numbers(object))) {
        (true, _) => Some("index"),
        (false, true) if have_the_same_keys => Some("columns"),
        _ => None,
    }
}

/// Whether the row is a table whose columns are lists: all have one length, and one of them has texts rather than words.
fn are_columns(row: &Map<String, Value>) -> bool {
    let columns: Option<Vec<&Vec<Value>>> = row.values().map(Value::as_array).collect();
    let Some(columns) = columns.filter(|columns| columns.len() > 1) else { return false };
    let are_single = |column: &&Vec<Value>| column.iter().all(|value| !value.is_object() && !value.is_array());
    let is_text = |value: &&Value| value.as_str().is_some_and(|text| text.trim().contains(' '));
    let has_texts = |column: &&Vec<Value>| 2 * column.iter().filter(is_text).count() > column.len();
    let n = columns[0].len();
    n >= FEWEST
        && columns.iter().all(|column| column.len() == n)
        && columns.iter().all(are_single)
        && columns.iter().any(has_texts)
}

/// Says what the table is, and how to get a row per line. `row` is the whole table.
fn advice(path: &Path, orientation: &str, row: &Map<String, Value>) -> String {
    if orientation == "list" {
        let fields: Vec<String> =
            row.keys().map(|name| format!("{}: {}[$i]", Value::from(name.as_str()), in_jq(name))).collect();
        let program =
            format!(". as $t | range($t{} | length) as $i | $t | {{{}}}", first_in_jq(row), fields.join(", "));
        return format!(
            "{}: it is one table, whose columns are lists, and a row per line is wanted\nto make rows of it: {} > rows.jsonl",
            path.display(),
            piped(path, &format!("jq -c {}", shell_word(&program)))
        );
    }
    let program = format!(
        "python3 -c 'import pandas; pandas.read_json(open(0), orient=\"{orientation}\")\
         .to_json(\"rows.jsonl\", orient=\"records\", lines=True)'"
    );
    let file = path.display();
    format!(
        "{file}: it is one table, as pandas writes it with orient=\"{orientation}\", and rows are wanted: write it with \
         df.to_json(\"rows.jsonl\", orient=\"records\", lines=True)\nto convert it: {}",
        fed(path, &program)
    )
}

/// Returns the path of the first column for jq, behind a variable.
fn first_in_jq(row: &Map<String, Value>) -> String {
    let path = row.keys().next().map_or_else(String::new, |name| in_jq(name));
    path.strip_prefix(".[").map_or(path.clone(), |rest| format!("[{rest}"))
}
