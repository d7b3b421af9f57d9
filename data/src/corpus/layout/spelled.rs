//! Fields that the user has named in another spelling than the rows, and fields that the rows have.

use std::path::Path;

use serde_json::{Map, Value};

use super::RowReader;
use super::classes::has;
use crate::corpus::columns::columns_of;
use crate::corpus::labelled::LabelConfig;
use crate::corpus::pairs::{CorpusConfig, flag};
use crate::corpus::text::{Task, TextConfig};
use crate::error::{Error, Result};

impl RowReader<'_> {
    /// Refuses a field of the configuration that no row has and whose name stands in the rows with other capitals.
    pub(super) fn check_spelling(&self, file: &Path, rows: &[Map<String, Value>]) -> Result<()> {
        let columns = columns_of(rows);
        let lacks = |name: &str| !rows.iter().any(|row| has(row, name));
        let meant = |name: &str| {
            let mut found = columns.keys().filter(|other| other.eq_ignore_ascii_case(name));
            found.next().filter(|_| found.next().is_none())
        };
        let others = self.named_fields().into_iter().filter(|(_, name)| lacks(name));
        let found: Vec<(&str, &str, &String)> =
            others.filter_map(|(key, name)| Some((key, name, meant(name)?))).collect();
        let Some((_, name, _)) = found.first() else { return Ok(()) };
        let flags: Vec<String> = found.iter().map(|(key, _, meant)| flag(key, meant)).collect();
        Err(Error::BadRows(format!(
            "{}: no row has the field \"{name}\", whose name has other capitals there: {}",
            file.display(),
            flags.join(" ")
        )))
    }

    /// Whether the user has named a field of pairs that the rows have.
    pub(super) fn has_named_a_field(&self, rows: &[Map<String, Value>]) -> bool {
        let is_there = |name: &str| rows.iter().any(|row| has(row, name));
        self.task == Task::Translation && self.named_fields().iter().any(|(_, name)| is_there(name))
    }

    /// Returns the fields that the configuration names for the task, with their keys, except usual ones.
    fn named_fields(&self) -> Vec<(&'static str, &str)> {
        let (corpus, labels) = (CorpusConfig::default(), LabelConfig::default());
        let all = match self.task {
            Task::Translation => vec![
                ("data.corpus.source_field", &self.corpus.source_field, corpus.source_field),
                ("data.corpus.target_field", &self.corpus.target_field, corpus.target_field),
            ],
            Task::Lm | Task::Mlm => vec![("data.text.field", &self.text.field, TextConfig::default().field)],
            Task::Classification => vec![
                ("data.labels.text_field", &self.labels.text_field, labels.text_field),
                ("data.labels.label_field", &self.labels.label_field, labels.label_field),
                ("data.labels.pair_field", &self.labels.pair_field, labels.pair_field),
            ],
            Task::Tagging => vec![
                ("data.labels.words_field", &self.labels.words_field, labels.words_field),
                ("data.labels.tags_field", &self.labels.tags_field, labels.tags_field),
            ],
        };
        all.into_iter().filter(|(_, now, usual)| *now != usual).map(|(key, now, _)| (key, now.as_str())).collect()
    }
}
