//! Texts by their keys in one object: dictionaries, and catalogues of a program's texts.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use super::wrapped::one_object;
use crate::corpus::jq::{self, path_in_jq};
use crate::corpus::pairs::{OR_REVERSED, names_text};
use crate::corpus::text::Task;
use crate::formats::FileFormat;
use crate::terminal::shell_path;

/// Fewer texts may be the fields of a row.
const FEWEST: usize = 5;
/// So many texts in objects inside of one are not a row, either.
const MANY: usize = 50;
/// The part of an object's values that are texts, at least.
const MOSTLY: f64 = 0.8;

/// The texts of an object that is a whole file.
pub(super) struct TextsByKey {
    n: usize,
    /// Whether the keys are names of texts, not texts themselves.
    are_named: bool,
    /// Whether all values are texts.
    is_pure: bool,
    /// The names of languages whose texts all lie in this object, by the same keys.
    languages: Vec<String>,
}

/// Returns the texts in a file that is one object of several lines, or of one that is not a row. `rows` are the first lines that are
/// objects.
pub(super) fn texts_in(file: &Path, format: FileFormat, rows: &[Map<String, Value>]) -> Option<TextsByKey> {
    let (text, n_lines) = one_object(file, format, rows)?;
    let object: Map<String, Value> = serde_json::from_slice(&text).ok()?;
    let (mut n, mut n_values) = (0, 0);
    let is_flat = object.values().all(|value| !value.is_object());
    let has_list = object.values().any(|value| !count(value, &mut n, &mut n_values));
    let is_name = |key: &&String| {
        let is_word = !key.contains(char::is_whitespace) && key.is_ascii();
        is_word && (key.contains(['.', '_', '-', ':']) || key.chars().skip(1).any(|c| c.is_ascii_uppercase()))
    };
    let n_names = object.keys().filter(is_name).count();

    // A row in one line has few fields, and a text in its keys is not a name.
    let is_file = n_lines > 1 || n >= 4 * FEWEST && (is_flat || n >= MANY);
    let is_found = is_file && !has_list && n >= FEWEST && n as f64 >= MOSTLY * n_values as f64;
    let are_named = !is_flat || 2 * n_names > object.len();
    is_found.then(|| TextsByKey { n, are_named, is_pure: n == n_values, languages: languages_of(&object) })
}

/// Returns the names of the languages in an object that has the texts of each by the same keys.
fn languages_of(object: &Map<String, Value>) -> Vec<String> {
    let is_code = |name: &str| {
        let mut parts = name.split(['-', '_']);
        let is_short = |part: &str, most: usize| (2..=most).contains(&part.len()) && part.is_ascii();
        parts.next().is_some_and(|part| is_short(part, 3) && part.bytes().all(|byte| byte.is_ascii_lowercase()))
            && parts.all(|part| is_short(part, 4))
    };
    let inner: Vec<(&String, BTreeSet<Vec<String>>)> = object
        .iter()
        .filter(|(name, value)| value.is_object() && (is_code(name) || names_text(name)))
        .map(|(name, value)| (name, paths_of(value)))
        .collect();
    let (Some((_, first)), n) = (inner.first(), inner.len()) else { return Vec::new() };
    let are_shared = inner.iter().all(|(_, keys)| 2 * keys.intersection(first).count() > first.len().min(keys.len()));
    let is_found = n > 1 && n == object.values().filter(|value| value.is_object()).count() && n <= first.len();
    if is_found && are_shared { inner.into_iter().map(|(name, _)| name.clone()).collect() } else { Vec::new() }
}

/// Returns the paths to the texts below a value.
fn paths_of(value: &Value) -> BTreeSet<Vec<String>> {
    match value {
        Value::Object(inner) => {
            let below = |(name, value): (&String, &Value)| {
                let paths = paths_of(value).into_iter();
                let name = name.clone();
                paths.map(move |path| std::iter::once(name.clone()).chain(path).collect()).collect::<Vec<Vec<String>>>()
            };
            inner.iter().flat_map(below).collect()
        }
        Value::String(_) => BTreeSet::from([Vec::new()]),
        _ => BTreeSet::new(),
    }
}

