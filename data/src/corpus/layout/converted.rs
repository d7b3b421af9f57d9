//! Rows that Kiln does not read as they are: what they are, and the command that writes them anew.

use std::path::Path;

use serde_json::{Map, Value};

use super::choices::Choices;
use super::extractive::Extractive;
use super::foreign::{Foreign, WayOut, are_trees, asked_in_turns, foreign, opened, unread_answer, unread_turns};
use super::marked::Marked;
use super::preferred::Preferred;
use super::recognize::names_in;
use super::said::{lacking, without};
use super::{RowReader, choices, extractive, joined, marked, placed, preferred, reasoned, replied};
use crate::corpus::jq;
use crate::corpus::text::{Task, TextConfig, TextFormat};
use crate::error::{Error, Result};
use crate::formats::FileFormat;

/// Names the fields of rows. The columns of CoNLL have no names in the file.
pub(super) fn they_have(rows: &[Map<String, Value>], format: FileFormat) -> String {
    let names = names_in(rows).iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    if format.has_tags() { String::new() } else { format!(" (they have {names})") }
}

impl RowReader<'_> {
    /// Returns the format of a table whose rows this reader takes for conversations, preferences or tagged words.
    pub(super) fn table_of_rows(&self, file: &Path) -> Option<FileFormat> {
        let is_read = match self.task {
            Task::Lm => self.text.is_chat(),
            Task::Tagging => true,
            Task::Translation | Task::Mlm | Task::Classification => false,
        };
        let format = FileFormat::by_name(file).filter(|format| is_read && !format.has_tags())?;
        // Tables with a word per row are known elsewhere.
        let is_joined = || {
            let rows = crate::corpus::json::first_rows(file, format).rows;
            joined::words_in_text(&rows).is_some_and(|fields| joined::are_divided_otherwise(&rows, &fields))
        };
        (self.task == Task::Lm || is_joined()).then_some(format)
    }

    /// Refuses a table of questions with options whose columns this reader does not read.
    pub(super) fn check_options(&self, file: &Path) -> Result<()> {
        let is_asked = matches!(self.task, Task::Translation | Task::Classification);
        let is_table = |format: &FileFormat| [FileFormat::CSV, FileFormat::TSV].contains(format);
        let Some(format) = FileFormat::by_name(file).filter(is_table).filter(|_| is_asked) else { return Ok(()) };
        let rows = crate::corpus::json::first_rows(file, format).rows;
        let is_read = rows.iter().any(|row| self.reads(row));
        match choices::of(&rows).filter(|_| !is_read) {
            Some(found) => Err(Error::BadRows(self.of_choices(&found, (file, format), &they_have(&rows, format)))),
            None => Ok(()),
        }
    }

    /// Refuses rows that no task reads, and says how to write them anew.
    pub(super) fn check_converted(&self, file: &Path, format: FileFormat, rows: &[Map<String, Value>]) -> Result<()> {
        let bad = |found: String| Err(Error::BadRows(found));
        if let Some(advice) = self.advice_for_languages(file, format, rows) {
            return bad(advice);
        }

        let they_have = they_have(rows, format);
        let is_chat = self.task == Task::Lm && self.text.format == TextFormat::Chat;
        let is_text = matches!(self.task, Task::Lm | Task::Translation) && !format.has_tags();
        // Lists of answers in turn are neither options nor several answers of one question.
        if let Some(found) = asked_in_turns(rows).or_else(|| opened(rows, is_chat)).filter(|_| is_text) {
            return bad(self.of_foreign(found, (file, format), &they_have));
        }
        let chooses = matches!(self.task, Task::Lm | Task::Translation | Task::Classification) && !format.has_tags();
        if let Some(found) = choices::of(rows).filter(|_| chooses) {
            return bad(self.of_choices(&found, (file, format), &they_have));
        }
        let is_labelled = matches!(self.task, Task::Classification | Task::Tagging);

        if !is_labelled && !format.has_tags() {
            if let Some(found) = preferred::of(rows).filter(|_| !is_chat || !are_trees(rows)) {
                return bad(self.of_preferred(&found, (file, format), &they_have));
            }
            if let Some(found) = foreign(rows, is_chat) {
                return bad(self.of_foreign(found, (file, format), &they_have));
            }
            if let Some(found) = marked::of(rows) {
                return bad(self.of_marked(&found, (file, format), &they_have));
            }
            let is_unnamed = !self.has_named_a_field(rows);
            if let Some(found) = reasoned::of(rows).filter(|_| is_unnamed) {
                return bad(self.of_reasoned(&found, (file, format), &they_have));
            }
            if let Some(found) = placed::of(rows).or_else(|| extractive::of(rows)).filter(|_| is_unnamed) {
                return bad(self.of_extractive(&found, (file, format), &they_have));
            }
            if let Some(found) = replied::of(rows).filter(|_| is_unnamed) {
                return bad(self.of_replied(&found, (file, format), &they_have));
            }
        }
        if let Some(fields) = joined::words_in_text(rows).filter(|_| self.task == Task::Tagging) {
            return bad(joined::advice(file, format, rows, &fields));
        }
        Ok(())
    }

    /// Refuses rows that this reader takes for conversations while their last answer stands in another field.
    pub(super) fn check_unread_answer(
        &self,
        file: &Path,
        format: FileFormat,
        rows: &[Map<String, Value>],
    ) -> Result<()> {
        let is_chat = self.task == Task::Lm && self.text.format == TextFormat::Chat;
        let is_usual = self.text.field == TextConfig::default().field;
        let found = (is_chat && is_usual && preferred::of(rows).is_none())
            .then(|| unread_answer(rows).or_else(|| unread_turns(rows)))
            .flatten();
        found.map_or(Ok(()), |found| {
            Err(Error::BadRows(self.of_foreign(found, (file, format), &they_have(rows, format))))
        })
    }

    /// Says how rows of another layout become conversations.
    pub(super) fn of_foreign(&self, found: Foreign, (file, format): (&Path, FileFormat), they_have: &str) -> String {
        let Foreign { name, way_out } = found;
        let (way_out, makes_messages) = match way_out {
            WayOut::Text(text) => (text, false),
            WayOut::OfAll(what, program) => {
                let command = jq::command_of_all(file, format, &program);
                (format!("{what}: {command}"), program.contains("messages"))
            }
            WayOut::Program(what, program) => {
                (format!("{what}: {}", jq::command(file, format, &program)), program.contains("messages"))
            }
        };
        let read = self.read_with("chat", TextFormat::Chat);
        let read = if makes_messages { format!("\n{read}") } else { String::new() };
        format!("{}: its rows are {name}{they_have}, which Kiln does not read\n{way_out}{read}", file.display())
    }

    /// Says how questions with options become prompts with all of them.
    fn of_choices(&self, found: &Choices, (file, format): (&Path, FileFormat), they_have: &str) -> String {
        let fields = found.fields.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
        let mut lines = vec![format!(
            "{}: its rows are questions with options in {fields}{they_have}: one or two of these fields alone would not say which option is \
             right",
            file.display()
        )];
        lines.extend(found.open.iter().cloned());
        let is_of_classes = self.task == Task::Classification;
        let (what, program) = match is_of_classes {
            true => ("texts with all options, whose class is the letter of the right one", found.as_classes()),
            false => ("prompts with all options and completions with the right one", found.as_answers()),
        };
        let command = jq::command(file, format, &program);
        lines.push(format!("to make {what}: {command}{}", without(&found.left_out)));
        lines.push(match is_of_classes {
            true => self.read_classes(),
            false => self.read_with("chat", TextFormat::Chat),
        });
        lines.join("\n")
    }

    /// Says how questions about a text become prompts and completions.
    pub(super) fn of_extractive(
        &self,
        found: &Extractive,
        (file, format): (&Path, FileFormat),
        they_have: &str,
    ) -> String {
        format!(
            "{}: its rows are questions with answers in \"{}\"{they_have}, which Kiln does not read as they are\nto make prompts and \
             completions of them, without rows that have no answer: {}{}\n{}",
            file.display(),
            found.fields.last().map_or("", String::as_str),
            jq::command(file, format, &found.program),
            without(&found.left_out),
            self.read_with("chat", TextFormat::Chat)
        )
    }

    /// Says how answers that are marked as right become completions.
    fn of_marked(&self, found: &Marked, (file, format): (&Path, FileFormat), they_have: &str) -> String {
        format!(
            "{}: its rows are questions with several answers in \"{}\", of which \"{}\" says which ones are right{they_have}\nto make prompts \
             and completions of the right ones: {}{}\n{}",
            file.display(),
            found.answers,
            found.marks,
            jq::command(file, format, &found.program),
            without(&found.left_out),
            self.read_with("chat", TextFormat::Chat)
        )
    }

    /// Says which flags read new rows with a text and a label.
    pub(super) fn read_classes(&self) -> String {
        let (text, label) = ("text".to_owned(), "label".to_owned());
        let of_text = ("data.labels.text_field", &self.labels.text_field, &text);
        let flags = lacking([of_text, ("data.labels.label_field", &self.labels.label_field, &label)]);
        match flags.as_slice() {
            [] => "and read rows.jsonl with the same flags".to_owned(),
            flags => format!("and read rows.jsonl with {}", flags.join(" ")),
        }
    }

    /// Says how several answers become preferences.
    pub(super) fn of_preferred(
        &self,
        found: &Preferred,
        (file, format): (&Path, FileFormat),
        they_have: &str,
    ) -> String {
        let fields = found.fields.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(" and ");
        let mut lines = vec![format!(
            "{}: its rows are preferences, with several answers in {fields}{they_have}: learning one of these fields alone would learn bad \
             answers, too",
            file.display()
        )];
        lines.extend(found.open.iter().cloned());
        lines.extend(found.program.as_ref().map(|program| {
            format!("to make prompt, chosen and rejected of them: {}", jq::command(file, format, program))
        }));

        let is_table = [FileFormat::CSV, FileFormat::TSV].contains(&format);
        lines.extend(found.renamed.as_ref().filter(|_| is_table).map(|[prompt, chosen, rejected]| {
            format!("or rename the columns {prompt}, {chosen} and {rejected} to prompt, chosen and rejected")
        }));
        if found.program.is_none() {
            lines.push(
                r#"write rows such as {"prompt": "...", "chosen": "the better answer", "rejected": "another answer"}"#
                    .to_owned(),
            );
        }
        lines.push(self.read_with("preferences", TextFormat::Preferences));
        lines.join("\n")
    }

    /// Says which flags read the new rows.
    pub(super) fn read_with(&self, name: &str, format: TextFormat) -> String {
        let mut flags = Vec::new();
        if self.task != Task::Lm {
            if !self.other_tasks.contains(&Task::Lm) {
                return "this run has another task; a run of task lm reads the new rows".to_owned();
            }
            flags.push("--task lm".to_owned());
        }
        if self.text.format != format {
            flags.push(format!("--set data.text.format={name}"));
        }
        if flags.is_empty() {
            return "and read rows.jsonl with the same flags".to_owned();
        }
        format!("and read rows.jsonl with {}", flags.join(" "))
    }
}
