//! Whether texts that a model reads have line breaks, so that a line of input is not one of them.

use std::path::PathBuf;

use super::json::first_rows;
use super::text::{Conversation, Role};
use super::{LabelConfig, LabelledCorpus, LabelledInput, PairCorpus, RowParser, Task, TextCorpus};
use crate::formats::{FileFormat, Split, find_files};

/// Rows that are looked at.
const ROWS: usize = 1000;
/// One of so many texts with line breaks is enough.
const ONE_OF: usize = 10;

/// Whether enough of the first texts have line breaks.
fn have_breaks(texts: impl Iterator<Item = String>) -> bool {
    let (mut n, mut n_found) = (0, 0);
    for text in texts.take(ROWS) {
        n += 1;
        n_found += usize::from(text.trim().contains('\n'));
    }
    n_found > 0 && ONE_OF * n_found >= n
}

impl PairCorpus {
    /// Whether one of ten sources, or more, has line breaks. Looks at the first rows.
    pub fn has_line_breaks(&self) -> bool {
        let parser = RowParser::new(self.config());
        // What is wrong with a file is said when it is read.
        let Some(Ok(block)) = self.blocks().next() else { return false };
        have_breaks(block.rows(&parser).filter_map(|(_, row)| Some(row.ok()?.source.into_owned())))
    }
}

impl TextCorpus {
    /// Whether one of ten conversations, or more, begins with a question that has line breaks. Looks at the first ones.
    pub fn has_line_breaks(&self) -> bool {
        let Some(Ok(block)) = self.blocks().next() else { return false };
        let question = |conversation: Conversation| {
            let mut messages = conversation.messages.into_iter();
            messages.find(|message| message.role == Role::User).map(|message| message.content)
        };
        let config = self.config();
        match config.is_preferences() {
            true => have_breaks(block.preferences(config).filter_map(|(_, row)| question(row.ok()?.chosen))),
            false => have_breaks(block.conversations(config).filter_map(|(_, row)| question(row.ok()?))),
        }
    }
}

impl LabelledCorpus {
    /// Whether one of ten texts of classes in `files`, or more, has line breaks. Looks at the first rows; files that are gone have none.
    pub fn has_line_breaks(files: &[PathBuf], config: &LabelConfig) -> bool {
        let files = find_files(files, Split::Train, false).unwrap_or_default();
        let Some(path) = files.first().filter(|path| path.is_file()) else { return false };
        let rows = first_rows(path, FileFormat::by_name(path).unwrap_or(FileFormat::JSON)).rows;
        let lines = rows.into_iter().map(|row| serde_json::Value::Object(row).to_string());
        let inputs = lines.filter_map(|line| LabelledInput::from_json(&line, Task::Classification, config).ok());
        have_breaks(inputs.map(|input| input.texts().join("\n").trim().to_owned()).filter(|text| !text.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::{CorpusConfig, TextConfig, TextFormat};

    #[test]
    fn one_text_of_ten_is_enough() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, row: fn(usize) -> String| {
            let path = folder.path().join(name);
            std::fs::write(&path, (0..40).map(|n| row(n) + "\n").collect::<String>()).expect("writable");
            [path]
        };
        let pairs = |name: &str, row: fn(usize) -> String| {
            PairCorpus::open(&file(name, row), &CorpusConfig::default()).expect("a corpus").has_line_breaks()
        };
        assert!(pairs("a.jsonl", |n| format!(
            r#"{{"src": "a{}b", "trg": "c"}}"#,
            if n % 8 == 0 { "\\n" } else { " " }
        )));
        assert!(!pairs("b.jsonl", |n| format!(
            r#"{{"src": "a{}b", "trg": "c\\nd"}}"#,
            if n == 8 { "\\n" } else { " " }
        )));

        let chat = TextConfig { format: TextFormat::Chat, ..TextConfig::default() };
        let chats = |name: &str, row: fn(usize) -> String| {
            TextCorpus::open(&file(name, row), &chat).expect("a corpus").has_line_breaks()
        };
        assert!(chats("c.jsonl", |n| format!(r#"{{"prompt": "a\nb{n}", "completion": "c"}}"#)));
        assert!(!chats("d.jsonl", |n| format!(r#"{{"prompt": "a b{n}", "completion": "c\nd"}}"#)));

        let classes = |name: &str, row: fn(usize) -> String| {
            LabelledCorpus::has_line_breaks(&file(name, row), &LabelConfig::default())
        };
        assert!(classes("e.jsonl", |n| format!(r#"{{"text": "a\nb", "label": "{n}"}}"#)));
        assert!(!classes("f.jsonl", |n| format!(r#"{{"text": "a b\n", "label": "{n}"}}"#)));
        assert!(!LabelledCorpus::has_line_breaks(&[folder.path().join("gone")], &LabelConfig::default()));
    }
}
