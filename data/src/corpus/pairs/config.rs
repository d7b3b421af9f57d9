//! How pairs are read.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::corpus::filter::RowFilter;
use crate::corpus::template::{RowTemplate, template_problem};

/// How the rows of a corpus of pairs are read, and which rows are usable. The configuration table `[data.corpus]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CorpusConfig {
    /// Format of the files. `auto` decides by the name: `.jsonl`, `.ndjson` or `.json`, `.tsv`, `.csv`, or two names
    /// joined by a comma (`news.en,news.it`) for parallel files. `.gz` or `.zst` may follow.
    pub format: CorpusFormat,
    /// TSV and CSV: whether the first row names the columns.
    pub header: Header,
    /// JSONL: name of the field with the source text. A dot reaches into nested objects (`translation.en`). TSV and CSV
    /// with a header: name of the column.
    pub source_field: String,
    /// JSONL: name of the field with the target text. TSV and CSV with a header: name of the column.
    pub target_field: String,
    /// TSV and CSV: column of the source text, counted from 0.
    pub source_column: usize,
    /// TSV and CSV: column of the target text, counted from 0.
    pub target_column: usize,
    /// Longest source row in tokens, its eos included. Longer rows are counted and skipped. 0: the model's positions.
    pub max_source_len: usize,
    /// Longest target row in tokens, its eos included. Longer rows are counted and skipped. 0: the model's positions.
    pub max_target_len: usize,
    /// Special tokens that the text spells, such as `</s>`: true splits them like other text, so that nobody's data ends a row or
    /// a turn; false reads them as the tokens. A SentencePiece model (`.model`) always splits them.
    pub split_special_tokens: bool,
    /// Tolerated share of unusable rows (malformed, empty, one-sided or over-long), in [0, 1].
    pub max_bad_rows: f64,
    /// Put in front of every source, with a space. Not a key of this table: each source of a mixture (`data.mix`) has its own.
    #[serde(skip)]
    pub tag: Option<String>,
    /// Drops usable rows that are not wanted. Not a key of this table: training text has one (`data.filter`), validation text has none.
    #[serde(skip)]
    pub filter: Option<Arc<RowFilter>>,
}

impl Default for CorpusConfig {
    fn default() -> Self {
        Self {
            format: CorpusFormat::Auto,
            header: Header::Auto,
            source_field: "src".into(),
            target_field: "trg".into(),
            source_column: 0,
            target_column: 1,
            max_source_len: 0,
            max_target_len: 0,
            split_special_tokens: true,
            max_bad_rows: 0.01,
            tag: None,
            filter: None,
        }
    }
}

/// Formats of a corpus of pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CorpusFormat {
    /// Decided by the name of the file.
    Auto,
    /// One JSON object per line, with a source and a target field.
    Jsonl,
    /// Tab-separated columns, without quoting.
    Tsv,
    /// Columns separated by commas, semicolons or tabs, whichever divides the first rows evenly. Quotes as in RFC 4180.
    Csv,
    /// Two text files with the same number of lines, written as `news.en,news.it`.
    Parallel,
}

/// Whether the first row of a TSV or CSV file names the columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Header {
    /// It does if it has the columns `source_field` and `target_field`. A first row that looks like another header, by its
    /// words or because the rows below differ in kind, is refused.
    Auto,
    /// It does.
    Yes,
    /// It is a pair like the others.
    No,
}

impl CorpusConfig {
    /// Whether texts are made by templates rather than found in fields.
    pub(super) fn has_templates(&self) -> bool {
        [&self.source_field, &self.target_field].into_iter().any(|name| RowTemplate::of(name).is_some())
    }

    /// Returns all invalid settings, each with a remedy.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (key, name) in [("source_field", &self.source_field), ("target_field", &self.target_field)] {
            if name.is_empty() {
                problems.push(format!(
                    "data.corpus.{key} is empty: name the field, for example --set data.corpus.{key}=src"
                ));
            }
            problems.extend(template_problem(&format!("data.corpus.{key}"), name));
        }

        if self.source_field == self.target_field {
            problems.push(format!(
                "data.corpus.source_field and data.corpus.target_field are both \"{}\": name two different fields",
                self.source_field
            ));
        }
        if self.source_column == self.target_column {
            problems.push(format!(
                "data.corpus.source_column and data.corpus.target_column are both {}: name two different columns, counted \
                 from 0",
                self.source_column
            ));
        }

        for (key, len) in [("max_source_len", self.max_source_len), ("max_target_len", self.max_target_len)] {
            if len == 1 {
                problems.push(format!(
                    "data.corpus.{key} = 1 leaves room for the end-of-sequence token alone: set at least 2, or 0 for the \
                     model's positions"
                ));
            }
        }
        if !(0.0..=1.0).contains(&self.max_bad_rows) {
            problems.push(format!(
                "data.corpus.max_bad_rows = {} is not a fraction: use 0 (reject any bad row) to 1 (accept all)",
                self.max_bad_rows
            ));
        }
        problems
    }

    /// Replaces lengths of 0 by the model's positions.
    pub fn resolved(&self, max_positions: usize) -> Self {
        let or_positions = |len: usize| if len == 0 { max_positions } else { len };
        Self {
            max_source_len: or_positions(self.max_source_len),
            max_target_len: or_positions(self.max_target_len),
            ..self.clone()
        }
    }
}
