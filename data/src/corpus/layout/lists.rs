//! Lists of texts in fields of rows.

use serde_json::{Map, Value};

use crate::corpus::path::value_at;

/// Returns the strings of a list that has nothing else.
pub(super) fn strings(value: &Value) -> Option<Vec<&str>> {
    let list = value.as_array().filter(|list| !list.is_empty())?;
    list.iter().map(Value::as_str).collect()
}

/// Returns the lists of strings that most rows have in a field; none for other fields.
pub(super) fn lists_in<'r>(rows: &'r [Map<String, Value>], field: &str) -> Vec<Vec<&'r str>> {
    let lists: Vec<Vec<&str>> = rows.iter().filter_map(|row| strings(value_at(row, field)?)).collect();
    if 2 * lists.len() > rows.len() { lists } else { Vec::new() }
}
