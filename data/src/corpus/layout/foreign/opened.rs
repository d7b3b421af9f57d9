//! Threads whose first message stands outside of the list with the others: conversations of Intercom, issues with comments.

use serde_json::{Map, Value};

use super::notes::conditions;
use super::persons::TEXTS;
use super::{Foreign, WayOut, meaning};
use crate::corpus::jq::{in_jq, path_in_jq};
use crate::corpus::text::Rating;

/// Names of the field with the author of a message.
const AUTHORS: [&str; 7] = ["author", "user", "sender", "from", "author_id", "user_id", "sender_id"];
/// Names of the field that names an author, in an object with one.
const NAMES: [&str; 6] = ["type", "role", "login", "name", "username", "id"];

/// How a message names its text and its author, as paths.
struct Message {
    text: String,
    author: Vec<String>,
}

impl Message {
    fn of(object: &Map<String, Value>) -> Option<Self> {
        let text = TEXTS.into_iter().find(|name| object.get(*name).is_some_and(Value::is_string))?;
        let author = AUTHORS.into_iter().find(|name| object.contains_key(*name))?;
        let path = match &object[author] {
            Value::Object(inside) => {
                let name = NAMES.into_iter().find(|name| inside.get(*name).is_some_and(|value| !value.is_object()))?;
                vec![author.to_owned(), name.to_owned()]
            }
            Value::String(_) | Value::Number(_) => vec![author.to_owned()],
            _ => return None,
        };
        Some(Self { text: text.to_owned(), author: path })
    }

    fn author_in<'o>(&self, object: &'o Map<String, Value>) -> Option<&'o Value> {
        let (first, rest) = self.author.split_first()?;
        rest.iter().try_fold(object.get(first)?, |value, name| value.get(name))
    }
}

/// The path of a list in a row, and its objects.
type FoundList<'r> = (Vec<String>, Vec<&'r Map<String, Value>>);

/// Adds the lists of objects in a row and in its objects to `found`.
fn lists_in<'r>(path: &mut Vec<String>, row: &'r Map<String, Value>, found: &mut Vec<FoundList<'r>>) {
    for (name, value) in row {
        path.push(name.clone());
        match value {
            Value::Object(inside) => lists_in(path, inside, found),
            Value::Array(list) => {
                let objects: Option<Vec<&Map<String, Value>>> = list.iter().map(Value::as_object).collect();
                found.extend(objects.filter(|list| !list.is_empty()).map(|list| (path.clone(), list)));
            }
            _ => {}
        }
        path.pop();
    }
}

/// Rows with a first message and a list of others, which have the same fields.
pub(in crate::corpus::layout) fn opened(rows: &[Map<String, Value>], is_chat: bool) -> Option<Foreign> {
    let mut lists = Vec::new();
    rows.iter().take(20).for_each(|row| lists_in(&mut Vec::new(), row, &mut lists));
    // Answers that somebody has rated are several answers to one question.
    let is_rated = |list: &[&Map<String, Value>]| list.iter().any(|one| Rating::of(one).is_some());
    let mut plain = lists.iter().filter(|(_, list)| !is_rated(list));
    let (path, message) = plain.find_map(|(path, list)| Some((path.clone(), Message::of(list[0])?)))?;
    let is_same = |object: &Map<String, Value>| {
        Message::of(object).is_some_and(|other| other.text == message.text && other.author == message.author)
    };
    let usual =
        |fits: &dyn Fn(&Map<String, Value>) -> bool| 10 * rows.iter().filter(|row| fits(row)).count() >= 9 * rows.len();
    let inside = rows
        .first()?
        .keys()
        .find(|name| usual(&|row: &Map<String, Value>| row.get(*name).and_then(Value::as_object).is_some_and(is_same)));
    let opening = match inside {
        Some(name) => in_jq(name),
        None if usual(&is_same) => ".".to_owned(),
        None => return None,
    };

    let authors: Vec<&Value> = lists
        .iter()
        .filter(|(other, _)| *other == path)
        .flat_map(|(_, list)| list)
        .filter_map(|one| message.author_in(one))
        .collect();
    let are_roles = authors.iter().all(|author| author.as_str().is_some_and(|name| meaning(name).is_some()));
    if !are_roles && !is_chat {
        return None;
    }
    let (text, author, list) = (in_jq(&message.text), path_in_jq(&message.author), path_in_jq(&path));
    let role = match are_roles {
        true => {
            let mut known: Vec<&str> = authors
                .iter()
                .filter_map(|author| author.as_str())
                .filter(|name| meaning(name) == Some("assistant"))
                .collect();
            known.sort_unstable();
            known.dedup();
            let names: Vec<String> = known.iter().map(|name| Value::from(*name).to_string()).collect();
            format!("(if ({author} | IN({})) then \"assistant\" else \"user\" end)", names.join(", "))
        }
        false => format!("(if {author} == ($first | {author}) then \"user\" else \"assistant\" end)"),
    };
    let mut all = Vec::new();
    rows.iter().for_each(|row| lists_in(&mut Vec::new(), row, &mut all));
    let said = conditions(all.iter().filter(|(other, _)| *other == path).flat_map(|(_, list)| list).copied());
    let program = format!(
        "{opening} as $first | {{messages: [([$first] + ({list} // []))[] | select({said}({text} | strings | . != \"\")) | {{role: {role}, content: {text}}}]}} \
         | select(.messages | any(.role == \"assistant\"))"
    );
    let what = if are_roles {
        "to make conversations of them"
    } else {
        "to make conversations in which all but the first author answer"
    };
    Some(Foreign {
        name: format!("threads, with a first message and the others in \"{}\"", path.join(".")),
        way_out: WayOut::Program(what.into(), program),
    })
}
