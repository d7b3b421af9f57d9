//! Labelled rows that are read block by block, because memory has no room for all of them.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::records::record_of;
use super::row::{Label, Labelled, Unresolved, read_of, read_row};
use super::several::Several;
use super::{
    LabelConfig, MOST_CLASSES, are_words, check, folders, id_by_name, id_of, names_of, other_forms, other_spelling,
    wanted, with_numbers,
};
use crate::corpus::block_start::BlockStart;
use crate::corpus::filter::row_hash;
use crate::corpus::for_each_block;
use crate::corpus::report::RowReport;
use crate::corpus::text::{Task, TextBlock, TextBlocks, TextFile, TextFormat};
use crate::error::{Error, Result};
use crate::formats::{FileFormat, RowProblem, Split, find_files};

/// Classes or tags, and how often rows have them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Classes {
    /// Their names, in the order of their ids.
    pub names: Vec<String>,
    /// Labels of each.
    pub counts: Vec<u64>,
    /// Rows with a label.
    pub n_rows: u64,
    /// Labels are numbers that stand for names.
    pub numbered: bool,
}

impl Classes {
    /// Whether they are exactly the classes `names`: all of them, in any order, or all of their ids.
    pub fn are(&self, names: &[String]) -> bool {
        let is_id = |id: usize| self.names.contains(&id.to_string());
        let has = |name: &String| self.names.contains(name);
        let by_name = names.iter().all(|name| has(name) || other_spelling(name).as_ref().is_some_and(has));
        self.names.len() == names.len() && (by_name || (are_words(names) && (0..names.len()).all(is_id)))
    }

    /// Says which classes numbers in the place of labels stand for, if there are some.
    pub fn note_on_numbers(&self) -> Option<String> {
        let shown = self
            .names
            .iter()
            .take(3)
            .enumerate()
            .map(|(id, name)| format!("{id} is {name:?}"))
            .collect::<Vec<_>>()
            .join(", ");
        let more = if self.names.len() > 3 { ", ..." } else { "" };
        self.numbered
            .then(|| format!("labels are numbers, read as numbers of the classes (data.labels.names): {shown}{more}"))
    }

    /// Says that classes of texts seem to be combinations of several labels.
    pub fn note_on_combinations(&self, task: Task) -> Option<String> {
        let is_of_texts = task != Task::Tagging && self.n_rows > 0;
        let found = Several::of(self.names.iter().map(String::as_str)).filter(|_| is_of_texts)?;
        let shown = self.names.iter().take(3).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        Some(format!(
            "the labels {}, such as {shown}: each combination is a class of its own, because several labels of one text are not supported; keep \
             one label of each row",
            found.what()
        ))
    }
}

/// Labelled rows of some files, which are read block by block.
#[derive(Debug, Clone)]
pub struct LabelledText {
    files: Vec<TextFile>,
    task: Task,
    /// With the names of the classes, once they are known.
    config: LabelConfig,
}

/// Takes the file and line of a row, the row as a line of JSON, and the names of its labels.
type EachLabelled<'a> = &'a mut dyn FnMut(&Path, u64, String, Vec<String>) -> Result<()>;

/// A row whose labels are not ids yet.
pub(crate) struct LabelledRecord {
    row: Unresolved,
}

impl LabelledRecord {
    /// Returns a hash of its texts and labels.
    pub(crate) fn hash(&self) -> u128 {
        let (texts, labels) = (self.row.texts(), self.row.labels().iter().map(Label::name));
        row_hash(texts.iter().map(String::as_str).chain([""]).chain(labels))
    }

    /// Returns its texts.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.row.texts()
    }
}

impl LabelledText {
    /// Finds the files, as [`LabelledCorpus::read`](super::LabelledCorpus::read) does. Reads their beginnings alone.
    ///
    /// # Errors
    ///
    /// If a setting is invalid, or a file cannot be read or has another form.
    pub fn open(files: &[PathBuf], task: Task, config: &LabelConfig) -> Result<Self> {
        let problems = config.validate();
        if !problems.is_empty() {
            return Err(Error::Invalid(problems.join("\n")));
        }
        folders::check_entries(files, config)?;
        let files = find_files(files, Split::Train, false)?;
        files.iter().try_for_each(|file| other_forms::check_form(file, task, config))?;
        let file = |path: PathBuf| {
            let records = Some(FileFormat::by_name(&path).unwrap_or(FileFormat::JSON));
            TextFile { path, format: TextFormat::Records, records }
        };
        Ok(Self { files: files.into_iter().map(file).collect(), task, config: config.clone() })
    }

    /// Returns the same rows with these classes.
    pub fn with_classes(self, names: &[String]) -> Self {
        Self { config: LabelConfig { names: names.to_vec(), ..self.config }, ..self }
    }

    /// Returns how rows are read.
    pub fn config(&self) -> &LabelConfig {
        &self.config
    }

    /// Returns what labels the rows have.
    pub fn task(&self) -> Task {
        self.task
    }

