//! Why rows are skipped: each reason with its number of rows, so that the frequent ones are shown.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use super::{BadRow, BadRowKind, SHOWN_PER_KIND};
use crate::corpus::origins::place;

/// Reasons that are counted separately, of each kind. Rows with further ones are counted together.
const MOST: usize = 64;

/// A reason, with its rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct BadReason {
    /// What its problems have in common.
    key: String,
    rows: u64,
    /// The first few of its rows.
    first: Vec<BadRow>,
    /// Whether their problems differ in numbers.
    differs: bool,
}

impl BadReason {
    fn kind(&self) -> BadRowKind {
        self.first[0].kind
    }
}

/// The reasons in the order of their first rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reasons {
    counted: Vec<BadReason>,
    /// Rows with reasons beyond the counted ones, by kind.
    others: Vec<(BadRowKind, u64)>,
}

impl Reasons {
    pub(super) fn is_empty(&self) -> bool {
        self.counted.is_empty()
    }

    /// Counts a bad row that stands for so many rows.
    pub(super) fn add(&mut self, row: BadRow, n_rows: u64) {
        self.add_reason(BadReason { key: key_of(&row.problem), rows: n_rows, first: vec![row], differs: false });
    }

    /// Adds the reasons of later rows.
    pub(super) fn merge(&mut self, later: Self) {
        later.counted.into_iter().for_each(|reason| self.add_reason(reason));
        later.others.into_iter().for_each(|(kind, rows)| self.add_other(kind, rows));
    }

    fn add_reason(&mut self, later: BadReason) {
        let kind = later.kind();
        let is_same = |reason: &&mut BadReason| reason.kind() == kind && reason.key == later.key;
        if let Some(reason) = self.counted.iter_mut().find(is_same) {
            reason.rows += later.rows;
            reason.differs |= later.differs || later.first[0].problem != reason.first[0].problem;
            let room = SHOWN_PER_KIND.saturating_sub(reason.first.len());
            reason.first.extend(later.first.into_iter().take(room));
        } else if self.counted.iter().filter(|reason| reason.kind() == kind).count() < MOST {
            self.counted.push(later);
        } else {
            self.add_other(kind, later.rows);
        }
    }

    fn add_other(&mut self, kind: BadRowKind, rows: u64) {
        match self.others.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, count)) => *count += rows,
            None => self.others.push((kind, rows)),
        }
    }

    /// Shows a few rows of each kind: of its most frequent reasons, with the number of rows where there are several reasons.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut kinds: Vec<BadRowKind> = Vec::new();
        for reason in &self.counted {
            if !kinds.contains(&reason.kind()) {
                kinds.push(reason.kind());
            }
        }
        kinds.into_iter().flat_map(|kind| self.lines_of(kind)).collect()
    }

    fn lines_of(&self, kind: BadRowKind) -> Vec<String> {
        let mut reasons: Vec<&BadReason> = self.counted.iter().filter(|reason| reason.kind() == kind).collect();
        reasons.sort_by_key(|reason| Reverse(reason.rows));
        let n_reasons = reasons.len();
        let left = reasons.split_off(n_reasons.min(SHOWN_PER_KIND));

        // The first row of each reason, and then further rows of the most frequent ones.
        let mut n_rows: Vec<usize> = vec![1; reasons.len()];
        let mut room = SHOWN_PER_KIND - reasons.len();
        for (reason, n) in reasons.iter().zip(&mut n_rows) {
            let more = room.min(reason.first.len() - 1);
            (*n, room) = (*n + more, room - more);
        }

        let mut lines = Vec::new();
        for (reason, n) in reasons.iter().zip(n_rows) {
            for (number, row) in reason.first.iter().take(n).enumerate() {
                let such = if reason.differs { "such " } else { "" };
                let is_counted = number == 0 && n_reasons > 1 && reason.rows > 1;
                let count = if is_counted { format!(" ({} {such}rows)", reason.rows) } else { String::new() };
                lines.push(format!("{}: {}{count}", place(&row.file, row.line), row.problem));
            }
        }
        let others: u64 = self.others.iter().filter(|(other, _)| *other == kind).map(|(_, rows)| rows).sum();
        let rows = left.iter().map(|reason| reason.rows).sum::<u64>() + others;
        let [s, of_rows] = [left.len() as u64, rows].map(|n| if n == 1 { "" } else { "s" });
        match left.len() {
            0 if others == 0 => {}
            n if others == 0 => lines.push(format!("and {n} more reason{s} ({rows} row{of_rows})")),
            _ => lines.push(format!("and more reasons ({rows} rows)")),
        }
        lines
    }
}

/// Returns what problems have in common that differ in numbers.
fn key_of(problem: &str) -> String {
    let mut key = String::with_capacity(problem.len());
    for c in problem.chars() {
        match c.is_ascii_digit() {
            true if key.ends_with('0') => {}
            true => key.push('0'),
            false => key.push(c),
        }
    }
    key
}
