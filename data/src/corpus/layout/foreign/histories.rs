//! Earlier turns and the answer to them in fields of their own, perhaps next to facts about who answers: PersonaChat and its relatives.

use serde_json::{Map, Value};

use super::super::lists::strings;
use super::persons::number_of_conversation;
use super::{Foreign, WayOut};
use crate::corpus::fields::words_of;
use crate::corpus::jq::in_jq;
use crate::corpus::roles::{Role, is_of};
use crate::corpus::text::is_system;

/// Words of names of lists with earlier turns.
const HISTORIES: [&str; 6] = ["history", "histories", "previous", "past", "preceding", "prior"];
/// Names of such lists where nothing else asks. They may also have passages.
const CONTEXTS: [&str; 8] =
    ["context", "contexts", "dialogue", "dialog", "conversation", "dialogue_context", "dialog_context", "turns"];
/// Words of names of lists with facts about a person.
const FACTS: [&str; 8] =
    ["persona", "personas", "personality", "personalities", "profile", "traits", "character", "facts"];
/// Words of names of the answer, best first.
const ANSWERS: [&str; 10] =
    ["response", "reply", "answer", "completion", "output", "target", "reference", "gold", "utterance", "next"];
/// Words of names of lists with possible answers.
const CANDIDATES: [&str; 4] = ["candidates", "options", "choices", "responses"];
/// Words of names of the place of the right one.
const PLACES: [&str; 6] = ["label", "answer", "correct", "gold", "target", "right"];

/// A list of earlier turns, what is asked then, and the answer.
struct Turns<'r> {
    history: &'r str,
    asked: Option<&'r str>,
    /// The expression of jq for the answer.
    answer: String,
    /// Whether the answer is the last of several candidates.
    is_last: bool,
}

/// Whether a list of this name has facts about a person, and no turns.
pub(in crate::corpus::layout) fn names_facts(name: &str) -> bool {
    has_word(name, &FACTS)
}

fn has_word(name: &str, words: &[&str]) -> bool {
    words_of(name).iter().any(|word| words.contains(&word.as_str()))
}

fn is_filled(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.trim().is_empty())
}

/// Finds earlier turns and an answer in all `rows`.
fn turns_of<'r>(rows: &[&'r Map<String, Value>]) -> Option<Turns<'r>> {
    // The first turn of a conversation has an empty history.
    let is_list = |row: &&Map<String, Value>, name: &str| {
        row.get(name).and_then(Value::as_array).is_some_and(|list| list.iter().all(Value::is_string))
    };
    let is_usual_list = |name: &&String| {
        let has_texts = |row: &&Map<String, Value>| row.get(*name).is_some_and(|list| strings(list).is_some());
        !names_facts(name) && rows.iter().all(|row| is_list(row, name)) && rows.iter().any(has_texts)
    };
    let first = rows.first()?;
    let lists = || first.keys().filter(is_usual_list).map(String::as_str);
    let is_text = |name: &&str| first.get(*name).is_some_and(is_filled) && !is_system(name);
    let texts = || first.keys().map(String::as_str).filter(is_text);
    let asked = texts().find(|name| is_of(Role::Question, name) && !has_word(name, &ANSWERS));
    let plain = |name: &&str| asked.is_none() && CONTEXTS.contains(&name.to_lowercase().as_str());
    let history = lists().find(|name| has_word(name, &HISTORIES)).or_else(|| lists().find(plain))?;
    // Names of classes answer nothing.
    let is_usual = |name: &str| {
        let filled: Vec<&str> =
            rows.iter().filter_map(|row| row.get(name)?.as_str()).filter(|text| !text.trim().is_empty()).collect();
        let n_long = filled.iter().filter(|text| text.trim().contains(' ')).count();
        10 * filled.len() >= 9 * rows.len() && 2 * n_long > filled.len()
    };

    let is_answer = |name: &&str, word: &str| Some(*name) != asked && has_word(name, &[word]) && is_usual(name);
    let named = ANSWERS.iter().find_map(|word| texts().find(|name| is_answer(name, word)));
    if let Some(answer) = named {
        return Some(Turns { history, asked, answer: in_jq(answer), is_last: false });
    }
    let candidates = lists().find(|name| *name != history && has_word(name, &CANDIDATES))?;
    let place = first.iter().find(|(name, value)| has_word(name, &PLACES) && value.is_u64()).map(|(name, _)| name);
    let is_place = |row: &&Map<String, Value>| {
        let n = row.get(candidates).and_then(Value::as_array).map_or(0, Vec::len);
        place.and_then(|place| row.get(place)?.as_u64()).is_some_and(|at| (at as usize) < n)
    };
    let path = in_jq(candidates);
    Some(match place.filter(|_| rows.iter().all(is_place)) {
        Some(place) => Turns { history, asked, answer: format!("{path}[{}]", in_jq(place)), is_last: false },
        None => Turns { history, asked, answer: format!("{path}[-1]"), is_last: true },
    })
}

impl Turns<'_> {
    /// Returns the expression of jq for the messages, of which the last one is an answer. Earlier answers are learned if `learns_all`.
    fn messages(&self, learns_all: bool) -> String {
        let asked = self.asked.map_or(String::new(), |name| format!("{}, ", in_jq(name)));
        let train = if learns_all { "" } else { ", train: (.key == $n - 1)" };
        format!(
            "(({} + [{asked}{}]) | length as $n | to_entries[] | {{role: (if ($n - .key) % 2 == 1 then \"assistant\" else \"user\" end), content: \
             .value{train}}})",
            in_jq(self.history),
            self.answer
        )
    }
}

