//! Tells what rows are by their first ones: by the names of the fields, and by what the fields hold.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value};

use super::Layout;
use crate::corpus::fields::{ANSWERS, Strings, is_about, is_label, is_text, words_of};
use crate::corpus::pairs::{says_direction, texts_of};
use crate::corpus::path::value_at;
use crate::corpus::roles::{Role, is_changed_into, is_of};
use crate::corpus::text::Rating;

/// Rows from which a field whose values recur is a class.
const ENOUGH_ROWS: usize = 8;
/// Words of fields that say who wrote a text.
const PEOPLE: [&str; 10] = ["user", "author", "name", "sender", "from", "by", "speaker", "username", "nick", "channel"];
/// Longest name of a class, in bytes.
const LONGEST_LABEL: usize = 60;

/// Returns the layout of `rows`, the first of a file. `order` has the names of the fields in the order of the file.
pub(super) fn recognize(rows: &[Map<String, Value>], order: &[String]) -> Option<Layout> {
    let first = rows.first()?;
    let has = |name: &str| first.contains_key(name);
    if has("chosen") && has("rejected") {
        return Some(Layout::Preferences);
    }
    if has("chosen") || has("rejected") {
        return None; // half of a preference, which its reader names
    }
    if is_rated(first) {
        return Some(Layout::Rated);
    }
    if let Some(field) = list_of_messages(first) {
        return Some(Layout::Conversations { field });
    }
    if let Some([question, answer]) = ANSWERS.into_iter().find(|names| names.iter().all(|name| has(name))) {
        return Some(Layout::Answers { question: question.into(), answer: answer.into() });
    }
    tagged(rows, ["", ""]).or_else(|| of_strings(rows, order))
}

/// Whether the row has a conversation and says of its answer whether it is good.
pub(super) fn is_rated(row: &Map<String, Value>) -> bool {
    let has_answer = || ANSWERS.iter().any(|names| names.iter().all(|name| row.contains_key(*name)));
    Rating::of(row).is_some() && (list_of_messages(row).is_some() || has_answer())
}

/// Returns up to eight names of fields.
pub(super) fn names_in(rows: &[Map<String, Value>]) -> Vec<String> {
    rows.first().into_iter().flat_map(|row| row.keys()).take(8).cloned().collect()
}

pub(super) fn list_of_messages(row: &Map<String, Value>) -> Option<String> {
    let is_message = |value: &Value| {
        let has = |name: &str| value.get(name).is_some();
        has("role") && (has("content") || has("tool_calls")) || has("from") && has("value")
    };
    let is_list = |value: &Value| value.as_array().is_some_and(|list| list.first().is_some_and(is_message));
    let known = ["messages", "conversations"].into_iter().find(|name| row.get(*name).is_some_and(is_list));
    let other = || row.iter().find(|(_, value)| is_list(value)).map(|(name, _)| name.clone());
    known.map(str::to_owned).or_else(other)
}

/// Two lists of equal length: words, and names or numbers. Those that are `named` count, if they are among them.
pub(super) fn tagged(rows: &[Map<String, Value>], named: [&str; 2]) -> Option<Layout> {
    let first = rows.first()?;
    let list = |row: &'_ Map<String, Value>, name: &str| row.get(name).and_then(Value::as_array).cloned();
    let is_words = |name: &&String| list(first, name).is_some_and(|words| words.iter().all(Value::is_string));
    let n_distinct = |name: &str| {
        let values = rows.iter().filter_map(|row| list(row, name)).flatten().map(|value| value.to_string());
        values.collect::<HashSet<_>>().len()
    };
    let is_equally_long = |a: &str, b: &str| {
        rows.iter().all(|row| match (list(row, a), list(row, b)) {
            (Some(a), Some(b)) => a.len() == b.len() && b.iter().all(|tag| tag.is_string() || tag.is_i64()),
            _ => false,
        })
    };

    let mut found: Vec<(&String, &String)> = Vec::new();
    for words in first.keys().filter(is_words) {
        let tags = first.keys().filter(|tags| *tags != words && is_equally_long(words, tags));
        found.extend(tags.map(|tags| (words, tags)));
    }
    // Tags recur more often than words. Of several lists of tags (of parts of speech, of names) the one called so counts.
    let (words, tags) = found.into_iter().max_by_key(|(words, tags)| {
        let recurs = n_distinct(words) >= n_distinct(tags);
        let is_usual = ["tags", "labels"].contains(&tags.as_str());
        let n_named = usize::from(words.as_str() == named[0]) + usize::from(tags.as_str() == named[1]);
        (n_named, recurs, is_usual, tags.contains("ner"), std::cmp::Reverse(n_distinct(tags)))
    })?;
    Some(Layout::Tagged { words: words.clone(), tags: tags.clone() })
}

