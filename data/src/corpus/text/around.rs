//! Fields around a question or a list of messages: instructions, context, earlier turns, and fields that are left out.

use serde_json::{Map, Value};

use super::message::{ChatMessage, Role, is_nothing, kind, malformed, message_list, text_or_messages, transcript};
use crate::corpus::fields::{names_behind, words_of};
use crate::formats::RowProblem;

/// Words of fields with the instructions for a conversation. They become its system message.
const SYSTEMS: [&str; 6] =
    ["system", "system_prompt", "system_message", "system_instruction", "system_instructions", "sys_prompt"];
/// Fields that have a part of a conversation, whatever their type. If they are left out, Kiln says so.
const PARTS: [&str; 10] = [
    "input",
    "context",
    "history",
    "messages",
    "conversations",
    "tools",
    "functions",
    "documents",
    "options",
    "choices",
];
/// Pairs of earlier turns.
const HISTORY: &str = "history";

/// The messages of a row, and the fields that they come from.
pub(super) struct Found<'r> {
    row: &'r Map<String, Value>,
    pub(super) messages: Vec<ChatMessage>,
    used: Vec<&'r str>,
}

impl<'r> Found<'r> {
    /// Begins without messages. Other code reads the fields `used`.
    pub(super) fn nothing(row: &'r Map<String, Value>, used: &[&'r str]) -> Self {
        Self { row, messages: Vec::new(), used: used.to_vec() }
    }

    /// Reads a list of messages.
    pub(super) fn list(mut self, name: &'r str) -> Result<Self, RowProblem> {
        self.used.push(name);
        self.messages = message_list(name, &self.row[name])?;
        Ok(self)
    }

    /// Reads a question, with [`HISTORY`] before it and its `input` or `context` behind it.
    pub(super) fn question(mut self, name: &'r str) -> Result<Self, RowProblem> {
        self.used.push(name);
        self.read_history()?;
        let behind = self.behind_question(name)?;
        let turns = self.row[name].as_str().and_then(transcript);
        self.messages.extend(match turns {
            Some(turns) => without_open_answer(turns),
            None => text_or_messages(name, &self.row[name], Role::User)?,
        });

        if let (Some(behind), Some(asked)) = (behind, self.messages.last_mut()) {
            asked.content = match asked.content.trim().is_empty() {
                true => behind.to_owned(),
                false => format!("{}\n\n{behind}", asked.content),
            };
        }
        Ok(self)
    }

    /// Returns the text that belongs to the question: Alpaca's `input`, or `context` as Dolly has it.
    fn behind_question(&mut self, question: &str) -> Result<Option<&'r str>, RowProblem> {
        let names = names_behind(question);
        let mut found: Option<(&str, &'r str)> = None;
        for name in names {
            let text = self.row.get(*name).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
            let Some(text) = text.filter(|_| !self.used.contains(name)) else { continue };
            self.used.push(name);
            match found {
                None => found = Some((name, text)),
                Some((_, other)) if other.trim() == text.trim() => {}
                Some((first, _)) => {
                    return Err(malformed(format!(
                        "\"{first}\" and \"{name}\" have two texts for one question: join them in one of the fields"
                    )));
                }
            }
        }
        Ok(found.map(|(_, text)| text))
    }

    /// Reads earlier turns: pairs of a question and an answer, or messages.
    fn read_history(&mut self) -> Result<(), RowProblem> {
        let Some(history @ Value::Array(turns)) = self.row.get(HISTORY).filter(|_| !self.used.contains(&HISTORY))
        else {
            return Ok(());
        };
        self.used.push(HISTORY);
        if turns.first().is_some_and(Value::is_object) {
            self.messages.extend(message_list(HISTORY, history)?);
            return Ok(());
        }
        for (number, turn) in (1..).zip(turns) {
            let Some([Value::String(question), Value::String(answer)]) = turn.as_array().map(Vec::as_slice) else {
                return Err(malformed(format!(
                    "field \"{HISTORY}\": turn {number} is {}, wanted a list of a question and its answer, both strings",
                    kind(turn)
                )));
            };
            self.messages.push(ChatMessage::new(Role::User, question));
            self.messages.push(ChatMessage::new(Role::Assistant, answer));
        }
        Ok(())
    }

    /// Returns `messages` with the row's instructions as their first message, unless they begin with them.
    pub(super) fn with_system(&self, mut messages: Vec<ChatMessage>) -> Result<Vec<ChatMessage>, RowProblem> {
        let mut found: Option<(&str, ChatMessage)> = None;
        let systems = self.row.iter().filter(|(name, value)| is_system(name) && !is_nothing(value));
        for (name, value) in systems.filter(|(name, _)| !self.used.contains(&name.as_str())) {
            let Value::String(text) = value else {
                return Err(malformed(format!("field \"{name}\" is {}, wanted a string", kind(value))));
            };
            let message = ChatMessage::new(Role::System, text);
            match &found {
                Some((first, other)) if !other.says_the_same(&message) => return Err(two_systems(first, name)),
                Some(_) => {}
                None => found = Some((name, message)),
            }
        }

        let Some((name, message)) = found else { return Ok(messages) };
        match messages.first().filter(|first| first.role == Role::System) {
            Some(first) if !first.says_the_same(&message) => return Err(two_systems(name, "the system message")),
            Some(_) => {}
            None => messages.insert(0, message),
        }
        Ok(messages)
    }

    /// Returns the fields with a text that is in none of the messages, also within lists and objects.
    pub(super) fn left_out<'m>(&self, messages: impl Iterator<Item = &'m ChatMessage> + Clone) -> Vec<String> {
        let is_said =
            |text: &str| text.trim().is_empty() || messages.clone().any(|one| one.content.trim() == text.trim());
        let is_lost = |(name, value): &(&String, &Value)| match value {
            Value::String(text) => !is_said(text),
            value if is_nothing(value) => false,
            value if !PARTS.contains(&name.as_str()) => has_sentence(value, &|text| !is_said(text)),
            list => message_list(name, list).map_or(true, |list| list.iter().any(|one| !is_said(&one.content))),
        };
        let others = self.row.iter().filter(|(name, _)| !self.used.contains(&name.as_str()));
        others.filter(is_lost).map(|(name, _)| name.clone()).collect()
    }
}

/// Whether a list or an object has a text of several words somewhere for which `is_lost` holds. Marks and names are single words.
fn has_sentence(value: &Value, is_lost: &dyn Fn(&str) -> bool) -> bool {
    match value {
        Value::String(text) => text.trim().contains(char::is_whitespace) && is_lost(text),
        Value::Array(values) => values.iter().any(|value| has_sentence(value, is_lost)),
        Value::Object(fields) => fields.values().any(|value| has_sentence(value, is_lost)),
        _ => false,
    }
}

/// Whether a field has the instructions for a conversation, in any spelling: `systemPrompt`, `System Prompt`.
pub(crate) fn is_system(name: &str) -> bool {
    SYSTEMS.contains(&words_of(name).join("_").as_str())
}

fn two_systems(first: &str, second: &str) -> RowProblem {
    let quoted = |name: &str| if name.contains(' ') { name.to_owned() } else { format!("\"{name}\"") };
    malformed(format!("{} and {} have different instructions: keep one of the two", quoted(first), quoted(second)))
}

/// Removes the beginning of an answer from the end of a transcript.
pub(super) fn without_open_answer(mut turns: Vec<ChatMessage>) -> Vec<ChatMessage> {
    turns.pop_if(|last| last.role == Role::Assistant && last.content.is_empty());
    turns
}
