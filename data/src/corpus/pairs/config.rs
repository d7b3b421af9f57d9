//! How rows are read.

use serde::{Deserialize, Serialize};

/// How the rows of a corpus are read, and which of them can be used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CorpusConfig {
    /// Format of the files; `auto` goes by the name: `.jsonl`, `.ndjson` or `.json`, `.tsv`, or two names joined by
    /// a comma (`news.en,news.it`) for parallel text. A further `.gz` or `.zst` means compressed.
    pub format: CorpusFormat,
    /// JSONL: name of the field with the source text. A dot reaches into nested objects (`translation.en`).
    pub source_field: String,
    /// JSONL: name of the field with the target text.
    pub target_field: String,
    /// TSV: column of the source text, counted from 0.
    pub source_column: usize,
    /// TSV: column of the target text, counted from 0.
    pub target_column: usize,
    /// Longest source row in tokens, its eos included; longer rows are counted and left out. 0: the model's positions.
    pub max_source_len: usize,
    /// Longest target row in tokens, its eos included; longer rows are counted and left out. 0: the model's positions.
    pub max_target_len: usize,
    /// Tolerated share of rows that cannot be used (malformed, empty, one-sided or over-long), in [0, 1].
    pub max_bad_rows: f64,
}

impl Default for CorpusConfig {
    fn default() -> Self {
        Self {
            format: CorpusFormat::Auto,
            source_field: "src".into(),
            target_field: "trg".into(),
            source_column: 0,
            target_column: 1,
            max_source_len: 0,
            max_target_len: 0,
            max_bad_rows: 0.01,
        }
    }
}

/// Formats of a text corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CorpusFormat {
    /// By the name of the file.
    Auto,
    /// One JSON object a line, with a source and a target field.
    Jsonl,
    /// Columns separated by tabs, no header, no quoting.
    Tsv,
    /// Two text files of equally many lines, written as `news.en,news.it`.
    Parallel,
}

impl CorpusConfig {
    /// Everything that cannot work, each with its remedy.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (key, name) in [("source_field", &self.source_field), ("target_field", &self.target_field)] {
            if name.is_empty() {
                problems.push(format!("corpus.{key} is empty: name the JSON field, for example {key} = \"src\""));
            }
        }
        if self.source_field == self.target_field {
            problems.push(format!(
                "corpus.source_field and corpus.target_field are both \"{}\": name two different fields",
                self.source_field
            ));
        }
        if self.source_column == self.target_column {
            problems.push(format!(
                "corpus.source_column and corpus.target_column are both {}: name two different columns, from 0",
                self.source_column
            ));
        }
        for (key, len) in [("max_source_len", self.max_source_len), ("max_target_len", self.max_target_len)] {
            if len == 1 {
                problems.push(format!(
                    "corpus.{key} = 1 leaves room for the end-of-sequence token alone: set at least 2, or 0 for the \
                     model's positions"
                ));
            }
        }
        if !(0.0..=1.0).contains(&self.max_bad_rows) {
            problems.push(format!(
                "corpus.max_bad_rows = {} is no share of the rows: set a number from 0 (none tolerated) to 1 (all)",
                self.max_bad_rows
            ));
        }
        problems
    }

    /// The same with lengths of 0 replaced by the model's positions.
    pub fn resolved(&self, max_positions: usize) -> Self {
        let or_positions = |len: usize| if len == 0 { max_positions } else { len };
        Self {
            max_source_len: or_positions(self.max_source_len),
            max_target_len: or_positions(self.max_target_len),
            ..self.clone()
        }
    }
}
