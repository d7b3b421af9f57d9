//! What the user should know about rows that are read: texts that belong to a question and stay out of the prompt, and answers to compare
//! whose ratings say the opposite.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::foreign::foreign;
use super::{RowReader, choices, extractive, rejected, splits};
use crate::corpus::fields::words_of;
use crate::corpus::jq::{self, piped};
use crate::corpus::json::{FirstRows, first_rows};
use crate::corpus::labelled::LabelConfig;
use crate::corpus::pairs::{CorpusConfig, flag};
use crate::corpus::text::{Conversation, Task, TextFormat, contradicted, files_below};
use crate::formats::{FileFormat, WordForm};

/// Files whose first rows are looked at.
const MOST_FILES: usize = 20;
/// Words from which the same beginning of all of them is not chance.
const FEWEST_WORDS: usize = 20;
/// Characters of the name of a language.
const LONGEST_LANGUAGE: usize = 20;

/// Says what rows have that the reader leaves out although it belongs to them, and how it is read. Files that cannot be read have no notes.
pub fn layout_notes(entries: &[PathBuf], reader: &RowReader<'_>) -> Vec<String> {
    let mut files = Vec::new();
    for entry in entries.iter().filter(|entry| entry.exists()) {
        // What is wrong with a folder is said when it is read.
        files_below(entry, &mut files).unwrap_or_default();
    }
    let notes = files
        .iter()
        .take(MOST_FILES)
        .flat_map(|file| reader.notes(file).into_iter().map(|note| jq::kept_apart(file, &note)));
    notes.collect()
}

