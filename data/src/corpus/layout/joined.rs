//! Rows for tagging whose words are one text: how they become lists.

use serde_json::{Map, Value};

use crate::corpus::fields::is_label;

/// Words in names of fields with tags.
const TAGS: [&str; 5] = ["tag", "tags", "labels", "ner", "pos"];

/// Returns the fields of the first row that has a text with as many words as another field has tags, if all rows do: text and tags.
pub(super) fn words_in_text(rows: &[Map<String, Value>]) -> Option<[String; 2]> {
    let first = rows.first()?;
    let n_words = |row: &Map<String, Value>, name: &str| Some(row.get(name)?.as_str()?.split_whitespace().count());
    let n_tags = |row: &Map<String, Value>, name: &str| match row.get(name)? {
        Value::Array(tags) => tags.iter().all(|tag| tag.is_string() || tag.is_i64()).then_some(tags.len()),
        Value::String(tags) if is_label(name) || name.split('_').any(|word| TAGS.contains(&word)) => {
            Some(tags.split_whitespace().count())
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

/// Says what the rows have, and how they get lists.
pub(super) fn advice(file: &str, is_array: bool, rows: &[Map<String, Value>], [text, tags]: &[String; 2]) -> String {
    let list = |field: &str, to: &str| format!(".{to} = [.{field} | scan(\"\\\\S+\")]");
    let is_text = rows.first().and_then(|row| row.get(tags)).is_some_and(Value::is_string);
    let of_tags = if is_text { list(tags, "tags") } else { format!(".tags = .{tags}") };
    let each = if is_array { ".[] | " } else { "" };
    format!(
        "{file}: its rows have words and tags in \"{text}\" and \"{tags}\", but the words are one text, and a list is wanted\nto make lists: \
         jq -c '{each}{} | {of_tags}' {file} > rows.jsonl",
        list(text, "tokens")
    )
}