    /// Returns all files, in order.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> + Clone {
        self.files.iter().map(|file| &*file.path)
    }

    pub(crate) fn text_files(&self) -> &[TextFile] {
        &self.files
    }

    /// Returns the blocks from the one that begins at `start`.
    pub(crate) fn blocks_from(&self, start: BlockStart) -> impl Iterator<Item = Result<TextBlock>> + Send + '_ {
        TextBlocks::starting_at(&self.files, wanted(self.task, &self.config), start)
    }

    pub(crate) fn path_of(&self, block: &TextBlock) -> &Path {
        &self.files[block.file].path
    }

    /// Reads the rows of a block, each with its line. The filter has judged them, except for duplicates.
    pub(crate) fn rows<'a>(
        &'a self,
        block: &'a TextBlock,
    ) -> impl Iterator<Item = (u64, Result<LabelledRecord, RowProblem>)> + 'a {
        let format = self.files[block.file].records.unwrap_or(FileFormat::JSON);
        let is_blank =
            |record: &Result<&[u8], RowProblem>| record.as_ref().is_ok_and(|json| json.trim_ascii().is_empty());
        block.records().filter(move |(_, record)| !is_blank(record)).map(move |(line, record)| {
            let read = |json: &[u8]| {
                let row = read_row(json, self.task, &self.config)?;
                if let Some(filter) = &self.config.filter {
                    filter.check_record(|| read_of(&row))?;
                    filter.check_text(&row.texts().join("\n"))?;
                }
                Ok(LabelledRecord { row: with_numbers(row, format) })
            };
            (line, record.and_then(read))
        })
    }

    /// Returns what gives the labels of rows their ids.
    pub(crate) fn resolver(&self) -> impl Fn(LabelledRecord) -> Result<Labelled, RowProblem> + '_ {
        let ids: HashMap<&str, u32> = self.config.names.iter().map(String::as_str).zip(0..).collect();
        move |record| record.row.with_ids(|label| id_of(label, &ids, &self.config.names))
    }

    /// Reads all rows once, with `num_threads` threads, and returns their classes: the named ones of the configuration, or else the labels
    /// of the rows, sorted.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, if no row can be used, or if there are fewer than two classes or far too many.
    pub fn classes(&self, num_threads: usize) -> Result<Classes> {
        let mut found: BTreeMap<(String, Option<u32>), (Label, u64)> = BTreeMap::new();
        let (mut n_rows, mut report) = (0, RowReport::default());
        let known: HashMap<&str, u32> = self.config.names.iter().map(String::as_str).zip(0..).collect();
        // A label that is none of the named classes makes a bad row, which is counted when it is tokenized.
        let is_class = |label: &Label| known.is_empty() || id_of(label, &known, &self.config.names).is_ok();
        for_each_block(
            self.blocks_from(BlockStart::default()),
            num_threads,
            || (),
            |(), block| {
                let (mut n_rows, mut report) = (0, RowReport::default());
                let mut labels: Vec<Label> = Vec::new();
                for (line, row) in self.rows(&block) {
                    match row {
                        Ok(record) => {
                            report.add_kept(1);
                            if record.row.labels().iter().all(&is_class) {
                                n_rows += 1;
                                labels.extend_from_slice(record.row.labels());
                            }
                        }
                        Err(problem) => report.add_bad(self.path_of(&block), line, &problem),
                    }
                }
                Ok((labels, n_rows, report))
            },
            |(labels, rows_of_block, of_block)| {
                n_rows += rows_of_block;
                report.merge(of_block);
                for label in labels {
                    let key = (label.name().to_owned(), label.number());
                    found.entry(key).or_insert_with(|| (label, 0)).1 += 1;
                }
                if found.len() > 2 * MOST_CLASSES {
                    names_of(found.values().map(|(label, _)| label)).map(drop)
                } else {
                    Ok(())
                }
            },
        )?;
        self.check(&report)?;

        let names = match self.config.names.as_slice() {
            [] => names_of(found.values().map(|(label, _)| label))?,
            names => names.to_vec(),
        };
        let ids: HashMap<&str, u32> = names.iter().map(String::as_str).zip(0..).collect();
        let is_number = |label: &Label| label.number().is_some() && id_by_name(label, &ids).is_none();
        let numbered = are_words(&names) && found.values().any(|(label, _)| is_number(label));
        let mut counts = vec![0; names.len()];
        for (label, n) in found.values() {
            if let Ok(id) = id_of(label, &ids, &names) {
                counts[id as usize] += n;
            }
        }
        Ok(Classes { names, counts, n_rows, numbered })
    }

    /// Calls `each` with every row that can be used: its file and line, the row as a line of JSON that says the same, and the names of its
    /// labels. No filter judges the rows. Returns the counts of the others.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or if `each` fails.
    pub fn for_each_record(&self, each: EachLabelled<'_>) -> Result<RowReport> {
        let mut report = RowReport::default();
        for block in self.blocks_from(BlockStart::default()) {
            let block = block?;
            let (path, format) = (self.path_of(&block), self.files[block.file].records.unwrap_or(FileFormat::JSON));

            for (line, record) in block.records() {
                let read = |json: &[u8]| {
                    let row = read_row(json, self.task, &self.config)?;
                    let labels = row.labels().iter().map(|label| label.name().to_owned()).collect();
                    Ok((record_of(json, format, self.task, &self.config).unwrap_or_default(), labels))
                };
                match record {
                    Ok(json) if json.trim_ascii().is_empty() => {}
                    record => match record.and_then(read) {
                        Ok((json, labels)) => {
                            report.add_kept(1);
                            each(path, line, json, labels)?;
                        }
                        Err(problem) => report.add_bad(path, line, &problem),
                    },
                }
            }
        }
        Ok(report)
    }

    /// Refuses rows of which too many cannot be used.
    pub(crate) fn check(&self, report: &RowReport) -> Result<()> {
        check(report, self.files(), self.task, &self.config)
    }
}

#[cfg(test)]
mod tests;
