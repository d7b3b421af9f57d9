//! Tells what rows are by their first ones: by the names of the fields, and by what the fields hold.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value};

use super::Layout;
use crate::corpus::asked::Asked;
use crate::corpus::columns::{Column, column_at, columns_of};
use crate::corpus::compared::compared_among;
use crate::corpus::fields::{
    ANSWERS, has_label_word, is_about, is_analysis, is_label, is_likely_label, is_of_persons, is_text,
};
use crate::corpus::pairs::{are_of_languages, says_direction, texts_of};
use crate::corpus::path::value_at;
use crate::corpus::roles::{Role, is_changed_into, is_of};
use crate::corpus::text::Rating;
use crate::corpus::values::is_annotated;

/// Tags of words from which they recur.
const ENOUGH_TAGS: usize = 40;

/// Returns the layout of `rows`, the first of a file. `order` has the names of the fields in the order of the file.
pub(super) fn recognize(rows: &[Map<String, Value>], order: &[String]) -> Option<Layout> {
    let usual = usual_rows(rows);
    let rows = usual.as_slice();
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

    // A question and its answer may be lists of messages, of which one alone is half of a conversation.
    let are_messages = |names: &[&str; 2]| names.iter().all(|name| first.get(*name).is_some_and(is_list_of_messages));
    if let Some([question, answer]) = ANSWERS.into_iter().find(are_messages) {
        return Some(Layout::Answers { question: question.into(), answer: answer.into() });
    }
    if let Some(field) = list_of_messages(first) {
        return Some(Layout::Conversations { field });
    }
    if let Some([question, answer]) = ANSWERS.into_iter().find(|names| names.iter().all(|name| has(name))) {
        return Some(Layout::Answers { question: question.into(), answer: answer.into() });
    }
    tagged(rows, ["", ""]).or_else(|| of_strings(rows, order))
}

