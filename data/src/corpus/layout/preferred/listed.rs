//! Answers in a list, and how a row says which one is better.

use serde_json::{Map, Value};

use super::names::{is_answer_word, singular};
use super::{CHOICES, Field, Preferred, is_message, prompt, row_in_jq};
use crate::corpus::fields::{is_id_name, words_of};
use crate::corpus::jq::in_jq;
use crate::corpus::layout::foreign::{SPEAKERS, meaning};
use crate::corpus::path::value_at;
use crate::corpus::roles::{Role, is_aside, is_of};
use crate::corpus::text::direction_of;
use crate::corpus::values;

/// A list of answers, with ratings of them, a mark of the best one, or its number.
pub(super) fn of(rows: &[Map<String, Value>], row: &Map<String, Value>, fields: &[Field<'_>]) -> Option<Preferred> {
    let list = fields.iter().find(|field| {
        let has_answer = |name: &String| words_of(name).iter().any(|word| is_answer_word(&singular(word)));
        let is_of_answers = field.words().iter().any(|word| is_answer_word(&singular(word)))
            || is_of_sentences(field.value) && field.parent().iter().any(has_answer)
            || are_rated_comments(field);
        let are_answers = |list: &Vec<Value>| {
            let is_one =
                |value: &Value| value.is_string() || value.is_object() && !is_message(value) && !is_typed(value);
            list.len() > 1 && list.iter().all(is_one) && !are_turns(list)
        };
        is_of_answers && field.value.as_array().is_some_and(are_answers)
    })?;
    let values = list.value.as_array()?;
    let asked = prompt(fields, &[list])?;
    let (asked_path, path) = (asked.jq_of_text(), list.jq());
    let found = |program: Option<String>, open: Option<String>| Preferred {
        fields: vec![list.name()],
        program,
        open,
        renamed: None,
    };

    let sorted = |text: &str, rating: &str, high_is_good: bool, from: &str| {
        let order = if high_is_good { ["max_by", "min_by"] } else { ["min_by", "max_by"] };
        let [chosen, rejected] = order.map(|order| format!("($all | {order}({rating}){text})"));
        let made = row_in_jq(row, Some(&asked_path), [&chosen, &rejected]);
        // Answers with the same ratings are not better or worse.
        let are_rated = format!("select({from} | map({rating}) | unique | length > 1)");
        format!("{are_rated} | {from} as $all | {made} | select(.chosen != .rejected)")
    };
    let chosen = |text: &str| {
        let best = choice(rows, fields, list)?;
        let [chosen, rejected] = [format!("$all[$best]{text}"), format!("($all | del(.[$best]))[0]{text}")];
        let made = row_in_jq(row, Some(&asked_path), [&chosen, &rejected]);
        Some(found(Some(format!("{path} as $all | {} as $best | {made}", best.jq())), None))
    };

    if let Some(first) = values[0].as_object() {
        let text = in_jq(text_of(first)?);
        if let Some((rating, high_is_good)) = rating_of(first) {
            return Some(found(Some(sorted(&text, &in_jq(rating), high_is_good, &path)), None));
        }
        if let Some(best) = chosen(&text) {
            return Some(best);
        }
        if let Some(mark) = mark_of(values) {
            let divided = format!(
                "({path} | map(select({mark}))) as $good | ({path} | map(select({mark} | not))) as $bad",
                mark = in_jq(mark)
            );
            let [good, bad] = ["$good", "$bad"].map(|which| format!("{which}[0]{text}"));
            let made = row_in_jq(row, Some(&asked_path), [&good, &bad]);
            let program = format!("{divided} | select(($good | length > 0) and ($bad | length > 0)) | {made}");
            return Some(found(Some(program), None));
        }
        // Answers about a text are alike.
        let has_context = fields.iter().any(|field| field.path.iter().any(|name| is_of(Role::Context, name)));
        return (!has_context).then(|| found(None, Some("say which answer of a row is better".to_owned())));
    }

    let numbers = |field: &&Field<'_>| {
        let list = field.value.as_array();
        list.is_some_and(|list| list.len() == values.len() && list.iter().all(Value::is_number))
    };
    let rated = fields.iter().filter(numbers).find_map(|field| Some((field, direction_of(field.path.last()?)?)));
    if let Some((rating, high_is_good)) = rated {
        let both = format!("([{}, {path}] | transpose)", rating.jq());
        return Some(found(Some(sorted("[1]", ".[0]", high_is_good, &both)), None));
    }
    chosen("")
}

