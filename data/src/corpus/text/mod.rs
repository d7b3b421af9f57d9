//! Plain text: the documents of files and folders.

mod answers;
mod around;
mod block;
mod config;
mod conversation;
mod message;
mod plain_records;
mod preference;
mod records;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

pub(super) use answers::{Rating, direction_of, rates};
pub(super) use around::is_system;
pub(crate) use block::{DocumentPart, TextBlock, TextBlocks};
pub use config::{Learn, Packing, Task, TextConfig, TextFormat};
pub(crate) use conversation::Conversation;
pub use message::{ChatMessage, Role};
pub(super) use message::{is_of_texts, is_written_list};
pub(super) use plain_records::rows_of_tags;
use plain_records::{CODE, PAGES};
pub(crate) use preference::{Preference, contradicted};

use super::RowReport;
use super::asked::is_table_of_answers;
use super::block_start::BlockStart;
use super::json::{self, JsonFields, NamedField};
use super::origins::{Origins, names};
use super::path::value_at;
use super::plain_forms::{self, PlainForm};
use super::share;
use crate::error::{Error, Result};
use crate::formats::{FileFormat, OUT_OF_FOLDER, Split, ending, find_files, is_json_lines, is_plain};
use crate::terminal::shell_word;

/// Files that a message names.
const FILES_SHOWN: usize = 4;
/// Files whose first lines are looked at.
const FILES_LOOKED_AT: usize = 100;
/// One file and how it is divided into documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextFile {
    pub(crate) path: PathBuf,
    /// Never `Auto`.
    pub(crate) format: TextFormat,
    /// How its records lie in the file, if a document is a record.
    pub(crate) records: Option<FileFormat>,
}

impl TextFile {
    fn of(path: PathBuf, format: TextFormat) -> Self {
        let by_name = FileFormat::by_name(&path);
        let format = match (format, by_name) {
            (TextFormat::Auto, Some(by_name)) if by_name == FileFormat::JSON => TextFormat::Jsonl,
            (TextFormat::Auto, Some(by_name)) if by_name.is_binary() => TextFormat::Records,
            (TextFormat::Auto, _) => TextFormat::BlankLines,
            (format, _) => format,
        };
        let records = match format {
            TextFormat::Jsonl => Some(FileFormat::JSON),
            TextFormat::Records | TextFormat::Chat | TextFormat::Preferences => {
                Some(by_name.unwrap_or(FileFormat::JSON))
            }
            TextFormat::Auto | TextFormat::BlankLines | TextFormat::Files | TextFormat::Lines => None,
        };
        Self { path, format, records }
    }

    /// Whether reading can begin at any of its documents: a file that is compressed, or whose records are not lines, is read from its
    /// beginning.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub(crate) fn can_start_within(&self) -> Result<bool> {
        match self.records {
            None => is_plain(&self.path),
            Some(records) => Ok(records == FileFormat::JSON && is_plain(&self.path)? && is_json_lines(&self.path)?),
        }
    }
}

/// The files of one text and how to read them. Documents are numbered in the order of the files.
#[derive(Debug, Clone)]
pub struct TextCorpus {
    files: Vec<TextFile>,
    config: TextConfig,
    field: JsonFields<1>,
}

impl TextCorpus {
    /// Finds all files: the named ones, and all files in named folders and their subfolders, sorted by name. Skips
    /// hidden files in folders. Reads nothing yet.
    ///
    /// # Errors
    ///
    /// If a file or folder does not exist, or a folder has no files.
    pub fn open(entries: &[PathBuf], config: &TextConfig) -> Result<Self> {
        if entries.is_empty() {
            return Err(Error::Invalid("no text is named: name at least one file or folder".into()));
        }
        let mut paths = Vec::new();
        for entry in &find_files(entries, Split::Train, true)? {
            let before = paths.len();
            files_below(entry, &mut paths)?;
            if paths.len() == before {
                return Err(Error::corpus(
                    entry,
                    "has no files in it: name a folder with text, or the files themselves",
                ));
            }
        }
        let files = paths.into_iter().map(|path| TextFile::of(path, config.format)).collect();
        Ok(Self { files, config: config.clone(), field: JsonFields::new([config.field.clone()]) })
    }

