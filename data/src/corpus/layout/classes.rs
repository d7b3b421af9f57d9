//! Rows with a class, for a task that learns classes: what the user has named counts, and the rest is found.

use std::path::Path;

use serde_json::{Map, Value};

use super::recognize::{annotated_copies, compared_texts, list_of_messages, strings_of};
use super::spans::{SpanList, has_span, span_form};
use super::{Layout, RowReader, UNKNOWN};
use crate::corpus::class_texts::{Strings, are_two_texts, has_partner, is_part_of, texts_of_class};
use crate::corpus::columns::{Column, choose_class, column_at, columns_of, rank_of_class};
use crate::corpus::fields::{has_label_word, has_word_of_class, is_label, is_likely_label};
use crate::corpus::jq::{self, path_in_jq};
use crate::corpus::labelled::LabelConfig;
use crate::corpus::one_hot;
use crate::corpus::path::value_at;
use crate::corpus::roles::{Role, is_changed_into, is_of, is_reply};
use crate::corpus::share;
use crate::corpus::text::Task;
use crate::formats::FileFormat;

/// Names of fields that hold lists of labels, as well as the names of classes.
const LISTS: [&str; 8] = ["annotations", "classes", "categories", "topics", "tags", "genres", "spans", "accept"];
/// Names of fields of an object inside such a list, best first.
const NAMES: [&str; 10] =
    ["label", "labels", "name", "choices", "class", "category", "result", "value", "text", "title"];
/// Lists inside lists that are searched for a label.
const DEEPEST: usize = 8;

/// A field with a list of labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::corpus) enum LabelList {
    /// The path to the first label of the list.
    Names(String),
    /// The labels of spans of characters.
    Spans(SpanList),
}

/// Returns whether the row has the field, or a template takes its place.
pub(super) fn has(row: &Map<String, Value>, name: &str) -> bool {
    name.contains('{') || value_at(row, name).is_some()
}

/// Returns whether the row has one label in the field: neither a list nor an object.
pub(super) fn has_one_label(row: &Map<String, Value>, name: &str) -> bool {
    value_at(row, name).is_some_and(|label| !label.is_array() && !label.is_object())
}

/// Returns the layout of rows with a class and a text. `None` if no field seems to be one of both.
pub(super) fn of_classes(rows: &[Map<String, Value>], order: &[String], labels: &LabelConfig) -> Option<Layout> {
    let any_has = |name: &String| rows.iter().any(|row| has(row, name));
    let given = [&labels.text_field, &labels.pair_field].map(|name| any_has(name).then_some(name.as_str()));
    let columns = columns_of(rows);
    let is_given = |name: &str| given.contains(&Some(name));

    let candidates = columns.iter().filter(|(name, _)| !is_given(name));
    let found = candidates
        .map(|(name, column)| (rank_of_class(name, column), is_likely_label(name), column.is_string, name))
        .max();
    let found = found.filter(|(rank, ..)| *rank > 0);

    let is_names = |list: &LabelList| matches!(list, LabelList::Names(_));
    let list = lists_of_labels(rows, labels).find(is_names).or_else(|| lists_of_labels(rows, labels).next());
    let list = list.filter(|list| found.is_none() || !are_of_parts(rows, list));
    // Spans belong to words of the text: a field whose values recur is more likely its class.
    let enough = if list.as_ref().is_none_or(is_names) { 3 } else { 2 };
    let is_named = rows.iter().any(|row| has_one_label(row, &labels.label_field));
    // The texts that somebody compares are the ones that the user has named, if any.
    let compared = compared_texts(rows, order).filter(|[text, pair, _]| {
        given.iter().flatten().all(|name| [text, pair].iter().any(|one| one.as_str() == *name))
    });
    let label = match (found, list) {
        _ if is_named => labels.label_field.clone(),
        _ if compared.is_some() => compared.map(|[.., label]| label).unwrap_or_default(),
        // A list with the name of a class is more likely the class than a field whose values recur.
        (Some((rank, .., name)), list) if rank >= enough || list.is_none() => name.clone(),
        (_, Some(list)) => {
            let texts = texts(rows, order, labels, None);
            return texts.first().map(|text| Layout::LabelLists { text: text.clone(), list });
        }
        (_, None) => return None,
    };
    match &texts(rows, order, labels, Some(&label))[..] {
        [] => None,
        [text, pair, ..] => Some(Layout::LabelledPairs { text: text.clone(), pair: pair.clone(), label }),
        [text] => Some(Layout::Labelled { text: text.clone(), label }),
    }
}

