//! Texts that are lists of strings, such as the ingredients of a dish: a template joins each list.

use std::path::Path;

use serde_json::{Map, Value};

use super::classes::of_classes;
use super::converted::they_have;
use super::lists::{lists_in, strings};
use super::recognize::recognize;
use super::{Layout, RowReader, tagged};
use crate::corpus::fields::{has_label_word, is_label};
use crate::corpus::pairs::flag;
use crate::corpus::path::value_at;
use crate::corpus::text::{Task, TextFormat};
use crate::error::{Error, Result};
use crate::formats::FileFormat;

/// Strings of a list, at least, in the mean.
const ENOUGH: usize = 2;

/// Returns the lists of several strings, in the mean, that most rows have in a field; `None` for other fields.
fn lists<'r>(rows: &'r [Map<String, Value>], field: &str) -> Option<Vec<Vec<&'r str>>> {
    let lists = lists_in(rows, field);
    let n: usize = lists.iter().map(Vec::len).sum();
    (!lists.is_empty() && n >= ENOUGH * lists.len()).then_some(lists)
}

/// Returns the bytes of the strings of a field, also of those in lists.
fn n_bytes(rows: &[Map<String, Value>], field: &str) -> usize {
    let of = |value: &Value| match value {
        Value::String(text) => text.len(),
        value => strings(value).map_or(0, |texts| texts.iter().map(|text| text.len()).sum()),
    };
    rows.iter().filter_map(|row| value_at(row, field)).map(of).sum()
}

impl RowReader<'_> {
    /// Refuses rows that have other values than texts in fields of the configuration, and says how they become texts.
    ///
    /// # Errors
    /// If most rows do.
    pub(super) fn check_named(&self, file: &Path, format: FileFormat, rows: &[Map<String, Value>]) -> Result<()> {
        if let Some(found) = self.named_lists(rows) {
            return Err(Error::BadRows(format!("{}: {found}", file.display())));
        }
        let found = self.named_without_texts(rows);
        found.map_or(Ok(()), |found| {
            Err(Error::BadRows(self.advice_for((file, format), &they_have(rows, format), &found, &[], None)))
        })
    }

    /// Says that fields of the configuration are lists where a text is wanted, and how their strings become one text.
    fn named_lists(&self, rows: &[Map<String, Value>]) -> Option<String> {
        let labels = self.labels;
        let keys = match self.task {
            Task::Classification => {
                vec![("data.labels.text_field", &labels.text_field), ("data.labels.pair_field", &labels.pair_field)]
            }
            Task::Lm | Task::Mlm if !self.text.is_chat() => vec![("data.text.field", &self.text.field)],
            _ => Vec::new(),
        };
        let found: Vec<(&str, &String)> = keys.into_iter().filter(|(_, field)| lists(rows, field).is_some()).collect();
        let (_, field) = found.first()?;
        let flags: Vec<String> = found.iter().map(|(key, field)| flag(key, &format!("{{{field}}}"))).collect();
        Some(format!(
            "its field \"{field}\" is a list of texts, and a text is wanted\nto join each list by spaces: {}",
            flags.join(" ")
        ))
    }

    /// Returns the layout with a template of lists, where they have more text than the field that was taken for it.
    pub(super) fn of_lists(&self, found: &Layout, rows: &[Map<String, Value>], order: &[String]) -> Option<Layout> {
        let (Layout::Texts { field: text } | Layout::Labelled { text, .. }) = found else { return None };
        let is_fixed = [&self.labels.text_field, &self.text.field].contains(&text);
        let reads_lists =
            self.task == Task::Tagging || matches!(self.text.format, TextFormat::Chat | TextFormat::Preferences);
        if is_fixed || reads_lists || tagged(rows, ["", ""]).is_some() {
            return None;
        }
        let fields = rows.first()?.keys().filter(|field| !is_label(field) && !has_label_word(field));
        let longer = fields.filter(|field| lists(rows, field).is_some() && n_bytes(rows, field) > n_bytes(rows, text));
        let longest = longer.max_by_key(|field| n_bytes(rows, field))?;

        // The row as it is with a text in the place of the list.
        let template = format!("{{{longest}}}");
        let mut joined = rows.to_vec();
        for row in &mut joined {
            let text = row.remove(longest).and_then(|value| strings(&value).map(|texts| texts.join(" ")));
            row.insert(template.clone(), text.unwrap_or_default().into());
        }
        let order: Vec<String> =
            order.iter().map(|field| if field == longest { template.clone() } else { field.clone() }).collect();
        let labelled = of_classes(&joined, &order, self.labels).filter(|_| self.task == Task::Classification);
        let layout = labelled.or_else(|| match self.task {
            Task::Classification => None,
            Task::Lm | Task::Mlm => Some(Layout::Texts { field: template.clone() }),
            _ => recognize(&joined, &order),
        })?;
        Some(layout).filter(|layout| match layout {
            Layout::Texts { field: text } | Layout::Labelled { text, .. } => *text == template,
            _ => true,
        })
    }
}
