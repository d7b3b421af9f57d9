//! Preferences: one JSON object per line, with two answers to a prompt of which one is better.

use serde_json::Value;

use super::conversation::{Conversation, Role, malformed, names_in, object, text_or_messages};
use crate::formats::RowProblem;

/// A prompt with each of two answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Preference {
    pub(crate) chosen: Conversation,
    pub(crate) rejected: Conversation,
}

impl Preference {
    /// Reads a row: `chosen` and `rejected`, each an answer or messages, after `prompt`, a question or messages. Without `prompt`
    /// both are whole conversations.
    pub(crate) fn parse(line: &str) -> Result<Self, RowProblem> {
        let row = object(line)?;
        let field = |name: &str| {
            row.get(name).ok_or_else(|| malformed(format!("no field \"{name}\": the row has {}", names_in(&row))))
        };
        let prompt = match row.get("prompt") {
            None | Some(Value::Null) => Vec::new(),
            Some(prompt) => text_or_messages("prompt", prompt, Role::User)?,
        };

        let answer = |name: &str| -> Result<Conversation, RowProblem> {
            let own = text_or_messages(name, field(name)?, Role::Assistant)?;
            let conversation = Conversation::checked([prompt.clone(), own].concat())
                .map_err(|problem| malformed(format!("\"{name}\": {problem}")))?;
            match conversation.messages.last() {
                Some(last) if last.role == Role::Assistant => Ok(conversation),
                _ => Err(malformed(format!("\"{name}\" ends with a message that is not an answer"))),
            }
        };
        let found = Self { chosen: answer("chosen")?, rejected: answer("rejected")? };
        if found.chosen == found.rejected {
            return Err(malformed("\"chosen\" and \"rejected\" are the same".into()));
        }
        Ok(found)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(conversation: &Conversation) -> Vec<(Role, &str)> {
        conversation.messages.iter().map(|message| (message.role, message.content.as_str())).collect()
    }

    #[test]
    fn three_forms_give_the_same_answers() {
        for line in [
            r#"{"prompt": "Hi", "chosen": "Hello!", "rejected": "What?", "score": 3}"#,
            r#"{"prompt": [{"role": "user", "content": "Hi"}], "chosen": [{"role": "assistant", "content": "Hello!"}],
                "rejected": "What?"}"#,
            r#"{"chosen": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}],
                "rejected": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "What?"}]}"#,
        ] {
            let found = Preference::parse(line).expect(line);
            assert_eq!(texts(&found.chosen), [(Role::User, "Hi"), (Role::Assistant, "Hello!")], "{line}");
            assert_eq!(texts(&found.rejected), [(Role::User, "Hi"), (Role::Assistant, "What?")], "{line}");
        }
    }

    #[test]
    fn rows_that_are_not_preferences_are_named() {
        for (line, wanted) in [
            ("7", "not a JSON object"),
            (r#"{"prompt": "x", "chosen": "y"}"#, "no field \"rejected\""),
            (r#"{"prompt": "x", "chosen": 1, "rejected": "y"}"#, "field \"chosen\" is a number"),
            (r#"{"prompt": "x", "chosen": "", "rejected": "y"}"#, "\"chosen\": message 2: the answer is empty"),
            (r#"{"prompt": "x", "chosen": "y", "rejected": "y"}"#, "are the same"),
            (
                r#"{"prompt": [{"role": "assistant", "content": "a"}], "chosen": [{"role": "user", "content": "y"}],
                    "rejected": "z"}"#,
                "\"chosen\" ends with a message that is not an answer",
            ),
        ] {
            let problem = Preference::parse(line).expect_err(line).to_string();
            assert!(problem.contains(wanted), "{line}: {problem}");
        }
    }
}