    /// Returns all files, in order.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(|file| &*file.path)
    }

    /// Returns what the user should know about how the files are read: tables of pairs and pages with tags are plain text here.
    pub fn notes(&self) -> Vec<String> {
        let at_blank_lines = matches!(self.config.format, TextFormat::Auto | TextFormat::BlankLines);
        let forms = self.forms().filter(|(_, form)| at_blank_lines || !form.is_of_blank_lines());
        let of_forms = forms.take(FILES_SHOWN).map(|(path, form)| format!("note: {}", form.note(path)));
        let plain =
            self.files.iter().filter(|file| file.records.is_none() && FileFormat::by_name(&file.path).is_none());
        let of_json = plain.take(FILES_LOOKED_AT).filter_map(|file| plain_records::note_on_json(&file.path));
        let of_forms = of_forms.chain(of_json.take(1));
        if self.config.format != TextFormat::Auto {
            return of_forms.collect();
        }
        let note = |endings: &[&str], what: &str| {
            let files = self.files().filter(|path| endings.contains(&ending(path).as_str()));
            let names: Vec<String> = files.take(4).map(|path| path.display().to_string()).collect();
            (!names.is_empty()).then(|| format!("{}: read as plain text, {what}", names.join(", ")))
        };
        let of_tables = "columns and delimiters included; to learn from one column: --set data.text.format=records and its name in \
                         data.text.field";
        let of_answers = "; to learn to answer its questions: --task lm --set data.text.format=chat";
        let has_answers = self.files().take(FILES_LOOKED_AT).any(is_table_of_answers);
        let of_tables = of_tables.to_owned() + if has_answers { of_answers } else { "" };

        let of_words =
            "columns and comments included; to learn from the sentences alone: --set data.text.format=records";
        let of_conll = note(&["conll", "conllu", "iob", "iob2", "bio"], of_words);
        let of_code = "divided into documents at blank lines; if each file is one: --set data.text.format=files";
        let n_code = self.files().filter(|path| CODE.contains(&ending(path).as_str())).count();
        let of_code = if n_code > 1 { note(&CODE, of_code) } else { None };
        let is_page = |path: &&Path| PAGES.contains(&ending(path).as_str());
        let of_page =
            |page| plain_records::note_on_tags(page).or_else(|| note(&PAGES, &plain_forms::text_of_page(page)));
        let of_pages = self.files().find(is_page).and_then(of_page);
        let of_endings = [note(&["csv", "tsv"], &of_tables), of_conll, of_pages, of_code].into_iter().flatten();
        of_forms.chain(of_endings).collect()
    }

    /// Returns the plain files that lines or blank lines do not divide into documents.
    fn forms(&self) -> impl Iterator<Item = (&Path, PlainForm)> {
        let plain = self.files.iter().filter(|file| file.records.is_none());
        plain.take(FILES_LOOKED_AT).filter_map(|file| Some((file.path.as_path(), plain_forms::form_of(&file.path)?)))
    }

    /// Whether a file has a form that [`Self::notes`] say how to read.
    pub fn has_known_form(&self) -> bool {
        self.forms().next().is_some() || self.files().any(|path| plain_records::note_on_json(path).is_some())
    }

    /// Returns how documents are read.
    pub fn config(&self) -> &TextConfig {
        &self.config
    }

    /// Reads every document with text, in order, and counts the others.
    ///
    /// # Errors
    ///
    /// If more documents are bad than `max_bad_rows` tolerates, or if no document is usable.
    pub fn read_all(&self) -> Result<(Vec<String>, RowReport)> {
        self.read_with_origins(&mut Origins::default())
    }

    /// Does the same as [`Self::read_all`], and adds the place where each document begins to `origins`.
    ///
    /// # Errors
    ///
    /// As [`Self::read_all`].
    pub fn read_with_origins(&self, origins: &mut Origins) -> Result<(Vec<String>, RowReport)> {
        let mut documents: Vec<String> = Vec::new();
        let mut report = RowReport::default();
        for block in self.blocks() {
            let block = block?;
            let path = self.path_of(&block);
            for part in block.document_parts(self) {
                let DocumentPart { line, continues, text, .. } = part?;
                match text {
                    Ok(text) if continues => documents.last_mut().expect("a document's start").push_str(&text),
                    Ok(text) => {
                        report.add_kept(1);
                        origins.push(path, line);
                        documents.push(text.into_owned());
                    }
                    Err(problem) => report.add_bad(path, line, &problem),
                }
            }
        }
        self.check(&report)?;
        Ok((documents, report))
    }

    /// Returns the first question of the conversations; `None` if none of the first ones begins with one.
    ///
    /// # Errors
    ///
    /// If the text cannot be read.
    pub fn first_question(&self) -> Result<Option<String>> {
        let Some(block) = self.blocks().next().transpose()? else { return Ok(None) };
        let of = |conversation: Conversation| {
            let mut messages = conversation.messages.into_iter();
            messages.find(|message| message.role == Role::User).map(|message| message.content)
        };
        Ok(match self.config.is_preferences() {
            true => block.preferences(&self.config).find_map(|(_, row)| of(row.ok()?.chosen)),
            false => block.conversations(&self.config).find_map(|(_, row)| of(row.ok()?)),
        })
    }

    /// Returns the first instructions of a conversation, if most of the first ones begin with instructions.
    ///
    /// # Errors
    ///
    /// If the text cannot be read.
    pub fn first_system(&self) -> Result<Option<String>> {
        let Some(block) = self.blocks().next().transpose()? else { return Ok(None) };
        let of = |conversation: Conversation| {
            let first = conversation.messages.into_iter().next()?;
            (first.role == Role::System).then_some(first.content)
        };
        let found: Vec<Option<String>> = match self.config.is_preferences() {
            true => block.preferences(&self.config).filter_map(|(_, row)| Some(of(row.ok()?.chosen))).collect(),
            false => block.conversations(&self.config).filter_map(|(_, row)| Some(of(row.ok()?))).collect(),
        };
        let n = found.iter().flatten().count();
        Ok(found.iter().flatten().next().filter(|_| 2 * n > found.len()).cloned())
    }

    /// Returns the text in blocks, in order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Result<TextBlock>> + Send + '_ {
        self.blocks_from(BlockStart::default())
    }

    /// Returns the blocks from the one that begins at `start`.
    pub(crate) fn blocks_from(&self, start: BlockStart) -> impl Iterator<Item = Result<TextBlock>> + Send + '_ {
        let blocks = TextBlocks::starting_at(&self.files, self.field.wanted(), start);
        blocks.map(|block| block.map_err(|error| self.with_pattern(error)))
    }

    /// Adds to a refusal of a file in a folder, such as a picture, the pattern that names the other files.
    fn with_pattern(&self, error: Error) -> Error {
        let Error::Corpus { path, problem } = error else { return error };
        let same: Vec<&Path> = self.files().filter(|file| ending(file) != ending(&path)).collect();
        let usual = same
            .iter()
            .map(|file| ending(file))
            .max_by_key(|name| same.iter().filter(|file| ending(file) == *name).count());
        let Some(usual) = usual.filter(|name| problem.ends_with(OUT_OF_FOLDER) && !name.is_empty()) else {
            return Error::Corpus { path, problem };
        };
        let of_usual = same.iter().filter(|file| ending(file) == usual);
        let mut patterns: Vec<String> = of_usual
            .filter_map(|file| Some(shell_word(&file.parent()?.join(format!("*.{usual}")).display().to_string())))
            .collect();
        patterns.dedup();
        let more = if patterns.len() > FILES_SHOWN { " and so on" } else { "" };
        patterns.truncate(FILES_SHOWN);
        let problem =
            format!("{problem}; to read the files that end in .{usual} alone, name {}{more}", patterns.join(" "));
        Error::Corpus { path, problem }
    }

    pub(crate) fn path_of(&self, block: &TextBlock) -> &Path {
        &self.files[block.file].path
    }

    pub(crate) fn text_files(&self) -> &[TextFile] {
        &self.files
    }

    fn field(&self) -> &JsonFields<1> {
        &self.field
    }

    /// Refuses a text without documents, or with more bad ones than tolerated.
    pub(crate) fn check(&self, report: &RowReport) -> Result<()> {
        let name = || {
            let names = names(self.files());
            let more = names.len().saturating_sub(FILES_SHOWN);
            let shown = names[..names.len() - more].join(", ");
            shown + &if more > 0 { format!(" and {more} more") } else { String::new() }
        };
        if report.rows() == 0 {
            return Err(Error::Invalid(format!("the text is empty: {} has no documents", name())));
        }

        let remedy = match self.field_of_first_row() {
            Some(name) => {
                let note = share::note(&self.first_rows(), &name).map_or(String::new(), |note| format!("\n{note}"));
                format!("name the field with the text: --set data.text.field={name}{note}")
            }
            None if self.lacks_field() => match share::flag_of_lists(&self.first_rows()) {
                Some(flag) => format!("the text is in lists, which a template reads: {flag}"),
                None => "name the field with the text (data.text.field)".to_owned(),
            },
            None if report.over_long * 2 > report.bad() => {
                format!(
                    "the longest has {} tokens: raise data.text.seq_len, at most to model.max_positions, or divide the rows",
                    report.longest
                )
            }
            None => "correct them, or set data.text.format if it is not the right one".into(),
        };
        report.check(self.config.max_bad_rows, &name, &remedy, "data.text.max_bad_rows")
    }

    /// Returns the fields of the first record, if documents are fields of records.
    fn fields_of_first_record(&self) -> Option<Vec<NamedField>> {
        let has_field = |file: &&TextFile| matches!(file.format, TextFormat::Jsonl | TextFormat::Records);
        let file = self.files.iter().find(has_field)?;
        json::fields_of_first_row(&file.path, file.records?)
    }

    /// Whether the first record has a field at this path.
    fn is_in_first_record(&self, path: &str) -> bool {
        let first = |file: &TextFile| Some(json::first_rows(&file.path, file.records?).rows.into_iter().next());
        let row = self.files.iter().find_map(first).flatten();
        row.is_some_and(|row| value_at(&row, path).is_some())
    }

    /// Returns the first rows of the first file of records.
    fn first_rows(&self) -> Vec<Map<String, Value>> {
        let has_field = |file: &&TextFile| matches!(file.format, TextFormat::Jsonl | TextFormat::Records);
        let rows = |file: &TextFile| Some(json::first_rows(&file.path, file.records?).rows);
        self.files.iter().find(has_field).and_then(rows).unwrap_or_default()
    }

    /// Whether there are rows, and the first has no field at the path of the configuration.
    fn lacks_field(&self) -> bool {
        let has_path = |row: &Map<String, Value>| value_at(row, &self.config.field).is_some();
        !self.config.field.contains('{') && self.first_rows().first().is_some_and(|row| !has_path(row))
    }

    /// Returns the name of the longest field in the first record, unless it has the wanted one.
    fn field_of_first_row(&self) -> Option<String> {
        let fields = self.fields_of_first_record()?;
        let has_field = self.config.field.contains('{') || self.is_in_first_record(&self.config.field);
        let longest = fields.into_iter().filter(|field| field.n_bytes > 0).max_by_key(|field| field.n_bytes)?;
        (!has_field).then_some(longest.name)
    }
}

/// Returns the files of `entries`: each file, and all files of each folder and its subfolders. A name that no file has stays.
///
/// # Errors
///
/// If a folder cannot be listed.
pub fn files_in(entries: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in entries {
        match entry.is_dir() {
            true => files_below(entry, &mut found)?,
            false => found.push(entry.clone()),
        }
    }
    Ok(found)
}

/// Appends a file, or all files of a folder and its subfolders, sorted by name and without hidden ones.
pub(super) fn files_below(entry: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let metadata = std::fs::metadata(entry).map_err(Error::io(entry, "opening the text"))?;
    if !metadata.is_dir() {
        found.push(entry.into());
        return Ok(());
    }
    let list =
        || std::fs::read_dir(entry)?.map(|item| item.map(|item| item.path())).collect::<std::io::Result<Vec<_>>>();
    let mut inside = list().map_err(Error::io(entry, "listing the folder"))?;
    inside.retain(|path| path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with('.')));
    inside.sort();
    inside.iter().try_for_each(|path| files_below(path, found))
}

#[cfg(test)]
mod tests;
