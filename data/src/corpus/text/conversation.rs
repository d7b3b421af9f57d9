//! Conversations: one JSON object per line, in three forms.

use serde_json::{Map, Value, json};

use super::TextConfig;
use super::answers::Rating;
use super::around::Found;
use super::message::{ChatMessage, Role, malformed, text_or_messages};
use crate::corpus::fields::ANSWERS;
use crate::formats::RowProblem;

/// Most messages of a conversation. Each answer is found by rendering the messages before it, so that the time for a
/// conversation grows with the square of their number.
pub(crate) const MAX_MESSAGES: usize = 1000;

/// The messages of one row, with at least one answer to learn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<ChatMessage>,
    /// Fields of the row with a text that no message has.
    pub(crate) left_out: Vec<String>,
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
        let list = |name| Found::nothing(row, &[]).list(name);
        let mut found = match row {
            row if field != TextConfig::default().field => named_messages(row, field)?,
            row if row.contains_key("messages") => list("messages")?,
            row if row.contains_key("conversations") => list("conversations")?,
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

        let messages = std::mem::take(&mut found.messages);
        let messages = found.with_system(messages)?;
        let left_out = found.left_out(messages.iter());
        Ok(Self { left_out, ..Self::checked(messages)? })
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
        if answers().all(|(_, answer)| !answer.is_learned) {
            return Err(malformed(
                "the conversation has no answer to learn: \"weight\" or \"train\" makes each one context".into(),
            ));
        }
        Ok(Self { messages, left_out: Vec::new() })
    }

    /// Returns what the model reads: the author, the text and the further texts of each message, as JSON.
    pub(super) fn read(&self) -> Value {
        self.messages.iter().map(|message| json!([message.role.name(), message.content, message.more])).collect()
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
fn named_messages<'r>(row: &'r Map<String, Value>, field: &'r str) -> Result<Found<'r>, RowProblem> {
    let get = |name: &str| {
        row.get(name).ok_or_else(|| malformed(format!("no field \"{name}\": the row has {}", names_in(row))))
    };
    match field.split_once(',') {
        Some((question, answer)) => {
            let [question, answer] = [question.trim(), answer.trim()];
            get(question).and(get(answer))?;
            question_and_answer(row, question, answer)
        }
        None => {
            get(field)?;
            Found::nothing(row, &[]).list(field)
        }
    }
}

/// Reads a question, with what belongs to it, and its answer.
fn question_and_answer<'r>(
    row: &'r Map<String, Value>,
    question: &'r str,
    answer: &'r str,
) -> Result<Found<'r>, RowProblem> {
    let mut found = Found::nothing(row, &[answer]).question(question)?;
    found.messages.extend(text_or_messages(answer, &row[answer], Role::Assistant)?);
    Ok(found)
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

#[cfg(test)]
mod tests;
