//! Messages of persons, one per row: how they become conversations in which one of the persons answers.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{Foreign, WayOut};
use crate::corpus::fields::words_of;
use crate::corpus::jq::{in_jq, path_in_jq};
use crate::corpus::path::value_at;

/// Messages of a row, where rows do not say which conversation they belong to.
pub(in crate::corpus::layout) const MESSAGES: usize = 8;
/// What keeps conversations in which the assistant says something.
const ANSWERED: &str = r#"select(.messages | any(.role == "assistant"))"#;
/// Names of the field with the person, best first.
const PERSONS: [&str; 9] = ["from", "sender", "author", "speaker", "user", "username", "nick", "name", "who"];
/// Names of the field with the name in an object with the person, best first.
const NAMES: [&str; 6] = ["name", "username", "nickname", "display_name", "global_name", "first_name"];
/// Names of the field with the message, best first.
pub(super) const TEXTS: [&str; 7] = ["text", "content", "message", "body", "utterance", "msg", "value"];
/// Words of a field that numbers conversations.
const CONVERSATIONS: [&str; 9] =
    ["conversation", "dialogue", "dialog", "thread", "chat", "session", "meeting", "channel", "ticket"];

/// One message per row, of two persons or more.
pub(super) fn of_persons(rows: &[Map<String, Value>]) -> Option<Foreign> {
    let find = |names: &[&str], is_one: fn(&Value) -> bool| {
        let is_there = |field: &&String| rows.iter().all(|row| row.get(*field).is_none_or(is_one));
        names.iter().find_map(|name| {
            let field = rows.first()?.keys().find(|field| field.eq_ignore_ascii_case(name)).filter(is_there)?;
            rows.iter().any(|row| row.get(field).is_some_and(is_one)).then_some(field)
        })
    };
    let text = find(&TEXTS, Value::is_string)?;
    // Persons may be numbers, of accounts or of telephones, and their names may stand in an object.
    let is_number = |value: &Value| value.is_i64() || value.is_u64();
    let person = find(&PERSONS, Value::is_string).or_else(|| find(&PERSONS, is_number));
    let person = person.map_or_else(|| inside(&rows[0]), |person| Some(vec![person.clone()]))?;
    let of_row = |row: &Map<String, Value>| value_at(row, &person.join(".")).cloned();
    let spelled = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let all: Vec<String> = rows.iter().filter_map(|row| of_row(row).map(spelled)).collect();
    let names = names_of(all.iter().map(String::as_str))?;
    let number = rows[0].keys().find(|field| {
        let values: Vec<String> = rows.iter().filter_map(|row| Some(row.get(*field)?.to_string())).collect();
        let recurs = values.iter().collect::<HashSet<_>>().len() * 2 <= values.len();
        let is_usual = 10 * values.len() >= 9 * rows.len();
        words_of(field).iter().any(|word| CONVERSATIONS.contains(&word.as_str())) && recurs && is_usual
    });

    let answers = &names[1];
    let is_number = rows.iter().any(|row| of_row(row).is_some_and(|value| value.is_number()));
    let answers = if is_number { answers.clone() } else { Value::from(answers.as_str()).to_string() };
    let message = format!(
        "{{role: (if {} == {answers} then \"assistant\" else \"user\" end), content: {}}}",
        path_in_jq(&person),
        in_jq(text)
    );
    let is_message = format!("map(select({}({} | strings | . != \"\")))", conditions(rows), in_jq(text));
    let parts = match number {
        Some(number) => format!("group_by({})[]", in_jq(number)),
        None => format!("range(0; length; {MESSAGES}) as $i | .[$i:$i + {MESSAGES}]"),
    };
    Some(Foreign {
        name: format!("messages of persons in \"{}\", one per row", person.join(".")),
        way_out: WayOut::OfAll(
            what(&names),
            format!("{is_message} | {parts} | {{messages: map({message})}} | {ANSWERED}"),
        ),
    })
}

/// Returns conditions of jq that leave out what a program wrote, such as who has joined, each with `and` behind it.
pub(in crate::corpus::layout) fn conditions(rows: &[Map<String, Value>]) -> String {
    let strings = |name: &str| rows.iter().filter_map(|row| row.get(name)?.as_str()).collect::<HashSet<&str>>();
    let kinds = strings("type");
    let is_note = kinds.len() > 1 && kinds.contains("message");
    let of_kind = if is_note { ".type == \"message\" and " } else { "" };
    let is_marked = !strings("subtype").is_empty();
    of_kind.to_owned() + if is_marked { ".subtype == null and " } else { "" }
}

/// Returns the path to the name in an object with the person.
fn inside(row: &Map<String, Value>) -> Option<Vec<String>> {
    let person = PERSONS.iter().find_map(|name| row.keys().find(|field| field.eq_ignore_ascii_case(name)))?;
    let name = NAMES.into_iter().find(|name| row[person].get(name).is_some_and(Value::is_string))?;
    Some(vec![person.clone(), name.to_owned()])
}

/// Returns the names of persons in the order of their first messages; `None` for fewer than two, or for names that do not recur.
pub(in crate::corpus::layout) fn names_of<'t>(all: impl Iterator<Item = &'t str>) -> Option<Vec<String>> {
    let (mut names, mut n): (Vec<String>, usize) = (Vec::new(), 0);
    for name in all {
        n += 1;
        if !names.iter().any(|other| other == name) {
            names.push(name.to_owned());
        }
    }
    (names.len() > 1 && 2 * names.len() <= n).then_some(names)
}

/// Says what to make of messages: the second person answers the first one.
pub(in crate::corpus::layout) fn what(names: &[String]) -> String {
    let others: Vec<&str> = names.iter().map(String::as_str).filter(|name| *name != names[1]).take(4).collect();
    format!(
        "to make conversations in which \"{}\" is the assistant, whose messages the model learns (write another name in its place for another \
         one: {})",
        names[1],
        others.join(", ")
    )
}
