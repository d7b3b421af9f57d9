//! Counts of the rows of a corpus: kept ones and bad ones.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::unknown::Unknown;
use crate::error::{Error, Result};
use crate::formats::RowProblem;

/// Rows that a report shows of each kind of problem.
const SHOWN_PER_KIND: usize = 3;

/// An unusable row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadRow {
    /// Its file (the source file of a parallel corpus).
    pub file: PathBuf,
    /// Its line, counted from 1.
    pub line: u64,
    /// The count that it is in.
    pub kind: BadRowKind,
    /// What was found.
    pub problem: String,
}

/// Why a row was skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadRowKind {
    /// The row is unreadable: broken JSON, a missing field, a wrong type or a wrong encoding.
    Malformed,
    /// The row has no text.
    Empty,
    /// The row has text on one side only.
    OneSided,
    /// The row has too many tokens.
    OverLong,
}

/// Counts of kept and skipped rows, with the first few skipped rows of each kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowReport {
    /// Usable rows.
    pub kept: u64,
    /// Unreadable rows: broken JSON, a missing field, a wrong type or a wrong encoding; and the lines that an open quote of a
    /// table takes in.
    pub malformed: u64,
    /// Rows without text.
    pub empty: u64,
    /// Rows with text on one side only.
    pub one_sided: u64,
    /// Rows with more tokens than allowed on either side.
    pub over_long: u64,
    /// The first few skipped rows of each kind.
    pub shown: Vec<BadRow>,
    /// What the vocabulary cannot spell in the usable rows. Empty before they are tokenized.
    #[serde(default, skip_serializing_if = "Unknown::is_empty")]
    pub unknown: Unknown,
    /// Special tokens that the usable rows spell and that stay text.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spelled: u64,
    /// Special tokens that the usable rows spell and that are read as these tokens.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub read_special: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn n_shown(shown: &[BadRow], kind: BadRowKind) -> usize {
    shown.iter().filter(|row| row.kind == kind).count()
}

impl RowReport {
    /// Returns the number of rows that were read.
    pub fn rows(&self) -> u64 {
        self.kept + self.bad()
    }

    /// Returns the number of rows that were skipped.
    pub fn bad(&self) -> u64 {
        self.malformed + self.empty + self.one_sided + self.over_long
    }

    pub(crate) fn add_kept(&mut self, rows: u64) {
        self.kept += rows;
    }

    pub(crate) fn add_bad(&mut self, file: &Path, line: u64, problem: &RowProblem) {
        let (count, kind) = match problem {
            RowProblem::Malformed(_) | RowProblem::Unclosed(..) => (&mut self.malformed, BadRowKind::Malformed),
            RowProblem::Empty | RowProblem::NoText => (&mut self.empty, BadRowKind::Empty),
            RowProblem::OneSided(_) => (&mut self.one_sided, BadRowKind::OneSided),
            RowProblem::OverLong(_) => (&mut self.over_long, BadRowKind::OverLong),
        };
        *count += problem.n_rows();
        if n_shown(&self.shown, kind) < SHOWN_PER_KIND {
            self.shown.push(BadRow { file: file.into(), line, kind, problem: problem.to_string() });
        }
    }

    /// Counts special tokens that a usable row spells.
    pub(crate) fn add_special(&mut self, n: u64, stays_text: bool) {
        *(if stays_text { &mut self.spelled } else { &mut self.read_special }) += n;
    }

    /// Adds the counts of later rows.
    pub(crate) fn merge(&mut self, later: Self) {
        self.kept += later.kept;
        self.malformed += later.malformed;
        self.empty += later.empty;
        self.one_sided += later.one_sided;
        self.over_long += later.over_long;
        self.unknown.merge(later.unknown);
        self.spelled += later.spelled;
        self.read_special += later.read_special;
        for row in later.shown {
            if n_shown(&self.shown, row.kind) < SHOWN_PER_KIND {
                self.shown.push(row);
            }
        }
    }

    /// Refuses a fraction of bad rows over `max_bad_rows`, and a corpus without good rows. `remedy` says what to do; `key`
    /// is the configuration key of the limit.
    pub(crate) fn check(&self, max_bad_rows: f64, name: &dyn Fn() -> String, remedy: &str, key: &str) -> Result<()> {
        let share = self.bad() as f64 / self.rows().max(1) as f64;
        if self.kept > 0 && share <= max_bad_rows {
            return Ok(());
        }

        // Rounded up to a fraction that is easy to read.
        let enough = (share * 100.0).ceil() / 100.0;
        let tolerate = if self.kept > 0 { format!(", or leave them out: --set {key}={enough}") } else { String::new() };
        Err(Error::BadRows(format!(
            "{}: {:.2} % of the rows cannot be used, {:.2} % are tolerated\n{self}\n{remedy}{tolerate}",
            name(),
            100.0 * share,
            100.0 * max_bad_rows
        )))
    }
}

/// Says how many special tokens texts spell, and whether they stayed text; `None` for 0.
pub fn spelled_tokens(n: u64, stays_text: bool) -> Option<String> {
    let (s, it) = if n == 1 { ("", "it stays") } else { ("s", "they stay") };
    let what = match stays_text {
        true => format!("in the text: {it} text, unless split_special_tokens = false"),
        false => "in the text and read as such".to_owned(),
    };
    (n > 0).then(|| format!("{n} special token{s} spelled {what}"))
}

impl fmt::Display for RowReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} rows kept", self.kept, self.rows())?;
        let kinds = [
            (self.over_long, "over-long"),
            (self.empty, "empty"),
            (self.one_sided, "one-sided"),
            (self.malformed, "malformed"),
        ];
        for (count, kind) in kinds.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, ", {count} {kind}")?;
        }
        for row in &self.shown {
            write!(f, "\n  {}:{}: {}", row.file.display(), row.line, row.problem)?;
        }
        if !self.unknown.is_empty() {
            write!(f, "\n  {}", self.unknown)?;
        }
        for said in [spelled_tokens(self.spelled, true), spelled_tokens(self.read_special, false)].into_iter().flatten()
        {
            write!(f, "\n  {said}")?;
        }
        Ok(())
    }
}
