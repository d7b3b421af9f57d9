//! Why a row cannot be used.

use std::fmt;

/// Why a row cannot be used. Displayed, it says what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RowProblem {
    /// Not JSON, a missing field, a wrong type or a wrong encoding.
    Malformed(String),
    /// A pair without text on either side.
    Empty,
    /// A document without text.
    NoText,
    /// A pair with text on one side only; holds the name of the empty side.
    OneSided(&'static str),
    /// More tokens than allowed; the text says how many.
    OverLong(String),
}

impl RowProblem {
    pub(crate) fn no_column(number: usize, n_columns: usize, kind: &str) -> Self {
        Self::Malformed(format!("no column {number} (counted from 0): the row has {n_columns} {kind}"))
    }
}

impl fmt::Display for RowProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(found) => f.write_str(found),
            Self::Empty => f.write_str("both sides are empty"),
            Self::NoText => f.write_str("the document has no text"),
            Self::OneSided(side) => write!(f, "one-sided pair: the {side} is empty"),
            Self::OverLong(found) => f.write_str(found),
        }
    }
}
