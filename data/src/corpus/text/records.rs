//! The rows of a text as lines of JSON.

use std::path::Path;

use super::{DocumentPart, TextCorpus};
use crate::corpus::filter::{HeldOut, record_of_json};
use crate::corpus::report::RowReport;
use crate::error::Result;

/// Takes the file and line of a row, and the row as a line of JSON.
type EachRecord<'a> = &'a mut dyn FnMut(&Path, u64, Option<String>) -> Result<()>;

impl TextCorpus {
    /// Calls `each` with the file and line of every row that can be used, and with the line of JSON by which [`HeldOut`] knows it. A
    /// document of more than 1 MiB is read in parts, and has none. Returns the counts of these and of the other rows.
    ///
    /// # Errors
    ///
    /// If the text cannot be read, or if `each` fails.
    pub fn for_each_record(&self, each: EachRecord<'_>) -> Result<RowReport> {
        let mut report = RowReport::default();
        for block in self.blocks() {
            let block = block?;
            let path = self.path_of(&block);

            let problems: Vec<_> = match (self.config.is_chat(), self.config.is_preferences()) {
                (_, true) => block.preferences(&self.config).map(|(_, row)| row.err()).collect(),
                (true, false) => block.conversations(&self.config).map(|(_, row)| row.err()).collect(),
                (false, false) => {
                    for part in block.document_parts(self) {
                        let DocumentPart { line, continues, whole, text } = part?;
                        match text {
                            Ok(_) if continues => {}
                            Ok(text) => {
                                report.add_kept(1);
                                each(path, line, whole.then(|| HeldOut::record_of_text(&text)))?;
                            }
                            Err(problem) => report.add_bad(path, line, &problem),
                        }
                    }
                    continue;
                }
            };

            for ((line, record), problem) in block.records().zip(problems) {
                match (record, problem) {
                    (Ok(json), None) => {
                        report.add_kept(1);
                        each(path, line, Some(record_of_json(json)))?;
                    }
                    (Err(problem), _) | (_, Some(problem)) => report.add_bad(path, line, &problem),
                }
            }
        }
        Ok(report)
    }
}
