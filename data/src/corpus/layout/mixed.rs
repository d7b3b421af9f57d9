//! Fields whose text is a string in some rows and a list of parts in others, as chats with links export them.

use std::path::Path;

use serde_json::{Map, Value};

use super::RowReader;
use crate::corpus::jq::{self, path_in_jq};
use crate::corpus::path::value_at;
use crate::corpus::text::{Task, TextFormat};
use crate::formats::FileFormat;

/// Names of the text in a part that is an object.
const TEXTS: [&str; 5] = ["text", "content", "value", "insert", "plain_text"];

/// A field with such texts.
pub(super) struct Mixed {
    field: String,
    /// Names of the text in parts that are objects.
    texts: Vec<&'static str>,
    n_lists: usize,
}

impl RowReader<'_> {
    /// Returns the first field of the configuration, or for conversations of the rows, whose texts are strings or lists of parts.
    pub(super) fn mixed_text(&self, rows: &[Map<String, Value>]) -> Option<Mixed> {
        let any = rows.iter().flat_map(Map::keys);
        let named: Vec<&String> = match self.task {
            Task::Translation => vec![&self.corpus.source_field, &self.corpus.target_field],
            Task::Lm if self.text.format == TextFormat::Chat => Vec::new(),
            Task::Lm | Task::Mlm => vec![&self.text.field],
            Task::Classification => vec![&self.labels.text_field, &self.labels.pair_field],
            Task::Tagging => return None,
        };
        let has_named = rows.iter().any(|row| named.iter().any(|name| value_at(row, name).is_some()));
        match has_named {
            true => named.into_iter().find_map(|field| of(rows, field)),
            false => any.into_iter().find_map(|field| of(rows, field)),
        }
    }
}

/// Recognizes a field whose values are strings, or lists of strings and of objects with a text: both in some rows, or both in one list.
fn of(rows: &[Map<String, Value>], field: &str) -> Option<Mixed> {
    let values: Vec<&Value> =
        rows.iter().filter_map(|row| value_at(row, field)).filter(|value| !value.is_null()).collect();
    let lists: Vec<&Vec<Value>> = values.iter().filter_map(|value| value.as_array()).collect();
    let parts = || lists.iter().copied().flatten();
    let text_of = |part: &Value| TEXTS.into_iter().find(|name| part.get(name).is_some_and(Value::is_string));
    let has_role =
        |part: &Value| ["role", "from", "speaker", "label", "start"].iter().any(|name| part.get(name).is_some());
    let are_parts = parts().all(|part| part.is_string() || text_of(part).is_some() && !has_role(part));
    let has_string = values.iter().any(|value| value.is_string()) || parts().any(Value::is_string);
    let is_mixed =
        has_string && parts().any(Value::is_object) && values.iter().all(|value| value.is_string() || value.is_array());
    let mut texts: Vec<&str> = parts().filter_map(text_of).collect();
    texts.sort_unstable();
    texts.dedup();
    (is_mixed && are_parts).then_some(Mixed { field: field.to_owned(), texts, n_lists: lists.len() })
}

/// Says what the texts are, and how they become strings.
pub(super) fn advice(file: &Path, format: FileFormat, Mixed { field, texts, n_lists }: &Mixed) -> String {
    let path = path_in_jq(&field.split('.').map(str::to_owned).collect::<Vec<_>>());
    let text = texts.iter().map(|name| format!(".{name}")).collect::<Vec<_>>().join(" // ");
    let program = format!(
        "{path} |= if type == \"array\" then map(if type == \"object\" then {text} else . end | strings) | join(\"\") else . end"
    );
    format!(
        "{}: the texts in \"{field}\" are strings or lists of parts ({n_lists} lists in the first rows), and strings are wanted\nto join the \
         parts of each: {}\nand read rows.jsonl with the same flags",
        file.display(),
        jq::command(file, format, &program)
    )
}
