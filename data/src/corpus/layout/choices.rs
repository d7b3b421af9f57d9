//! Questions with options of which one is right: how they become prompts with all options and their right answers.
//!
//! | options | the right one |
//! |---|---|
//! | a list, texts by letter, lists of letters and texts, objects, fields that differ in a letter or a number | its number, its letter, its name or its text |
//! | objects that say which one is right | the same objects |
//! | wrong answers next to a right one | its text |

mod key;
mod options;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use self::key::{Found, key_of};
use self::options::{Options, Pair, options_of};
use super::parts::{Part, contexts_of, left_out, question_of};

/// Rows from which the same options in all of them are classes.
const ENOUGH_ROWS: usize = 8;
/// Rows whose right option must be found, as a fraction.
const MOST: f64 = 0.9;

/// Questions with options.
pub(super) struct Choices {
    /// The fields with the options and with the right one.
    pub(super) fields: Vec<String>,
    /// The fields that the prompt is made of.
    pub(super) read: Vec<String>,
    /// What the user must know or do where the rows do not tell which option is right.
    pub(super) open: Option<String>,
    /// Fields that are in neither prompt nor answer.
    pub(super) left_out: Vec<String>,
    /// Begins each program of jq: `$o` has letters and texts, and `$i` the number of the right one.
    begin: String,
    prompt: String,
}

impl Choices {
    /// Returns the program of jq that makes prompts and completions.
    pub(super) fn as_answers(&self) -> String {
        format!("{} | {{prompt: {}, completion: ($o[$i] | join(\". \"))}}", self.begin, self.prompt)
    }

    /// Returns the program of jq that makes texts whose label is the letter of the right option.
    pub(super) fn as_classes(&self) -> String {
        format!("{} | {{text: {}, label: $o[$i][0]}}", self.begin, self.prompt)
    }
}

/// Recognizes questions with options, whose right one is known in most `rows`.
pub(super) fn of(rows: &[Map<String, Value>]) -> Option<Choices> {
    let is_other = |name: &&str| rows.iter().any(|row| row.contains_key(*name));
    if ["chosen", "rejected", "messages", "conversations"].iter().any(is_other) {
        return None;
    }
    let found = options_of(rows).into_iter().filter(|options| !are_classes(rows, options));
    found.into_iter().find_map(|options| of_options(rows, &options))
}

/// Whether all rows have the same options in the same order, as classes that somebody has listed. Options in fields of their own would be
/// taken for texts.
fn are_classes(rows: &[Map<String, Value>], options: &Options) -> bool {
    let all: Vec<Vec<Pair>> = rows.iter().filter_map(|row| options.of_row(row)).collect();
    options.field_names().is_empty() && all.len() >= ENOUGH_ROWS && all.iter().all(|other| *other == all[0])
}

fn of_options(rows: &[Map<String, Value>], options: &Options) -> Option<Choices> {
    let found = key_of(rows, options)?;
    let (index, keys, open) = match found {
        Found::Index { index, fields } => (index, fields, None),
        Found::Open { index, fields, why } => (index, fields, Some(why)),
    };
    let mut used: Vec<Vec<String>> = options.paths.iter().chain(&keys).cloned().collect();
    let row = rows.iter().find(|row| options.of_row(row).is_some())?;
    let parts = parts_of(row, &used)?;
    used.extend(parts.iter().map(|part| part.path.clone()));

    let texts: Vec<String> = parts.iter().map(Part::bracketed).collect();
    let list = "($o | map(join(\". \")) | join(\"\\n\"))";
    let prompt = format!("([{}, {list}] | map(strings | select(. != \"\")) | join(\"\\n\\n\"))", texts.join(", "));
    let is_there = "select($i != null and $i >= 0 and $i < ($o | length))";
    let mut fields = options.names();
    let read = parts.iter().map(Part::name).chain(options.names()).collect();
    fields.extend(keys.iter().map(|path| path.join(".")).filter(|name| !options.names().contains(name)));
    Some(Choices {
        fields,
        read,
        open,
        left_out: left_out(row, &used),
        begin: format!("{} as $o | {index} as $i | {is_there}", options.program),
        prompt,
    })
}

/// Returns the texts in front of the options: what the question is about, and the question. Without both, the longest text.
fn parts_of(row: &Map<String, Value>, used: &[Vec<String>]) -> Option<Vec<Part>> {
    let is_free = |path: &[String]| !used.iter().any(|other| path.starts_with(other));
    let question = question_of(row, &is_free);
    let mut parts = contexts_of(row, &is_free);
    parts.retain(|part| question.as_ref().is_none_or(|question| question.path != part.path));
    parts.extend(question);
    if parts.is_empty() {
        parts.extend(super::parts::sentences_of(row, &is_free));
    }
    (!parts.is_empty()).then_some(parts)
}
