//! Why a row cannot be used.

use std::fmt;

/// Why a row cannot be used. Displayed, it says what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RowProblem {
    /// Not JSON, a missing field, a wrong type or a wrong encoding.
    Malformed(String),
    /// So many lines in place of a row, because a quote is not closed.
    Unclosed(String, u64),
    /// A pair without text on either side.
    Empty,
    /// A document without text.
    NoText,
    /// A pair with text on one side only; holds the name of the empty side.
    OneSided(&'static str),
    /// More tokens than allowed, with their number; the text says how many are.
    OverLong(String, u64),
    /// The row can be used, but a filter does not want it.
    Filtered {
        /// The key of the filter.
        filter: &'static str,
        /// What it found.
        found: String,
    },
    /// The row is not for training, but for validation.
    HeldOut,
}

/// Part of the problem of a row that breaks inside of quotes.
pub(crate) const OPEN_QUOTE: &str = "an open quote";

impl RowProblem {
    /// Ends the problem of a label that is a number outside of the classes, which have names.
    pub(crate) const NUMBERED: &str = ": numbers count the classes from 0";

    /// Returns how many rows it costs: each line that an open quote takes in was meant as one.
    pub(crate) fn n_rows(&self) -> u64 {
        match self {
            Self::Unclosed(_, n_lines) => (*n_lines).max(1),
            _ => 1,
        }
    }

    /// Whether a row with this `problem` would be read with other settings: with other columns, or as another format.
    pub(crate) fn is_of_format(problem: &str) -> bool {
        problem.contains(OPEN_QUOTE) || problem.ends_with(Self::NUMBERED)
    }

    pub(crate) fn no_column(number: usize, n_columns: usize, kind: &str) -> Self {
        Self::Malformed(format!("no column {number} (counted from 0): the row has {n_columns} {kind}"))
    }
}

impl fmt::Display for RowProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(found) | Self::Unclosed(found, _) | Self::OverLong(found, _) => f.write_str(found),
            Self::Empty => f.write_str("both sides are empty"),
            Self::NoText => f.write_str("the document has no text"),
            Self::OneSided(side) => write!(f, "one-sided pair: the {side} is empty"),
            Self::Filtered { found, .. } => f.write_str(found),
            Self::HeldOut => f.write_str("the row is for validation (data.split)"),
        }
    }
}
