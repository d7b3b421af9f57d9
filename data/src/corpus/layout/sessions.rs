//! Questions with answers, of which several rows are one conversation.

use std::path::Path;

use serde_json::{Map, Value};

use super::RowReader;
use super::foreign::sessions_of;
use crate::corpus::jq::{self, in_jq};
use crate::corpus::text::{Task, TextConfig, TextFormat};
use crate::formats::FileFormat;

impl RowReader<'_> {
    /// Says how rows with a question and an answer each, which share the number of a conversation, become that conversation.
    pub(super) fn note_on_sessions(
        &self,
        (file, format): (&Path, FileFormat),
        rows: &[Map<String, Value>],
    ) -> Option<String> {
        let is_chat = self.task == Task::Lm && self.text.format == TextFormat::Chat && !self.text.field.contains('{');
        let is_usual = self.text.field == TextConfig::default().field;
        let named = self.text.field.split_once(',').map(|(question, answer)| [question.trim(), answer.trim()]);
        let [question, answer] = named.or_else(|| is_usual.then_some(["prompt", "completion"])).filter(|_| is_chat)?;
        let is_text = |name: &str| rows.iter().any(|row| row.get(name).is_some_and(Value::is_string));
        let (number, order) = sessions_of(rows, [question, answer]).filter(|_| is_text(question) && is_text(answer))?;

        let program = format!(
            "group_by({})[]{order} | {{messages: map({{role: \"user\", content: {}}}, {{role: \"assistant\", content: {}}})}}",
            in_jq(&number),
            in_jq(question),
            in_jq(answer)
        );
        Some(format!(
            "note: rows of {} share their \"{number}\", and each one is learned alone; to make a conversation of all that have the same: {}\n\
             and read rows.jsonl with --set data.text.format=chat alone",
            file.display(),
            jq::command_of_all(file, format, &program)
        ))
    }
}
