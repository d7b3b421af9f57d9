//! Lists of turns: with roles or speakers under any names, or without.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json};

use super::super::alternatives::{has_word, is_of_alternatives};
use super::super::lists::lists_in;
use super::histories::names_facts;
use super::notes::conditions;
use super::persons::{TEXTS, inside};
use super::{Foreign, READ_ROW, WayOut, meaning, with_messages, with_messages_if};
use crate::corpus::fields::{is_about, words_of};
use crate::corpus::jq::{in_jq, path_in_jq};
use crate::corpus::path::value_at;
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

/// Words of names of fields that say who speaks.
const SAY_WHO: [&str; 9] = ["speaker", "role", "from", "author", "sender", "name", "user", "by", "who"];
/// Words of names of times.
const TIMES: [&str; 4] = ["timestamp", "time", "date", "ts"];
/// Conversations from which two speakers that recur are not chance.
const ENOUGH_ROWS: usize = 4;
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
            "to give the roles their names".into(),
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
    let texts = |path: &str| turns.iter().filter_map(|turn| value_at(turn, path)?.as_str()).collect::<Vec<_>>();
    let n_distinct = |path: &str| texts(path).into_iter().collect::<HashSet<_>>().len();
    let varies = |path: &String| turns.len() < 2 || n_distinct(path) > 1;
    let paths = texts_of(turns[0]);
    let n_bytes = |path: &&String| texts(path).iter().map(|text| text.len()).sum::<usize>();
    // Times and names may be longer than short messages, and have fewer words.
    let has_words = |path: &String| texts(path).iter().any(|text| text.contains(' '));
    let text: &String = paths.iter().filter(|path| varies(path)).max_by_key(|path| (has_words(path), n_bytes(path)))?;
    let word = |name: &str| words_of(name).iter().any(|word| SAY_WHO.contains(&word.as_str()));
    let is_in_all = |path: &str| texts(path).len() == turns.len() && n_distinct(path) > 1;

    let strings = turns[0].iter().filter(|(_, value)| value.is_string()).map(|(name, _)| name);
    let others = strings.filter(|name| *name != text && is_in_all(name));
    let plain = others.max_by_key(|name| (word(name), std::cmp::Reverse(n_distinct(name))));
    // The person may be an object with a name, next to a kind of message.
    let named = || inside(turns[0]).filter(|path| path.len() > 1 && is_in_all(&path.join(".")));
    // Without a usual name, values that recur may be classes or stars, unless the list is a dialogue.
    let is_few = |name: &&String| n_distinct(name) <= 3 && is_dialogue(field);
    let path = match plain {
        Some(name) if word(name) => vec![name.clone()],
        _ => named().or_else(|| plain.filter(is_few).map(|name| vec![name.clone()]))?,
    };
    let (speaker, of_turn) = (path.join("."), path_in_jq(&path));
    let of_text = path_in_jq(&text.split('.').map(str::to_owned).collect::<Vec<_>>());

    let first = texts(&speaker)[0];
    let is_first_known = meaning(first) != Some("assistant");
    let roles = roles_in_jq(texts(&speaker)).filter(|_| {
        n_distinct(&speaker) > 2
            || !is_first_known
            || texts(&speaker).iter().all(|name| meaning(name) != Some("system"))
    });
    let is_reversed = descend(rows, field);
    let same = same_two(rows, field, &speaker, is_reversed);
    let (begin, role) = match (roles, same) {
        (Some(roles), _) => (String::new(), format!("{roles}[{of_turn}]")),
        (None, Some([asks, answers])) => {
            let roles = json!({asks: "user", answers: "assistant"});
            (String::new(), format!("{roles}[{of_turn}]"))
        }
        (None, None) if !is_first_known => return None,
        (None, None) => (
            format!("{}[{}]{of_turn} as $first | ", in_jq(field), if is_reversed { -1 } else { 0 }),
            format!("(if {of_turn} == $first then \"user\" else \"assistant\" end)"),
        ),
    };
    let list = if is_reversed { format!("({} | reverse)", in_jq(field)) } else { in_jq(field) };
    let said = conditions(turns.iter().copied());
    let said = said.strip_suffix(" and ").map_or_else(String::new, |said| format!("select({said}) | "));
    let messages = format!("{begin}{list}[] | {said}{{role: {role}, content: {of_text}}}");
    Some(Foreign {
        name: format!("conversations whose turns in \"{field}\" have a \"{speaker}\" and a \"{text}\""),
        way_out: with_messages(&[field], &messages),
    })
}

/// Returns the paths of the texts in a turn and in its objects.
fn texts_of(turn: &Map<String, Value>) -> Vec<String> {
    let mut paths = Vec::new();
    for (name, value) in turn {
        let inner = value.as_object().into_iter().flatten().filter(|(_, value)| value.is_string());
        paths.extend(value.is_string().then(|| name.clone()));
        paths.extend(inner.map(|(inner, _)| format!("{name}.{inner}")));
    }
    paths
}

/// Whether the turns of a list have times, and the last ones stand first.
fn descend(rows: &[Map<String, Value>], field: &str) -> bool {
    let is_time = |name: &str| {
        let is_one = |word: &String| TIMES.contains(&word.as_str()) || word.ends_with("time");
        words_of(name).iter().any(is_one)
    };
    let begins_with_year = |text: &str| {
        text.len() >= 10 && text.as_bytes()[..4].iter().all(u8::is_ascii_digit) && text.as_bytes()[4] == b'-'
    };
    let is_value = |value: &Value| value.is_number() || value.as_str().is_some_and(begins_with_year);
    let falls = |row: &Map<String, Value>| {
        let list = row.get(field)?.as_array().filter(|list| list.len() > 1)?;
        let name = list.first()?.as_object()?.iter().find(|(name, value)| is_time(name) && is_value(value))?.0;
        let (first, last) = (list.first()?.get(name)?, list.last()?.get(name)?);
        match (first.as_f64(), last.as_f64()) {
            (Some(first), Some(last)) => Some(first > last),
            _ => Some(first.as_str()? > last.as_str()?),
        }
    };
    let all: Vec<bool> = rows.iter().filter_map(falls).collect();
    2 * all.iter().filter(|falls| **falls).count() > all.len()
}

/// Returns the two speakers of several conversations that have no other one: first the one who begins most of them.
fn same_two(rows: &[Map<String, Value>], field: &str, speaker: &str, is_reversed: bool) -> Option<[String; 2]> {
    let speakers = |row: &Map<String, Value>| -> Option<Vec<String>> {
        row.get(field)?
            .as_array()?
            .iter()
            .map(|turn| Some(value_at(turn.as_object()?, speaker)?.as_str()?.to_owned()))
            .collect()
    };
    let all: Vec<Vec<String>> = rows.iter().filter_map(speakers).filter(|list| list.len() > 1).collect();
    let mut names: Vec<&String> = all.iter().flatten().collect();
    names.sort();
    names.dedup();
    let [one, other] = names[..] else { return None };
    let begun = |list: &&Vec<String>| (if is_reversed { list.last() } else { list.first() }) == Some(one);
    let n_begun = all.iter().filter(begun).count();
    let begins = if 2 * n_begun >= all.len() { [one, other] } else { [other, one] };
    (all.len() >= ENOUGH_ROWS).then(|| begins.map(String::to_owned))
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
    let lists = || lists().filter(|name| !names_facts(name));
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