/// Whether each history begins with the one before it: the last one has the whole conversation.
fn grows(histories: &[Vec<&str>]) -> bool {
    let n_grown = histories.windows(2).filter(|two| two[1].starts_with(&two[0])).count();
    histories.len() > 1 && 10 * n_grown >= 9 * (histories.len() - 1)
}

/// Returns the expression of jq for a system message with the facts in a row.
fn system_of(row: &Map<String, Value>) -> String {
    let facts = row.iter().find(|(name, value)| names_facts(name) && (strings(value).is_some() || is_filled(value)));
    facts.map_or(String::new(), |(name, value)| {
        let path = in_jq(name);
        let text = if value.is_array() { format!("({path} | join(\"\\n\"))") } else { path };
        format!("{{role: \"system\", content: {text}}}, ")
    })
}

/// Rows with earlier turns and an answer, or with a list of these.
pub(super) fn histories(rows: &[Map<String, Value>]) -> Option<Foreign> {
    let all: Vec<&Map<String, Value>> = rows.iter().collect();
    let (turns, way_out) = of_lists(rows).or_else(|| of_rows(&all))?;
    let last = if turns.is_last {
        ", of whose candidates the last one is the right answer, as PersonaChat has it"
    } else {
        ""
    };
    Some(Foreign { name: format!("earlier turns in \"{}\" with an answer to them{last}", turns.history), way_out })
}

/// Returns what rows are whose `history` has texts in turn, of which some rows have none, so that these are read.
pub(in crate::corpus::layout) fn unread_turns(rows: &[Map<String, Value>]) -> Option<Foreign> {
    histories(rows).filter(|_| rows.iter().any(|row| row.get("history").is_some_and(|list| strings(list).is_some())))
}

/// The lists of objects with a history each, as the file of PersonaChat has them.
fn of_lists(rows: &[Map<String, Value>]) -> Option<(Turns<'_>, WayOut)> {
    let objects = |row: &'_ Map<String, Value>, name: &str| -> Option<Vec<Map<String, Value>>> {
        let list = row.get(name)?.as_array().filter(|list| !list.is_empty())?;
        list.iter().map(|one| one.as_object().cloned()).collect()
    };
    let first = rows.first()?;
    first.iter().find_map(|(name, value)| {
        let inner: Option<Vec<&Map<String, Value>>> = value.as_array()?.iter().map(Value::as_object).collect();
        let turns = turns_of(&inner.filter(|inner| !inner.is_empty())?)?;
        let lists: Vec<Vec<Map<String, Value>>> = rows.iter().filter_map(|row| objects(row, name)).collect();
        let does_grow = |list: &&Vec<Map<String, Value>>| {
            let histories: Vec<Vec<&str>> =
                list.iter().map(|one| one.get(turns.history).and_then(strings).unwrap_or_default()).collect();
            list.len() == 1 || grows(&histories)
        };

        let are_whole = 10 * lists.iter().filter(does_grow).count() >= 9 * lists.len();
        let which = if are_whole { "[-1]" } else { "[]" };
        let system = system_of(first);
        let program = format!(
            "[{}] as $system | {}{which} | {{messages: [$system[], {}]}}",
            system.trim_end_matches(", "),
            in_jq(name),
            turns.messages(are_whole)
        );
        let what = match are_whole {
            true => "to make a conversation of the last of them, which has all turns before it",
            false => "to make a conversation of each of them, of which the last answer is learned",
        };
        Some((turns, WayOut::Program(what.into(), program)))
    })
}

/// Rows with a history each.
fn of_rows<'r>(rows: &[&'r Map<String, Value>]) -> Option<(Turns<'r>, WayOut)> {
    let turns = turns_of(rows)?;
    let owned: Vec<Map<String, Value>> = rows.iter().map(|row| (*row).clone()).collect();
    let number = number_of_conversation(&owned, &[]);
    let histories = |number: &str| {
        let mut groups: Vec<(String, Vec<Vec<&str>>)> = Vec::new();
        for row in rows {
            let key = row.get(number).map_or_else(String::new, Value::to_string);
            let history = row.get(turns.history).and_then(strings).unwrap_or_default();
            match groups.iter_mut().find(|(other, _)| *other == key) {
                Some((_, list)) => list.push(history),
                None => groups.push((key, vec![history])),
            }
        }
        groups
    };
    let are_whole = |number: &String| {
        let groups = histories(number);
        let n_whole = groups.iter().filter(|(_, list)| list.len() == 1 || grows(list)).count();
        10 * n_whole >= 9 * groups.len()
    };

    let system = system_of(rows.first()?);
    if let Some(number) = number.filter(are_whole) {
        let program = format!(
            "group_by({})[] | max_by({} | length) | {{messages: [{system}{}]}}",
            in_jq(&number),
            in_jq(turns.history),
            turns.messages(true)
        );
        let what =
            format!("to make a conversation of the last row of each \"{number}\", which has all turns before it");
        return Some((turns, WayOut::OfAll(what, program)));
    }
    let program = format!("{{messages: [{system}{}]}}", turns.messages(false));
    Some((
        turns,
        WayOut::Program("to make a conversation of each row, of which the last answer is learned".into(), program),
    ))
}