/// Returns the rows with the fields of the first one, if nearly all have them: the others are of another kind.
fn usual_rows(rows: &[Map<String, Value>]) -> Vec<Map<String, Value>> {
    let is_usual = |row: &&Map<String, Value>| rows.first().is_some_and(|first| first.keys().eq(row.keys()));
    let usual: Vec<Map<String, Value>> = rows.iter().filter(is_usual).cloned().collect();
    if 10 * usual.len() >= 9 * rows.len() { usual } else { rows.to_vec() }
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

fn is_list_of_messages(value: &Value) -> bool {
    let is_message = |value: &Value| {
        let has = |name: &str| value.get(name).is_some();
        has("role") && (has("content") || has("tool_calls")) || has("from") && has("value")
    };
    value.as_array().is_some_and(|list| list.first().is_some_and(is_message))
}

pub(super) fn list_of_messages(row: &Map<String, Value>) -> Option<String> {
    let known = ["messages", "conversations"].into_iter().find(|name| row.get(*name).is_some_and(is_list_of_messages));
    let other = || row.iter().find(|(_, value)| is_list_of_messages(value)).map(|(name, _)| name.clone());
    known.map(str::to_owned).or_else(other)
}

/// Two lists of equal length: words, and names or numbers. Those that are `named` count, if they are among them.
pub(super) fn tagged(rows: &[Map<String, Value>], named: [&str; 2]) -> Option<Layout> {
    let first = rows.first()?;
    let list = |row: &'_ Map<String, Value>, name: &str| row.get(name).and_then(Value::as_array).cloned();
    let is_words = |name: &&String| list(first, name).is_some_and(|words| words.iter().all(Value::is_string));
    let values = |name: &str| rows.iter().filter_map(|row| list(row, name)).flatten().collect::<Vec<_>>();
    let n_distinct = |name: &str| values(name).iter().map(Value::to_string).collect::<HashSet<_>>().len();
    let is_equally_long = |a: &str, b: &str| {
        rows.iter().all(|row| match (list(row, a), list(row, b)) {
            (Some(a), Some(b)) => a.len() == b.len() && b.iter().all(|tag| tag.is_string() || tag.is_i64()),
            _ => false,
        })
    };

    let mut found: Vec<(&String, &String)> = Vec::new();
    for words in first.keys().filter(is_words) {
        let tags = first.keys().filter(|tags| *tags != words && is_equally_long(words, tags));
        let tags = tags.filter(|tags| tags.as_str() == named[1] || are_tags(&values(words), tags, &values(tags)));
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

/// Whether a list called `name` has tags of as many words: neither texts nor the same words in another spelling, and few that recur.
fn are_tags(words: &[Value], name: &str, tags: &[Value]) -> bool {
    let texts = |list: &[Value]| list.iter().filter_map(Value::as_str).filter(|text| text.trim().contains(' ')).count();
    let is_same = |(word, tag): &(&Value, &Value)| {
        word.as_str().zip(tag.as_str()).is_some_and(|(word, tag)| word.eq_ignore_ascii_case(tag))
    };
    let n_same = words.iter().zip(tags).filter(is_same).count();
    let n_distinct = tags.iter().map(Value::to_string).collect::<HashSet<_>>().len();
    let is_of_words = is_analysis(name) && !["pos", "tags"].iter().any(|word| name.contains(word));
    let are_few = tags.len() < ENOUGH_TAGS || 2 * n_distinct <= tags.len();
    !tags.is_empty()
        && !is_of_words
        && are_few
        && 2 * n_same < tags.len()
        && texts(tags) == 0
        && 10 * texts(words) <= words.len()
}

/// Rows of strings: labelled texts, pairs or texts.
fn of_strings(rows: &[Map<String, Value>], order: &[String]) -> Option<Layout> {
    if let Some([text, pair, label]) = compared_texts(rows, order) {
        return Some(Layout::LabelledPairs { text, pair, label });
    }
    let columns = columns_of(rows);
    let mut strings = strings_of(&columns, order);
    if strings.iter().any(|(name, _)| !is_name_of_someone(rows, name)) {
        strings.retain(|(name, _)| !is_name_of_someone(rows, name));
    }
    let longest = |except: Option<&String>| {
        let others = strings.iter().filter(|(name, _)| Some(*name) != except);
        others
            .max_by_key(|(name, column)| (is_text(name), !column.is_constant(), column.n_bytes))
            .map(|(name, _)| (*name).clone())
    };

    let words = texts_in(rows, order);
    let are_several = words.len() > 1 && words.iter().all(|name| columns[name].has_words());
    // Next to several texts, values that recur are about them, such as the name of a database or a level, unless the name says otherwise.
    let label = label_of(rows, &columns).filter(|name| !are_several || is_label(name) || has_label_word(name));
    let all: Vec<&str> = strings.iter().map(|(name, _)| name.as_str()).collect();
    let two: Vec<&str> = all.iter().copied().filter(|name| words.iter().any(|text| text == name)).collect();
    // The same words in all rows, such as the name of a role, are not a text, unless the names of the fields say so.
    let can_be = |name: &str| !columns[name].is_constant();
    let are_texts = |source: &str, target: &str| says_direction(source, target) || can_be(source) && can_be(target);
    let varies = |name: &&str| !columns[*name].recurs();
    let are_named = |[one, other]: &[&str; 2]| says_direction(one, other) || are_of_languages(one, other);
    let is_known = |pair: &[&str; 2]| are_named(pair) && pair.iter().all(varies);
    let is_pair = two.len() == 2 && (label.is_none() || is_changed_into(two[0], two[1]).is_some());
    let mut names = if is_pair || are_several && two.len() > 2 { two } else { all.clone() };

    // Next to a class, other values that recur are about the text, too.
    if label.is_some() && names.iter().any(&varies) {
        names.retain(&varies);
    }
    let asked = || {
        let in_order = order.iter().filter_map(|name| columns.get_key_value(name));
        let texts = in_order.filter(|(_, column)| column.is_string).map(|(name, column)| (name.as_str(), column));
        let found = Asked::among(texts)?;
        let field = |wanted: &str| all.iter().copied().find(|name| *name == wanted);
        Some([field(&found.main)?, field(&found.answer)?])
    };
    let found = pair_among(&all).filter(is_known).or_else(|| pair_among(&names)).or_else(asked);
    let found = found.filter(|[source, target]| are_texts(source, target));
    let are_pair = found.map(|[source, target]| Layout::Pairs { source: source.into(), target: target.into() });

    // Two texts with the names of a pair are one, also where a third field is a class.
    let is_sure = names.len() >= 2 && label.as_ref().is_none_or(|label| !are_of(are_pair.as_ref(), label));
    if let (Some(pair), true) = (&are_pair, is_sure) {
        return Some(pair.clone());
    }
    if let Some(label) = label
        && let Some(text) = longest(Some(&label)).filter(|text| is_label(&label) || !columns[text].recurs())
    {
        return Some(Layout::Labelled { text, label });
    }
    are_pair.or_else(|| Some(Layout::Texts { field: longest(None)? }))
}

/// Returns which of the names stand for the source and the target.
fn pair_among<'n>(names: &[&'n str]) -> Option<[&'n str; 2]> {
    let [source, target] = texts_of(names);
    Some([names[source?], names[target?]])
}

/// Returns two texts that somebody compares, and the field that says how they belong together.
pub(super) fn compared_texts(rows: &[Map<String, Value>], order: &[String]) -> Option<[String; 3]> {
    let texts = texts_in(rows, order);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let columns: Vec<(&str, Column)> = order.iter().map(|name| (name.as_str(), column_at(rows, name))).collect();
    let found = compared_among(&texts, columns.iter().map(|(name, column)| (*name, column)))?;
    Some(found.map(str::to_owned))
}

/// Whether a field says who wrote a text: by its name, with values of one word.
pub(super) fn is_name_of_someone(rows: &[Map<String, Value>], name: &str) -> bool {
    column_at(rows, name).names_someone(name)
}

/// Returns the fields of rows with texts of several words, in the order of the file: no names, no words that recur in all rows, and nothing
/// about a text. If no field has several words, those with strings count.
pub(super) fn texts_in(rows: &[Map<String, Value>], order: &[String]) -> Vec<String> {
    let usual = usual_rows(rows);
    let rows = usual.as_slice();
    let columns = columns_of(rows);
    let strings = strings_of(&columns, order);
    let can_be = |(name, column): &&(&String, &Column)| {
        !column.is_constant() && !is_name_of_someone(rows, name) && !is_analysis(name)
    };
    let texts: Vec<&(&String, &Column)> = strings.iter().filter(can_be).collect();
    let names: Vec<&str> = texts.iter().map(|(name, _)| name.as_str()).collect();
    let copies = annotated_copies(rows, &names);
    let texts: Vec<&(&String, &Column)> = texts.into_iter().filter(|(name, _)| !copies.contains(*name)).collect();
    let with_words: Vec<String> =
        texts.iter().filter(|(_, column)| column.has_words()).map(|(name, _)| (*name).clone()).collect();
    match with_words.len() {
        0 | 1 => texts.into_iter().map(|(name, _)| (*name).clone()).collect(),
        _ => with_words,
    }
}

/// Returns which of the fields have the text of another one with marks in it, such as the names of places in brackets.
pub(super) fn annotated_copies(rows: &[Map<String, Value>], names: &[&str]) -> Vec<String> {
    let text = |row: &'_ Map<String, Value>, name: &str| value_at(row, name).and_then(Value::as_str).map(str::to_owned);
    let is_copy = |name: &&str| {
        names.iter().filter(|other| *other != name).any(|other| {
            let both: Vec<(String, String)> =
                rows.iter().filter_map(|row| Some((text(row, other)?, text(row, name)?))).collect();
            let is_same = |(text, copy): &&(String, String)| text == copy || is_annotated(text, copy);
            let n_annotated = both.iter().filter(|(text, copy)| is_annotated(text, copy)).count();
            let is_long = both.iter().filter(|(text, _)| text.trim().contains(' ')).count() * 2 > both.len();
            is_long && 4 * n_annotated > both.len() && 10 * both.iter().filter(is_same).count() >= 9 * both.len()
        })
    };
    names.iter().filter(|name| is_copy(name)).map(|name| (*name).to_owned()).collect()
}

/// Returns the columns of strings that are not about another one, in the order of the file.
pub(super) fn strings_of<'a>(columns: &'a BTreeMap<String, Column>, order: &[String]) -> Vec<(&'a String, &'a Column)> {
    let can_be = |(name, column): &(&String, &Column)| {
        column.is_string && !is_about(name) && !column.is_id(name) && !column.has_no_texts()
    };
    let mut strings: Vec<(&String, &Column)> = columns.iter().filter(can_be).collect();
    // Addresses, dates, persons and numbers are about a text, where there is one.
    let is_date = |name: &String, column: &Column| column.has_dates() && !says_direction(name, name);
    let is_text =
        |(name, column): &(&String, &Column)| !column.has_places() && !is_date(name, column) && !is_of_persons(name);
    let texts: Vec<&(&String, &Column)> = strings.iter().filter(|column| is_text(column)).collect();
    // The same dates may be written out, in any language.
    let are_dates = matches!(texts[..], [(_, column)] if column.can_be_dates())
        && strings.iter().any(|(_, column)| column.has_dates());
    if !texts.is_empty() && !are_dates {
        strings.retain(is_text);
    }
    let is_number = |(name, column): &(&String, &Column)| column.has_numbers() && !says_direction(name, name);
    if strings.iter().filter(|column| !is_number(column)).count() > 1 {
        strings.retain(|column| !is_number(column));
    }
    strings.sort_by_key(|(name, _)| order.iter().position(|other| other == *name).unwrap_or(usize::MAX));
    strings
}

/// Whether the pair has the field `name` on one of its sides.
fn are_of(pair: Option<&Layout>, name: &str) -> bool {
    matches!(pair, Some(Layout::Pairs { source, target }) if source == name || target == name)
}

/// Returns the field that holds a class: by its name, or because its values recur.
fn label_of(rows: &[Map<String, Value>], columns: &BTreeMap<String, Column>) -> Option<String> {
    let found = columns.iter().filter(|(name, column)| {
        let is_other = is_about(name)
            || is_of(Role::Context, name)
            || column.is_id(name)
            || column.are_tags()
            || column.has_references();
        let can_be = !is_other && column.is_short() && !column.is_varied();
        can_be && (is_label(name) || column.recurs() && !is_name_of_someone(rows, name))
    });
    let best =
        found.max_by_key(|(name, column)| (is_label(name), column.recurs(), is_likely_label(name), column.is_string));
    best.map(|(name, _)| name.clone())
}