/// Whether each label of a list belongs to a text in another list of the same length, such as a paragraph of an abstract.
fn are_of_parts(rows: &[Map<String, Value>], list: &LabelList) -> bool {
    let LabelList::Names(path) = list else { return false };
    let name = path.split_once('.').map_or(path.as_str(), |(name, _)| name);
    let is_text = |value: &Value| value.as_str().is_some_and(|text| text.trim().contains(' '));
    let labels_of = |row: &Map<String, Value>| row.get(name).and_then(Value::as_array).map_or(0, Vec::len);
    let has_texts = |row: &Map<String, Value>| {
        let are_texts = |(other, value): (&String, &Value)| {
            let texts = value.as_array().filter(|texts| other != name && texts.len() == labels_of(row));
            texts.is_some_and(|texts| texts.iter().all(is_text))
        };
        row.iter().any(are_texts)
    };
    rows.iter().any(|row| labels_of(row) > 1) && rows.iter().all(|row| labels_of(row) == 0 || has_texts(row))
}

impl RowReader<'_> {
    /// Leaves the class to the user where three fields or more can be it and no name tells which one.
    pub(super) fn with_unclear_class(&self, layout: Layout, rows: &[Map<String, Value>], order: &[String]) -> Layout {
        let is_open = |label: &String| {
            !matches!(self.task, Task::Lm | Task::Mlm)
                && *label != self.labels.label_field
                && compared_texts(rows, order).is_none()
                && unclear_class(rows, order, self.labels).is_some()
        };
        match layout {
            Layout::Labelled { text, label } if is_open(&label) => Layout::Labelled { text, label: UNKNOWN.into() },
            Layout::LabelledPairs { text, pair, label } if is_open(&label) => {
                Layout::LabelledPairs { text, pair, label: UNKNOWN.into() }
            }
            other => other,
        }
    }

    /// Says which fields can be the class, or how it is made of fields with a mark for each class. Empty if one field surely is the class.
    pub(super) fn unclear_class(
        &self,
        rows: &[Map<String, Value>],
        order: &[String],
        source: (&Path, FileFormat),
    ) -> String {
        let cell = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let cells = |name: &str| rows.iter().filter_map(|row| Some(cell(value_at(row, name)?))).collect();
        let marks = || one_hot::advice(order.iter().map(String::as_str), &cells, &self.labels.label_field, source);
        let found = unclear_class(rows, order, self.labels).map(|found| marks().unwrap_or(found));
        found.map_or_else(String::new, |found| format!("\n{found}"))
    }

    /// Lets a class belong to most of the text of its rows, where the fields have less than half of it. Fields that the user has named stay.
    pub(super) fn with_most_text(&self, layout: Layout, rows: &[Map<String, Value>]) -> Layout {
        if self.task != Task::Classification {
            return layout;
        }
        let LabelConfig { text_field, pair_field, .. } = self.labels;
        let rows = &without_answers(rows, &layout);
        match layout {
            Layout::Labelled { text, label } if text != *text_field => {
                let whole = share::whole(rows, &[&text], &label).map(|more| share::with_text(rows, &text, &more));
                Layout::Labelled { text: whole.flatten().unwrap_or(text), label }
            }
            Layout::LabelledPairs { text, pair, label } if pair != *pair_field && !are_two_texts(&text, &pair) => {
                let pair = share::whole(rows, &[&text, &pair], &label).unwrap_or(pair);
                Layout::LabelledPairs { text, pair, label }
            }
            other => other,
        }
    }
}

/// Leaves out the answers to the text of a class, and annotated copies of texts: nobody has them when it is classified.
fn without_answers(rows: &[Map<String, Value>], layout: &Layout) -> Vec<Map<String, Value>> {
    let (Layout::Labelled { text, .. } | Layout::LabelledPairs { text, .. }) = layout else { return rows.to_vec() };
    let is_answer = |name: &String| name != text && (is_reply(name) || is_changed_into(text, name) == Some(true));
    let mut kept = rows.to_vec();
    kept.iter_mut().for_each(|row| row.retain(|name, _| !is_answer(name)));
    let strings =
        kept.first().into_iter().flatten().filter(|(_, value)| value.is_string()).map(|(name, _)| name.as_str());
    let copies = annotated_copies(&kept, &strings.collect::<Vec<_>>());
    kept.iter_mut().for_each(|row| row.retain(|name, _| !copies.contains(name)));
    kept
}

/// Names the fields that can be the class as well as `label`, unless the user or its name says that it is the class. The `texts` are
/// none.
pub(super) fn other_classes(rows: &[Map<String, Value>], label: &str, texts: &[&str], labels: &LabelConfig) -> String {
    if label == labels.label_field || has_word_of_class(label) {
        return String::new();
    }
    let columns = columns_of(rows);
    let is_other = |name: &str| {
        name != label && !texts.contains(&name) && ![&labels.text_field, &labels.pair_field].contains(&&name.to_owned())
    };
    let others: Vec<&str> = columns
        .iter()
        .filter(|(name, column)| is_other(name) && rank_of_class(name, column) > 0)
        .map(|(name, _)| name.as_str())
        .collect();
    if others.is_empty() {
        String::new()
    } else {
        format!("\nother fields that can be the class: {}", others.join(", "))
    }
}

