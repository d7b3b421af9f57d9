//! A field that may stand for the one that a row lacks.

use serde_json::{Map, Value};

use super::config::LabelConfig;
use super::row::LabelledInput;
use crate::corpus::fields::{is_about, is_label, is_text};
use crate::corpus::path::value_at;
use crate::corpus::template::RowTemplate;
use crate::corpus::text::Task;

/// A field inside objects, and the length of what it has.
struct Found {
    path: Vec<String>,
    n_bytes: usize,
}

impl LabelledInput {
    /// Returns the names that lead to what a model of `task` can read, in a JSON object without the field of the training data. It is a
    /// text with the same name further inside, one with a usual name, or the longest. A tagger reads a list of words.
    pub fn other_field(line: &str, task: Task, config: &LabelConfig) -> Option<Vec<String>> {
        let row: Map<String, Value> = serde_json::from_str(line).ok()?;
        let wanted = if task == Task::Tagging { &config.words_field } else { &config.text_field };
        if RowTemplate::of(wanted).is_some() || value_at(&row, wanted).is_some() {
            return None;
        }
        let mut found = Vec::new();
        collect(&row, task, &mut Vec::new(), &mut found);
        let rank = |field: &Found| {
            let name = field.path.last().map_or("", String::as_str);
            let is_wanted = name.eq_ignore_ascii_case(wanted.rsplit('.').next().unwrap_or_default());
            (is_wanted, is_text(name), !is_about(name) && !is_label(name), field.n_bytes)
        };
        found.into_iter().max_by_key(rank).map(|field| field.path)
    }
}

/// Collects the fields of a row, at `path`, that can be read.
fn collect(row: &Map<String, Value>, task: Task, path: &mut Vec<String>, found: &mut Vec<Found>) {
    for (name, value) in row {
        path.push(name.clone());
        match value {
            Value::Object(inside) => collect(inside, task, path, found),
            Value::String(text) if task != Task::Tagging && !text.trim().is_empty() => {
                found.push(Found { path: path.clone(), n_bytes: text.len() });
            }
            Value::Array(words) if task == Task::Tagging && words.iter().all(Value::is_string) && !words.is_empty() => {
                let n_bytes = words.iter().filter_map(Value::as_str).map(str::len).sum();
                found.push(Found { path: path.clone(), n_bytes });
            }
            _ => {}
        }
        path.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_inside_objects_stands_for_the_one_that_is_missing() {
        let config = LabelConfig { text_field: "Description".into(), ..LabelConfig::default() };
        let of = |line: &str, task: Task| LabelledInput::other_field(line, task, &config).map(|path| path.join("."));
        let text = |line: &str| of(line, Task::Classification);
        let nested =
            r#"{"id": "a long name of the row", "data": {"body": "a text", "n": 1}, "annotation": {"category": "x"}}"#;
        assert_eq!(text(nested).as_deref(), Some("data.body"));
        assert_eq!(text(r#"{"a": {"description": "b"}, "text": "c d"}"#).as_deref(), Some("a.description"));
        assert_eq!(text(r#"{"summary": "b c d", "kind": "c"}"#).as_deref(), Some("summary"));
        for line in [r#"{"Description": "b", "text": "c"}"#, r#"{"n": 1}"#, "[]", "no JSON"] {
            assert_eq!(text(line), None, "{line}");
        }
        let words = r#"{"doc": {"words": ["a", "b"], "text": "a b"}, "tags": [1, 2]}"#;
        assert_eq!(of(words, Task::Tagging).as_deref(), Some("doc.words"));
    }
}
