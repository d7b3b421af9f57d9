//! Lists of objects inside of rows: what a row of each object is made with.

use std::path::Path;

use serde_json::{Map, Value};

use crate::corpus::jq::{self, path_in_jq};
use crate::corpus::share::listed;
use crate::formats::FileFormat;

/// Names of fields that a message shows.
const SHOWN: usize = 6;

/// A list of objects, by its path.
struct Nested {
    path: Vec<String>,
    n_rows: usize,
    longest: usize,
    n_bytes: usize,
    fields: Vec<String>,
}

/// Says that rows have lists of objects with fields of their own, and how each object becomes a row; empty for other rows.
pub(super) fn advice(rows: &[Map<String, Value>], (file, format): (&Path, FileFormat)) -> String {
    let mut found = Vec::new();
    rows.iter().for_each(|row| collect(&mut Vec::new(), row, &mut found));
    let is_usual = |list: &Nested| 2 * list.n_rows > rows.len() && list.longest > 1 && !list.fields.is_empty();
    let usual = found.into_iter().filter(is_usual);
    let Some(list) = usual.max_by_key(|list| list.n_bytes) else { return String::new() };
    let path = path_in_jq(&list.path);
    let shown: Vec<String> = list.fields.iter().take(SHOWN).map(|name| format!("\"{name}\"")).collect();
    format!(
        "\nits list \"{}\" has objects with fields of their own ({}); to make a row of each object: {}\nand read rows.jsonl with the same flags",
        list.path.join("."),
        listed(&shown),
        jq::command(file, format, &format!("{path}[] as $one | del({path}) + $one"))
    )
}

fn collect(path: &mut Vec<String>, row: &Map<String, Value>, found: &mut Vec<Nested>) {
    for (name, value) in row {
        path.push(name.clone());
        match value {
            Value::Object(inside) => collect(path, inside, found),
            Value::Array(list) if !list.is_empty() && list.iter().all(Value::is_object) => {
                add(path, value, list, found)
            }
            _ => {}
        }
        path.pop();
    }
}

fn add(path: &[String], value: &Value, list: &[Value], found: &mut Vec<Nested>) {
    let names = || list[0].as_object().into_iter().flatten().map(|(name, _)| name.clone());
    let n_bytes = value.to_string().len();
    match found.iter_mut().find(|known| known.path == path) {
        Some(known) => {
            (known.n_rows, known.n_bytes) = (known.n_rows + 1, known.n_bytes + n_bytes);
            known.longest = known.longest.max(list.len());
        }
        None => {
            let (path, fields) = (path.to_vec(), names().collect());
            found.push(Nested { path, n_rows: 1, longest: list.len(), n_bytes, fields });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::corpus::followed::rows_made;
    use crate::corpus::json::first_rows;

    #[test]
    fn each_object_of_a_list_becomes_a_row() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.jsonl");
        let row = |n: usize| {
            format!(
                "{{\"idx\": {n}, \"passage\": {{\"text\": \"A story {n}.\", \"questions\": [{{\"question\": \"Who?\", \"answers\": [{{\"text\": \
                 \"Ada\", \"label\": 1}}, {{\"text\": \"Bob\", \"label\": 0}}]}}, {{\"question\": \"Why?\", \"answers\": []}}]}}}}\n"
            )
        };
        fs::write(&file, (0..9).map(row).collect::<String>()).expect("writable");
        let rows = first_rows(&file, FileFormat::JSON).rows;
        let said = advice(&rows, (&file, FileFormat::JSON));
        assert!(
            said.contains("\"passage.questions\" has objects with fields of their own (\"answers\", \"question\")"),
            "{said}"
        );
        let Some(made) = rows_made(&said, folder.path()) else { return };
        assert_eq!((made.len(), made[1]["question"].as_str()), (18, Some("Why?")), "{said}");
        assert_eq!(made[1]["passage"]["text"].as_str(), Some("A story 0."), "{said}");

        let plain = vec![serde_json::from_str(r#"{"text": "a b", "list": ["a", "b"]}"#).expect("an object")];
        assert_eq!(advice(&plain, (&file, FileFormat::JSON)), "");
    }
}
