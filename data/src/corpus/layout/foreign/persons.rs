//! Messages of persons, one per row: how they become conversations in which one of the persons answers.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::notes::conditions;
use super::who::{Who, role_of};
use super::{Foreign, WayOut};
use crate::corpus::columns::columns_of;
use crate::corpus::fields::{is_id_name, words_of};
use crate::corpus::jq::{in_jq, path_in_jq};
use crate::corpus::path::value_at;

/// Messages of a row, where rows do not say which conversation they belong to.
pub(in crate::corpus::layout) const MESSAGES: usize = 8;
/// What keeps conversations in which the assistant says something.
const ANSWERED: &str = r#"select(.messages | any(.role == "assistant"))"#;
/// Words of names of the field with the person, best first.
const PERSONS: [&str; 16] = [
    "from",
    "sender",
    "author",
    "speaker",
    "creator",
    "user",
    "username",
    "nick",
    "name",
    "who",
    "role",
    "participant",
    "party",
    "side",
    "person",
    "channel",
];
/// Names of the field with the name in an object with the person, best first.
const NAMES: [&str; 8] =
    ["name", "username", "nickname", "display_name", "global_name", "first_name", "real_name", "type"];
/// Names of the field with the message, best first.
pub(super) const TEXTS: [&str; 11] = [
    "text",
    "content",
    "message",
    "body",
    "utterance",
    "msg",
    "value",
    "transcript",
    "message_text",
    "message_body",
    "comment",
];
/// Words of a field that numbers conversations, best first.
const CONVERSATIONS: [&str; 15] = [
    "conversation",
    "conv",
    "dialogue",
    "dialog",
    "call",
    "thread",
    "ticket",
    "session",
    "meeting",
    "interaction",
    "case",
    "chat",
    "conversations",
    "room",
    "channel",
];
/// Words of a field that orders the messages of a conversation.
const ORDERS: [&str; 16] = [
    "idx",
    "index",
    "turn",
    "position",
    "order",
    "sequence",
    "seq",
    "start",
    "offset",
    "timestamp",
    "time",
    "ts",
    "date",
    "created",
    "sent",
    "at",
];
/// The part of conversations in which somebody speaks who answers in all of them, in percent.
const IN_MOST: usize = 80;

/// Messages of persons in rows of their own.
struct Messages<'r> {
    rows: &'r [Map<String, Value>],
    text: &'r str,
    /// The path to the person; none where roles tell who speaks.
    person: Vec<String>,
    who: Option<Who>,
    /// The field that numbers conversations.
    number: Option<String>,
}

/// One message per row, of two persons or more. `is_chat` says that the user has asked for conversations.
pub(super) fn of_persons(rows: &[Map<String, Value>], is_chat: bool) -> Option<Foreign> {
    let find = |names: &[&str], is_one: fn(&Value) -> bool| {
        let is_there = |field: &&String| {
            rows.iter().all(|row| row.get(*field).is_none_or(|value| is_one(value) || value.is_null()))
        };
        let fits = |field: &&String| is_there(field) && rows.iter().any(|row| row.get(*field).is_some_and(is_one));
        let fields = || rows.first().into_iter().flat_map(Map::keys);
        let exact = names.iter().find_map(|name| fields().filter(fits).find(|field| field.eq_ignore_ascii_case(name)));
        exact.map(String::as_str)
    };
    let text = find(&TEXTS, Value::is_string)?;
    // Persons may be numbers, of accounts or of telephones, and their names may stand in an object.
    let number = number_of_conversation(rows, &[text]);
    let is_number = |value: &Value| value.is_i64() || value.is_u64();
    let person = find(&PERSONS, Value::is_string).or_else(|| find(&PERSONS, is_number)).map(str::to_owned);
    let person = person.filter(|person| Some(person) != number.as_ref() && person != text);
    let person = person.map(|person| vec![person]).or_else(|| inside(&rows[0])).or_else(|| named_person(rows));
    let person = person.or_else(|| number.as_ref().and_then(|number| numbered_person(rows, [text, number])));
    let who = role_of(rows).filter(|who| Some(&who.field) != number.as_ref());
    if person.is_none() && who.is_none() {
        return None;
    }
    Messages { rows, text, person: person.unwrap_or_default(), who, number }.foreign(is_chat)
}

