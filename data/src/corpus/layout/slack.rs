//! Folders of messages, as Slack exports them: a folder for each channel, with a file for each day.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::RowReader;
use super::foreign::{MESSAGES, conditions, names_of, what};
use crate::corpus::json::first_rows;
use crate::corpus::text::{Task, TextFormat, files_below};
use crate::error::{Error, Result};
use crate::formats::{FileFormat, ending};
use crate::terminal::{shell_path, shell_word};

/// Files whose messages show who speaks.
const LOOKED_AT: usize = 40;

impl RowReader<'_> {
    /// Refuses such a folder where this reader wants conversations: its messages belong together across files, next to lists of others.
    pub(super) fn check_export(&self, folder: &Path) -> Result<()> {
        if self.task != Task::Lm || self.text.format != TextFormat::Chat || !folder.is_dir() {
            return Ok(());
        }
        let mut files: Vec<PathBuf> = Vec::new();
        files_below(folder, &mut files)?;
        files.retain(|file| ending(file) == "json");
        let rows = |file: &PathBuf| first_rows(file, FileFormat::JSON).rows.into_iter().filter(is_message);
        let said: Vec<Map<String, Value>> = files.iter().take(LOOKED_AT).flat_map(rows).collect();
        let names = names_of(said.iter().filter_map(|row| row.get("user")?.as_str()));
        let Some(names) = names.filter(|_| files.len() > 1) else { return Ok(()) };

        let channel = r#"(input_filename | split("/")[:-1] | join("/"))"#;
        let each = format!(
            "(arrays[] // .) | objects | select({}.type == \"message\" and .ts and (.text | strings | . != \"\")) | .channel = {channel}",
            conditions(said.iter())
        );
        let answers = Value::from(names[1].as_str());
        let whole = format!(
            "group_by(.channel)[] | sort_by([.thread_ts // .ts, .ts]) | range(0; length; {MESSAGES}) as $i | .[$i:$i + {MESSAGES}] | \
             {{messages: map({{role: (if .user == {answers} then \"assistant\" else \"user\" end), content: .text}})}} | \
             select(.messages | any(.role == \"assistant\"))"
        );
        Err(Error::BadRows(format!(
            "{}: its files are messages of persons, as Slack exports them, and a conversation per row is wanted\n{}, without notes on who has \
             joined: find {} -name '*.json' -exec jq -c {} {{}} + | jq -cs {} > rows.jsonl\nand train on rows.jsonl",
            folder.display(),
            what(&names),
            shell_path(folder),
            shell_word(&each),
            shell_word(&whole)
        )))
    }
}

/// Whether a row is a message of Slack.
fn is_message(row: &Map<String, Value>) -> bool {
    let text = |name: &str| row.get(name).and_then(Value::as_str);
    text("type") == Some("message") && text("ts").is_some() && text("text").is_some() && text("user").is_some()
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::corpus::followed;
    use crate::corpus::text::Learn;

    #[test]
    fn the_files_of_a_folder_become_conversations_without_notes() {
        let folder = tempfile::tempdir().expect("a folder");
        let export = folder.path().join("it's slack");
        for channel in ["general", "help"] {
            std::fs::create_dir_all(export.join(channel)).expect("a folder");
            for day in 1..4 {
                let message = |n: usize| {
                    let note = if n == 0 { ", \"subtype\": \"channel_join\"" } else { "" };
                    format!(
                        "{{\"type\": \"message\", \"user\": \"U{}\", \"text\": \"{channel} {day} {n}\", \"ts\": \"17000{day}{n}.1\"{note}}}",
                        n % 2
                    )
                };
                let text = format!("[{}]", (0..4).map(message).collect::<Vec<_>>().join(",\n"));
                std::fs::write(export.join(channel).join(format!("2023-11-0{day}.json")), text).expect("writable");
            }
        }
        std::fs::write(export.join("channels.json"), "[{\"id\": \"C1\", \"name\": \"general\"}]").expect("writable");
        std::fs::write(export.join("users.json"), "[{\"id\": \"U1\", \"name\": \"ada\"}]").expect("writable");

        let (corpus, labels) = Default::default();
        let text = TextConfig { format: TextFormat::Chat, learn: Learn::default(), ..TextConfig::default() };
        let reader = RowReader { task: Task::Lm, other_tasks: &[], corpus: &corpus, text: &text, labels: &labels };
        let said = check_layout(&[export], &reader).expect_err("a folder of messages").to_string();
        assert!(said.contains("as Slack exports them") && !said.contains("name\n"), "{said}");
        let command = said.split("joined: ").nth(1).expect("a command");
        let said = format!("x: jq --version > /dev/null; {command}");
        let Some(rows) = followed::rows_made(&said, folder.path()) else { return };
        assert_eq!(rows.len(), 4, "9 messages of each channel: {rows:?}");
        assert_eq!(rows[0]["messages"][0]["content"], "general 1 1");
        assert!(!serde_json::Value::from(rows).to_string().contains(" 0\""));
    }
}
