//! Messages that reply to one another: trees of replies, and rows that name the message before.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json};

use super::persons::TEXTS;
use super::who::role_of;
use super::{Foreign, SPEAKERS, WayOut, meaning};
use crate::corpus::fields::words_of;
use crate::corpus::jq::in_jq;
use crate::corpus::text::direction_of;

/// Names of lists with the replies to a message.
const REPLIES: [&str; 5] = ["replies", "children", "responses", "comments", "answers"];
/// What stands in the place of a message that somebody took back.
const DELETED: [&str; 3] = ["", "[deleted]", "[removed]"];

/// A message with replies, each of which may have replies.
struct Nested<'r> {
    /// The path to the first message for jq.
    root: String,
    message: &'r Map<String, Value>,
    text: &'r str,
    role: &'r str,
    replies: &'r str,
    /// The field that orders the replies, and whether a high value means a good one.
    rating: Option<(&'r str, bool)>,
}

/// Returns the fields with the text and the role of a message.
fn fields_of(message: &Map<String, Value>) -> Option<[&str; 2]> {
    let is_role =
        |name: &&&str| message.get(**name).and_then(Value::as_str).is_some_and(|role| meaning(role).is_some());
    let role = SPEAKERS.iter().find(is_role)?;
    let text = TEXTS.iter().find(|name| message.get(**name).is_some_and(Value::is_string))?;
    Some([text, role])
}

fn nested_in<'r>(message: &'r Map<String, Value>, root: String) -> Option<Nested<'r>> {
    let [text, role] = fields_of(message)?;
    let first = |name: &str| message.get(name)?.as_array()?.first()?.as_object();
    let is_list = |name: &&str| first(name).is_some_and(|reply| fields_of(reply).is_some());
    let replies = REPLIES.into_iter().find(is_list)?;
    let numbers = first(replies)?.iter().filter(|(_, value)| value.is_number());
    let rating = numbers.filter_map(|(name, _)| Some((name.as_str(), direction_of(name)?))).next();
    Some(Nested { root, message, text, role, replies, rating })
}

fn nested_of(row: &Map<String, Value>) -> Option<Nested<'_>> {
    let inside = || row.iter().find_map(|(name, value)| nested_in(value.as_object()?, in_jq(name)));
    nested_in(row, ".".to_owned()).or_else(inside)
}

/// Whether rows are trees of messages.
pub(in crate::corpus::layout) fn are_trees(rows: &[Map<String, Value>]) -> bool {
    rows.iter().any(|row| nested_of(row).is_some())
}

/// Returns the names of roles for jq, each with its meaning.
fn roles_in_jq<'r>(roles: impl Iterator<Item = &'r str>) -> String {
    let known: BTreeMap<String, &str> = roles.filter_map(|role| Some((role.to_lowercase(), meaning(role)?))).collect();
    json!(known).to_string()
}

/// Returns the roles of a message and of all replies below it.
fn roles_below<'r>(message: &'r Map<String, Value>, role: &str, replies: &str) -> Vec<&'r str> {
    let own = message.get(role).and_then(Value::as_str);
    let inside = message.get(replies).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object);
    own.into_iter().chain(inside.flat_map(|reply| roles_below(reply, role, replies))).collect()
}

/// Trees of replies in rows, as OpenAssistant has them.
pub(super) fn nested(rows: &[Map<String, Value>]) -> Option<Foreign> {
    let Nested { root, text, role, replies, rating, .. } = nested_of(rows.first()?)?;
    let trees = rows.iter().filter_map(nested_of);
    let roles: Vec<&str> = trees.flat_map(|tree| roles_below(tree.message, role, replies)).collect();
    let (text, role, list) = (in_jq(text), in_jq(role), in_jq(replies));
    let (which, best) = match rating {
        Some((field, true)) => ("best", format!("max_by({} // -1e9)", in_jq(field))),
        Some((field, false)) => ("best", format!("min_by({} // 1e9)", in_jq(field))),
        None => ("first", ".[0]".to_owned()),
    };
    let program = format!(
        "{{messages: [{root} | recurse({list} // [] | map(select(({text} | strings) and .deleted != true)) | {best} // empty) | {{role: \
         {}[{role} | ascii_downcase], content: {text}}}]}} | select(.messages | any(.role == \"assistant\"))",
        roles_in_jq(roles.into_iter())
    );
    let what = match which {
        "best" => "to make a conversation of the best replies of each tree",
        _ => "to make a conversation of the first replies of each tree",
    };
    Some(Foreign {
        name: format!("trees of messages, with the replies to each in \"{replies}\""),
        way_out: WayOut::Program(what.into(), program),
    })
}

