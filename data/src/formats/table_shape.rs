//! What the rows of a table look like, so that lines which a stray quote takes in are recognized as rows.

use std::collections::{HashMap, HashSet};

use super::row_text::{Found, Quoting, RowText};

/// Rows from which it is not chance that their values recur.
const ENOUGH_ROWS: usize = 8;
/// Rows from which a value recurs.
const ENOUGH_VALUES: usize = 2;

/// What rows look like: their columns, and the values of those columns in which few values recur.
#[derive(Debug, Default)]
pub(super) struct TableShape {
    /// The number of columns, if there are several.
    pub(super) width: Option<usize>,
    /// Whether blanks stand behind delimiters, as they do behind the commas of a sentence.
    is_spaced: bool,
    /// Columns of classes, with their values.
    classes: Vec<(usize, HashSet<Vec<u8>>)>,
    /// Columns whose cells are in quotes in most rows.
    quoted: HashSet<usize>,
}

impl TableShape {
    /// Describes a table by its first lines.
    pub(super) fn of(lines: &[Vec<u8>], quoting: Quoting) -> Self {
        let rows: Vec<RowText> = lines.iter().filter_map(|line| whole(line, quoting)).collect();
        let widths = || rows.iter().map(|row| row.cells.len()).filter(|width| *width > 1);
        let mut counts: HashMap<usize, usize> = HashMap::new();
        widths().for_each(|width| *counts.entry(width).or_default() += 1);
        let first = rows.first().map(|row| row.cells.len()).filter(|width| *width > 1);
        let width = first.or_else(|| widths().max_by_key(|width| counts[width]));
        let rows: Vec<&RowText> = rows.iter().filter(|row| Some(row.cells.len()) == width).collect();
        let is_spaced = lines.first().is_some_and(|line| has_blanks(line, quoting));

        // Lines of texts may look like rows, too: values that recur count, if most rows have one.
        let frequent = |at: usize| {
            let mut counts: HashMap<&[u8], usize> = HashMap::new();
            rows.iter().filter_map(|row| row.cells.get(at)).for_each(|cell| *counts.entry(cell).or_default() += 1);
            counts.retain(|_, count| *count >= ENOUGH_VALUES);
            let n: usize = counts.values().sum();
            let is_class = rows.len() >= ENOUGH_ROWS && 2 * n > rows.len() && 4 * counts.len() <= rows.len();
            let values: HashSet<Vec<u8>> = counts.into_keys().map(<[u8]>::to_vec).collect();
            (is_class && values.len() > 1).then_some((at, values))
        };
        let classes = (0..width.unwrap_or_default()).filter_map(frequent).collect();
        let is_quoted = |at: &usize| 2 * rows.iter().filter(|row| row.quoted.contains(at)).count() > rows.len();
        let quoted = (0..width.unwrap_or_default()).filter(is_quoted).collect();
        Self { width, is_spaced, classes, quoted }
    }

    /// Whether lines that a quote takes in are rows of their own. `first` is the row of this quote, which has it as text in the cell `at`.
    /// Cells of a column in which quotes are usual have no such lines.
    pub(super) fn are_rows<'l>(
        &self,
        (first, at): (&RowText, usize),
        lines: impl Iterator<Item = &'l [u8]> + Clone,
        quoting: Quoting,
    ) -> bool {
        let (Some(width), false) = (self.width, self.quoted.contains(&at)) else { return false };
        let is_spaced = quoting.delimiter == b'\t' || self.is_spaced;
        let rows: Vec<RowText> = lines
            .clone()
            .filter(|line| is_spaced || !has_blanks(line, quoting))
            .map(|line| as_text(line, quoting))
            .collect();
        let n = lines.clone().count();
        let n_rows = rows.iter().filter(|row| row.cells.len() == width).count();
        if n == 0
            || first.cells.len() < width
            || 10 * n_rows < 9 * n
            || lines.clone().any(|line| has_doubled(line, quoting))
        {
            return false;
        }

        // The last line of a text in quotes has the class behind it, too.
        match self.classes.is_empty() {
            true => quoting.delimiter == b'\t' || n > 2,
            false => {
                10 * rows.iter().filter(|row| self.has_classes(row)).count() >= 9 * n
                    && (n > 1 || self.has_classes(first))
            }
        }
    }

    /// Whether a row has known values in the columns of classes, of which there is one.
    fn has_classes(&self, row: &RowText) -> bool {
        let has =
            |(at, values): &(usize, HashSet<Vec<u8>>)| row.cells.get(*at).is_some_and(|cell| values.contains(cell));
        !self.classes.is_empty() && Some(row.cells.len()) == self.width && self.classes.iter().all(has)
    }
}

/// Whether lines have backslashes in front of the quotes in their cells, and no doubled quotes.
pub(super) fn have_escapes(lines: &[Vec<u8>], delimiter: u8) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_none_or(|byte| [delimiter, b'"'].contains(byte));
    let is_escape = |line: &[u8], at: usize| line[at..].starts_with(b"\\\"") && !is_end(line.get(at + 2));
    let begins_cell = |line: &[u8], at: usize| at == 0 || line[at - 1] == delimiter;
    let is_double = |line: &[u8], at: usize| {
        line[at..].starts_with(b"\"\"") && !begins_cell(line, at) && (at == 0 || line[at - 1] != b'\\')
    };
    let has_quotes = |line: &&Vec<u8>| (0..line.len()).any(|at| line[at] == b'"' && begins_cell(line, at));
    let quoted = || lines.iter().filter(has_quotes);
    delimiter != b'\t'
        && quoted().any(|line| (0..line.len()).any(|at| is_escape(line, at)))
        && !quoted().any(|line| (0..line.len()).any(|at| is_double(line, at)))
}

/// Returns the cells of a line in which all quotes close; `None` for other lines.
fn whole(line: &[u8], quoting: Quoting) -> Option<RowText> {
    let mut row = RowText::default();
    row.begin(line);
    (row.read(quoting) == Found::Whole).then_some(row)
}

/// Returns the cells of a line, in which quotes that do not close are text.
fn as_text(line: &[u8], quoting: Quoting) -> RowText {
    let mut row = RowText::default();
    row.begin(line);
    match row.read(quoting) {
        Found::Closed(at) | Found::InText(at) | Found::Open(at) => row.with_text_at(at, quoting),
        Found::Whole => row,
    }
}

/// Whether a delimiter of the line has a blank behind it.
fn has_blanks(line: &[u8], quoting: Quoting) -> bool {
    line.windows(2).any(|two| two[0] == quoting.delimiter && two[1] == b' ')
}

/// Whether the line has doubled quotes in the middle of a text, as programs write them between quotes.
fn has_doubled(line: &[u8], quoting: Quoting) -> bool {
    let is_text = |byte: u8| byte != b'"' && byte != quoting.delimiter;
    line.windows(4).any(|four| &four[1..3] == b"\"\"" && is_text(four[0]) && is_text(four[3]))
}