impl RowReader<'_> {
    /// Returns the fields that the model reads or learns.
    pub(super) fn fields_read(&self) -> Vec<&String> {
        match self.task {
            Task::Translation => vec![&self.corpus.source_field, &self.corpus.target_field],
            Task::Lm | Task::Mlm => vec![&self.text.field],
            Task::Classification => vec![&self.labels.text_field, &self.labels.pair_field, &self.labels.label_field],
            Task::Tagging => vec![&self.labels.words_field, &self.labels.tags_field],
        }
    }

    /// Leaves fields out that say something of a row and are neither texts nor classes: parts of a data set, and marks of annotators.
    pub(super) fn without_parts(&self, mut first: FirstRows) -> FirstRows {
        let mut names = splits::fields_with_parts(&first.rows);
        // Rows with a status may be rated answers.
        names.extend(rejected::field_of(&first.rows).filter(|field| field == "answer"));
        let read = self.fields_read();
        names.retain(|name| !name.contains('.') && !read.iter().any(|read| read.contains(name.as_str())));
        first.rows.iter_mut().for_each(|row| row.retain(|field, _| !names.contains(field)));
        first.order.retain(|field| !names.contains(field));
        first
    }

    fn notes(&self, file: &Path) -> Vec<String> {
        let Some(format) = FileFormat::by_name(file) else { return Vec::new() };
        let is_text = matches!(self.task, Task::Lm | Task::Mlm);
        if is_text && matches!(self.text.format, TextFormat::Lines | TextFormat::Files | TextFormat::BlankLines) {
            return Vec::new();
        }
        let FirstRows { rows, .. } = first_rows(file, format);
        let read = self.fields_read();
        let is_labelled = matches!(self.task, Task::Classification | Task::Tagging);
        let rejected = is_labelled.then(|| rejected::warning(file, format, &rows, &read)).flatten();
        let splits = splits::of(file, format, &rows, &read).map(|splits| splits.warning(file, format));
        let languages = self.languages(file, &rows);
        let note = self.note(file, format, &rows);
        let of_lists = if note.is_none() { self.note_on_lists((file, format), &rows) } else { None };
        let parts = if note.is_none() { self.part_left_out(file, &rows) } else { None };
        let prefixed = if format.has_tags() { self.same_beginning(file, &rows) } else { None };
        let nested = if format.has_tags() { self.nested_tags(file, &rows) } else { None };
        let names = if format.has_tags() { self.names_in_brackets(file, &rows) } else { None };
        let of_messages = self.note_on_messages((file, format), &rows);
        let of_sessions = self.note_on_sessions((file, format), &rows);
        let of_rows = rejected.into_iter().chain(splits).chain(parts).chain(prefixed).chain(nested).chain(names);
        let of_rows = of_rows.chain(of_messages).chain(of_sessions);
        note.into_iter().chain(of_lists).chain(languages).chain(of_rows).collect()
    }

    /// Warns of a last column with the inner ones of nested tags, where another column has more tags of the same kinds, as in GermEval.
    fn nested_tags(&self, file: &Path, rows: &[Map<String, Value>]) -> Option<String> {
        let is_read = self.task == Task::Tagging && self.labels.tags_field == LabelConfig::default().tags_field;
        let tags = |column: &str| -> Option<Vec<&str>> {
            let lists = rows.iter().filter_map(|row| row.get(column)?.as_array());
            let tags: Vec<&str> = lists.flatten().filter_map(Value::as_str).filter(|tag| *tag != "O").collect();
            tags.iter().all(|tag| tag.as_bytes().get(1) == Some(&b'-')).then_some(tags)
        };
        let kinds = |tags: &[&str]| tags.iter().map(|tag| tag[2..].to_owned()).collect::<HashSet<_>>();
        let inner = tags("tags").filter(|_| is_read)?;
        let columns = (0..rows.first()?.len()).map(|at| at.to_string());
        let outer = columns.filter_map(|column| tags(&column).map(|tags| (column, tags)));
        let is_outer =
            |(_, outer): &(String, Vec<&str>)| outer.len() > inner.len() && kinds(&inner).is_subset(&kinds(outer));
        let (column, outer) = outer.into_iter().find(is_outer)?;
        Some(format!(
            "warning: the last column of {}, which the model learns, has {} tags in the first sentences, and column {column} has {} of the same kinds: tags seem to be nested; to learn the outer ones: {}",
            file.display(),
            inner.len(),
            outer.len(),
            flag("data.labels.tags_field", &column)
        ))
    }

    /// Says how the names of OntoNotes, in brackets over several lines, become tags: its parts of speech are read.
    fn names_in_brackets(&self, file: &Path, rows: &[Map<String, Value>]) -> Option<String> {
        let word = WordForm::OntoNotes.word().to_string();
        let brackets = WordForm::ENTITIES.to_string();
        let is_read = self.task == Task::Tagging && self.labels.tags_field == LabelConfig::default().tags_field;
        let is_of_it = |row: &Map<String, Value>| row.contains_key(&brackets) && row.get(&word) == row.get("tokens");
        (is_read && !rows.is_empty() && rows.iter().all(is_of_it)).then(|| {
            let tags = [
                r#"/^#/ {next} !NF {print ""; name = ""; next} {tag = "O"; if (match($11, /\([^*)]+/)) {name = substr($11, RSTART + 1, "#,
                r#"RLENGTH - 1); tag = "B-" name} else if (name) tag = "I-" name; print $4 "\t" tag; if ($11 ~ /\)/) name = ""}"#,
            ];
            format!(
                "note: the model learns the parts of speech of {}, which has OntoNotes' columns; to learn its names: {} > rows.conll",
                file.display(),
                piped(file, &format!("awk '{}'", tags.concat()))
            )
        })
    }

    /// Says of a table of messages, which a language model reads as plain text, how they become conversations.
    fn note_on_messages(&self, (file, format): (&Path, FileFormat), rows: &[Map<String, Value>]) -> Option<String> {
        let is_table = [FileFormat::CSV, FileFormat::TSV].contains(&format);
        let found = (self.task == Task::Lm && self.text.format == TextFormat::Auto && is_table)
            .then(|| foreign(rows, false))
            .flatten()?;
        let said = self.of_foreign(found, (file, format), "");
        Some(format!("note: {}", said.replace(", which Kiln does not read", ", which this run learns as plain text")))
    }

    /// Warns of words that all begin with the same letters and a colon, such as the language in front of each word of WikiANN.
    fn same_beginning(&self, file: &Path, rows: &[Map<String, Value>]) -> Option<String> {
        let lists = rows.iter().filter_map(|row| row.get("tokens")?.as_array());
        let words: Vec<&str> = lists.flatten().filter_map(Value::as_str).collect();
        let (beginning, _) = words.first()?.split_once(':')?;
        let is_name = !beginning.is_empty() && beginning.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        let has_it = |word: &&str| word.strip_prefix(beginning).is_some_and(|rest| rest.starts_with(':'));
        let is_read = self.task == Task::Tagging && words.len() >= FEWEST_WORDS && is_name && words.iter().all(has_it);
        is_read.then(|| {
            format!(
                "warning: all words of {} begin with \"{beginning}:\", which the texts to tag have not; to leave it out: {} > rows.conll",
                file.display(),
                piped(file, &format!("sed 's/^{beginning}://'"))
            )
        })
    }

    /// Says how the model learns into which language it translates, where a field of pairs names several.
    fn languages(&self, file: &Path, rows: &[Map<String, Value>]) -> Option<String> {
        let CorpusConfig { source_field: source, target_field: target, tag, .. } = self.corpus;
        if self.task != Task::Translation
            || tag.is_some()
            || source.contains('{')
            || !rows.iter().any(|row| self.reads(row))
        {
            return None;
        }
        let is_name = |name: &&String| {
            let words = words_of(name);
            let is_of_target = |word: &String| ["target", "tgt", "trg", "to"].contains(&word.as_str());
            let has_language = words.iter().any(|word| ["lang", "language", "locale"].contains(&word.as_str()));
            has_language && *name != target && (words.len() == 1 || words.iter().any(is_of_target))
        };

        let field = rows.first()?.keys().find(is_name)?;
        let mut values: Vec<&str> = rows.iter().filter_map(|row| row.get(field)?.as_str()).collect();
        values.sort_unstable();
        values.dedup();
        let is_of_names = values.len() > 1 && values.iter().all(|value| value.chars().count() <= LONGEST_LANGUAGE);
        (is_of_names && 2 * values.len() <= rows.len()).then(|| {
            let shown = values.iter().take(6).copied().collect::<Vec<_>>().join(", ");
            let more = if values.len() > 6 { ", ..." } else { "" };
            format!(
                "warning: \"{field}\" of {} has {} languages ({shown}{more}), and the model does not read it: it cannot know which one is wanted; \
                 to put it in front of each source, as users do then, too: {}",
                file.display(),
                values.len(),
                flag("data.corpus.source_field", &format!("{{{field}}}: {{{source}}}"))
            )
        })
    }

    fn note(&self, file: &Path, format: FileFormat, rows: &[Map<String, Value>]) -> Option<String> {
        let reads_rows = match self.task {
            Task::Lm => self.text.is_chat(),
            Task::Translation | Task::Classification => true,
            Task::Mlm | Task::Tagging => false,
        };
        if self.text.format == TextFormat::Preferences && self.task == Task::Lm {
            return self.note_on_written((file, format), rows).or_else(|| contradicted(file, format));
        }
        let left_out = || if reads_rows { self.left_out(file, format, rows) } else { None };
        let written = if reads_rows { self.note_on_written((file, format), rows) } else { None };
        written.or_else(left_out)
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;
    use crate::corpus::text::TextConfig;

    #[test]
    fn words_with_the_same_beginning_come_with_the_command_that_leaves_it_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let (corpus, text, labels) = <(CorpusConfig, TextConfig, LabelConfig)>::default();
        let reader = RowReader { task: Task::Tagging, other_tasks: &[], corpus: &corpus, text: &text, labels: &labels };
        let file = folder.path().join("a.conll");
        let notes = |words: &str| {
            fs::write(&file, words.repeat(9)).expect("writable");
            layout_notes(std::slice::from_ref(&file), &reader)
        };
        assert!(notes("at\tO\n10:30\tB-TIME\na:b\tO\n\n").is_empty());
        let notes = notes("en:Ada\tB-PER\nen:works\tO\nen:now\tO\n\n");
        let [note] = &notes[..] else { panic!("{notes:?}") };
        let (_, command) = note.split_once("to leave it out: ").expect("a command");
        let ran = Command::new("sh").args(["-c", command]).current_dir(folder.path()).status().expect("a shell");
        let made = fs::read_to_string(folder.path().join("rows.conll")).expect("rows");
        assert!(ran.success() && made.starts_with("Ada\tB-PER\nworks\tO\n"), "{made}");
    }

    #[test]
    fn inner_tags_in_the_last_column_come_with_the_column_of_the_outer_ones() {
        let folder = tempfile::tempdir().expect("a folder");
        let (corpus, text, labels) = <(CorpusConfig, TextConfig, LabelConfig)>::default();
        let reader = RowReader { task: Task::Tagging, other_tasks: &[], corpus: &corpus, text: &text, labels: &labels };
        let file = folder.path().join("a.conll");
        let notes = |words: &str| {
            fs::write(&file, words.repeat(9)).expect("writable");
            layout_notes(std::slice::from_ref(&file), &reader).join("")
        };
        let nested = notes("1\tAda\tB-PER\tO\n2\tof\tI-PER\tO\n3\tRome\tI-PER\tB-PER\n\n");
        assert!(nested.contains("--set data.labels.tags_field=2"), "{nested}");
        assert_eq!(notes("Ada NNP B-NP B-PER\nsees VB B-VP O\nit PP B-NP O\n\n"), "", "chunks are of other kinds");
    }
}
