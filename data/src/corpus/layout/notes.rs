//! What the user should know about rows that are read: texts that belong to a question and stay out of the prompt, and answers to compare
//! whose ratings say the opposite.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{RowReader, choices, extractive};
use crate::corpus::jq;
use crate::corpus::json::{FirstRows, first_rows};
use crate::corpus::text::{Conversation, Task, TextFormat, contradicted, files_below};
use crate::formats::FileFormat;

/// Files whose first rows are looked at.
const MOST_FILES: usize = 20;

/// Says what rows have that the reader leaves out although it belongs to them, and how it is read. Files that cannot be read have no notes.
pub fn layout_notes(entries: &[PathBuf], reader: &RowReader<'_>) -> Vec<String> {
    let mut files = Vec::new();
    for entry in entries.iter().filter(|entry| entry.exists()) {
        // What is wrong with a folder is said when it is read.
        files_below(entry, &mut files).unwrap_or_default();
    }
    files.iter().take(MOST_FILES).filter_map(|file| reader.note(file).map(|note| jq::kept_apart(file, &note))).collect()
}

impl RowReader<'_> {
    fn note(&self, file: &Path) -> Option<String> {
        let format = FileFormat::by_name(file)?;
        let reads_rows = match self.task {
            Task::Lm => self.text.is_chat(),
            Task::Translation | Task::Classification => true,
            Task::Mlm | Task::Tagging => false,
        };
        if self.text.format == TextFormat::Preferences && self.task == Task::Lm {
            return contradicted(file, format);
        }
        let FirstRows { rows, .. } = if reads_rows { first_rows(file, format) } else { FirstRows::default() };
        self.note_on_written((file, format), &rows).or_else(|| self.left_out(file, format, &rows))
    }

    /// Says how options and other texts of a question get into its prompt.
    fn left_out(&self, file: &Path, format: FileFormat, rows: &[Map<String, Value>]) -> Option<String> {
        let row = rows.iter().find(|row| self.reads(row))?;
        let is_chat = self.task == Task::Lm;
        let (fields, program) = match choices::of(rows) {
            Some(found) if found.open.is_some() => return None,
            Some(found) if self.task == Task::Classification => (found.read.clone(), found.as_classes()),
            Some(found) => (found.read.clone(), found.as_answers()),
            None => extractive::of(rows).filter(|_| is_chat).map(|found| (found.fields, found.program))?,
        };

        let lost = match self.task {
            Task::Lm => Conversation::of(row, &self.text.field).ok()?.left_out,
            // A template says by itself what belongs to a text.
            Task::Classification => lost(&fields, [&self.labels.text_field, &self.labels.pair_field])?,
            _ => lost(&fields, [&self.corpus.source_field, &self.corpus.target_field])?,
        };
        let is_lost = |field: &String| lost.iter().any(|name| field.split('.').next() == Some(name));
        let names: Vec<String> = fields.into_iter().filter(is_lost).map(|name| format!("\"{name}\"")).collect();
        (!names.is_empty()).then(|| {
            format!(
                "warning: the model does not read {}, which belong{} to the questions of {}; to put {} into the prompts: {}, {}",
                names.join(", "),
                if names.len() == 1 { "s" } else { "" },
                file.display(),
                if names.len() == 1 { "it" } else { "them" },
                jq::command(file, format, &program),
                if self.task == Task::Classification { self.read_classes() } else { self.read_with("chat", TextFormat::Chat) }
            )
        })
    }
}

/// Returns the first names of the fields that are read in neither place; `None` with a template, or if neither is one of them.
fn lost(fields: &[String], read: [&String; 2]) -> Option<Vec<String>> {
    let is_read = |field: &String| read.contains(&field);
    let is_plain = read.iter().all(|name| !name.contains('{')) && fields.iter().any(is_read);
    let others = fields.iter().filter(|field| !is_read(field)).filter_map(|field| field.split('.').next());
    is_plain.then(|| others.map(str::to_owned).collect())
}
