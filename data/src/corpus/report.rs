//! Counts of the rows of a corpus: kept ones, bad ones, and those that a filter has dropped.

mod left_out;
mod reasons;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use self::reasons::Reasons;
use super::filter::repeated;
use super::origins::place;
use super::template::is_of_template;
use super::unknown::Unknown;
use crate::error::{Error, Result};
use crate::formats::RowProblem;

/// Rows that a report shows of each kind of problem.
const SHOWN_PER_KIND: usize = 3;

/// Most bad rows that a message offers to leave out, as a fraction. More of them are probably read in a wrong way.
const MOST_TO_LEAVE_OUT: f64 = 0.5;

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

/// The rows that one key of a filter has dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedRows {
    /// The key, such as `max_length_ratio`.
    pub filter: String,
    /// Their number.
    pub rows: u64,
    /// File of the first one.
    pub file: PathBuf,
    /// Its line, counted from 1.
    pub line: u64,
    /// What the filter found there.
    pub found: String,
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
    /// Tokens of the longest of these.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub longest: u64,
    /// The first few skipped rows of each kind.
    pub shown: Vec<BadRow>,
    /// The reasons, each with its number of rows and the first few of them.
    #[serde(default, skip_serializing_if = "Reasons::is_empty")]
    reasons: Reasons,
    /// What the vocabulary cannot spell in the usable rows. Empty before they are tokenized.
    #[serde(default, skip_serializing_if = "Unknown::is_empty")]
    pub unknown: Unknown,
    /// Special tokens that the usable rows spell and that stay text.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spelled: u64,
    /// Special tokens that the usable rows spell and that are read as these tokens.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub read_special: u64,
    /// The section of the configuration whose `split_special_tokens` decides about them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub special_section: String,
    /// Usable rows that a filter has dropped, by its keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<DroppedRows>,
    /// Kept documents that are too long to be filtered.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unfiltered: u64,
    /// Usable rows that are for validation. They are in no other count.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held_out: u64,
    /// Kept rows of a text with labels that have more tokens than allowed, and are cut.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cut: u64,
    /// Fields of conversations with a text that Kiln leaves out, each with the number of usable rows that have it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<String, u64>,
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
        self.kept + self.bad() + self.n_dropped()
    }

    /// Returns the number of usable rows that a filter has dropped.
    pub fn n_dropped(&self) -> u64 {
        self.dropped.iter().map(|dropped| dropped.rows).sum()
    }

    /// Returns what the filters have dropped, a sentence for each key.
    pub fn filter_notes(&self) -> Vec<String> {
        let note = |DroppedRows { filter, rows, file, line, found }: &DroppedRows| {
            let (percent, all) = (100.0 * *rows as f64 / self.rows().max(1) as f64, self.rows());
            let first = place(file, *line);
            format!("data.filter.{filter} drops {rows} of {all} rows ({percent:.1} %), first {first}: {found}")
        };
        let unfiltered = (self.unfiltered > 0).then(|| {
            format!("data.filter: {} documents of more than 1 MiB are kept without being filtered", self.unfiltered)
        });
        self.dropped.iter().map(note).chain(unfiltered).collect()
    }

    /// Returns what the user should know of the usable rows: what the filters have dropped, and which fields are left out.
    pub fn notes(&self) -> Vec<String> {
        self.filter_notes().into_iter().chain(self.left_out_note()).collect()
    }

    /// Returns the number of rows that were skipped.
    pub fn bad(&self) -> u64 {
        self.malformed + self.empty + self.one_sided + self.over_long
    }

    pub(crate) fn add_kept(&mut self, rows: u64) {
        self.kept += rows;
    }

    /// Counts a row that is not kept.
    pub(crate) fn add_bad(&mut self, file: &Path, line: u64, problem: &RowProblem) {
        let (count, kind) = match problem {
            RowProblem::Filtered { filter, found } => {
                let (filter, found) = ((*filter).to_owned(), found.clone());
                return self.add_dropped(DroppedRows { filter, rows: 1, file: file.into(), line, found });
            }
            RowProblem::HeldOut => {
                self.held_out += 1;
                return;
            }
            RowProblem::Malformed(_) | RowProblem::Unclosed(..) => (&mut self.malformed, BadRowKind::Malformed),
            RowProblem::Empty | RowProblem::NoText => (&mut self.empty, BadRowKind::Empty),
            RowProblem::OneSided(_) => (&mut self.one_sided, BadRowKind::OneSided),
            RowProblem::OverLong(_, tokens) => {
                self.longest = self.longest.max(*tokens);
                (&mut self.over_long, BadRowKind::OverLong)
            }
        };
        *count += problem.n_rows();
        let row = BadRow { file: file.into(), line, kind, problem: problem.to_string() };
        if n_shown(&self.shown, kind) < SHOWN_PER_KIND {
            self.shown.push(row.clone());
        }
        self.reasons.add(row, problem.n_rows());
    }

    fn add_dropped(&mut self, later: DroppedRows) {
        match self.dropped.iter_mut().find(|dropped| dropped.filter == later.filter) {
            Some(dropped) => dropped.rows += later.rows,
            None => self.dropped.push(later),
        }
    }

    /// Takes back a kept row, which repeats an earlier one.
    pub(crate) fn drop_repeated(&mut self, file: &Path, line: u64) {
        self.kept -= 1;
        self.add_bad(file, line, &repeated());
    }

    /// Counts special tokens that a usable row spells. `section` has the key that decides about them.
    pub(crate) fn add_special(&mut self, n: u64, stays_text: bool, section: &str) {
        if n > 0 {
            *(if stays_text { &mut self.spelled } else { &mut self.read_special }) += n;
            section.clone_into(&mut self.special_section);
        }
    }

    /// Adds the counts of later rows.
    pub(crate) fn merge(&mut self, later: Self) {
        self.kept += later.kept;
        self.malformed += later.malformed;
        self.empty += later.empty;
        self.one_sided += later.one_sided;
        self.over_long += later.over_long;
        self.longest = self.longest.max(later.longest);
        self.unknown.merge(later.unknown);
        self.spelled += later.spelled;
        self.read_special += later.read_special;
        if self.special_section.is_empty() {
            self.special_section = later.special_section;
        }
        self.unfiltered += later.unfiltered;
        self.held_out += later.held_out;
        self.cut += later.cut;
        later.dropped.into_iter().for_each(|dropped| self.add_dropped(dropped));
        later.left_out.iter().for_each(|(field, rows)| self.add_field(field, *rows));
        self.reasons.merge(later.reasons);
        for row in later.shown {
            if n_shown(&self.shown, row.kind) < SHOWN_PER_KIND {
                self.shown.push(row);
            }
        }
    }

    /// Refuses a fraction of bad rows over `max_bad_rows`, and a corpus without good rows. `remedy` says what to do; `key`
    /// is the configuration key of the limit.
    pub(crate) fn check(&self, max_bad_rows: f64, name: &dyn Fn() -> String, remedy: &str, key: &str) -> Result<()> {
        if self.rows() == 0 {
            return Err(Error::BadRows(format!(
                "{}: it is empty, or a table with no row below the names of its columns: add rows, or name another file",
                name()
            )));
        }
        let share = self.bad() as f64 / self.rows().max(1) as f64;
        if self.kept > 0 && share <= max_bad_rows {
            return Ok(());
        }

        if self.kept == 0 && self.n_dropped() > 0 && share <= max_bad_rows {
            return Err(Error::BadRows(format!(
                "{}: the filters leave no row\n{self}\n{}\nloosen them (data.filter)",
                name(),
                self.filter_notes().join("\n")
            )));
        }

        // Rounded up to a fraction that is easy to read.
        let enough = (share * 100.0).ceil() / 100.0;
        let is_misread = self
            .shown
            .iter()
            .any(|BadRow { problem, .. }| is_of_template(problem) || RowProblem::is_of_format(problem));
        let tolerate = match self.kept > 0 && share <= MOST_TO_LEAVE_OUT && !is_misread {
            true => format!(", or leave them out: --set {key}={enough}"),
            false => String::new(),
        };
        Err(Error::BadRows(format!(
            "{}: {:.2} % of the rows cannot be used, {:.2} % are tolerated\n{self}\n{remedy}{tolerate}",
            name(),
            100.0 * share,
            100.0 * max_bad_rows
        )))
    }
}