/// Says which fields can be the class, if three or more can and no name tells which one it is.
fn unclear_class(rows: &[Map<String, Value>], order: &[String], labels: &LabelConfig) -> Option<String> {
    let columns = columns_of(rows);
    let texts = texts(rows, order, labels, None);
    let can_be = |(name, column): &(&str, &Column)| {
        !texts.iter().any(|text| text == name) && 2 * column.n >= rows.len() && rank_of_class(name, column) > 0
    };
    let named = order.iter().filter_map(|name| columns.get_key_value(name));
    let found: Vec<(&str, &Column)> = named.map(|(name, column)| (name.as_str(), column)).filter(can_be).collect();
    let is_sure = found.iter().any(|(name, column)| rank_of_class(name, column) > 2);
    if is_sure { None } else { choose_class(&found) }
}

/// Returns how lists with a mark of 0 or 1 for each class become numbers of classes. `None` for other labels.
pub(super) fn advice_for_marks(
    path: &Path,
    format: FileFormat,
    rows: &[Map<String, Value>],
    label: &str,
) -> Option<String> {
    let field = label.strip_suffix(".0")?;
    let lists: Vec<&Vec<Value>> = rows.iter().filter_map(|row| value_at(row, field)?.as_array()).collect();
    let is_mark = |value: &Value| value.is_boolean() || matches!(value.as_u64(), Some(0 | 1));
    let is_set = |value: &&Value| value.as_bool() == Some(true) || value.as_u64() == Some(1);
    let n = lists.first()?.len();
    if n < 2 || !lists.iter().all(|list| list.len() == n && list.iter().all(is_mark)) {
        return None;
    }

    let path_of_field = path_in_jq(&field.split('.').map(str::to_owned).collect::<Vec<_>>());
    let mark = if lists[0][0].is_boolean() { "true" } else { "1" };
    let program = format!("select({path_of_field} | indices({mark}) | length == 1) | {path_of_field} |= index({mark})");
    let several = lists.iter().filter(|list| list.iter().filter(is_set).count() > 1).count();
    let left_out = match several {
        0 => String::new(),
        _ => ", and to leave out rows with several, which are not supported".to_owned(),
    };
    Some(format!(
        "{}: its rows are texts with lists of {n} marks in \"{field}\", one for each class, and the number or the name of the class is \
         wanted\nto make the number of the marked class{left_out}: {}\nand name the classes in their order with data.labels.names",
        path.display(),
        jq::command(path, format, &program)
    ))
}

/// Returns the fields with the texts that a class belongs to: one, two, or none.
fn texts(rows: &[Map<String, Value>], order: &[String], labels: &LabelConfig, label: Option<&str>) -> Vec<String> {
    let any_has = |name: &str| rows.iter().any(|row| has(row, name));
    let [text, pair] = [labels.text_field.as_str(), labels.pair_field.as_str()];
    let columns = columns_of(rows);
    let mut strings: Vec<Strings<'_>> = strings_of(&columns, order)
        .into_iter()
        .filter(|(name, _)| Some(name.as_str()) != label && *name != pair && !is_label(name))
        .map(|(name, column)| column.strings(name))
        .collect();
    // The same words in all rows are not a text, and an annotated copy of one has what a class is made of.
    let names: Vec<&str> = strings.iter().map(|column| column.name).collect();
    let mut others = annotated_copies(rows, &names);
    let is_constant = |name: &&&str| columns[**name].is_constant() && !has_partner(name, names.iter().copied());
    others.extend(names.iter().filter(is_constant).map(|name| (*name).to_owned()));
    let is_other = |column: &Strings<'_>| column.name != text && others.iter().any(|name| name == column.name);
    if !strings.iter().all(is_other) {
        strings.retain(|column| !is_other(column));
    }
    let value =
        |row: &'_ Map<String, Value>, name: &str| value_at(row, name).and_then(Value::as_str).map(str::to_owned);
    let is_part = |name: &str, whole: &str| {
        let both: Vec<_> = rows.iter().filter_map(|row| Some((value(row, name)?, value(row, whole)?))).collect();
        is_part_of(both.iter().map(|(text, whole)| (text.trim(), whole.trim())))
    };
    let all: Vec<&str> = strings.iter().map(|column| column.name).collect();
    strings.retain(|column| {
        let at = all.iter().position(|name| *name == column.name);
        let is_copied = |(other, name): (usize, &&str)| {
            Some(other) != at && is_part(column.name, name) && (Some(other) < at || !is_part(name, column.name))
        };
        column.name == text || !all.iter().enumerate().any(is_copied)
    });
    // Nobody has the answer to a text when it is classified.
    let is_asked = |column: &Strings<'_>| !is_reply(column.name) && column.has_words(2);
    let has_question = strings.iter().any(|column| is_of(Role::Question, column.name));
    if strings.iter().any(is_asked) && !has_question {
        let all: Vec<&str> = strings.iter().map(|column| column.name).collect();
        let is_text = |name: &str| name == text || !is_reply(name) || has_partner(name, all.iter().copied());
        strings.retain(|column| is_text(column.name));
    }
    let questions: Vec<&str> =
        strings.iter().map(|column| column.name).filter(|name| is_of(Role::Question, name)).collect();
    let answers = |name: &str| questions.iter().any(|question| is_changed_into(question, name) == Some(true));
    strings.retain(|column| column.name == text || !answers(column.name));
    let given = any_has(text).then(|| {
        let known = strings.iter().position(|column| column.name == text);
        known.unwrap_or_else(|| {
            strings.push(column_at(rows, text).strings(text));
            strings.len() - 1
        })
    });

    let mut found: Vec<String> =
        texts_of_class(&strings, given).into_iter().map(|at| strings[at].name.to_owned()).collect();
    if found.is_empty() {
        // A template has no text of its own here.
        found.extend(given.map(|_| text.to_owned()));
    }
    if any_has(pair) && !found.is_empty() {
        found.truncate(1);
        found.push(pair.to_owned());
    }
    found
}

