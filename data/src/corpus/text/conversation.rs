//! Conversations: one JSON object per line, in three forms.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use super::TextConfig;
use super::answers::{ANSWERS, Rating};
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
    /// Reads a row: `messages`, `conversations` (ShareGPT), or the question and the answer of one of the [`ANSWERS`]. `field`, unless
    /// it is [`TextConfig`](super::TextConfig)'s default, names the list of messages, or a question and an answer (`ask,reply`).
    pub(crate) fn parse(line: &str, field: &str) -> Result<Self, RowProblem> {
        let row = object(line)?;
        let conversation = Self::of(&row, field)?;
        match Rating::of(&row) {
            Some(rating) => Err(malformed(rating.problem())),
            None => Ok(conversation),
        }
    }

    /// Reads a row as [`Self::parse`] does, also one that rates its answer.
    pub(crate) fn of(row: &Map<String, Value>, field: &str) -> Result<Self, RowProblem> {
        if field != TextConfig::default().field {
            return Self::checked(named_messages(row, field)?);
        }

        let messages = match row {
            row if row.contains_key("messages") => message_list("messages", &row["messages"])?,
            row if row.contains_key("conversations") => message_list("conversations", &row["conversations"])?,
            row if answer_names(row).is_some() => {
                let [question, answer] = answer_names(row).unwrap_or_default();
                question_and_answer(row, question, answer)?
            }
            row if row.contains_key("chosen") && row.contains_key("rejected") => {
                let found = "the row has \"chosen\" and \"rejected\", which data.text.format = \"preferences\" reads";
                return Err(malformed(found.into()));
            }
            row => {
                return Err(malformed(format!(
                    "no field \"messages\" or \"conversations\", and not both of \"prompt\" and \"completion\": the row has {}; \
                     data.text.field names other ones (\"ask,reply\")",
                    names_in(row)
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

    /// Returns the texts of all messages, each on a line of its own: what a filter looks at.
    pub(crate) fn contents(&self) -> String {
        self.messages.iter().map(|message| message.content.as_str()).collect::<Vec<_>>().join("\n")
    }

    /// Returns the text that a vocabulary is trained on: the conversation in the form of the default template.
    pub(crate) fn to_text(&self) -> String {
        let turn = |message: &ChatMessage| format!("<|im_start|>{}\n{}<|im_end|>\n", message.role, message.content);
        self.messages.iter().map(turn).collect()
    }
}

/// Returns the first of the [`ANSWERS`] that the row has.
fn answer_names(row: &Map<String, Value>) -> Option<[&'static str; 2]> {
    ANSWERS.into_iter().find(|names| names.iter().all(|name| row.contains_key(*name)))
}

/// Reads the fields that `data.text.field` names.
fn named_messages(row: &Map<String, Value>, field: &str) -> Result<Vec<ChatMessage>, RowProblem> {
    let get = |name: &str| {
        row.get(name).ok_or_else(|| malformed(format!("no field \"{name}\": the row has {}", names_in(row))))
    };
    match field.split_once(',') {
        Some((question, answer)) => {
            let [question, answer] = [question.trim(), answer.trim()];
            get(question).and(get(answer))?;
            question_and_answer(row, question, answer)
        }
        None => message_list(field, get(field)?),
    }
}

/// Reads a question, with `system` before it and Alpaca's `input` behind it, and its answer.
fn question_and_answer(row: &Map<String, Value>, question: &str, answer: &str) -> Result<Vec<ChatMessage>, RowProblem> {
    let text = |name: &str| row.get(name).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
    let mut messages: Vec<ChatMessage> =
        text("system").map(|text| ChatMessage::new(Role::System, text)).into_iter().collect();
    messages.extend(text_or_messages(question, &row[question], Role::User)?);
    if let (Some(input), Some(asked), true) = (text("input"), messages.last_mut(), question == "instruction") {
        asked.content = format!("{}\n\n{input}", asked.content);
    }
    messages.extend(text_or_messages(answer, &row[answer], Role::Assistant)?);
    Ok(messages)
}

pub(super) fn names_in(row: &Map<String, Value>) -> String {
    let names: Vec<_> = row.keys().take(8).map(|name| format!("\"{name}\"")).collect();
    if names.is_empty() { "no fields".into() } else { names.join(", ") }
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
        let conversation = Conversation::parse(line, "text").expect(line);
        conversation.messages.into_iter().map(|message| (message.role, message.content)).collect()
    }

    #[test]
    fn every_form_gives_the_same_messages() {
        let wanted = [(Role::User, "Hi".to_owned()), (Role::Assistant, "Hello!".to_owned())];
        for line in [
            r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}"#,
            r#"{"id": 7, "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}"#,
            r#"{"prompt": "Hi", "completion": "Hello!"}"#,
            r#"{"instruction": "Hi", "input": "", "output": "Hello!"}"#,
            r#"{"question": "Hi", "answer": "Hello!", "id": 3}"#,
            r#"{"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "Hello!"}]}"#,
        ] {
            assert_eq!(parsed(line), wanted, "{line}");
        }
        let line =
            r#"{"messages": [{"role": "assistant", "content": "4", "reasoning_content": "2 + 2", "weight": 1}]}"#;
        let messages = Conversation::parse(line, "text").expect("a row").messages;
        assert_eq!(messages[0].more, BTreeMap::from([("reasoning_content".to_owned(), "2 + 2".to_owned())]));
    }

    #[test]
    fn named_fields_and_the_input_of_alpaca_are_read() {
        let parsed = |line: &str, field: &str| -> Vec<(Role, String)> {
            let messages = Conversation::parse(line, field).expect(line).messages;
            messages.into_iter().map(|message| (message.role, message.content)).collect()
        };
        let wanted = [(Role::User, "Hi".to_owned()), (Role::Assistant, "Hello!".to_owned())];
        assert_eq!(parsed(r#"{"ask": "Hi", "reply": "Hello!", "text": "no"}"#, "ask, reply"), wanted);
        let list = r#"{"dialog": [{"from": "user", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}"#;
        assert_eq!(parsed(list, "dialog"), wanted);
        let alpaca = r#"{"system": "Be brief.", "instruction": "Sum up.", "input": "A b.", "output": "Ab."}"#;
        let texts: Vec<String> = parsed(alpaca, "text").into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, ["Be brief.", "Sum up.\n\nA b.", "Ab."]);
        let missing = Conversation::parse(r#"{"ask": "Hi"}"#, "ask,reply").expect_err("no reply").to_string();
        assert!(missing.contains("no field \"reply\": the row has \"ask\""), "{missing}");
    }

    #[test]
    fn rated_answers_are_refused_in_every_form() {
        let list = r#"[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "No"}]"#;
        let shares = r#"[{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "No"}]"#;
        let rows = [
            (format!(r#""messages": {list}"#), "text"),
            (format!(r#""conversations": {shares}"#), "text"),
            (format!(r#""dialog": {list}"#), "dialog"),
            (r#""ask": "Hi", "reply": "No""#.to_owned(), "ask,reply"),
            (r#""prompt": [{"role": "user", "content": "Hi"}], "completion": "No""#.to_owned(), "text"),
        ];
        let pairs = ANSWERS.map(|[question, answer]| (format!(r#""{question}": "Hi", "{answer}": "No""#), "text"));
        for (row, field) in rows.into_iter().chain(pairs) {
            for rating in
                [r#""label": false"#, r#""label": 1"#, r#""label": "bad""#, r#""kto_tag": true"#, r#""score": 2.5"#]
            {
                let rated = Conversation::parse(&format!("{{{row}, {rating}}}"), field).expect_err(&row).to_string();
                assert!(rated.contains("whether its answer is good (KTO)"), "{row} {rating}: {rated}");
            }
            let other = format!(r#"{{{row}, "label": "billing", "category": 3}}"#);
            assert!(Conversation::parse(&other, field).is_ok(), "{other}");
        }
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
            let problem = Conversation::parse(line, "text").expect_err(line).to_string();
            assert!(problem.contains(wanted), "{line}: {problem}");
        }
    }
}
