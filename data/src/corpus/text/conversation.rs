//! Conversations: one JSON object per line, in three forms.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use crate::formats::RowProblem;

/// Most messages of a conversation. Each answer is found by rendering the messages before it, so that the time for a
/// conversation grows with the square of their number.
pub(crate) const MAX_MESSAGES: usize = 1000;

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
}

impl ChatMessage {
    /// Returns a message without further texts.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into(), more: BTreeMap::new() }
    }
}

/// The messages of one row, with at least one answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<ChatMessage>,
}

impl Conversation {
    /// Reads a row: `messages`, `conversations` (ShareGPT), or `prompt` and `completion`.
    pub(crate) fn parse(line: &str) -> Result<Self, RowProblem> {
        let row = object(line)?;
        let messages = match &row {
            row if row.contains_key("messages") => message_list("messages", &row["messages"])?,
            row if row.contains_key("conversations") => message_list("conversations", &row["conversations"])?,
            row if row.contains_key("prompt") && row.contains_key("completion") => {
                let prompt = text_or_messages("prompt", &row["prompt"], Role::User)?;
                [prompt, text_or_messages("completion", &row["completion"], Role::Assistant)?].concat()
            }
            row if row.contains_key("chosen") && row.contains_key("rejected") => {
                let found = "the row has \"chosen\" and \"rejected\", which data.text.format = \"preferences\" reads";
                return Err(malformed(found.into()));
            }
            row => {
                let names: Vec<_> = row.keys().take(8).map(|name| format!("\"{name}\"")).collect();
                let found = if names.is_empty() { "no fields".into() } else { names.join(", ") };
                return Err(malformed(format!(
                    "no field \"messages\" or \"conversations\", and not both of \"prompt\" and \"completion\": the row has {found}"
                )));
            }
        };
        Self::checked(messages)
    }

    pub(super) fn checked(messages: Vec<ChatMessage>) -> Result<Self, RowProblem> {
        if messages.len() > MAX_MESSAGES {
            return Err(malformed(format!(
                "the conversation has {} messages, {MAX_MESSAGES} are allowed: divide it",
                messages.len()
            )));
        }
        let answers = || (1..).zip(&messages).filter(|(_, message)| message.role == Role::Assistant);
        if let Some((number, _)) = answers().find(|(_, answer)| answer.content.trim().is_empty()) {
            return Err(malformed(format!("message {number}: the answer is empty")));
        }
        if answers().next().is_none() {
            return Err(malformed("the conversation has no answer: no message has the role \"assistant\"".into()));
        }
        Ok(Self { messages })
    }

    /// Returns the text that a vocabulary is trained on: the conversation in the form of the default template.
    pub(crate) fn to_text(&self) -> String {
        let turn = |message: &ChatMessage| format!("<|im_start|>{}\n{}<|im_end|>\n", message.role, message.content);
        self.messages.iter().map(turn).collect()
    }
}

pub(super) fn object(line: &str) -> Result<Map<String, Value>, RowProblem> {
    serde_json::from_str(line).map_err(|error| {
        let text = error.to_string();
        let text = text.split(" at line ").next().unwrap_or(&text).to_owned();
        malformed(format!("not a JSON object: {text} (byte {})", error.column()))
    })
}

pub(super) fn malformed(found: String) -> RowProblem {
    RowProblem::Malformed(found)
}

pub(super) fn text_or_messages(field: &str, value: &Value, role: Role) -> Result<Vec<ChatMessage>, RowProblem> {
    match value {
        Value::String(text) => Ok(vec![ChatMessage::new(role, text)]),
        messages => message_list(field, messages),
    }
}

fn message_list(field: &str, value: &Value) -> Result<Vec<ChatMessage>, RowProblem> {
    let Value::Array(messages) = value else {
        return Err(malformed(format!("field \"{field}\" is {}, wanted an array of messages", kind(value))));
    };
    if messages.is_empty() {
        return Err(malformed(format!("field \"{field}\" has no messages")));
    }
    let message = |(number, value)| message(value).map_err(|found| malformed(format!("message {number}: {found}")));
    (1..).zip(messages).map(message).collect()
}

fn message(value: &Value) -> Result<ChatMessage, String> {
    let Value::Object(fields) = value else { return Err(format!("{}, wanted an object", kind(value))) };
    if fields.get("tool_calls").is_some_and(|calls| !calls.is_null()) {
        return Err("it has \"tool_calls\", which Kiln does not support: leave the conversation out".into());
    }

    let [role_name, content_name] = if fields.contains_key("from") { ["from", "value"] } else { ["role", "content"] };
    let text = |name: &str| match fields.get(name) {
        Some(Value::String(text)) => Ok(text),
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
    let more = more.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
    Ok(ChatMessage { role, content: content.clone(), more: more.collect() })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a Boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Vec<(Role, String)> {
        let conversation = Conversation::parse(line).expect(line);
        conversation.messages.into_iter().map(|message| (message.role, message.content)).collect()
    }

    #[test]
    fn three_forms_give_the_same_messages() {
        let wanted = [(Role::User, "Hi".to_owned()), (Role::Assistant, "Hello!".to_owned())];
        for line in [
            r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}"#,
            r#"{"id": 7, "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}"#,
            r#"{"prompt": "Hi", "completion": "Hello!"}"#,
            r#"{"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "Hello!"}]}"#,
        ] {
            assert_eq!(parsed(line), wanted, "{line}");
        }
        let line =
            r#"{"messages": [{"role": "assistant", "content": "4", "reasoning_content": "2 + 2", "weight": 1}]}"#;
        let messages = Conversation::parse(line).expect("a row").messages;
        assert_eq!(messages[0].more, BTreeMap::from([("reasoning_content".to_owned(), "2 + 2".to_owned())]));
    }

    #[test]
    fn rows_that_are_not_conversations_are_named() {
        let many = format!(r#"{{"messages": [{}]}}"#, vec![r#"{"role": "user", "content": "x"}"#; 1001].join(","));
        for (line, wanted) in [
            ("[1]", "not a JSON object"),
            ("{}", "the row has no fields"),
            (r#"{"text": "x", "prompt": "y"}"#, "the row has \"prompt\", \"text\""),
            (r#"{"prompt": "x", "chosen": "y", "rejected": "z"}"#, "which data.text.format = \"preferences\" reads"),
            (r#"{"messages": "x"}"#, "field \"messages\" is a string, wanted an array"),
            (r#"{"messages": []}"#, "field \"messages\" has no messages"),
            (r#"{"messages": [5]}"#, "message 1: a number, wanted an object"),
            (r#"{"messages": [{"role": "user"}]}"#, "message 1: it has no \"content\""),
            (r#"{"messages": [{"role": "user", "content": [1]}]}"#, "message 1: \"content\" is an array"),
            (r#"{"messages": [{"role": "tool", "content": "x"}]}"#, "message 1: the role is \"tool\", wanted"),
            (r#"{"messages": [{"role": "assistant", "tool_calls": [1]}]}"#, "message 1: it has \"tool_calls\""),
            (r#"{"messages": [{"role": "user", "content": "x"}]}"#, "has no answer"),
            (r#"{"messages": [{"role": "assistant", "content": " "}]}"#, "message 1: the answer is empty"),
            (r#"{"prompt": "x", "completion": ""}"#, "message 2: the answer is empty"),
            (&many, "has 1001 messages, 1000 are allowed"),
        ] {
            let problem = Conversation::parse(line).expect_err(line).to_string();
            assert!(problem.contains(wanted), "{line}: {problem}");
        }
    }
}
