//! Rows by their ids in one object: the command that makes a row per line of them.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::splits::part_of;
use super::wrapped::one_object;
use super::{RowReader, by_key};
use crate::corpus::jq::{self, path_in_jq};
use crate::corpus::pairs::names_text;
use crate::corpus::text::Task;
use crate::formats::FileFormat;

/// Rows from which an object in several lines, or in one, is not a row itself.
const FEWEST: [usize; 2] = [3, 5];
/// The part of the values that are rows, and of their fields that most rows have, at least in percent.
const MOSTLY: usize = 80;
/// The name of the key in a new row, where its fields leave it free.
const KEYS: [&str; 3] = ["key", "name", "row_key"];

/// The rows of an object.
#[derive(Debug)]
struct RowsById {
    /// The fields that lead to the object.
    path: Vec<String>,
    n: usize,
    first: String,
    /// Other values stand next to the rows.
    has_others: bool,
    /// The new field of the key, unless keys only number the rows.
    key: Option<&'static str>,
    /// Whether the rows can be a catalogue with the texts of a program.
    can_be_catalogue: bool,
}

/// Returns the rows in a file that is one object of several lines, or of a long one; also where each line has one of them. `rows` are the
/// first lines that are objects.
fn rows_in(file: &Path, format: FileFormat, rows: &[Map<String, Value>]) -> Option<RowsById> {
    if let Some(all) = one_in_each(rows).filter(|_| format == FileFormat::JSON) {
        return rows_of(&all, FEWEST[0]);
    }
    let (text, n_lines) = one_object(file, format, rows)?;
    let object: Map<String, Value> = serde_json::from_slice(&text).ok()?;
    let fewest = FEWEST[usize::from(n_lines < 2)];
    let are_parts = object.keys().all(|name| part_of(name).is_some());
    rows_of(&object, fewest).filter(|_| !are_parts).or_else(|| {
        let inner = object.iter().filter_map(|(name, value)| Some((name, value.as_object()?)));
        let inner: Vec<(&String, &Map<String, Value>)> = inner.collect();
        // The parts of a data set, or one object below a title.
        let is_part = |name: &str| part_of(name).is_some();
        let train = inner.iter().find(|(name, _)| part_of(name) == Some(0));
        let (name, found) = match (&inner[..], train) {
            ([only], _) if 100 * n_bytes(&object[only.0]) >= MOSTLY * object.values().map(n_bytes).sum::<usize>() => {
                Some(only)
            }
            (several, train) if several.iter().all(|(name, _)| is_part(name)) => train,
            _ => None,
        }?;
        let found = rows_of(found, FEWEST[1])?;
        Some(RowsById { path: vec![(*name).clone()], ..found })
    })
}

fn n_bytes(value: &Value) -> usize {
    value.to_string().len()
}

/// Joins the rows, if each one is an object with one field that holds an object, all under different names.
fn one_in_each(rows: &[Map<String, Value>]) -> Option<Map<String, Value>> {
    let is_one = |row: &Map<String, Value>| row.len() == 1 && row.values().all(Value::is_object);
    let all: Map<String, Value> = rows.iter().filter(|row| is_one(row)).flat_map(|row| row.clone()).collect();
    (rows.len() > 1 && all.len() == rows.len()).then_some(all)
}

