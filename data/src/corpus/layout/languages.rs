//! Texts of several languages in rows of their own, or in a list of each row.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::RowReader;
use super::converted::they_have;
use super::lists::strings;
use super::said::name_of;
use crate::corpus::jq::{self, in_jq, path_in_jq};
use crate::corpus::pairs::{ByLanguage, OR_REVERSED, flag, is_language};
use crate::corpus::text::Task;
use crate::formats::FileFormat;

/// Names of the language in an object with a text.
const LANGUAGES: [&str; 5] = ["lang", "language", "locale", "lang_code", "language_code"];

/// Further languages that a message names.
const MOST_SHOWN: usize = 20;

/// Texts of several languages in each row.
struct Translations {
    /// What has them, for a sentence.
    said: String,
    /// The expression of jq for lists of an object with a language and its text.
    objects: String,
    /// All languages, the most frequent ones first.
    languages: Vec<String>,
}

impl RowReader<'_> {
    /// Says how texts of several languages get into one row, where this reader wants texts; `None` for other rows.
    pub(super) fn advice_for_languages(
        &self,
        file: &Path,
        format: FileFormat,
        rows: &[Map<String, Value>],
    ) -> Option<String> {
        if !matches!(self.task, Task::Lm | Task::Translation) || format.has_tags() {
            return None;
        }
        if let Some(found) = listed(rows).or_else(|| in_two_lists(rows)) {
            let command = jq::command(file, format, &found.program());
            return Some(format!(
                "{}: its rows are texts in several languages, {}{}, and a field for each language is wanted\nto make such fields: {command}\nand \
                 read rows.jsonl with {}",
                file.display(),
                found.said,
                they_have(rows, format),
                self.read_languages(&found.languages)
            ));
        }
        if self.task != Task::Translation || self.has_named_a_field(rows) {
            return None;
        }

        let names: Vec<&str> = rows.first()?.keys().map(String::as_str).collect();
        let cell = |value: Option<&Value>| match value {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null) | None => String::new(),
            Some(value) => value.to_string(),
        };
        let cells: Vec<Vec<String>> =
            rows.iter().map(|row| names.iter().map(|name| cell(row.get(*name))).collect()).collect();
        // Texts without a key are texts.
        let found = ByLanguage::of(Some(&names), &cells).filter(ByLanguage::has_key)?;
        Some(format!("{}: {}", file.display(), found.advice(file, format, Some(&names))))
    }

    /// Returns the flags that read the first two languages as a pair.
    fn read_languages(&self, languages: &[String]) -> String {
        let task = if self.task == Task::Translation {
            String::new()
        } else {
            format!("--task {} ", name_of(Task::Translation))
        };
        let format = self.without_format(Task::Translation).map_or(String::new(), |flag| format!("{flag} "));
        let source = flag("data.corpus.source_field", &languages[0]);
        let target = flag("data.corpus.target_field", &languages[1]);
        let others: Vec<&str> = languages.iter().skip(2).take(MOST_SHOWN).map(String::as_str).collect();
        let others = match others.is_empty() {
            true => String::new(),
            false => format!("; for other languages, write their names in both: {}", others.join(", ")),
        };
        format!("{task}{format}{source} {target}{OR_REVERSED}{others}")
    }
}

/// Returns the languages of rows, the most frequent ones first, if each row has each of them once and most are known.
fn ordered(rows: &[Vec<String>]) -> Option<Vec<String>> {
    let mut counts: Vec<(&String, usize)> = Vec::new();
    for language in rows.iter().flatten() {
        match counts.iter_mut().find(|(known, _)| *known == language) {
            Some((_, n)) => *n += 1,
            None => counts.push((language, 1)),
        }
    }
    let is_even = |row: &Vec<String>| row.iter().collect::<HashSet<_>>().len() == row.len();
    let n_known = counts.iter().filter(|(language, _)| is_language(language)).count();
    let are_languages = counts.len() > 1 && 2 * n_known >= counts.len();
    counts.sort_by_key(|(_, n)| Reverse(*n));
    (are_languages && rows.iter().all(is_even)).then(|| counts.into_iter().map(|(name, _)| name.clone()).collect())
}

