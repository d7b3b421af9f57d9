//! Rows with one question and one answer, by the names of their fields.

use serde_json::{Map, Value};

/// Fields of a question and its answer in one row. The first that a row has count.
pub(crate) const ANSWERS: [[&str; 2]; 11] = [
    ["prompt", "completion"],
    ["instruction", "output"],
    ["instruction", "response"],
    ["instruction", "answer"],
    ["question", "answer"],
    ["question", "response"],
    ["prompt", "response"],
    ["prompt", "answer"],
    ["query", "response"],
    ["query", "answer"],
    ["input", "output"],
];

/// Whether a row says of an answer whether it is good.
pub(crate) fn is_rated(row: &Map<String, Value>) -> bool {
    let is_answer = ["completion", "response", "answer"].iter().any(|name| row.contains_key(*name));
    row.contains_key("prompt") && is_answer && row.get("label").is_some_and(Value::is_boolean)
}
