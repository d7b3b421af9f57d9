//! Layouts of conversations that Kiln does not read: what they are, and how they become rows that it reads.

mod asked_in_turns;
mod by_field;
mod histories;
mod logged;
mod notes;
mod opened;
mod persons;
#[cfg(test)]
mod tests;
mod threads;
#[cfg(test)]
mod transcript_tests;
mod transcripts;
mod trees;
mod turns;
mod who;

use serde_json::{Map, Value};

pub(super) use self::asked_in_turns::asked_in_turns;
use self::by_field::{inside_objects, lists_of_speakers, numbered_speakers, two_lists};
use self::histories::histories;
pub(super) use self::histories::{names_facts, unread_turns};
use self::logged::logged;
pub(super) use self::logged::unread_answer;
pub(super) use self::notes::conditions;
pub(super) use self::opened::opened;
pub(super) use self::persons::{MESSAGES, is_history, names_of, sessions_of, what};
use self::persons::{of_numbered, of_persons};
pub(super) use self::threads::are_trees;
use self::threads::{linked, nested};
use self::transcripts::transcripts;
use self::trees::tree;
use self::turns::{
    alternating, alternating_objects, is_dialogue, lists_of_two, other_roles, questions_in_turns, speakers,
    turns_by_role,
};
use crate::corpus::jq::in_jq;
use crate::corpus::text::{is_of_texts, is_written_list};

/// A row as Kiln reads it, for messages.
pub(super) const READ_ROW: &str =
    r#"{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}"#;
/// Names of roles in lower case, and what they mean.
const ROLES: [(&str, &str); 46] = [
    ("user", "user"),
    ("human", "user"),
    ("prompter", "user"),
    ("customer", "user"),
    ("client", "user"),
    ("student", "user"),
    ("patient", "user"),
    ("instruction", "user"),
    ("question", "user"),
    ("caller", "user"),
    ("visitor", "user"),
    ("guest", "user"),
    ("requester", "user"),
    ("end-user", "user"),
    ("end_user", "user"),
    ("apprentice", "user"),
    ("inbound", "user"),
    ("incoming", "user"),
    ("assistant", "assistant"),
    ("gpt", "assistant"),
    ("chatgpt", "assistant"),
    ("bot", "assistant"),
    ("model", "assistant"),
    ("chatbot", "assistant"),
    ("ai", "assistant"),
    ("agent", "assistant"),
    ("helper", "assistant"),
    ("teacher", "assistant"),
    ("doctor", "assistant"),
    ("answer", "assistant"),
    ("response", "assistant"),
    ("operator", "assistant"),
    ("representative", "assistant"),
    ("rep", "assistant"),
    ("support", "assistant"),
    ("advisor", "assistant"),
    ("admin", "assistant"),
    ("staff", "assistant"),
    ("therapist", "assistant"),
    ("counselor", "assistant"),
    ("tutor", "assistant"),
    ("outbound", "assistant"),
    ("outgoing", "assistant"),
    ("system", "system"),
    ("developer", "system"),
    ("context", "system"),
];

/// Names of fields that say who speaks.
pub(super) const SPEAKERS: [&str; 6] = ["role", "sender", "from", "author", "speaker", "author_role"];

/// A layout that Kiln does not read.
pub(super) struct Foreign {
    /// What the rows are.
    pub(super) name: String,
    pub(super) way_out: WayOut,
}

/// How rows become ones that Kiln reads.
pub(super) enum WayOut {
    /// What to make of them, and the program of jq that makes it.
    Program(String, String),
    /// The same for a program that reads all rows as one list.
    OfAll(String, String),
    Text(String),
}

/// Recognizes the layout of `rows`. Plain lists of texts count where the user has asked for conversations.
pub(super) fn foreign(rows: &[Map<String, Value>], is_chat: bool) -> Option<Foreign> {
    let row = rows.first()?;
    let forms = [written_list, single_message, parts, texts_in_lists, tree];
    let of_all = linked(rows, is_chat).or_else(|| nested(rows)).or_else(|| logged(rows)).or_else(|| histories(rows));
    let of_all = of_all.or_else(|| of_numbered(rows, is_chat));
    if let Some(found) = of_all.or_else(|| forms.into_iter().find_map(|form| form(row))) {
        return Some(found);
    }

    // Each of two answers to compare may be a whole conversation: one of them is bad.
    if row.contains_key("chosen") || row.contains_key("rejected") {
        return None;
    }
    let of_rows = turns_by_role(rows).or_else(|| other_roles(rows)).or_else(|| transcripts(rows));
    let of_rows = of_rows.or_else(|| lists_of_speakers(rows)).or_else(|| two_lists(rows));
    let of_rows = of_rows.or_else(|| of_persons(rows, is_chat));
    if let Some(found) = of_rows {
        return Some(found);
    }
    // A thread of a forum is a text, unless its name or the user says that it is a conversation.
    let mut dialogues = rows.to_vec();
    dialogues.iter_mut().for_each(|row| row.retain(|name, _| is_chat || is_dialogue(name)));
    let forms = [questions_in_turns, speakers, lists_of_two];
    let found = forms
        .into_iter()
        .find_map(|form| form(&dialogues))
        .or_else(|| numbered_speakers(rows, is_chat))
        .or_else(|| alternating(rows, is_chat));
    found.or_else(|| alternating_objects(rows).or_else(|| inside_objects(rows)).filter(|_| is_chat))
}

