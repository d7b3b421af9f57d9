//! Texts of several languages in rows of their own, or in a list of each row.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::RowReader;
use super::converted::they_have;
use super::said::name_of;
use crate::corpus::jq::{self, in_jq};
use crate::corpus::pairs::{ByLanguage, OR_REVERSED, flag, is_language};
use crate::corpus::text::Task;
use crate::formats::FileFormat;

/// Names of the language in an object with a text.
const LANGUAGES: [&str; 5] = ["lang", "language", "locale", "lang_code", "language_code"];

/// A list of objects with a language and a text each.
struct Translations<'r> {
    field: &'r str,
    language: &'r str,
    text: &'r str,
    languages: [&'r str; 2],
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
        if let Some(found) = translations(rows) {
            let command = jq::command(file, format, &found.program());
            return Some(format!(
                "{}: its rows are texts in several languages, in a list \"{}\"{}, and a field for each language is wanted\nto make such \
                 fields: {command}\nand read rows.jsonl with {}",
                file.display(),
                found.field,
                they_have(rows, format),
                self.read_languages(found.languages)
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

    /// Returns the flags that read two languages as a pair.
    fn read_languages(&self, [one, other]: [&str; 2]) -> String {
        let task = if self.task == Task::Translation {
            String::new()
        } else {
            format!("--task {} ", name_of(Task::Translation))
        };
        let format = self.without_format(Task::Translation).map_or(String::new(), |flag| format!("{flag} "));
        let [one, other] = [flag("data.corpus.source_field", one), flag("data.corpus.target_field", other)];
        format!("{task}{format}{one} {other}{OR_REVERSED}")
    }
}

/// Finds a list with a text of each language in all rows.
fn translations(rows: &[Map<String, Value>]) -> Option<Translations<'_>> {
    let objects =
        |value: &'_ Value| value.as_array().is_some_and(|list| list.len() > 1 && list.iter().all(Value::is_object));
    let (field, list) = rows.first()?.iter().find(|(_, value)| objects(value))?;
    let list: Vec<&Map<String, Value>> = list.as_array()?.iter().filter_map(Value::as_object).collect();
    let language = list[0].keys().find(|name| LANGUAGES.contains(&name.to_lowercase().as_str()))?;
    let is_text = |(name, value): &(&String, &Value)| *name != language && value.is_string();
    let mut texts = list[0].iter().filter(is_text).map(|(name, _)| name.as_str());
    let text = texts.next().filter(|_| texts.next().is_none())?;

    let languages = |row: &'_ Map<String, Value>| -> Vec<String> {
        let list = row.get(field).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(|one| one.get(language)?.as_str().map(str::to_owned)).collect()
    };
    let is_even = |row: &Map<String, Value>| {
        let mut found = languages(row);
        found.sort();
        found.windows(2).all(|two| two[0] != two[1])
    };
    let said = |at: usize| list.get(at)?.get(language)?.as_str();
    let (one, other) = (said(0)?, said(1)?);
    (rows.iter().all(is_even) && (is_language(one) || is_language(other))).then_some(Translations {
        field,
        language,
        text,
        languages: [one, other],
    })
}

impl Translations<'_> {
    /// Returns the program of jq that makes a field of each language.
    fn program(&self) -> String {
        let [one, other] = self.languages.map(|name| json!(name));
        format!(
            "{} | map({{({}): {}}}) | add | select(.[{one}] and .[{other}])",
            in_jq(self.field),
            in_jq(self.language),
            in_jq(self.text)
        )
    }
}
