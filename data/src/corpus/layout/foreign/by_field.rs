//! Turns whose texts and speakers lie in lists of their own, as `datasets` stores lists of objects, and speakers who are numbers.

use serde_json::{Map, Value};

use super::super::lists::strings;
use super::turns::{is_dialogue, speakers};
use super::{Foreign, WayOut};
use crate::corpus::fields::words_of;
use crate::corpus::jq::in_jq;

/// Words of names of speakers.
const SPEAKERS: [&str; 8] = ["speaker", "speakers", "role", "roles", "author", "authors", "sender", "agent"];

fn names_speakers(name: &str) -> bool {
    words_of(name).iter().any(|word| SPEAKERS.contains(&word.as_str()))
}

fn spelled(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Puts a `begin` in front of the program that makes messages.
fn prefixed(found: Foreign, begin: &str) -> Foreign {
    let way_out = match found.way_out {
        WayOut::Program(what, program) => WayOut::Program(what, format!("{begin} | {program}")),
        other => other,
    };
    Foreign { name: found.name, way_out }
}

/// Rows, or an object in each, with a list of texts and a list of as many speakers.
pub(super) fn lists_of_speakers(rows: &[Map<String, Value>]) -> Option<Foreign> {
    let first = rows.first()?;
    let objects = first.iter().filter_map(|(name, value)| Some((Some(name), value.as_object()?)));
    let mut places: Vec<(Option<&String>, &Map<String, Value>)> = objects.collect();
    places.push((None, first));
    places.into_iter().find_map(|(place, object)| {
        let inside = |row: &'_ Map<String, Value>| match place {
            Some(name) => row.get(name).and_then(Value::as_object).cloned(),
            None => Some(row.clone()),
        };
        let n_words = |name: &String| {
            let texts = object.get(name).and_then(strings).unwrap_or_default();
            texts.iter().map(|text| text.split_whitespace().count()).sum::<usize>()
        };
        let is_list = |name: &&String| {
            object[*name].as_array().is_some_and(|list| list.len() > 1 && list.iter().all(|one| spelled(one).is_some()))
        };
        let speaker = object.keys().filter(is_list).find(|name| names_speakers(name))?;
        let text = object.keys().filter(|name| *name != speaker).max_by_key(|name| n_words(name))?;
        let turns = |row: &Map<String, Value>| -> Option<Vec<Value>> {
            let object = inside(row)?;
            let (texts, speakers) = (object.get(text)?.as_array()?.clone(), object.get(speaker)?.as_array()?.clone());
            (texts.len() == speakers.len()).then_some(())?;
            let turn = |(said, who): (&Value, &Value)| {
                Some(serde_json::json!({"text": said.as_str()?, "speaker": spelled(who)?}))
            };
            texts.iter().zip(&speakers).map(turn).collect()
        };

        let made: Option<Vec<Map<String, Value>>> = rows
            .iter()
            .map(|row| Some([("turns".to_owned(), Value::from(turns(row)?))].into_iter().collect()))
            .collect();
        let [said, who] = [text, speaker].map(|name| in_jq(name));
        let list = format!("([{said}, {who}] | transpose | map({{text: .[0], speaker: (.[1] | tostring)}}))");
        let begin = match place {
            Some(name) => format!("{{turns: ({} | {list})}}", in_jq(name)),
            None => format!("{{turns: {list}}}"),
        };
        Some(prefixed(speakers(&made?)?, &begin))
    })
}

/// A list of turns whose speakers are numbers.
pub(super) fn numbered_speakers(rows: &[Map<String, Value>], is_chat: bool) -> Option<Foreign> {
    let first = rows.first()?;
    let number_of = |value: &Value| {
        let turn = value.as_array()?.first()?.as_object()?;
        turn.iter().find(|(name, value)| value.is_u64() && names_speakers(name)).map(|(name, _)| name.clone())
    };
    let (field, name) = first.iter().find_map(|(field, value)| Some((field, number_of(value)?)))?;
    let mut made = rows.to_vec();
    for turn in made.iter_mut().filter_map(|row| row.get_mut(field)?.as_array_mut()).flatten() {
        if let Some(value) = turn.get_mut(&name) {
            *value = Value::from(spelled(value).unwrap_or_default());
        }
    }
    made.iter_mut().for_each(|row| row.retain(|name, _| name == field));
    let begin = format!("{} |= map({} |= tostring)", in_jq(field), in_jq(&name));
    let found = speakers(&made).filter(|_| is_chat || is_dialogue(field))?;
    Some(prefixed(found, &begin))
}

/// Two lists of turns of as many texts, of which each has one speaker: `free_messages` and `guided_messages`.
pub(super) fn two_lists(rows: &[Map<String, Value>]) -> Option<Foreign> {
    let first = rows.first()?;
    let is_list =
        |name: &&String| is_dialogue(name) && rows.iter().all(|row| row.get(*name).and_then(strings).is_some());
    let names: Vec<&String> = first.keys().filter(is_list).collect();
    let [one, other] = names[..] else { return None };
    let length = |row: &Map<String, Value>, name: &String| row.get(name).and_then(Value::as_array).map_or(0, Vec::len);
    let is_even = |row: &Map<String, Value>| length(row, one).abs_diff(length(row, other)) <= 1;
    if !rows.iter().all(is_even) {
        return None;
    }

    let before = first.keys().find(|name| {
        let is_before = words_of(name).iter().any(|word| ["previous", "history"].contains(&word.as_str()));
        is_before && rows.iter().all(|row| row.get(*name).and_then(strings).is_some_and(|list| list.len() % 2 == 0))
    });
    let [from, to] = [one, other].map(|name| in_jq(name));
    let before = before.map_or(String::new(), |name| format!("{}[], ", in_jq(name)));
    let program = format!(
        "{{messages: [[{before}([{from}, {to}] | transpose[][] | strings)] | to_entries[] | {{role: (if .key % 2 == 0 then \"user\" else \
         \"assistant\" end), content: .value}}]}}"
    );
    Some(Foreign {
        name: format!("conversations whose turns lie in \"{one}\" and \"{other}\""),
        way_out: WayOut::Program(
            "to make messages of them, in which the second list answers the first one".into(),
            program,
        ),
    })
}

/// Conversations inside of an object in each row.
pub(super) fn inside_objects(rows: &[Map<String, Value>]) -> Option<Foreign> {
    rows.first()?.keys().find_map(|name| {
        let inner: Option<Vec<Map<String, Value>>> =
            rows.iter().map(|row| row.get(name).and_then(Value::as_object).cloned()).collect();
        let found = super::foreign(&inner?, false)?;
        let is_whole = matches!(&found.way_out, WayOut::Program(_, program) if program.contains("{messages: ["));
        is_whole.then(|| prefixed(found, &in_jq(name)))
    })
}