/// Whether `n` rows, of which these are the first, are a whole history of such messages, which is more than one conversation.
pub(in crate::corpus::layout) fn is_history(rows: &[Map<String, Value>], n: usize) -> bool {
    n > 2 * MESSAGES && of_persons(rows, true).is_some()
}

/// The same for rows that number their conversations.
pub(super) fn of_numbered(rows: &[Map<String, Value>], is_chat: bool) -> Option<Foreign> {
    of_persons(rows, is_chat).filter(|_| {
        let text = TEXTS.into_iter().find(|name| rows[0].contains_key(*name));
        number_of_conversation(rows, &text.into_iter().collect::<Vec<_>>()).is_some()
    })
}

/// Returns the field that numbers conversations in most rows. Fields in `except` do not count.
pub(super) fn number_of_conversation(rows: &[Map<String, Value>], except: &[&str]) -> Option<String> {
    let fits = |field: &&String| {
        let values: Vec<String> = rows.iter().filter_map(|row| Some(row.get(*field)?.to_string())).collect();
        let recurs = values.iter().collect::<HashSet<_>>().len() * 2 <= values.len();
        let is_plain =
            rows.iter().all(|row| row.get(*field).is_none_or(|value| !value.is_array() && !value.is_object()));
        let is_usual = 10 * values.len() >= 9 * rows.len() && rows.len() > 1;
        recurs && is_usual && is_plain && !except.contains(&field.as_str())
    };
    let fields = || rows.first().into_iter().flat_map(Map::keys).filter(fits);
    let of_word = |word: &str| {
        let named = || fields().filter(|field| words_of(field).iter().any(|other| other == word));
        let is_id = |field: &&String| is_id_name(field) || words_of(field).len() == 1;
        named().find(is_id).or_else(|| named().find(|_| word != "channel"))
    };
    CONVERSATIONS.iter().find_map(|word| of_word(word)).cloned()
}

/// Returns the field that numbers conversations of rows with a question and an answer each, and what sorts these rows in jq.
pub(in crate::corpus::layout) fn sessions_of(
    rows: &[Map<String, Value>],
    [question, answer]: [&str; 2],
) -> Option<(String, String)> {
    let number = number_of_conversation(rows, &[question, answer])?;
    let order = order(rows, &[question, answer, &number]);
    Some((number, order))
}

/// Returns a field with the names of persons that recur, whose own name says nothing else, such as `sender_name`.
fn named_person(rows: &[Map<String, Value>]) -> Option<Vec<String>> {
    let is_of_person = |field: &&String| {
        let words = words_of(field);
        let is_person = |word: &String| PERSONS.contains(&word.as_str());
        words.len() > 1
            && words.iter().all(|word| is_person(word) || word == "name")
            && words.iter().any(|word| word != "name")
    };
    let recur = |field: &&String| {
        let names: Vec<&str> = rows.iter().filter_map(|row| row.get(*field)?.as_str()).collect();
        2 * names.iter().collect::<HashSet<_>>().len() <= names.len() && 10 * names.len() >= 9 * rows.len()
    };
    rows.first()?.keys().filter(is_of_person).find(recur).map(|field| vec![field.clone()])
}

/// Returns a field that numbers or names persons by a word of its name, such as `speaker_idx`.
fn numbered_person(rows: &[Map<String, Value>], except: [&str; 2]) -> Option<Vec<String>> {
    let is_value = |field: &&String| {
        let values = || rows.iter().filter_map(|row| row.get(*field));
        let spelled: HashSet<String> = values().map(Value::to_string).collect();
        values().all(|value| value.is_string() || value.is_number())
            && spelled.len() > 1
            && 2 * spelled.len() <= rows.len()
    };
    let fields = || rows.first().into_iter().flat_map(Map::keys).filter(is_value);
    let has = |field: &str, word: &str| words_of(field).iter().any(|other| other == word);
    let found =
        PERSONS.iter().find_map(|word| fields().find(|field| has(field, word) && !except.contains(&field.as_str())));
    Some(vec![found?.clone()])
}

