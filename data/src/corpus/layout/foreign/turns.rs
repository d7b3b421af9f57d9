//! Lists of turns: with roles or speakers under any names, or without.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::alternatives::{has_word, is_of_alternatives};
use super::super::lists::lists_in;
use super::persons::TEXTS;
use super::{Foreign, READ_ROW, WayOut, meaning, with_messages, with_messages_if};
use crate::corpus::fields::{is_about, words_of};
use crate::corpus::jq::in_jq;
use crate::corpus::roles::{Role, is_of};

/// Words of fields with a question in a turn.
const QUESTIONS: [&str; 8] = ["input", "question", "user", "human", "query", "prompt", "instruction", "q"];
/// Words of fields with its answer.
const ANSWERS: [&str; 8] = ["output", "answer", "assistant", "response", "reply", "completion", "bot", "a"];
/// Words of names of lists with answers to the questions in another list.
const REPLIES: [&str; 9] =
    ["reference", "references", "answers", "responses", "replies", "outputs", "completions", "solutions", "gold"];
/// Names of lists of texts that are turns.
const DIALOGUES: [&str; 10] = [
    "dialogue",
    "dialog",
    "conversation",
    "conversations",
    "turns",
    "utterances",
    "messages",
    "chat",
    "exchange",
    "dialogues",
];

/// Roles of messages with what a tool has found.
const TOOLS: [&str; 3] = ["function", "tool", "observation"];

/// Returns the first field with a list of objects that `fits` accepts, with all objects of it in `rows`.
fn list_of<'r>(
    rows: &'r [Map<String, Value>],
    fits: impl Fn(&Map<String, Value>) -> bool,
) -> Option<(&'r str, Vec<&'r Map<String, Value>>)> {
    let objects = |value: &'r Value| -> Option<Vec<&'r Map<String, Value>>> {
        value.as_array().filter(|list| !list.is_empty())?.iter().map(Value::as_object).collect()
    };
    let (field, _) = rows
        .first()?
        .iter()
        .find(|(_, value)| objects(value).is_some_and(|list| list.iter().all(|turn| !turn.is_empty() && fits(turn))))?;
    let all = rows.iter().filter_map(|row| objects(row.get(field)?)).flatten().collect();
    Some((field, all))
}

/// Whether a field with this name holds a conversation.
pub(super) fn is_dialogue(name: &str) -> bool {
    words_of(name).iter().any(|word| DIALOGUES.contains(&word.as_str()))
}

/// Returns the object of jq that maps names of roles; `None` if one of them is not known.
fn roles_in_jq<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    roles_of(names).map(|found| json!(found).to_string())
}

/// Returns names of roles with their meanings; `None` if one of them is not known, or none is an assistant.
fn roles_of<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<BTreeMap<&'a str, &'static str>> {
    let found: Option<BTreeMap<&str, &str>> = names.into_iter().map(|name| Some((name, meaning(name)?))).collect();
    found.filter(|found| found.values().any(|role| *role == "assistant"))
}

/// A list of turns with the roles as names.
pub(super) fn turns_by_role(rows: &[Map<String, Value>]) -> Option<Foreign> {
    let is_turn =
        |turn: &Map<String, Value>| turn.iter().all(|(name, text)| meaning(name).is_some() && text.is_string());
    let (field, turns) = list_of(rows, is_turn)?;
    let names = turns.iter().flat_map(|turn| turn.keys().map(String::as_str));
    let roles = roles_in_jq(names.filter(|name| meaning(name).is_some()))?;
    let of_turn =
        format!("to_entries[] | {{role: {roles}[.key], content: .value}} | select(.role and .content != \"\")");
    Some(Foreign {
        name: format!("conversations whose turns in \"{field}\" have the roles as names"),
        way_out: with_messages(&[field], &format!("{}[] | {of_turn}", in_jq(field))),
    })
}