fn rows_of(object: &Map<String, Value>, fewest: usize) -> Option<RowsById> {
    let rows: Vec<(&String, &Map<String, Value>)> =
        object.iter().filter_map(|(key, value)| Some((key, value.as_object()?))).collect();
    if rows.len() < fewest || 100 * rows.len() < MOSTLY * object.len() {
        return None;
    }
    let mut fields: BTreeMap<&str, usize> = BTreeMap::new();
    rows.iter().flat_map(|(_, row)| row.keys()).for_each(|name| *fields.entry(name).or_default() += 1);
    let usual: Vec<(&str, usize)> =
        fields.iter().map(|(name, n)| (*name, *n)).filter(|(_, n)| 2 * n >= rows.len()).collect();
    let (n_usual, n) = (usual.iter().map(|(_, n)| n).sum::<usize>(), fields.values().sum::<usize>());
    // Columns by the numbers of their rows have numbers for fields.
    let is_name = |(name, _): &(&str, usize)| name.parse::<u64>().is_err();
    if n == 0 || 100 * n_usual < MOSTLY * n || !usual.iter().all(is_name) {
        return None;
    }

    let has_digit = |key: &str| key.contains(|c: char| c.is_ascii_digit());
    let are_ids = 2 * rows.iter().filter(|(key, _)| has_digit(key)).count() >= rows.len();
    let is_free = |name: &&&str| !fields.contains_key(**name);
    Some(RowsById {
        path: Vec::new(),
        n: rows.len(),
        first: rows[0].0.clone(),
        has_others: rows.len() < object.len(),
        key: KEYS.iter().find(is_free).filter(|_| !are_ids).copied(),
        can_be_catalogue: !are_ids
            && rows.iter().all(|(_, row)| row.values().all(Value::is_string))
            && !usual.iter().all(|(name, _)| names_text(name)),
    })
}

impl RowReader<'_> {
    /// Says how rows by their ids become lines. `None` for other files, such as texts of several languages by their names.
    pub(super) fn rows_by_id(
        &self,
        (file, format): (&Path, FileFormat),
        rows: &[Map<String, Value>],
    ) -> Option<String> {
        let found = rows_in(file, format, rows)?;
        let texts = by_key::texts_in(file, format, rows);
        if texts.as_ref().is_some_and(by_key::TextsByKey::are_of_languages) {
            return None;
        }
        let joined = texts
            .filter(|_| found.can_be_catalogue && self.task == Task::Translation)
            .map(|texts| texts.joined_with_another(file));
        let or_joined =
            joined.map_or(String::new(), |joined| format!("\nor, if its texts are of one language alone, {joined}"));
        Some(found.advice(file) + &or_joined)
    }
}