/// Says how many special tokens texts spell, and whether they stayed text; `None` for 0. `section` of the configuration has the key that
/// decides about them, such as `data.text`.
pub fn spelled_tokens(n: u64, stays_text: bool, section: &str) -> Option<String> {
    let (s, it) = if n == 1 { ("", "it stays") } else { ("s", "they stay") };
    let what = match stays_text {
        true => format!("in the text: {it} text, unless {section}.split_special_tokens = false"),
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
        if self.n_dropped() > 0 {
            write!(f, ", {} dropped by filters", self.n_dropped())?;
        }

        for line in self.reasons.lines() {
            write!(f, "\n  {line}")?;
        }
        // Caches of earlier versions have no reasons.
        for row in self.shown.iter().filter(|_| self.reasons.is_empty()) {
            write!(f, "\n  {}: {}", place(&row.file, row.line), row.problem)?;
        }
        if !self.unknown.is_empty() {
            write!(f, "\n  {}", self.unknown)?;
        }
        // Caches of earlier versions do not name the section.
        let section = if self.special_section.is_empty() { "data.text" } else { &self.special_section };
        for said in [(self.spelled, true), (self.read_special, false)] {
            let Some(said) = spelled_tokens(said.0, said.1, section) else { continue };
            write!(f, "\n  {said}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(report: &mut RowReport, lines: std::ops::Range<u64>, found: impl Fn(u64) -> String) {
        lines.for_each(|line| report.add_bad(Path::new("a.csv"), line, &RowProblem::Malformed(found(line))));
    }

    #[test]
    fn the_most_frequent_reasons_are_shown_with_their_counts() {
        let mut report = RowReport::default();
        add(&mut report, 1..20, |_| "no label".into());
        add(&mut report, 20..60, |line| format!("the row has {line} columns"));
        add(&mut report, 60..80, |_| "label \"x\" is unknown".into());
        add(&mut report, 80..90, |_| "label \"y\" is unknown".into());
        let mut later = RowReport::default();
        add(&mut later, 90..200, |_| "label \"y\" is unknown".into());
        report.merge(later);
        let text = report.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "0 of 199 rows kept, 199 malformed",
                "  a.csv:80: label \"y\" is unknown (120 rows)",
                "  a.csv:20: the row has 20 columns (40 such rows)",
                "  a.csv:60: label \"x\" is unknown (20 rows)",
                "  and 1 more reason (19 rows)",
            ]
        );
        let read: RowReport = serde_json::from_str(&serde_json::to_string(&report).expect("JSON")).expect("its own");
        assert_eq!(read, report);
    }

    #[test]
    fn a_single_reason_is_shown_with_its_first_rows() {
        let mut report = RowReport { kept: 9, ..RowReport::default() };
        add(&mut report, 5..10, |line| format!("the row has {line} columns"));
        let text = report.to_string();
        assert!(
            text.ends_with("5 columns\n  a.csv:6: the row has 6 columns\n  a.csv:7: the row has 7 columns"),
            "{text}"
        );
        let mut two = RowReport::default();
        add(&mut two, 1..3, |_| "no label".into());
        add(&mut two, 3..4, |_| "no text".into());
        assert!(two.to_string().ends_with("no label (2 rows)\n  a.csv:2: no label\n  a.csv:3: no text"), "{two}");
    }

    #[test]
    fn a_thousand_reasons_are_bounded_and_no_row_is_lost() {
        let mut report = RowReport::default();
        let word = |n: u64| n.to_string().bytes().map(|digit| char::from(digit + 49)).collect::<String>();
        add(&mut report, 0..1000, |line| format!("label {} is unknown", word(line)));
        assert!(report.to_string().ends_with("and more reasons (997 rows)"), "{report}");
    }

    #[test]
    fn a_corpus_without_rows_is_said_to_be_empty() {
        let text = RowReport::default().check(0.0, &|| "a.csv".into(), "fix", "key").expect_err("empty").to_string();
        assert!(text.starts_with("a.csv: it is empty") && !text.contains('%'), "{text}");
    }

    #[test]
    fn most_rows_are_never_offered_to_be_left_out() {
        let refusal = |kept: u64, malformed: u64| {
            let report = RowReport { kept, malformed, ..RowReport::default() };
            report.check(0.01, &|| "a.csv".into(), "correct them", "key").expect_err("too many").to_string()
        };
        assert!(refusal(6, 4).ends_with("correct them, or leave them out: --set key=0.4"));
        assert!(refusal(4, 6).ends_with("correct them"));
    }
}