/// Messages with other names of roles: `User` and `Bot`, or `developer`.
pub(super) fn other_roles(rows: &[Map<String, Value>]) -> Option<Foreign> {
    let names = [["role", "content"], ["from", "value"]];
    let [role, text] = names.into_iter().find(|names| {
        let is_message =
            |turn: &Map<String, Value>| names.iter().all(|name| turn.get(*name).is_some_and(Value::is_string));
        list_of(rows, is_message).is_some()
    })?;
    let (field, turns) = list_of(rows, |turn| turn.get(role).is_some_and(Value::is_string) && turn.contains_key(text))?;
    // What a tool says is read and not learned, as what the user says. Calls in a field of their own are refused elsewhere.
    let has_calls = turns.iter().any(|turn| turn.contains_key("tool_calls") || turn.contains_key("function_call"));
    let of_tools = |role: &&str| !has_calls && TOOLS.contains(role);
    let of_turns: Vec<&str> = turns.iter().filter_map(|turn| turn.get(role)?.as_str()).collect();
    let mut roles = roles_of(of_turns.iter().copied().filter(|role| !of_tools(role)))?;
    roles.extend(of_turns.into_iter().filter(of_tools).map(|role| (role, "user")));
    let roles = json!(roles).to_string();

    let name = |role: &str| format!("\"{role}\"");
    let mut found: Vec<String> = turns.iter().filter_map(|turn| turn.get(role)?.as_str().map(name)).collect();
    found.sort();
    found.dedup();
    let is_known =
        |role: &String| ["\"system\"", "\"user\"", "\"assistant\"", "\"human\"", "\"gpt\""].contains(&&**role);
    if found.iter().all(is_known) {
        return None;
    }
    Some(Foreign {
        name: format!("conversations with the roles {}", found.join(", ")),
        way_out: WayOut::Program(
            "to give the roles their names",
            format!("{} |= map(.{role} |= {roles}[.])", in_jq(field)),
        ),
    })
}

/// A list of turns with a question and its answer each.
pub(super) fn questions_in_turns(rows: &[Map<String, Value>]) -> Option<Foreign> {
    fn named<'t>(turn: &'t Map<String, Value>, list: &[&str]) -> Option<&'t str> {
        let is_meant = |name: &str| words_of(name).iter().any(|word| list.contains(&word.as_str()));
        turn.iter().find(|(name, text)| text.is_string() && is_meant(name)).map(|(name, _)| name.as_str())
    }
    let both = |turn: &Map<String, Value>| {
        named(turn, &QUESTIONS).zip(named(turn, &ANSWERS)).filter(|(question, answer)| question != answer).is_some()
    };
    let (field, turns) = list_of(rows, both)?;
    let (question, answer) = named(turns[0], &QUESTIONS).zip(named(turns[0], &ANSWERS))?;
    let system = turns[0].keys().find(|name| meaning(name) == Some("system"));
    let system = system.map_or(String::new(), |name| {
        format!("({} // \"\" | select(. != \"\") | {{role: \"system\", content: .}}), ", in_jq(name))
    });
    let of_turn = format!(
        "{system}{{role: \"user\", content: {}}}, {{role: \"assistant\", content: {}}}",
        in_jq(question),
        in_jq(answer)
    );
    Some(Foreign {
        name: format!("conversations whose turns in \"{field}\" have a question and an answer each"),
        way_out: with_messages(&[field], &format!("{}[] | {of_turn}", in_jq(field))),
    })
}