/// Whether it is a list of texts of several words.
fn is_of_sentences(value: &Value) -> bool {
    let is_sentence = |value: &Value| value.as_str().is_some_and(|text| text.trim().contains(' '));
    value.as_array().is_some_and(|list| list.iter().any(is_sentence))
}

/// Whether it is a list of comments to a text, of which readers have rated each.
fn are_rated_comments(field: &Field<'_>) -> bool {
    let is_rated = |value: &Value| value.as_object().is_some_and(|one| rating_of(one).is_some());
    let is_named = field.words().iter().any(|word| singular(word) == "comment");
    is_named && field.value.as_array().is_some_and(|list| list.iter().all(is_rated))
}

/// Whether it is a message with the type of its author, as LangChain has them.
fn is_typed(value: &Value) -> bool {
    ["type", "content"].iter().all(|name| value.get(*name).is_some())
}

/// Whether objects are turns of a talk: they say who speaks, a person or an assistant.
fn are_turns(list: &[Value]) -> bool {
    let said = |turn: &Value| {
        let (_, who) =
            turn.as_object()?.iter().find(|(name, who)| SPEAKERS.contains(&name.as_str()) && who.is_string())?;
        meaning(who.as_str()?)
    };
    let roles: Vec<&str> = list.iter().filter_map(said).collect();
    roles.contains(&"user") && roles.contains(&"assistant")
}

/// Returns the field with the text of an answer: not its identifier, which may have the name of an answer, too.
fn text_of(answer: &Map<String, Value>) -> Option<&str> {
    let is_text = |text: &str| !values::is_id(text) && !values::is_place(text) && !values::is_date(text);
    let texts = answer.iter().filter(|(name, value)| value.as_str().is_some_and(is_text) && !is_id_name(name));
    let best = texts.max_by_key(|(name, value)| {
        let is_answer = words_of(name).iter().any(|word| is_answer_word(word));
        let is_text = !is_aside(name) && !SPEAKERS.contains(&name.as_str());
        (is_text, is_answer, value.to_string().len())
    });
    best.map(|(name, _)| name.as_str())
}

/// Returns the field with the rating of an answer, and whether a high one is good. Another word may say who has rated it.
fn rating_of(answer: &Map<String, Value>) -> Option<(&str, bool)> {
    let numbers = || answer.iter().filter(|(_, value)| value.is_number()).map(|(name, _)| name.as_str());
    let by_last_word = |name: &str| direction_of(words_of(name).last()?);
    let found = numbers().find_map(|name| Some((name, direction_of(name)?)));
    found.or_else(|| numbers().find_map(|name| Some((name, by_last_word(name)?))))
}

/// Returns the field that is true for good answers alone.
fn mark_of(answers: &[Value]) -> Option<&str> {
    let first = answers.first()?.as_object()?;
    let is_choice = |name: &str| {
        words_of(name).iter().any(|word| CHOICES.contains(&word.as_str())) || direction_of(name) == Some(true)
    };
    let marks = first.iter().filter(|(name, value)| value.is_boolean() && is_choice(name));
    marks.map(|(name, _)| name.as_str()).next()
}

/// Returns the field that numbers the best answer of each row.
fn choice<'f, 'a>(rows: &[Map<String, Value>], fields: &'f [Field<'a>], list: &Field<'_>) -> Option<&'f Field<'a>> {
    let is_number = |row: &Map<String, Value>, field: &Field<'_>| {
        let (Some(answers), Some(best)) = (value_at(row, &list.name()), value_at(row, &field.name())) else {
            return true;
        };
        let n = answers.as_array().map_or(0, Vec::len) as u64;
        n == 0 || best.is_null() || best.as_u64().is_some_and(|best| best < n)
    };
    let is_choice = |field: &&Field<'_>| {
        let is_named = field.words().iter().any(|word| CHOICES.contains(&word.as_str()));
        is_named && field.value.is_u64() && rows.iter().all(|row| is_number(row, field))
    };
    fields.iter().find(is_choice)
}