/// Returns the layout of rows with a text and spans of characters in it, under any name. `None` without spans.
pub(super) fn of_spans(rows: &[Map<String, Value>], order: &[String], labels: &LabelConfig) -> Option<Layout> {
    let list = lists_of_labels(rows, labels).find(|list| matches!(list, LabelList::Spans(..)))?;
    let text = texts(rows, order, labels, None).first()?.clone();
    Some(Layout::LabelLists { text, list })
}

/// Returns the fields with lists of labels: the one that the user has named, and those with such a name or with spans.
fn lists_of_labels(rows: &[Map<String, Value>], labels: &LabelConfig) -> impl Iterator<Item = LabelList> {
    rows.iter().flat_map(|row| {
        let named =
            value_at(row, &labels.label_field).and_then(|value| Some((labels.label_field.clone(), value.as_array()?)));
        let mut lists = Vec::new();
        let messages = list_of_messages(row);
        collect_lists("", row, &mut lists);
        lists.retain(|(name, _)| messages.as_ref() != Some(name));
        let found = named.into_iter().chain(lists).filter(|(_, list)| !list.is_empty());
        found.filter_map(|(name, list)| first_label(&name, list, 0)).collect::<Vec<_>>()
    })
}

/// Appends the lists with names of labels, or with spans, in the row and the objects inside it.
fn collect_lists<'a>(prefix: &str, row: &'a Map<String, Value>, lists: &mut Vec<(String, &'a Vec<Value>)>) {
    for (key, value) in row {
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        let is_of_labels = || is_label(key) || has_label_word(key) || LISTS.contains(&key.to_lowercase().as_str());
        match value {
            // The letters of options and the parts of a context are about them.
            Value::Object(_) if is_of(Role::Context, key) || is_of(Role::Option, key) => {}
            Value::Object(inner) => collect_lists(&name, inner, lists),
            Value::Array(list) if is_of_labels() || list.first().is_some_and(has_span) => lists.push((name, list)),
            _ => {}
        }
    }
}

/// Finds the first label below a list at `path`.
fn first_label(path: &str, list: &[Value], depth: usize) -> Option<LabelList> {
    let first = list.first().filter(|_| depth < DEEPEST)?;
    if let Some(form) = span_form(first) {
        return Some(LabelList::Spans(SpanList::new(path, "", form)));
    }
    inside(&format!("{path}.0"), first, depth + 1)
}

fn inside(path: &str, value: &Value, depth: usize) -> Option<LabelList> {
    match value {
        Value::String(_) | Value::Bool(_) | Value::Number(_) if !value.is_f64() => {
            Some(LabelList::Names(path.to_owned()))
        }
        Value::Array(list) => first_label(path, list, depth),
        Value::Object(object) if depth < DEEPEST => {
            if let Some(form) = span_form(value) {
                let (list, inner) = path.rsplit_once(".0").unwrap_or((path, ""));
                return Some(LabelList::Spans(SpanList::new(list, inner, form)));
            }
            let known = NAMES.iter().filter_map(|name| object.get_key_value(*name));
            known.filter_map(|(name, value)| inside(&format!("{path}.{name}"), value, depth + 1)).next()
        }
        _ => None,
    }
}