impl Messages<'_> {
    fn person_of(&self, row: &Map<String, Value>) -> Option<String> {
        let value = value_at(row, &self.person.join("."))?;
        Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    }

    /// Says what to make of the messages, and returns what begins the program of each conversation and the role of a message.
    fn speakers(&self) -> Option<(String, String, String)> {
        let person = path_in_jq(&self.person);
        let all: Vec<String> = self.rows.iter().filter_map(|row| self.person_of(row)).collect();
        if self.who.is_none() && all.iter().collect::<HashSet<_>>().len() < 2 {
            return None;
        }
        let each = |number: &String| format!("to make a conversation of the messages of each \"{number}\"");
        match (&self.who, &self.number) {
            (Some(who), Some(number)) => return Some((each(number), String::new(), who.role.clone())),
            (None, Some(number)) => {
                let mut names: Vec<String> = Vec::new();
                all.iter().filter(|name| self.is_in_most(name, number)).for_each(|name| {
                    if !names.contains(name) {
                        names.push(name.clone());
                    }
                });
                if let [name] | [_, name, ..] = &names[..] {
                    return Some(self.answered_by(name, &all));
                }
                let what = format!("{}, in which the first person asks and others answer", each(number));
                let role = format!("(if {person} == $first then \"user\" else \"assistant\" end)");
                return Some((what, format!(".[0]{person} as $first | "), role));
            }
            (_, None) => {}
        }

        let names = names_of(all.iter().map(String::as_str))?;
        Some(self.answered_by(&names[1], &all))
    }

    /// Does the same where the person called `name` is the assistant.
    fn answered_by(&self, name: &str, all: &[String]) -> (String, String, String) {
        let value = |row: &Map<String, Value>| value_at(row, &self.person.join(".")).is_some_and(Value::is_number);
        let answers = if self.rows.iter().any(value) { name.to_owned() } else { Value::from(name).to_string() };
        let mut names = vec![name.to_owned()];
        all.iter().for_each(|other| {
            if !names.contains(other) {
                names.push(other.clone());
            }
        });
        names.swap(0, 1);
        let role = format!("(if {} == {answers} then \"assistant\" else \"user\" end)", path_in_jq(&self.person));
        (what(&names), String::new(), role)
    }

    fn foreign(&self, is_chat: bool) -> Option<Foreign> {
        let is_certain = || self.number.as_ref().is_some_and(|number| is_id_name(number) || words_of(number).len() > 1);
        if !is_chat && (!is_certain() || self.has_other_texts()) {
            return None;
        }
        let (what, begin, role) = self.speakers()?;

        let text = in_jq(self.text);
        let has_commas = self
            .rows
            .iter()
            .any(|row| row.get(self.text).and_then(Value::as_str).is_some_and(|text| text.contains("_comma_")));
        let content = if has_commas { format!("({text} | gsub(\"_comma_\"; \",\"))") } else { text.clone() };
        let is_message = format!("map(select({}({text} | strings | . != \"\")))", conditions(self.rows.iter()));
        let parts = match &self.number {
            Some(number) => {
                let person = self.person.first().map_or("", String::as_str);
                format!("group_by({})[]{}", in_jq(number), order(self.rows, &[self.text, number, person]))
            }
            None => {
                let reversed = if self.descend() { "reverse | " } else { "" };
                format!("{reversed}range(0; length; {MESSAGES}) as $i | .[$i:$i + {MESSAGES}]")
            }
        };
        let program = format!(
            "{is_message} | {parts} | {begin}{{messages: map({{role: {role}, content: {content}}})}} | {ANSWERED}"
        );
        let field =
            self.who.as_ref().filter(|_| self.number.is_some()).map_or(self.person.join("."), |who| who.field.clone());
        Some(Foreign {
            name: format!("messages of persons in \"{field}\", one per row"),
            way_out: WayOut::OfAll(what, program),
        })
    }

    /// Whether somebody speaks in most conversations: who answers in all of them.
    fn is_in_most(&self, name: &str, number: &str) -> bool {
        let key = |row: &Map<String, Value>| row.get(number).map(Value::to_string);
        let all: HashSet<String> = self.rows.iter().filter_map(key).collect();
        let is_his = |row: &&Map<String, Value>| self.person_of(row).as_deref() == Some(name);
        let his: HashSet<String> = self.rows.iter().filter(is_his).filter_map(key).collect();
        100 * his.len() >= IN_MOST * all.len()
    }

    /// Whether a field has times, and the last ones stand first, as exports of programs have them.
    fn descend(&self) -> bool {
        let falls = |name: &&String| {
            let times: Vec<f64> = self.rows.iter().filter_map(|row| row.get(*name)?.as_f64()).collect();
            let n_falling = times.windows(2).filter(|two| two[0] >= two[1]).count();
            // One row may have been moved to the front, for its fields.
            times.len() == self.rows.len()
                && times.len() > 2
                && n_falling + 2 >= times.len()
                && times[1] > times[times.len() - 1]
        };
        let is_time = |name: &&String| words_of(name).iter().any(|word| ORDERS.contains(&word.as_str()));
        self.rows[0].keys().filter(is_time).any(|name| falls(&name))
    }

    /// Whether messages have a further text of their own: rows of pairs, say. What all messages of a conversation share is about it.
    fn has_other_texts(&self) -> bool {
        let Some(number) = &self.number else { return false };
        let is_shared = |name: &str| {
            let mut pairs: Vec<[String; 2]> = self
                .rows
                .iter()
                .filter_map(|row| Some([row.get(number)?.to_string(), value_at(row, name)?.to_string()]))
                .collect();
            pairs.sort();
            pairs.dedup();
            let n_conversations = pairs.iter().map(|[key, _]| key).collect::<HashSet<_>>().len();
            10 * pairs.len() <= 15 * n_conversations
        };
        let who = self.who.as_ref().map_or_else(String::new, |who| who.field.clone());
        let own = [self.text.to_owned(), self.person.join("."), number.clone(), who];
        columns_of(self.rows).iter().any(|(name, column)| {
            let can_be = column.is_string && column.can_be_read(name) && column.has_words() && !column.recurs();
            can_be && !own.contains(name) && !is_shared(name)
        })
    }
}

