//! Rows for tagging whose words are one text: how they become lists.

use std::path::Path;

use serde_json::{Map, Value};

use crate::corpus::fields::is_label;
use crate::corpus::jq;
use crate::corpus::values::are_tags;
use crate::formats::FileFormat;

/// Words in names of fields with tags.
const TAGS: [&str; 5] = ["tag", "tags", "labels", "ner", "pos"];

/// Returns the fields of the first row that has a text with as many words as another field has tags, if all rows do: text and tags.
pub(super) fn words_in_text(rows: &[Map<String, Value>]) -> Option<[String; 2]> {
    let first = rows.first()?;
    let n_words = |row: &Map<String, Value>, name: &str| Some(row.get(name)?.as_str()?.split_whitespace().count());
    let n_tags = |row: &Map<String, Value>, name: &str| match row.get(name)? {
        Value::Array(tags) => tags.iter().all(|tag| tag.is_string() || tag.is_i64()).then_some(tags.len()),
        Value::String(tags) if are_tags(tags) || is_label(name) || name.split('_').any(|word| TAGS.contains(&word)) => {
            Some(divider(tags).map_or_else(|| tags.split_whitespace().count(), |divider| tags.split(divider).count()))
        }
        _ => None,
    };
    let fits = |text: &str, tags: &str| {
        let counts = rows.iter().map(|row| (n_words(row, text), n_tags(row, tags)));
        let is_even = counts.clone().all(|(words, tags)| words.is_some() && words == tags);
        // A list with one label says nothing.
        is_even && text != tags && counts.filter(|(words, _)| *words > Some(1)).count() * 2 > rows.len()
    };
    let texts = || first.keys().filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_'));
    texts().find_map(|text| {
        let tags = texts().find(|tags| fits(text, tags))?;
        Some([text.clone(), tags.clone()])
    })
}

/// Divides tags that stand in one text without spaces.
fn divider(tags: &str) -> Option<char> {
    let has_spaces = tags.trim().contains(char::is_whitespace);
    [',', ';', '|'].into_iter().find(|divider| !has_spaces && tags.contains(*divider))
}

/// Whether the rows have tags that something other than spaces divides, which no format reads.
pub(super) fn are_divided_otherwise(rows: &[Map<String, Value>], [_, tags]: &[String; 2]) -> bool {
    rows.iter().any(|row| row.get(tags).and_then(Value::as_str).and_then(divider).is_some())
}

/// Says what the rows have, and how they get lists.
pub(super) fn advice(
    file: &Path,
    format: FileFormat,
    rows: &[Map<String, Value>],
    [text, tags]: &[String; 2],
) -> String {
    let list = |field: &str, to: &str| format!(".{to} = [.{field} | scan(\"\\\\S+\")]");
    let values = || rows.iter().filter_map(|row| row.get(tags)?.as_str());
    let of_tags = match values().find_map(divider) {
        Some(divider) => format!(".tags = (.{tags} | split(\"{divider}\") | map(gsub(\"^\\\\s+|\\\\s+$\"; \"\")))"),
        None if values().next().is_some() => list(tags, "tags"),
        None => format!(".tags = .{tags}"),
    };
    let program = format!("{} | {of_tags}", list(text, "tokens"));
    format!(
        "{}: its rows have words and tags in \"{text}\" and \"{tags}\", and a list of words with a list of tags is wanted\nto make lists: {}",
        file.display(),
        jq::command(file, format, &program)
    )
}