/// Counts the texts and all values below one. Returns whether no list and no numbered key is among them: columns have these.
fn count(value: &Value, n: &mut usize, n_values: &mut usize) -> bool {
    match value {
        Value::Array(_) => return false,
        Value::Object(fields) => {
            let are_numbers = !fields.is_empty() && fields.keys().all(|key| key.parse::<u64>().is_ok());
            return !are_numbers && fields.values().all(|value| count(value, n, n_values));
        }
        Value::String(text) if !text.trim().is_empty() => *n += 1,
        _ => {}
    }
    *n_values += 1;
    true
}

impl TextsByKey {
    /// Whether the object has the texts of several languages.
    pub(super) fn are_of_languages(&self) -> bool {
        !self.languages.is_empty()
    }

    /// Says how the texts are joined with another file, if they have names.
    pub(super) fn joined_with_another(&self, file: &Path) -> String {
        let program = "$a[0] | paths(strings) as $p | {src: getpath($p), trg: ($b[0] | getpath($p))}";
        format!(
            "to join them with the same names in another language: jq -nc --slurpfile a {} --slurpfile b OTHER.json '{program}' > \
             rows.jsonl",
            shell_path(file)
        )
    }

    /// Says what the file is, and how to make rows for `task` of it. `None` if it has none.
    pub(super) fn advice(&self, file: &Path, task: Task) -> Option<String> {
        let entries = |program: &str| {
            let only_texts = if self.is_pure { "" } else { " | select(.value | type == \"string\")" };
            format!("to_entries[]{only_texts} | {program}")
        };
        let rows = |program: String| format!("to make rows of them: {}", jq::command(file, FileFormat::JSON, &program));

        let way = match (task, &self.languages[..]) {
            (Task::Translation, [one, other, more @ ..]) => {
                let [source, target] = [one, other].map(|name| path_in_jq(std::slice::from_ref(name)));
                let program = format!(
                    "{target} as $b | {source} as $a | $a | paths(strings) as $p | {{src: getpath($p), trg: ($b | getpath($p)?)}} | \
                     select(.trg | type == \"string\")"
                );
                let names =
                    |names: &[String]| names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
                let more = if more.is_empty() { String::new() } else { format!("; it also has {}", names(more)) };
                format!(
                    "to join the texts of {} that have the same names{OR_REVERSED}: {}{more}",
                    names(&self.languages[..2]),
                    jq::command(file, FileFormat::JSON, &program)
                )
            }
            (Task::Classification, [_, _, ..]) => {
                rows("to_entries[] | .key as $label | .value | .. | strings | {text: ., label: $label}".to_owned())
            }
            (Task::Translation, _) if self.are_named => self.joined_with_another(file),
            (Task::Translation, _) => rows(entries("{src: .key, trg: .value}")),
            (Task::Lm | Task::Mlm, _) => rows(".. | strings | {text: .}".to_owned()),
            (Task::Classification, _) if !self.are_named => rows(entries("{text: .key, label: .value}")),
            (Task::Classification | Task::Tagging, _) => return None,
        };
        let by = if self.are_named { "names" } else { "other texts" };
        let file = file.display();
        Some(format!("{file}: it is one object with {} texts by {by}, and a row per line is wanted\n{way}", self.n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::FileFormat;

    fn advice(text: &str, task: Task) -> Option<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.json");
        std::fs::write(&file, text).expect("writable");
        let rows = crate::corpus::json::first_rows(&file, FileFormat::JSON).rows;
        let found = texts_in(&file, FileFormat::JSON, &rows)?.advice(&file, task)?;
        Some(found.replace(&format!("{}/", folder.path().display()), ""))
    }

    fn object(entries: &[(&str, &str)], between: &str) -> String {
        let entries: Vec<String> = entries.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
        format!("{{{between}{}{between}}}\n", entries.join(&format!(",{between}")))
    }

    const DICTIONARY: [(&str, &str); 5] = [
        ("good morning", "\"buongiorno\""),
        ("dog", "\"cane\""),
        ("open the file", "\"apri il file\""),
        ("yes", "\"sì\""),
        ("no", "\"no\""),
    ];

    #[test]
    fn a_dictionary_comes_with_the_command_that_makes_rows() {
        let text = object(&DICTIONARY, "\n ");
        let pairs = advice(&text, Task::Translation).expect("a dictionary");
        let command = "jq -c 'to_entries[] | {src: .key, trg: .value}' a.json > rows.jsonl";
        assert!(pairs.contains("one object with 5 texts by other texts") && pairs.ends_with(command), "{pairs}");
        let classes = advice(&text, Task::Classification).expect("a dictionary");
        assert!(
            classes.ends_with("jq -c 'to_entries[] | {text: .key, label: .value}' a.json > rows.jsonl"),
            "{classes}"
        );
        let texts = advice(&text, Task::Lm).expect("texts");
        assert!(texts.ends_with("jq -c '.. | strings | {text: .}' a.json > rows.jsonl"), "{texts}");
        let long: Vec<_> = (0..6).flat_map(|_| DICTIONARY).collect();
        assert!(advice(&object(&long, " "), Task::Translation).is_none(), "five keys in one line are a row");
    }

    #[test]
    fn texts_by_name_are_joined_with_another_language() {
        let flat = [("menu.open", "\"Apri\""), ("menu.shut", "\"Chiudi\""), ("ok_key", "\"Va bene\"")];
        let flat = object(&[&flat[..], &[("at.end", "\"Fine\""), ("a.b", "\"c\"")]].concat(), "\n");
        let inner = object(&DICTIONARY, "\n");
        let nested = object(&[("menu", inner.trim()), ("version", "3")], "\n");
        for text in [flat, nested] {
            let joined = advice(&text, Task::Translation).expect("a catalogue");
            assert!(joined.contains("5 texts by names") && joined.contains("--slurpfile b OTHER.json"), "{joined}");
            assert_eq!(advice(&text, Task::Classification), None);
        }
    }

    #[test]
    fn languages_in_one_file_are_joined_by_their_keys() {
        let inner = object(&DICTIONARY, "\n");
        let (sections, one) = (format!("{{\"menu\": {inner}, \"x\": \"y\"}}"), inner.replace("\"dog\"", "\"cat\""));
        for [source, target] in [["en", "it"], ["en_GB", "sr-Latn"], ["english", "italian"]] {
            for (first, second) in [(&inner, &one), (&sections, &sections)] {
                let text = object(&[(source, first.trim()), ("version", "1"), (target, second.trim())], "\n");
                let joined = advice(&text, Task::Translation).expect("two languages");
                let begin = format!(
                    "to join the texts of \"{source}\", \"{target}\" that have the same names (or the other way round): jq -c '"
                );
                assert!(joined.contains(&begin) && joined.ends_with("a.json > rows.jsonl"), "{joined}");
                let classes = advice(&text, Task::Classification).expect("classes");
                assert!(classes.contains("{text: ., label: $label}"), "{classes}");
            }
        }
        let parts = object(&[("menu", inner.trim()), ("dialog", inner.trim())], "\n");
        let joined = advice(&parts, Task::Translation).expect("a catalogue");
        assert!(joined.contains("OTHER.json"), "{joined}");
    }

    #[test]
    fn rows_and_columns_are_something_else() {
        let row = object(&[("src", "\"a b\""), ("trg", "\"c d\"")], "\n");
        let lists = object(&[&DICTIONARY[..], &[("rows", "[\"a\"]")]].concat(), "\n");
        let numbered = object(&DICTIONARY.map(|(_, value)| ("0", value))[..1], "\n");
        let columns = object(&[&DICTIONARY[..], &[("src", numbered.trim())]].concat(), "\n");
        for text in [row.clone(), row.repeat(3), lists, columns, object(&DICTIONARY, " "), "{}\n".into()] {
            assert_eq!(advice(&text, Task::Translation), None, "{text}");
        }
    }
}
