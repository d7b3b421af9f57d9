//! The rows of a CSV file, with quotes as in RFC 4180.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::FileFormat;
use super::delimiter::{DELIMITERS, ROWS_TO_COMPARE, likeliest};
use super::line_reader::LineReader;
use super::problem::RowProblem;
use crate::error::{Error, Result};

/// A longer row is a sign of a quote that is not closed.
const MAX_ROW_LINES: u64 = 100;
const MAX_ROW_BYTES: usize = 64 << 20;

/// The rows of a CSV file, in order.
pub(crate) struct CsvRows {
    reader: csv::Reader<Lines>,
    cells: csv::ByteRecord,
    /// Lines before the first row: 1 for one that names the delimiter.
    n_skipped: u64,
}

/// A row of a CSV file.
pub(crate) struct CsvRow<'a> {
    /// Number of its first line, counted from 1.
    pub(crate) line: u64,
    pub(crate) cells: &'a csv::ByteRecord,
    /// What is wrong with its quotes.
    pub(crate) problem: Option<RowProblem>,
}

impl CsvRows {
    /// Returns the delimiter that a first line `sep=;` of the file names, as Excel writes it.
    pub(crate) fn named_delimiter(path: &Path) -> Result<Option<u8>> {
        LineReader::open(path)?.skip_delimiter_line()
    }

    /// Returns the delimiter of a file and its first rows. A delimiter that the file names is used. Without one, the rows show it.
    pub(crate) fn first_rows(path: &Path) -> Result<(u8, Vec<Vec<String>>)> {
        let delimiters = Self::named_delimiter(path)?.map_or(DELIMITERS.to_vec(), |named| vec![named]);
        let candidates =
            delimiters.into_iter().map(|delimiter| Ok((delimiter, Self::first_rows_with(path, delimiter)?)));
        Ok(likeliest(candidates.collect::<Result<_>>()?).unwrap_or_default())
    }

    /// Returns the same of a file whose name may end in `.tsv`: tabs divide it, unless it names another delimiter.
    pub(crate) fn first_rows_by_name(path: &Path) -> Result<(u8, Vec<Vec<String>>)> {
        let is_tsv = FileFormat::by_name(path) == Some(FileFormat::TSV);
        match is_tsv && Self::named_delimiter(path)?.is_none() {
            true => Ok((b'\t', Self::first_rows_with(path, b'\t')?)),
            false => Self::first_rows(path),
        }
    }

    /// Returns the first rows of a file whose columns `delimiter` divides.
    pub(crate) fn first_rows_with(path: &Path, delimiter: u8) -> Result<Vec<Vec<String>>> {
        let (mut reader, mut rows) = (Self::open(path, delimiter)?, Vec::<Vec<String>>::new());
        while rows.len() < ROWS_TO_COMPARE {
            let Some(CsvRow { cells, .. }) = reader.next_row()? else { break };
            rows.push(cells.iter().map(|cell| String::from_utf8_lossy(cell).into_owned()).collect());
        }
        Ok(rows)
    }

    /// Opens a file whose columns `delimiter` divides. Skips a first line that names the delimiter.
    pub(crate) fn open(path: &Path, delimiter: u8) -> Result<Self> {
        let mut lines = LineReader::open(path)?;
        let n_skipped = u64::from(lines.skip_delimiter_line()?.is_some());
        let lines = Lines {
            path: path.into(),
            lines,
            line: Vec::new(),
            n_read: 0,
            quotes: Quotes::new(delimiter),
            at_end: false,
            budget: MAX_ROW_BYTES,
        };
        let reader =
            csv::ReaderBuilder::new().has_headers(false).flexible(true).delimiter(delimiter).from_reader(lines);
        Ok(Self { reader, cells: csv::ByteRecord::new(), n_skipped })
    }

    /// Returns the next row, or `None` at the end of the file. Skips blank lines.
    pub(crate) fn next_row(&mut self) -> Result<Option<CsvRow<'_>>> {
        let lines = self.reader.get_mut();
        lines.budget = MAX_ROW_BYTES;
        lines.quotes.begin_row();
        if !self.reader.read_byte_record(&mut self.cells).map_err(|error| self.error(error))? {
            return Ok(None);
        }