/// What is known of a field.
#[derive(Default)]
pub(super) struct Column {
    n_bytes: usize,
    n_words: usize,
    longest: usize,
    n: usize,
    distinct: HashSet<String>,
    pub(super) is_string: bool,
    pub(super) is_bool: bool,
}

impl Column {
    /// Whether all rows have the same text, such as the name of a role.
    fn is_constant(&self) -> bool {
        self.n >= ENOUGH_ROWS && self.distinct.len() == 1
    }

    /// Whether few values recur in many rows.
    pub(super) fn recurs(&self) -> bool {
        self.n >= ENOUGH_ROWS && self.distinct.len() > 1 && self.distinct.len() * 4 <= self.n
    }

    /// Whether its values are short enough for names of classes.
    pub(super) fn is_short(&self) -> bool {
        self.n > 0 && self.longest <= LONGEST_LABEL
    }

    /// Describes the field `name` as a column of strings.
    pub(super) fn strings<'a>(&self, name: &'a str) -> Strings<'a> {
        Strings { name, n_bytes: self.n_bytes, n_words: self.n_words, n: self.n, recurs: self.recurs() }
    }

    fn add(&mut self, text: &str, value: &Value) {
        self.n_bytes += text.len();
        self.n_words += text.split_whitespace().count();
        self.longest = self.longest.max(text.len());
        self.n += 1;
        (self.is_string, self.is_bool) = (value.is_string(), value.is_boolean());
        self.distinct.insert(text.to_owned());
    }
}

/// Describes what rows have in one field.
pub(super) fn column_at(rows: &[Map<String, Value>], path: &str) -> Column {
    let mut column = Column::default();
    for value in rows.iter().filter_map(|row| value_at(row, path)) {
        match value {
            Value::String(text) => column.add(text, value),
            Value::Bool(_) | Value::Number(_) => column.add(&value.to_string(), value),
            _ => {}
        }
    }
    column
}

/// Rows of strings: labelled texts, pairs or texts.
fn of_strings(rows: &[Map<String, Value>], order: &[String]) -> Option<Layout> {
    let columns = columns_of(rows);
    let strings = strings_of(&columns, order);
    let longest = |except: Option<&String>| {
        let others = strings.iter().filter(|(name, _)| Some(*name) != except);
        others
            .max_by_key(|(name, column)| (is_text(name), !column.is_constant(), column.n_bytes))
            .map(|(name, _)| (*name).clone())
    };

    let names: Vec<&str> = strings.iter().map(|(name, _)| name.as_str()).collect();
    let label = label_of(&columns);
    // Names of files and repositories stand next to two texts; a class of them, too, where the names say what is made of what.
    let words = texts_in(rows, order);
    let two: Vec<&str> = names.iter().copied().filter(|name| words.iter().any(|text| text == name)).collect();
    let is_pair = two.len() == 2 && (label.is_none() || is_changed_into(two[0], two[1]).is_some());
    let names = if is_pair { two } else { names };
    let strings: Vec<(&String, &Column)> =
        strings.iter().copied().filter(|(name, _)| names.contains(&name.as_str())).collect();
    // The same words in all rows, such as the name of a role, are not a text, unless the names of the fields say so.
    let is_text = |at: usize| !strings[at].1.is_constant();
    let are_texts = |source: usize, target: usize| {
        says_direction(names[source], names[target]) || is_text(source) && is_text(target)
    };
    let are_pair = match texts_of(&names) {
        [Some(source), Some(target)] if are_texts(source, target) => {
            Some(Layout::Pairs { source: names[source].into(), target: names[target].into() })
        }
        _ => None,
    };
    // Two texts with the names of a pair are one, also where a third field is a class.
    let is_sure = names.len() >= 2 && label.as_ref().is_none_or(|label| !are_of(are_pair.as_ref(), label));
    if let (Some(pair), true) = (&are_pair, is_sure) {
        return Some(pair.clone());
    }
    if let Some(label) = label
        && let Some(text) = longest(Some(&label))
    {
        return Some(Layout::Labelled { text, label });
    }
    are_pair.or_else(|| Some(Layout::Texts { field: longest(None)? }))
}

