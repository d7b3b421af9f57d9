//! Texts that are lists of words, with a class of the whole text or one from each of several annotators.

use std::path::Path;

use serde_json::{Map, Value};

use super::parts::leaves;
use super::recognize::strings_of;
use super::said::name_of;
use super::{RowReader, tagged};
use crate::corpus::columns::columns_of;
use crate::corpus::fields::{has_word_of_class, is_label};
use crate::corpus::jq::{self, path_in_jq};
use crate::corpus::text::Task;
use crate::formats::FileFormat;

/// Words of a text, at least, on average.
const WORDS_OF_TEXT: usize = 3;

/// Rows with such texts.
pub(super) struct WordLists {
    words: Vec<String>,
    /// The class, and whether it is a list with one from each annotator.
    label: Option<(Vec<String>, bool)>,
}

/// Recognizes rows whose only texts are lists of words without tags.
pub(super) fn of(rows: &[Map<String, Value>], order: &[String]) -> Option<WordLists> {
    let has_text = !strings_of(&columns_of(rows), order).is_empty();
    let row = rows.first().filter(|_| !has_text && tagged(rows, ["", ""]).is_none())?;
    let all = |value: &Value, fits: &dyn Fn(&Value) -> bool| {
        value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(fits))
    };
    let is_word = |value: &Value| value.as_str().is_some_and(|word| !word.contains(char::is_whitespace));
    let is_name = |path: &[String]| path.last().is_some_and(|name| is_label(name) || has_word_of_class(name));
    let is_class = |value: &Value| value.is_string() || value.is_i64() || value.is_u64();
    let is_long = |value: &Value| value.as_array().is_some_and(|list| list.len() >= WORDS_OF_TEXT);

    let found = leaves(row);
    let words = found.iter().filter(|(path, value)| all(value, &is_word) && is_long(value) && !is_name(path));
    let (words, _) = words.max_by_key(|(_, value)| value.as_array().map_or(0, Vec::len))?;
    let label = found.iter().find(|(path, value)| is_name(path) && (is_class(value) || all(value, &is_class)));
    Some(WordLists { words: words.clone(), label: label.map(|(path, value)| (path.clone(), value.is_array())) })
}

impl RowReader<'_> {
    /// Says what the rows are, and how they become texts.
    pub(super) fn of_word_lists(
        &self,
        (file, format): (&Path, FileFormat),
        they_have: &str,
        found: &WordLists,
    ) -> String {
        let learns_texts = matches!(self.task, Task::Lm | Task::Mlm);
        let task = if learns_texts || found.label.is_none() { self.task } else { Task::Classification };
        let text = format!("text: ({} | join(\" \"))", path_in_jq(&found.words));
        let (label, what) = match found.label.as_ref().filter(|_| task == Task::Classification) {
            Some((path, true)) => (
                format!(", label: ({} | group_by(.) | max_by(length) | .[0])", path_in_jq(path)),
                format!(", with the class that most annotators chose in \"{}\"", path.join(".")),
            ),
            Some((path, false)) => {
                (format!(", label: {}", path_in_jq(path)), format!(", with the class in \"{}\"", path.join(".")))
            }
            None => (String::new(), String::new()),
        };

        let flags: Vec<String> =
            [format!("--task {}", name_of(task))].into_iter().chain(self.without_format(task)).collect();
        let read =
            if task == self.task { String::new() } else { format!("\nand read rows.jsonl with {}", flags.join(" ")) };
        format!(
            "{}: its rows have texts as lists of words in \"{}\"{they_have}\nto make texts of them{what}: {}{read}",
            file.display(),
            found.words.join("."),
            jq::command(file, format, &format!("{{{text}{label}}}"))
        )
    }
}