/// A list of turns with a speaker and a text each. The first of two unknown speakers asks.
pub(super) fn speakers(rows: &[Map<String, Value>]) -> Option<Foreign> {
    let n_strings = |turn: &Map<String, Value>| turn.values().filter(|value| value.is_string()).count();
    let is_message = |turn: &Map<String, Value>| {
        let has = |name: &str| turn.contains_key(name);
        has("role") && has("content") || has("from") && has("value")
    };
    let (field, turns) = list_of(rows, |turn| n_strings(turn) > 1 && !is_message(turn))?;
    let texts = |name: &str| turns.iter().filter_map(|turn| turn.get(name)?.as_str()).collect::<Vec<_>>();
    let strings: Vec<&String> = turns[0].iter().filter(|(_, value)| value.is_string()).map(|(name, _)| name).collect();
    let n_bytes = |name: &&&String| texts(name).iter().map(|text| text.len()).sum::<usize>();
    let text: &String = strings.iter().max_by_key(n_bytes)?;
    let n_distinct = |name: &str| {
        let mut found = texts(name);
        found.sort_unstable();
        found.dedup();
        found.len()
    };
    let word = |name: &str| {
        words_of(name)
            .iter()
            .any(|word| ["speaker", "role", "from", "author", "sender", "name", "user", "by", "who"].contains(&&**word))
    };
    let others =
        strings.into_iter().filter(|name| *name != text && texts(name).len() == turns.len() && n_distinct(name) > 1);
    let speaker = others.max_by_key(|name| (word(name), std::cmp::Reverse(n_distinct(name))))?;
    if !word(speaker) && n_distinct(speaker) > 3 {
        return None;
    }

    let first = texts(speaker)[0];
    let is_first_known = meaning(first) != Some("assistant");
    let roles = roles_in_jq(texts(speaker)).filter(|_| {
        n_distinct(speaker) > 2 || !is_first_known || texts(speaker).iter().all(|name| meaning(name) != Some("system"))
    });
    let (begin, role) = match roles {
        Some(roles) => (String::new(), format!("{roles}[{}]", in_jq(speaker))),
        None if !is_first_known => return None,
        None => (
            format!("{}[0]{} as $first | ", in_jq(field), in_jq(speaker)),
            format!("(if {} == $first then \"user\" else \"assistant\" end)", in_jq(speaker)),
        ),
    };
    let messages = format!("{begin}{}[] | {{role: {role}, content: {}}}", in_jq(field), in_jq(text));
    Some(Foreign {
        name: format!("conversations whose turns in \"{field}\" have a \"{speaker}\" and a \"{text}\""),
        way_out: with_messages(&[field], &messages),
    })
}

/// A list of pairs of a question and its answer.
pub(super) fn lists_of_two(rows: &[Map<String, Value>]) -> Option<Foreign> {
    let is_pair =
        |value: &Value| value.as_array().is_some_and(|pair| pair.len() == 2 && pair.iter().all(Value::is_string));
    let (field, _) = rows.first()?.iter().find(|(name, value)| {
        *name != "history" && value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(is_pair))
    })?;
    let of_pair = "{role: \"user\", content: .[0]}, {role: \"assistant\", content: .[1]}";
    Some(Foreign {
        name: format!("conversations whose turns in \"{field}\" are lists of two texts"),
        way_out: with_messages(&[field], &format!("{}[] | {of_pair}", in_jq(field))),
    })
}

/// A list of texts, of which each second one is an answer. Questions in turns may have their answers in a list of their own.
pub(super) fn alternating(rows: &[Map<String, Value>], is_chat: bool) -> Option<Foreign> {
    let row = rows.first()?;
    let n_words = |list: &[Value]| {
        list.iter().filter_map(Value::as_str).map(|text| text.split_whitespace().count()).sum::<usize>()
    };
    // Next to another text, a list has alternatives, points of a summary, or parts of that text.
    let is_sentence = |value: &Value| value.as_str().is_some_and(|text| text.split_whitespace().count() > 2);
    let can_ask = row.iter().any(|(name, value)| {
        let asks =
            || is_of(Role::Question, name) || words_of(name).iter().any(|word| QUESTIONS.contains(&word.as_str()));
        is_sentence(value) && !is_about(name) || value.is_string() && asks()
    });

    let is_free = |name: &str| {
        let is_other = can_ask || is_of_alternatives(name) || has_word(name, &REPLIES);
        !is_other && (is_chat || are_questions_and_answers(&lists_in(rows, name)))
    };
    let is_list = |(_, value): &(&String, &Value)| {
        value
            .as_array()
            .is_some_and(|list| list.len() > 1 && list.iter().all(Value::is_string) && n_words(list) >= 2 * list.len())
    };
    let lists = || row.iter().filter(is_list).map(|(name, _)| name);
    let field = lists().find(|name| is_dialogue(name)).or_else(|| lists().find(|name| is_free(name)))?;

    let path = in_jq(field);
    let replies = rows.iter().flat_map(Map::keys).find(|name| *name != field && are_replies(rows, field, name));
    if let Some(replies) = replies {
        let messages = format!(
            "[{path}, {}] | transpose[] | {{role: \"user\", content: .[0]}}, {{role: \"assistant\", content: .[1]}}",
            in_jq(replies)
        );
        return Some(Foreign {
            name: format!("questions in \"{field}\" with their answers in \"{replies}\""),
            way_out: with_messages_if(&format!("{} | length > 0", in_jq(replies)), &[field, replies], &messages),
        });
    }
    if are_all_questions(rows, field) {
        return Some(Foreign {
            name: format!("several questions in \"{field}\" without answers"),
            way_out: WayOut::Text(format!("to learn answers to them, add the answers: {READ_ROW}")),
        });
    }
    let role = "(if .key % 2 == 0 then \"user\" else \"assistant\" end)";
    let messages = format!("{path} | to_entries[] | {{role: {role}, content: .value}}");
    Some(Foreign {
        name: format!("conversations whose \"{field}\" is a list of texts in turn"),
        way_out: with_messages(&[field], &messages),
    })
}