/// Whether a field says who wrote a text: by its name, with values of one word.
pub(super) fn is_name_of_someone(rows: &[Map<String, Value>], name: &str) -> bool {
    let is_someone = words_of(name).iter().any(|word| PEOPLE.contains(&word.as_str()));
    let column = column_at(rows, name);
    is_someone && column.n_words < 2 * column.n
}

/// Returns the fields of rows with texts of several words, in the order of the file: no names, no words that recur in all rows, and nothing
/// about a text. If no field has several words, those with strings count.
pub(super) fn texts_in(rows: &[Map<String, Value>], order: &[String]) -> Vec<String> {
    let columns = columns_of(rows);
    let strings = strings_of(&columns, order);
    let can_be = |(name, column): &&(&String, &Column)| !column.is_constant() && !is_name_of_someone(rows, name);
    let texts: Vec<&(&String, &Column)> = strings.iter().filter(can_be).collect();
    let has_words = |(_, column): &&&(&String, &Column)| 2 * column.n_words > 3 * column.n;
    let with_words: Vec<String> = texts.iter().filter(has_words).map(|(name, _)| (*name).clone()).collect();
    match with_words.len() {
        0 | 1 => texts.into_iter().map(|(name, _)| (*name).clone()).collect(),
        _ => with_words,
    }
}

/// Returns the columns of strings that are not about another one, in the order of the file.
pub(super) fn strings_of<'a>(columns: &'a BTreeMap<String, Column>, order: &[String]) -> Vec<(&'a String, &'a Column)> {
    let mut strings: Vec<(&String, &Column)> =
        columns.iter().filter(|(name, column)| column.is_string && !is_about(name)).collect();
    strings.sort_by_key(|(name, _)| order.iter().position(|other| other == *name).unwrap_or(usize::MAX));
    strings
}

pub(super) fn columns_of(rows: &[Map<String, Value>]) -> BTreeMap<String, Column> {
    let mut columns = BTreeMap::new();
    rows.iter().for_each(|row| collect("", row, &mut columns));
    columns
}

/// Whether the pair has the field `name` on one of its sides.
fn are_of(pair: Option<&Layout>, name: &str) -> bool {
    matches!(pair, Some(Layout::Pairs { source, target }) if source == name || target == name)
}

/// Returns the field that holds a class: by its name, or because its values recur.
fn label_of(columns: &BTreeMap<String, Column>) -> Option<String> {
    let candidates = columns.iter().filter(|(name, _)| !is_about(name) && !is_of(Role::Context, name));
    let found = candidates.filter(|(name, column)| column.is_short() && (is_label(name) || column.recurs()));
    let best = found.max_by_key(|(name, column)| (is_label(name), column.recurs(), column.is_string));
    best.map(|(name, _)| name.clone())
}

fn collect(prefix: &str, row: &Map<String, Value>, columns: &mut BTreeMap<String, Column>) {
    for (key, value) in row {
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        let text = match value {
            Value::Object(inner) => {
                collect(&name, inner, columns);
                continue;
            }
            Value::String(text) => text.clone(),
            Value::Bool(_) | Value::Number(_) if value.as_f64().is_none_or(|number| number.fract() == 0.0) => {
                value.to_string()
            }
            _ => continue,
        };
        columns.entry(name).or_default().add(&text, value);
    }
}
