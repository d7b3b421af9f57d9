//! Tables as pandas writes them into one JSON value: which orientation it is, and how to get a row per line.

use std::path::Path;

use serde_json::{Map, Value};

use crate::corpus::jq::fed;

/// Returns the orientation of `DataFrame.to_json` that the only row of a file has. `records` is not among them: Kiln reads it.
pub(super) fn orientation(rows: &[Map<String, Value>]) -> Option<&'static str> {
    let [row] = rows else { return None };
    let has = |names: &[&str]| names.iter().all(|name| row.contains_key(*name));
    let is_list = |name: &str| row.get(name).is_some_and(Value::is_array);
    if has(&["schema", "data"]) && is_list("data") && row["schema"].get("fields").is_some() {
        return Some("table");
    }
    if has(&["columns", "data"]) && is_list("columns") && is_list("data") {
        return Some("split");
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

/// Says what the table is, and how to get a row per line.
pub(super) fn advice(path: &Path, orientation: &str) -> String {
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