        let line = self.cells.position().map_or(0, csv::Position::line);
        let n_lines = self.reader.position().line() - line;
        let lines = self.reader.get_ref();
        let problem = lines.quotes.problem(n_lines, lines.at_end).map(|(opened, why)| {
            let found = format!(
                "the row spans {n_lines} lines: a quote (\") that opens in line {opened} {why}; close it, or write a quote that belongs \
                 to the text twice (\"\")"
            );
            RowProblem::Unclosed(found, n_lines)
        });
        Ok(Some(CsvRow { line: self.n_skipped + line, cells: &self.cells, problem }))
    }

    fn error(&self, error: csv::Error) -> Error {
        let path = self.reader.get_ref().path.clone();
        let other = |error: &dyn std::fmt::Display| Error::corpus(&path, format!("is not CSV: {error}"));
        match error.into_kind() {
            csv::ErrorKind::Io(error) => error.downcast::<Error>().unwrap_or_else(|error| other(&error)),
            kind => other(&format!("{kind:?}")),
        }
    }
}

/// The quotes of a row, by the rules that the parser follows.
struct Quotes {
    delimiter: u8,
    place: Place,
    /// Line of the last quote that has begun a text.
    opened: u64,
    /// Line of the first quote that another line has ended in the middle of its text.
    ended_in_text: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At the start of a cell.
    Start,
    /// In a cell without quotes, or behind the quotes of one.
    Plain,
    /// Between quotes.
    Quoted,
    /// After a quote that ends the text, or is the first of two.
    AfterQuote,
}

impl Quotes {
    fn new(delimiter: u8) -> Self {
        Self { delimiter, place: Place::Start, opened: 0, ended_in_text: None }
    }

    fn begin_row(&mut self) {
        (self.place, self.ended_in_text) = (Place::Start, None);
    }

    fn read_line(&mut self, line: &[u8], number: u64) {
        for byte in line {
            let ends_cell = *byte == self.delimiter || *byte == b'\n';
            self.place = match (self.place, *byte) {
                (Place::Quoted, b'"') => Place::AfterQuote,
                (Place::Quoted, _) | (Place::AfterQuote, b'"') => Place::Quoted,
                (Place::Start, b'"') => {
                    self.opened = number;
                    Place::Quoted
                }
                (_, _) if ends_cell => Place::Start,
                (Place::AfterQuote, byte) => {
                    let spans_lines = self.opened < number && !byte.is_ascii_whitespace();
                    self.ended_in_text = self.ended_in_text.or(spans_lines.then_some(self.opened));
                    Place::Plain
                }
                (Place::Start | Place::Plain, _) => Place::Plain,
            };
        }
    }

    /// Returns the line of a quote that a row of `n_lines` lines does not close, and how one sees that.
    fn problem(&self, n_lines: u64, at_end: bool) -> Option<(u64, &'static str)> {
        if n_lines <= 1 {
            return None;
        }
        match self.ended_in_text {
            Some(opened) => Some((opened, "is closed in the middle of a text")),
            None if at_end && self.place == Place::Quoted => Some((self.opened, "is not closed")),
            None if n_lines > MAX_ROW_LINES => Some((self.opened, "is probably not closed")),
            None => None,
        }
    }
}

/// The text of a file with `\n` as line ends, so that the numbers of lines are right for Windows files.
struct Lines {
    path: PathBuf,
    lines: LineReader,
    line: Vec<u8>,
    /// Bytes of `line` that have been read.
    n_read: usize,
    quotes: Quotes,
    at_end: bool,
    /// Bytes that may be read before the row must end.
    budget: usize,
}

impl Read for Lines {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.n_read == self.line.len() {
            self.line.clear();
            self.n_read = 0;
            if !self.lines.read_line(&mut self.line).map_err(io::Error::other)? {
                self.at_end = true;
                return Ok(0);
            }
            self.line.push(b'\n');
            self.quotes.read_line(&self.line, self.lines.line);
        }

        if self.budget == 0 {
            let (line, opened) = (self.lines.line, self.quotes.opened);
            let problem = format!(
                "the row before line {line} is longer than 64 MiB: the quote (\") of line {opened} is not closed"
            );
            return Err(io::Error::other(Error::corpus(&self.path, problem)));
        }
        let n = (self.line.len() - self.n_read).min(buffer.len()).min(self.budget);
        buffer[..n].copy_from_slice(&self.line[self.n_read..self.n_read + n]);
        self.n_read += n;
        self.budget -= n;
        Ok(n)
    }
}
