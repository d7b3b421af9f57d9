//! Preferences: one JSON object per line, with two answers to a prompt of which one is better.

mod scores;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

pub(crate) use self::scores::contradicted;

use super::around::Found;
use super::config::{TextConfig, TextFormat};
use super::conversation::{Conversation, names_in, object};
use super::message::{ChatMessage, Role, malformed, message, message_list, transcript};
use crate::formats::RowProblem;

/// Fields of the prompt, also in rows that have it under the name of a question.
const PROMPTS: [&str; 5] = ["prompt", "instruction", "question", "query", "input"];

/// A prompt with each of two answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Preference {
    pub(crate) chosen: Conversation,
    pub(crate) rejected: Conversation,
}

impl Preference {
    /// Reads a row: `chosen` and `rejected`, each an answer, messages or a transcript, after a prompt of [`PROMPTS`], a question or
    /// messages. Without a prompt both are whole conversations. Conversations that begin with the prompt have it once.
    pub(crate) fn parse(line: &str) -> Result<Self, RowProblem> {
        let row = object(line)?;
        let mut found = Found::nothing(&row, &["chosen", "rejected"]);
        if let Some(name) = prompt_name(&row) {
            found = found.question(name)?;
        }

        let answer = |name: &str| -> Result<Vec<ChatMessage>, RowProblem> {
            let wanted = || malformed(format!("no field \"{name}\": the row has {}", names_in(&row)));
            let own = own_messages(name, row.get(name).ok_or_else(wanted)?)?;
            found.with_system(joined(name, &found.messages, own)?)
        };
        let [chosen, rejected] = [answer("chosen")?, answer("rejected")?];
        let left_out = found.left_out(chosen.iter().chain(&rejected));
        let chosen = Conversation { left_out, ..checked("chosen", chosen)? };
        let rejected = checked("rejected", rejected)?;
        if chosen.messages == rejected.messages {
            return Err(malformed("\"chosen\" and \"rejected\" are the same".into()));
        }
        Ok(Self { chosen, rejected })
    }

    /// Returns the texts of all messages of both conversations: what a filter looks at.
    pub(crate) fn contents(&self) -> String {
        format!("{}\n{}", self.chosen.contents(), self.rejected.contents())
    }

    /// Returns the text that a vocabulary is trained on.
    pub(crate) fn to_text(&self) -> String {
        self.chosen.to_text() + &self.rejected.to_text()
    }
}

impl TextConfig {
    /// Returns what a model reads of `line`, a JSON object with a conversation or a preference, without other fields. `None` if it is not a
    /// row that can be used, or if the format is neither.
    pub fn conversation_in(&self, line: &str) -> Option<String> {
        match self.format {
            TextFormat::Chat => Some(Conversation::parse(line, &self.field).ok()?.read().to_string()),
            TextFormat::Preferences => {
                let Preference { chosen, rejected } = Preference::parse(line).ok()?;
                Some(Value::from(vec![chosen.read(), rejected.read()]).to_string())
            }
            _ => None,
        }
    }
}

/// Returns the field of the prompt. Messages are one where the answers do not repeat them.
fn prompt_name(row: &Map<String, Value>) -> Option<&'static str> {
    let has = |name: &&str| row.get(*name).is_some_and(|value| !value.is_null());
    let is_answer = |name: &str| row.get(name).is_some_and(|value| value.is_string() || value.is_object());
    let lists = ["messages", "conversations"].into_iter().filter(|_| is_answer("chosen") && is_answer("rejected"));
    PROMPTS.into_iter().chain(lists).find(has)
}

/// Reads an answer, messages or a transcript.
fn own_messages(name: &str, value: &Value) -> Result<Vec<ChatMessage>, RowProblem> {
    match value {
        Value::String(text) => Ok(transcript(text).unwrap_or_else(|| vec![ChatMessage::new(Role::Assistant, text)])),
        Value::Object(_) => {
            let one = message(value).map_err(|problem| malformed(format!("\"{name}\": {problem}")))?;
            Ok(vec![one])
        }
        value => message_list(name, value),
    }
}

/// Puts the prompt before the messages of an answer, unless they have it.
fn joined(name: &str, prompt: &[ChatMessage], own: Vec<ChatMessage>) -> Result<Vec<ChatMessage>, RowProblem> {
    let begins = |first: &[ChatMessage], all: &[ChatMessage]| {
        first.len() <= all.len() && first.iter().zip(all).all(|(one, other)| one.says_the_same(other))
    };
    if begins(prompt, &own) {
        return Ok(own);
    }

    let n_systems = |messages: &[ChatMessage]| messages.iter().take_while(|one| one.role == Role::System).count();
    let (systems, turns) = prompt.split_at(n_systems(prompt));
    let (own_systems, own_turns) = own.split_at(n_systems(&own));
    let last_question = || own_turns.iter().rfind(|one| one.role == Role::User);
    let is_last = || turns.len() == 1 && last_question().is_some_and(|last| last.says_the_same(&turns[0]));
    let has_prompt = !turns.is_empty() && (begins(turns, own_turns) || is_last());
    if has_prompt && own_systems.is_empty() {
        return Ok([systems, &own].concat());
    }
    if has_prompt && (systems.is_empty() || systems.len() == own_systems.len() && begins(systems, own_systems)) {
        return Ok(own);
    }
    // Behind instructions or an answer, the messages go on; an answer goes on behind everything.
    let may_go_on = prompt.last().is_none_or(|last| last.role != Role::User);
    let is_answer = own_turns.first().is_some_and(|first| first.role == Role::Assistant);
    if own_systems.is_empty() && !has_prompt && (may_go_on || is_answer) {
        return Ok([prompt.to_vec(), own].concat());
    }
    Err(malformed(format!(
        "\"{name}\" begins with other messages than the prompt of the row: leave the prompt out, or keep the answer alone in \"{name}\""
    )))
}

/// Checks a conversation that ends with the answer to compare.
fn checked(name: &str, messages: Vec<ChatMessage>) -> Result<Conversation, RowProblem> {
    let conversation =
        Conversation::checked(messages).map_err(|problem| malformed(format!("\"{name}\": {problem}")))?;
    match conversation.messages.last() {
        Some(last) if last.role != Role::Assistant => {
            Err(malformed(format!("\"{name}\" ends with a message that is not an answer")))
        }
        Some(last) if !last.is_learned => Err(malformed(format!(
            "\"{name}\" ends with an answer that \"weight\" or \"train\" makes context: remove that, or leave the row out"
        ))),
        _ if !conversation.messages.iter().any(|message| message.role == Role::User) => Err(malformed(format!(
            "\"{name}\" has an answer and no question: name the question \"prompt\", or make \"{name}\" a list of messages"
        ))),
        _ => Ok(conversation),
    }
}
