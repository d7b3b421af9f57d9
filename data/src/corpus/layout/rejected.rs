//! Fields by which annotators keep or reject the labels of a row, as Prodigy writes them.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::splits::values_of;
use crate::corpus::jq::{self, in_jq};
use crate::formats::FileFormat;

/// Names of such fields.
const NAMES: [&str; 8] =
    ["answer", "status", "state", "review", "review_status", "annotation_status", "decision", "verdict"];
/// Values of rows that were kept.
const KEPT: [&str; 9] =
    ["accept", "accepted", "approve", "approved", "validated", "submitted", "completed", "done", "reviewed"];
/// Values of rows that were not.
const REJECTED: [&str; 12] = [
    "reject",
    "rejected",
    "ignore",
    "ignored",
    "skip",
    "skipped",
    "discard",
    "discarded",
    "cancelled",
    "canceled",
    "declined",
    "pending",
];

fn is_rejected(value: &str) -> bool {
    REJECTED.contains(&value.trim().to_lowercase().as_str())
}

/// Returns the field whose values in the first `rows` all keep or reject.
pub(super) fn field_of(rows: &[Map<String, Value>]) -> Option<String> {
    let is_mark = |value: &Value| {
        value.as_str().is_some_and(|value| is_rejected(value) || KEPT.contains(&value.trim().to_lowercase().as_str()))
    };
    let are_marks = |name: &&str| {
        let values: Vec<&Value> =
            rows.iter().filter_map(|row| row.get(*name)).filter(|value| !value.is_null()).collect();
        !values.is_empty() && values.into_iter().all(is_mark)
    };
    NAMES.into_iter().find(are_marks).map(str::to_owned)
}

/// Returns the values by which annotators may have rejected rows, as Python's `in` reads them, in lower case.
pub(super) fn in_python() -> String {
    format!("({})", REJECTED.map(|value| format!("\"{value}\"")).join(", "))
}

/// Says how many rows of a file were rejected, and how they are left out. `rows` are the first ones, and `read` the fields that the model
/// reads or learns.
pub(super) fn warning(
    file: &Path,
    format: FileFormat,
    rows: &[Map<String, Value>],
    read: &[&String],
) -> Option<String> {
    let field = field_of(rows).filter(|field| !read.contains(&field))?;
    let values = values_of(file, format, &field)?;
    let n: u64 = values.values().sum();
    let rejected: Vec<(String, u64)> = values.into_iter().filter(|(value, _)| is_rejected(value)).collect();
    let n_rejected: u64 = rejected.iter().map(|(_, n)| n).sum();
    let listed: Vec<String> = rejected.iter().map(|(value, _)| json!(value).to_string()).collect();
    (n_rejected > 0).then(|| {
        let path = in_jq(&field);
        format!(
            "warning: \"{field}\" of {} is {} in {n_rejected} of {n} rows, whose labels are learned, too; to leave these rows out: {}\nand train \
             on rows.jsonl",
            file.display(),
            listed.join(" or "),
            jq::command(file, format, &format!("select({path} | IN({}) | not)", listed.join(", ")))
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_annotators_are_known_by_name_and_value() {
        let rows = |name: &str, values: &[&str]| -> Vec<Map<String, Value>> {
            values.iter().map(|value| json!({"text": "a", name: value}).as_object().expect("one").clone()).collect()
        };
        assert_eq!(field_of(&rows("answer", &["accept", "reject", "ignore"])).as_deref(), Some("answer"));
        assert_eq!(field_of(&rows("status", &["Approved"])).as_deref(), Some("status"));
        assert_eq!(field_of(&rows("answer", &["accept", "Paris"])), None);
        assert_eq!(field_of(&rows("label", &["accept", "reject"])), None);
    }
}