impl RowsById {
    /// Says what the file is, and how to get a row per line.
    fn advice(&self, file: &Path) -> String {
        let object = if self.path.is_empty() { String::new() } else { format!("{} | ", path_in_jq(&self.path)) };
        let only =
            |of: &str| if self.has_others { format!(" | select({of} | type == \"object\")") } else { String::new() };
        let program = match self.key {
            None => format!("{object}.[]{}", only(".")),
            Some(key) => format!("{object}to_entries[]{} | {{{key}: .key}} + .value", only(".value")),
        };
        let within = match &self.path[..] {
            [] => String::new(),
            path => format!(" in its field \"{}\"", path.join(".")),
        };
        format!(
            "{}: it is one object with {} rows by their keys{within}, such as {}, and a row per line is wanted\nto make rows of them: {}\nand \
             read rows.jsonl with the same flags",
            file.display(),
            self.n,
            Value::from(self.first.as_str()),
            jq::command(file, FileFormat::JSON, &program)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::followed::rows_made;
    use crate::corpus::json::first_rows;

    /// Returns what is said of a file with `text`, and the rows that the printed command makes; no rows without `jq`.
    fn advice(text: &str) -> Option<(String, Vec<Value>)> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("it's.json");
        std::fs::write(&file, text).expect("writable");
        let said = rows_in(&file, FileFormat::JSON, &first_rows(&file, FileFormat::JSON).rows)?.advice(&file);
        let rows = rows_made(&said, folder.path()).unwrap_or_default();
        Some((said, rows))
    }

    fn object(rows: &[(String, &str)], between: &str) -> String {
        let rows: Vec<String> = rows.iter().map(|(key, row)| format!("\"{key}\": {row}")).collect();
        format!("{{{between}{}{between}}}\n", rows.join(&format!(",{between}")))
    }

    const ROWS: [&str; 3] = [
        r#"{"question": "How far?", "answer": "0 ly", "contexts": ["a", "b"]}"#,
        r#"{"text": "star is dim", "label": 3}"#,
        r#"{"tokens": ["a"], "tags": ["O"], "meta": {"x": 1}}"#,
    ];

    #[test]
    fn rows_by_id_become_rows_in_one_line_or_many() {
        for row in ROWS {
            let wanted: Value = serde_json::from_str(row).expect(row);
            let names: [fn(usize) -> String; 3] =
                [|n| format!("doc{n}"), |n| (20_000_000 + n).to_string(), |n| format!("{n:x}-a7")];
            for name in names {
                let ids: Vec<(String, &str)> = (0..7).map(|n| (name(n), row)).collect();
                let spread = object(&ids, "\n  ").replace(", \"", ",\n   \"");
                let lines = ids.iter().map(|id| object(std::slice::from_ref(id), "")).collect::<String>();
                for text in [object(&ids, " "), object(&ids, "\n"), spread, lines] {
                    let (said, rows) = advice(&text).expect(&text);
                    assert!(said.contains("7 rows by their keys") && said.contains("jq -c '.[]'"), "{said}");
                    assert!(rows.is_empty() || rows == vec![wanted.clone(); 7], "{rows:?}");
                }
            }
        }
    }

    #[test]
    fn keys_that_say_something_stay_in_the_rows() {
        let words =
            ["good morning", "dog", "Rome", "à la carte"].map(|key| (key.to_owned(), r#"{"it": "a", "key": "k"}"#));
        let (said, rows) = advice(&object(&words, "\n")).expect("rows");
        assert!(said.contains("to_entries[] | {name: .key} + .value"), "{said}");
        assert!(rows.is_empty() || rows[1] == serde_json::json!({"name": "dog", "it": "a", "key": "k"}), "{rows:?}");
        let more = [&words[..], &[("version".into(), "3")]].concat();
        let (said, rows) = advice(&object(&more, "\n")).expect("rows");
        assert!(said.contains("4 rows") && (rows.is_empty() || rows.len() == 4), "{said} {rows:?}");
    }

    #[test]
    fn rows_deeper_inside_are_found_where_nothing_else_can_be_meant() {
        let ids: Vec<(String, &str)> = (0..7).map(|n| (format!("q{n}"), ROWS[0])).collect();
        let inner = object(&ids, " ");
        let parts = [("train", inner.as_str()), ("dev", &inner), ("test", &inner)];
        for outer in [&[("version", "\"1\""), ("data", &inner)][..], &parts] {
            let text =
                object(&outer.iter().map(|(key, value)| ((*key).to_owned(), value.trim())).collect::<Vec<_>>(), "\n");
            let (said, rows) = advice(&text).expect(&text);
            let path = if text.contains("train") { ".train" } else { ".data" };
            assert!(said.contains(&format!("jq -c '{path} | .[]'")), "{said}");
            assert!(rows.is_empty() || rows.len() == 7, "{rows:?}");
        }
        let messages = format!("[{}]", [ROWS[0]; 9].join(", "));
        for (name, other) in [("dialog", inner.trim()), ("messages", &messages)] {
            let text = object(&[("menu".into(), inner.trim()), (name.into(), other)], "\n");
            assert!(advice(&text).is_none(), "{text}");
        }
    }

    #[test]
    fn rows_sections_and_columns_are_something_else() {
        let sections = [
            ("menu", r#"{"open": "a", "save": "b"}"#),
            ("more", r#"{"yes": "a", "no": "b"}"#),
            ("errors", r#"{"full": "a", "gone": "b", "lost": "c"}"#),
        ]
        .map(|(key, value)| (key.to_owned(), value));
        let numbered = ["text", "label", "id", "other"].map(|key| (key.to_owned(), r#"{"0": "a", "1": "b"}"#));
        let row = [("a", "1"), ("b", "\"c d\""), ("meta", "{\"x\": 1}")].map(|(key, value)| (key.to_owned(), value));
        let nested: Vec<(String, &str)> = (0..4).map(|n| (format!("part{n}"), "{\"x\": 1}")).collect();
        for text in [object(&sections, "\n"), object(&numbered, "\n"), object(&row, "\n"), object(&nested, " ")] {
            assert!(advice(&text).is_none(), "{text}");
        }
        let same = object(&[("translation".into(), r#"{"en": "a", "it": "b"}"#)], "").repeat(9);
        assert!(advice(&same).is_none(), "the name of a field");
    }
}
