//! Messages of conversations: who wrote them, and how rows have them.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use crate::corpus::jq::in_jq;
use crate::formats::RowProblem;
use crate::terminal::shell_word;

/// Who wrote a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions for the whole conversation.
    System,
    /// A question or a request.
    User,
    /// An answer, which the model learns to write.
    Assistant,
}

impl Role {
    /// Returns its name in rows and templates.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }

    /// Finds a role by its name in rows, or by a name that ShareGPT uses.
    fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "system" => Self::System,
            "user" | "human" => Self::User,
            "assistant" | "gpt" | "chatgpt" => Self::Assistant,
            _ => return None,
        })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One message of a conversation, as a chat template reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who wrote it.
    pub role: Role,
    /// Its text.
    pub content: String,
    /// Further texts of the row that some templates read, such as `reasoning_content`.
    pub more: BTreeMap<String, String>,
    /// Whether the model learns it, if it is an answer. Otherwise the answer is context for later ones.
    pub is_learned: bool,
}

impl ChatMessage {
    /// Returns a message without further texts.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into(), more: BTreeMap::new(), is_learned: true }
    }

    /// Whether it is an answer that the model reads and does not learn.
    pub(crate) fn is_unlearned_answer(&self) -> bool {
        self.role == Role::Assistant && !self.is_learned
    }

    /// Whether both have the same author and text.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        self.role == other.role && self.content.trim() == other.content.trim()
    }
}

pub(super) fn malformed(found: String) -> RowProblem {
    RowProblem::Malformed(found)
}

/// Reads a text of `role`, or messages.
pub(super) fn text_or_messages(field: &str, value: &Value, role: Role) -> Result<Vec<ChatMessage>, RowProblem> {
    match value {
        Value::String(text) => Ok(vec![ChatMessage::new(role, text)]),
        messages => message_list(field, messages),
    }
}

pub(super) fn message_list(field: &str, value: &Value) -> Result<Vec<ChatMessage>, RowProblem> {
    let Value::Array(messages) = value else {
        let found = format!("field \"{field}\" is {}, wanted an array of messages", kind(value));
        let way_out = if is_written_list(value) { format!(": {}", unpack(field)) } else { String::new() };
        return Err(malformed(found + &way_out));
    };
    if messages.is_empty() {
        return Err(malformed(format!("field \"{field}\" has no messages")));
    }
    let message = |(number, value)| message(value).map_err(|found| malformed(format!("message {number}: {found}")));
    (1..).zip(messages).map(message).collect()
}

/// Whether the value is a string with a list of messages in JSON.
pub(crate) fn is_written_list(value: &Value) -> bool {
    let Some(text) = value.as_str().filter(|text| text.trim_start().starts_with('[')) else { return false };
    let Ok(Value::Array(list)) = serde_json::from_str::<Value>(text) else { return false };
    list.first().is_some_and(|first| first.get("role").is_some() || first.get("from").is_some())
}

/// Whether the content of a message is a list of parts with texts.
pub(crate) fn is_of_texts(content: &Value) -> bool {
    content.as_array().is_some_and(|parts| parts.iter().any(|part| part.get("text").is_some_and(Value::is_string)))
}

/// Says how a string with messages becomes a list.
fn unpack(field: &str) -> String {
    format!("it holds JSON, so make a list of it with jq -c {}", shell_word(&format!("{} |= fromjson", in_jq(field))))
}

/// Reads one message.
pub(super) fn message(value: &Value) -> Result<ChatMessage, String> {
    let Value::Object(fields) = value else { return Err(format!("{}, wanted an object", kind(value))) };
    let is_call = |name: &&str| fields.get(*name).is_some_and(|call| !is_nothing(call));
    if let Some(name) = ["tool_calls", "function_call"].into_iter().find(is_call) {
        return Err(format!("it has \"{name}\", which Kiln does not support: leave the conversation out"));
    }

    let [role_name, content_name] = if fields.contains_key("from") { ["from", "value"] } else { ["role", "content"] };
    let text = |name: &str| match fields.get(name) {
        Some(Value::String(text)) => Ok(text),
        Some(list) if is_of_texts(list) => {
            Err(format!("\"{name}\" is an array of parts, wanted a string: join their texts"))
        }
        Some(other) => Err(format!("\"{name}\" is {}, wanted a string", kind(other))),
        None => Err(format!("it has no \"{name}\"")),
    };
    let (role, content) = (text(role_name)?, text(content_name)?);
    let role = Role::by_name(role).ok_or_else(|| {
        let shown: String = role.chars().take(40).collect();
        format!("the role is {shown:?}, wanted \"system\", \"user\" or \"assistant\"")
    })?;

    let own = [role_name, content_name, "role", "content"];
    let more = fields.iter().filter(|(name, _)| !own.contains(&name.as_str()));
    let more = more.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect();
    Ok(ChatMessage { role, content: content.clone(), more, is_learned: is_learned(fields)? })
}

/// Whether the model learns an answer: OpenAI's `weight` and the `train` of axolotl say so, and names of other programs.
fn is_learned(fields: &Map<String, Value>) -> Result<bool, String> {
    let mut is_learned = true;
    for (name, is_always_a_weight) in [("weight", true), ("train", true), ("training", false), ("loss", false)] {
        let number = |value: &Value| value.as_f64();
        is_learned &= match fields.get(name) {
            None | Some(Value::Null) => true,
            Some(Value::Bool(learns)) => *learns,
            Some(value) if number(value) == Some(1.0) => true,
            Some(value) if number(value) == Some(0.0) => false,
            Some(_) if !is_always_a_weight => true,
            Some(other) => {
                return Err(format!(
                    "\"{name}\" is {other}, wanted 1 or true (the model learns the answer), or 0 or false (it is context): Kiln has \
                     only these weights"
                ));
            }
        };
    }
    Ok(is_learned)
}

/// Whether a field holds nothing: null, white space, or an empty list or object.
pub(super) fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Names the type of a value.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a Boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Reads a transcript as `hh-rlhf` has it, with `Human:` and `Assistant:` in front of the turns; `None` if the text is not one.
pub(super) fn transcript(text: &str) -> Option<Vec<ChatMessage>> {
    const TURNS: [(&str, Role); 2] = [("Human:", Role::User), ("Assistant:", Role::Assistant)];
    let text = text.trim();
    if !text.starts_with(TURNS[0].0) || !text.contains(&format!("\n\n{}", TURNS[1].0)) {
        return None;
    }
    let mut messages: Vec<ChatMessage> = Vec::new();
    for piece in text.split("\n\n") {
        let turn = TURNS.into_iter().find_map(|(mark, role)| Some((role, piece.trim_start().strip_prefix(mark)?)));
        match (turn, messages.last_mut()) {
            (Some((role, said)), _) => messages.push(ChatMessage::new(role, said.trim_start())),
            (None, Some(last)) => last.content.extend(["\n\n", piece]),
            (None, None) => {}
        }
    }
    for message in &mut messages {
        message.content.truncate(message.content.trim_end().len());
    }
    Some(messages)
}