/// A list of turns that have a text each and do not say who speaks: each second one is an answer.
pub(super) fn alternating_objects(rows: &[Map<String, Value>]) -> Option<Foreign> {
    let text = |turn: &Map<String, Value>| TEXTS.into_iter().find(|name| turn.get(*name).is_some_and(Value::is_string));
    let n_strings = |turn: &Map<String, Value>| turn.values().filter(|value| value.is_string()).count();
    let (field, turns) = list_of(rows, |turn| n_strings(turn) == 1 && text(turn).is_some())?;
    let can_ask = rows[0].iter().any(|(name, value)| value.is_string() && is_of(Role::Question, name));
    if can_ask || is_of_alternatives(field) || has_word(field, &REPLIES) || turns.len() < 2 * rows.len() {
        return None;
    }
    let text = text(turns[0])?;
    let role = "(if .key % 2 == 0 then \"user\" else \"assistant\" end)";
    let messages = format!("{} | to_entries[] | {{role: {role}, content: .value{}}}", in_jq(field), in_jq(text));
    Some(Foreign {
        name: format!("conversations whose turns in \"{field}\" have a \"{text}\" each and follow in turn"),
        way_out: with_messages(&[field], &messages),
    })
}

/// Whether a list of another name has an answer to each question of `field`, in all rows that have both.
fn are_replies(rows: &[Map<String, Value>], field: &str, name: &str) -> bool {
    let is_named = has_word(name, &REPLIES);
    let list = |row: &Map<String, Value>, name: &str| {
        row.get(name)
            .and_then(Value::as_array)
            .filter(|list| !list.is_empty() && list.iter().all(Value::is_string))
            .map(Vec::len)
    };
    let both = || rows.iter().filter_map(|row| list(row, field).zip(list(row, name)));
    is_named && both().next().is_some() && both().all(|(questions, answers)| questions == answers)
}

/// Whether all texts of a list are questions: the rows say so, or most of the texts that would answer are questions themselves.
fn are_all_questions(rows: &[Map<String, Value>], field: &str) -> bool {
    let is_number_of_question = |name: &String| {
        let words = words_of(name);
        words.iter().any(|word| word == "id") && words.iter().any(|word| word == "question")
    };
    let lists = lists_in(rows, field);
    let answers = || lists.iter().flat_map(|list| list.iter().skip(1).step_by(2));
    let n_asking = answers().filter(|text| text.trim_end().ends_with('?')).count();
    let are_short = lists.iter().all(|list| list.len() <= 2);
    are_short && rows.iter().flat_map(Map::keys).any(is_number_of_question) || 5 * n_asking > 4 * answers().count()
}

/// Whether lists of texts begin with questions, which others answer: each first text of two has a question mark more often than the second.
fn are_questions_and_answers(lists: &[Vec<&str>]) -> bool {
    let n_asking = |first: usize| {
        lists.iter().flat_map(|list| list.iter().skip(first).step_by(2)).filter(|text| text.contains('?')).count()
    };
    let n_even = lists.iter().filter(|list| list.len() % 2 == 0).count();
    !lists.is_empty()
        && 10 * n_even >= 9 * lists.len()
        && 3 * n_asking(0) >= lists.len()
        && n_asking(0) > 2 * n_asking(1)
}