/// Returns what sorts the messages of a conversation, if a field other than its `own` numbers them or says when they were
/// written.
fn order(rows: &[Map<String, Value>], own: &[&str]) -> String {
    let fields = rows[0].keys().filter(|name| !own.contains(&name.as_str()));
    let values = |name: &str| rows.iter().map(|row| row.get(name)).collect::<Option<Vec<&Value>>>();
    let is_number =
        |value: &&Value| value.is_number() || value.as_str().is_some_and(|text| text.trim().parse::<f64>().is_ok());
    // Dates are sorted as texts if the year stands first.
    let is_date = |value: &&Value| {
        let text = value.as_str().unwrap_or_default();
        text.len() >= 10 && text.bytes().take(4).all(|byte| byte.is_ascii_digit()) && text.as_bytes()[4] == b'-'
    };
    let order = |name: &String| {
        let values = values(name)?;
        let is_named = words_of(name).iter().any(|word| ORDERS.contains(&word.as_str()));
        match () {
            () if !is_named => None,
            () if values.iter().all(is_number) => Some(format!(" | sort_by({} | tonumber? // 0)", in_jq(name))),
            () if values.iter().all(is_date) => Some(format!(" | sort_by({})", in_jq(name))),
            () => None,
        }
    };
    fields.filter_map(order).min_by_key(|found| !found.contains("tonumber")).unwrap_or_default()
}

/// Returns the path to the name in an object with the person.
pub(super) fn inside(row: &Map<String, Value>) -> Option<Vec<String>> {
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