/// One message per row, which names the one that it replies to. Without roles, each second message of a path is an answer.
pub(super) fn linked(rows: &[Map<String, Value>], is_chat: bool) -> Option<Foreign> {
    let first = rows.first()?;
    let parent = first.keys().find(|name| names_parent(name))?;
    let text = TEXTS.iter().find(|name| first.get(**name).is_some_and(Value::is_string))?;
    let id = first.keys().filter(|name| *name != parent).find_map(|id| Some((id, link(rows, id, parent)?)));
    let (id, has_kind) = id?;
    let role = role_of(rows).map(|who| who.role);
    if role.is_none() && !is_chat {
        return None;
    }

    let kind = if has_kind { " | sub(\"^[a-z][a-z0-9]*_\"; \"\")" } else { "" };
    // Whole numbers next to blank cells are written with a fraction.
    let has_fraction = rows.iter().filter_map(|row| row.get(parent)?.as_str()).any(|parent| parent.ends_with(".0"));
    let kind = if has_fraction { " | sub(\"\\\\.0$\"; \"\")" } else { kind };
    let (text, of_parent) = (in_jq(text), in_jq(parent));
    let deleted = DELETED.map(|text| Value::from(text).to_string()).join(", ");
    let helpers = format!(
        "def id: {} | tostring; def up: {of_parent} // \"\" | tostring{kind}; def said: ({text} | strings | IN({deleted}) | not) and \
         .deleted != true;",
        in_jq(id)
    );
    let path =
        "[recurse(if up == id then empty else $all[up] // empty end)] | reverse | select(length > 1 and all(said))";
    // Somebody may have ranked the replies to a message: others than the best are worse answers.
    let rating = role.as_ref().and_then(|_| rating_of(rows));
    let (best, path) = match rating {
        None => (String::new(), path.to_owned()),
        Some((field, high_is_good)) => {
            let (which, worst) = if high_is_good { ("max_by", "-1e9") } else { ("min_by", "1e9") };
            let best = format!(
                " | (group_by(up) | map({which}({} | tonumber? // {worst})) | INDEX(id)) as $best | .",
                in_jq(field)
            );
            (best, format!("{path} | select(all(.[1:][]; $best[id] != null))"))
        }
    };
    let is_alternate = role.is_none();
    let (messages, condition) = match role {
        Some(role) => (format!("map({{role: {role}, content: {text}}})"), "any(.role == \"assistant\")"),
        None => {
            let role = "(if .key % 2 == 0 then \"user\" else \"assistant\" end)";
            (format!("[to_entries[] | {{role: {role}, content: .value{text}}}]"), "length > 1")
        }
    };
    let program = format!(
        "{helpers} INDEX(id) as $all | map(select(said)) | INDEX(up) as $replied{best} | .[] | select($replied[id] == null) | {path} | \
         {messages} | select({condition}) | {{messages: .}}"
    );
    let which = if rating.is_some() { "each path of the best replies" } else { "each path" };
    let alternate = if is_alternate { ", in which each second message is an answer" } else { "" };
    Some(Foreign {
        name: format!("messages, one per row, each with the one that it replies to in \"{parent}\""),
        way_out: WayOut::OfAll(
            format!(
                "to make a conversation of {which} from a first message to a last reply{alternate}, without those that were deleted"
            ),
            program,
        ),
    })
}

/// Returns the field that rates messages by numbers, and whether a high one is good.
fn rating_of(rows: &[Map<String, Value>]) -> Option<(&str, bool)> {
    let is_number =
        |value: &Value| value.is_number() || value.as_str().is_some_and(|text| text.trim().parse::<f64>().is_ok());
    let is_rated = |name: &&String| rows.iter().filter(|row| row.get(*name).is_some_and(is_number)).count() > 1;
    rows.first()?.keys().filter(is_rated).find_map(|name| Some((name.as_str(), direction_of(name)?)))
}

/// Whether a field names the message before: `parent_id`, `in_reply_to`.
fn names_parent(name: &str) -> bool {
    let words = words_of(name);
    let has = |list: &[&str]| words.iter().any(|word| list.contains(&word.as_str()));
    has(&["parent"]) || has(&["reply", "response", "replied"]) && has(&["to"])
}

/// Whether the messages in `parent` are those that `id` numbers, perhaps with a kind in front, as Reddit has it (`Some(true)`).
fn link(rows: &[Map<String, Value>], id: &str, parent: &str) -> Option<bool> {
    let spelled = |value: &Value| match value {
        Value::String(text) => Some(text.trim().trim_end_matches(".0").to_owned()).filter(|text| !text.is_empty()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let values = |name: &str| rows.iter().filter_map(|row| spelled(row.get(name)?)).collect::<Vec<String>>();
    let ids: HashSet<String> = values(id).into_iter().collect();
    let parents = values(parent);
    let without_kind = |parent: &String| parent.split_once('_').map_or_else(String::new, |(_, id)| id.to_owned());
    let is_enough = |n: usize| n > 0 && 10 * n >= parents.len();
    let is_unique = ids.len() == rows.len();
    let n_plain = parents.iter().filter(|parent| ids.contains(*parent)).count();
    let n_with_kind = parents.iter().filter(|parent| ids.contains(&without_kind(parent))).count();
    match (is_unique && is_enough(n_plain), is_unique && is_enough(n_with_kind)) {
        (true, _) => Some(false),
        (_, true) => Some(true),
        _ => None,
    }
}
