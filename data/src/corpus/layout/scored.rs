//! Texts whose label is a number on a scale.

use std::path::Path;

use serde_json::{Map, Value};

use crate::corpus::path::value_at;
use crate::corpus::scores;
use crate::formats::FileFormat;

/// Says what becomes of numbers on a scale in the place of classes, which `flags` read; empty for other labels.
pub(super) fn note(rows: &[Map<String, Value>], label: &str, flags: &[String], source: (&Path, FileFormat)) -> String {
    let values: Vec<String> = rows
        .iter()
        .filter_map(|row| match value_at(row, label)? {
            Value::Null => None,
            Value::String(text) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
            value => Some(value.to_string()),
        })
        .collect();
    let task = "--task classification".to_owned();
    let others = flags.iter().filter(|flag| **flag != task).cloned();
    let flags = [task.clone()].into_iter().chain(others).collect::<Vec<_>>().join(" ");
    let found = scores::note(label, values.iter().map(String::as_str), &flags, source);
    found.map_or_else(String::new, |found| format!("\n{found}"))
}
