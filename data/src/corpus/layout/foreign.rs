//! Layouts of conversations that Kiln does not read: what they are, and how they become rows that it reads.

use serde_json::{Map, Value};

use crate::corpus::text::{in_jq, is_of_texts, is_written_list, unpack};

/// A row as Kiln reads it, for messages.
const READ_ROW: &str = r#"{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}"#;
/// Names of roles in lower case.
const ROLES: [&str; 11] =
    ["user", "human", "prompter", "assistant", "gpt", "chatgpt", "bot", "model", "system", "instruction", "chatbot"];

/// A layout that Kiln does not read.
pub(super) struct Foreign {
    /// What the rows are.
    pub(super) name: String,
    pub(super) way_out: String,
}

/// Recognizes the layout of `row`.
pub(super) fn foreign(row: &Map<String, Value>) -> Option<Foreign> {
    let forms = [written_list, single_message, parts, texts_in_lists, turns_by_role];
    forms.into_iter().find_map(|form| form(row))
}

/// A list of messages in a string, as tables have it.
fn written_list(row: &Map<String, Value>) -> Option<Foreign> {
    let (field, _) = row.iter().find(|(_, value)| is_written_list(value))?;
    Some(Foreign { name: format!("conversations whose \"{field}\" is a string"), way_out: unpack(field) })
}

/// One message per row: in trees as OpenAssistant has them, or in a table.
fn single_message(row: &Map<String, Value>) -> Option<Foreign> {
    let is_role = |value: &Value| value.as_str().is_some_and(|text| ROLES.contains(&&*text.to_lowercase()));
    ["role", "from", "author", "speaker"].into_iter().find(|name| row.get(*name).is_some_and(is_role))?;
    ["text", "content", "value", "message"].into_iter().find(|name| row.get(*name).is_some_and(Value::is_string))?;
    let is_tree = row.contains_key("parent_id") || row.contains_key("message_tree_id");
    let (name, unit) = match is_tree {
        true => ("messages of OpenAssistant's trees, one per row", "path from a first message to a last answer"),
        false => ("messages, one per row", "conversation"),
    };
    Some(Foreign { name: name.into(), way_out: format!("write one row for each {unit}: {READ_ROW}") })
}

/// Messages made of `parts`, as Gemini has them.
fn parts(row: &Map<String, Value>) -> Option<Foreign> {
    let has_parts = |value: &Value| value.as_array().is_some_and(|list| list.first().is_some_and(is_of_parts));
    let (field, _) = row.iter().find(|(_, value)| has_parts(value))?;
    let system = row.iter().find(|(_, value)| is_of_parts(value)).map(|(name, _)| in_jq(name));
    let text = r#"([.parts[].text] | join(""))"#;
    let system =
        system.map_or(String::new(), |path| format!(r#"({path} // empty | {{role: "system", content: {text}}}), "#));
    let messages = format!(
        r#"({}[] | {{role: (if .role == "model" then "assistant" else .role end), content: {text}}})"#,
        in_jq(field)
    );
    Some(Foreign {
        name: format!("conversations of Gemini, with parts in \"{field}\""),
        way_out: format!("make messages of them with jq -c '{{messages: [{system}{messages}]}}'"),
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
        way_out: format!("make one text of the parts with jq -c '{} |= map({joined})'", in_jq(field)),
    })
}

/// A list of turns with the roles as names.
fn turns_by_role(row: &Map<String, Value>) -> Option<Foreign> {
    let is_turn = |value: &Value| {
        let fields = value.as_object().filter(|fields| !fields.is_empty());
        fields.is_some_and(|fields| {
            fields.iter().all(|(name, text)| ROLES.contains(&&*name.to_lowercase()) && text.is_string())
        })
    };
    let is_list = |value: &Value| value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(is_turn));
    let (field, _) = row.iter().find(|(_, value)| is_list(value))?;
    let of_turn = r#"to_entries[] | {role: (.key | ascii_downcase), content: .value}"#;
    Some(Foreign {
        name: format!("conversations whose turns in \"{field}\" have the roles as names"),
        way_out: format!("make messages of them with jq -c '{{messages: [{}[] | {of_turn}]}}'", in_jq(field)),
    })
}