/// Finds a list of objects with a language and a text each in all rows.
fn listed(rows: &[Map<String, Value>]) -> Option<Translations> {
    let objects =
        |value: &'_ Value| value.as_array().is_some_and(|list| list.len() > 1 && list.iter().all(Value::is_object));
    let (field, list) = rows.first()?.iter().find(|(_, value)| objects(value))?;
    let first = list.as_array()?.first()?.as_object()?;
    let language = first.keys().find(|name| LANGUAGES.contains(&name.to_lowercase().as_str()))?;
    let is_text = |(name, value): &(&String, &Value)| *name != language && value.is_string();
    let mut texts = first.iter().filter(is_text).map(|(name, _)| name.as_str());
    let text = texts.next().filter(|_| texts.next().is_none())?;

    let of_row = |row: &Map<String, Value>| -> Vec<String> {
        let list = row.get(field).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(|one| one.get(language)?.as_str().map(str::to_owned)).collect()
    };
    Some(Translations {
        said: format!("in a list \"{field}\""),
        objects: format!("{} | map({{({}): {}}})", in_jq(field), in_jq(language), in_jq(text)),
        languages: ordered(&rows.iter().map(of_row).collect::<Vec<_>>())?,
    })
}

/// Finds a list of languages and a list of as many texts, in an object of each row or in the row itself. `datasets` stores lists of objects
/// so.
fn in_two_lists(rows: &[Map<String, Value>]) -> Option<Translations> {
    let inside = |(name, value): (&String, &Value)| Some((vec![name.clone()], value.as_object()?.clone()));
    let first = rows.first()?;
    let mut objects: Vec<(Vec<String>, Map<String, Value>)> = first.iter().filter_map(inside).collect();
    objects.push((Vec::new(), first.clone()));
    objects.into_iter().find_map(|(path, object)| {
        let of_row = |row: &Map<String, Value>, name: &str| -> Vec<String> {
            let inside = path.iter().try_fold(row, |row, name| row.get(name)?.as_object());
            let list = inside.and_then(|inside| strings(inside.get(name)?)).unwrap_or_default();
            list.into_iter().map(str::to_owned).collect()
        };
        let is_list = |name: &&String| object.get(*name).and_then(strings).is_some_and(|list| list.len() > 1);
        let lists = || object.keys().filter(is_list);
        let all = |name: &str| rows.iter().map(|row| of_row(row, name)).collect::<Vec<_>>();
        let (language, languages) = lists().find_map(|name| Some((name, ordered(&all(name))?)))?;
        let n_words =
            |name: &str| all(name).iter().flatten().map(|text| text.split_whitespace().count()).sum::<usize>();
        let is_even = |name: &str| rows.iter().all(|row| of_row(row, name).len() == of_row(row, language).len());
        let texts = lists().filter(|name| *name != language && is_even(name));
        let text = texts.max_by_key(|name| n_words(name))?;

        let path_of = |name: &String| path_in_jq(&[&path[..], std::slice::from_ref(name)].concat());
        let named =
            [language, text].map(|name| format!("\"{}\"", [&path[..], std::slice::from_ref(name)].concat().join(".")));
        Some(Translations {
            said: format!("with lists of the languages in {} and of the texts in {}", named[0], named[1]),
            objects: format!("[{}, {}] | transpose | map({{(.[0]): .[1]}})", path_of(language), path_of(text)),
            languages,
        })
    })
}

impl Translations {
    /// Returns the program of jq that makes a field of each language. A row may lack one of both.
    fn program(&self) -> String {
        let [one, other] = [&self.languages[0], &self.languages[1]].map(|name| json!(name));
        format!("{} | add | select(.[{one}] and .[{other}])", self.objects)
    }
}