/// Returns what the name of a role means.
pub(super) fn meaning(role: &str) -> Option<&'static str> {
    let role = role.trim().to_lowercase();
    ROLES.into_iter().find(|(name, _)| *name == role).map(|(_, meaning)| meaning)
}

/// Replaces a `field` by messages, and keeps the other fields of a row, such as instructions.
fn with_messages(fields: &[&str], messages: &str) -> WayOut {
    let fields: Vec<String> = fields.iter().map(|field| in_jq(field)).collect();
    let program = format!("del({}) + {{messages: [{messages}]}}", fields.join(", "));
    WayOut::Program("to make messages of them".into(), program)
}

/// Does the same with the rows that fulfil a `condition` of jq.
fn with_messages_if(condition: &str, fields: &[&str], messages: &str) -> WayOut {
    match with_messages(fields, messages) {
        WayOut::Program(what, program) => WayOut::Program(what, format!("select({condition}) | {program}")),
        other => other,
    }
}

/// A list of messages in a string, as tables have it.
fn written_list(row: &Map<String, Value>) -> Option<Foreign> {
    let (field, _) = row.iter().find(|(_, value)| is_written_list(value))?;
    Some(Foreign {
        name: format!("conversations whose \"{field}\" is a string"),
        way_out: WayOut::Program("to make a list of the JSON in it".into(), format!("{} |= fromjson", in_jq(field))),
    })
}

/// One message per row: in trees as OpenAssistant has them, or in a table.
fn single_message(row: &Map<String, Value>) -> Option<Foreign> {
    let is_role = |value: &Value| value.as_str().is_some_and(|text| meaning(text).is_some());
    ["role", "from", "author", "speaker"].into_iter().find(|name| row.get(*name).is_some_and(is_role))?;
    ["text", "content", "value", "message"].into_iter().find(|name| row.get(*name).is_some_and(Value::is_string))?;
    let is_tree = row.contains_key("parent_id") || row.contains_key("message_tree_id");
    let (name, unit) = match is_tree {
        true => ("messages of OpenAssistant's trees, one per row", "path from a first message to a last answer"),
        false => ("messages, one per row", "conversation"),
    };
    Some(Foreign { name: name.into(), way_out: WayOut::Text(format!("write one row for each {unit}: {READ_ROW}")) })
}

/// Messages made of `parts`, as Gemini has them.
fn parts(row: &Map<String, Value>) -> Option<Foreign> {
    let has_parts = |value: &Value| value.as_array().is_some_and(|list| list.first().is_some_and(is_of_parts));
    let (field, _) = row.iter().find(|(_, value)| has_parts(value))?;
    let system = row.iter().find(|(_, value)| is_of_parts(value)).map(|(name, _)| name.as_str());
    let text = r#"([.parts[].text] | join(""))"#;
    let of_system = system
        .map_or(String::new(), |name| format!(r#"({} // empty | {{role: "system", content: {text}}}), "#, in_jq(name)));
    let messages = format!(
        r#"{of_system}({}[] | {{role: (if .role == "model" then "assistant" else .role end), content: {text}}})"#,
        in_jq(field)
    );
    let fields: Vec<&str> = [field.as_str()].into_iter().chain(system).collect();
    Some(Foreign {
        name: format!("conversations of Gemini, with parts in \"{field}\""),
        way_out: with_messages(&fields, &messages),
    })
}

fn is_of_parts(value: &Value) -> bool {
    value.get("parts").is_some_and(Value::is_array)
}

/// Messages whose content is a list of typed texts, as OpenAI has them next to images.
fn texts_in_lists(row: &Map<String, Value>) -> Option<Foreign> {
    let is_message = |value: &Value| value.get("role").is_some() && value.get("content").is_some_and(is_of_texts);
    let has_lists = |value: &Value| value.as_array().is_some_and(|list| list.iter().any(is_message));
    let (field, _) = row.iter().find(|(_, value)| has_lists(value))?;
    let joined = r#"if (.content | type) == "array" then .content |= (map(.text // empty) | join("")) else . end"#;
    Some(Foreign {
        name: format!("conversations whose messages in \"{field}\" are lists of parts"),
        way_out: WayOut::Program("to make one text of the parts".into(), format!("{} |= map({joined})", in_jq(field))),
    })
}
