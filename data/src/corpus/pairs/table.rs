//! Files of columns: TSV without quoting, and CSV with it.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::header::{Columns, Found};
use super::{CorpusConfig, CorpusFormat};
use crate::corpus::RowProblem;
use crate::corpus::line_reader::LineReader;
use crate::error::{Error, Result};

/// A longer row is a sign of a quote that is not closed.
const MAX_ROW_LINES: u64 = 100;
/// Rows at the beginning that show which delimiter a CSV file has, and whether the first row differs from the others.
const ROWS_TO_COMPARE: usize = 50;
const MAX_ROW_BYTES: usize = 64 << 20;

/// A TSV or CSV file, and where its texts are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub(crate) path: PathBuf,
    pub(crate) columns: Columns,
    /// CSV: what separates columns. `None` for TSV.
    pub(crate) delimiter: Option<u8>,
    /// What the user should know about how the columns were found.
    pub(super) notes: Vec<String>,
}

impl Table {
    /// Reads the first rows of a file to find its columns.
    pub(super) fn open(path: &Path, format: CorpusFormat, config: &CorpusConfig) -> Result<Self> {
        let (delimiter, rows) = match format {
            CorpusFormat::Csv => {
                let (delimiter, rows) = first_csv_rows(path)?;
                (Some(delimiter), rows)
            }
            _ => (None, first_tsv_rows(path)?),
        };
        let Found { columns, notes } = Columns::find(path, &rows, config)?;
        Ok(Self { path: path.into(), columns, delimiter, notes })
    }

    /// Describes how the file is read, for fingerprints.
    pub(crate) fn how_it_is_read(&self) -> String {
        let format = self.delimiter.map_or("tsv".to_owned(), |delimiter| format!("csv{}", char::from(delimiter)));
        let Columns { source, target, header } = self.columns;
        format!("{format}{} {source} {target}\0", if header { " header" } else { "" })
    }
}

/// Returns the first rows of a file; none if its first line is blank.
fn first_tsv_rows(path: &Path) -> Result<Vec<Vec<String>>> {
    let (mut lines, mut line, mut rows) = (LineReader::open(path)?, Vec::new(), Vec::new());
    while rows.len() < ROWS_TO_COMPARE && lines.read_line(&mut line)? {
        let text = String::from_utf8_lossy(&line);
        if text.trim().is_empty() {
            break;
        }
        rows.push(text.split('\t').map(str::to_owned).collect());
        line.clear();
    }
    Ok(rows)
}

/// Returns the delimiter of a file and its first rows. The delimiter is the one that divides all of them into the same
/// number of columns, or else the first that divides the first row.
fn first_csv_rows(path: &Path) -> Result<(u8, Vec<Vec<String>>)> {
    let mut candidates = Vec::new();
    for delimiter in *b",;\t" {
        let (mut reader, mut rows) = (CsvRows::open(path, delimiter)?, Vec::<Vec<String>>::new());
        while rows.len() < ROWS_TO_COMPARE {
            let Some(CsvRow { cells, .. }) = reader.next_row()? else { break };
            rows.push(cells.iter().map(|cell| String::from_utf8_lossy(cell).into_owned()).collect());
        }
        if rows.is_empty() {
            return Ok((delimiter, rows));
        }
        candidates.push((delimiter, rows));
    }

    let n_columns = |rows: &[Vec<String>]| rows[0].len();
    let is_even = |rows: &[Vec<String>]| n_columns(rows) > 1 && rows.iter().all(|row| row.len() == n_columns(rows));
    let even = candidates.iter().position(|(_, rows)| is_even(rows));
    let chosen = even.or_else(|| candidates.iter().position(|(_, rows)| n_columns(rows) > 1)).unwrap_or(0);
    Ok(candidates.swap_remove(chosen))
}

/// The rows of a CSV file, in order.
pub(super) struct CsvRows {
    reader: csv::Reader<Lines>,
    cells: csv::ByteRecord,
}

/// A row of a CSV file.
pub(super) struct CsvRow<'a> {
    /// Number of its first line, counted from 1.
    pub(super) line: u64,
    pub(super) cells: &'a csv::ByteRecord,
    /// What is wrong with its quotes.
    pub(super) problem: Option<RowProblem>,
}

impl CsvRows {
    pub(super) fn open(path: &Path, delimiter: u8) -> Result<Self> {
        let lines = Lines {
            path: path.into(),
            lines: LineReader::open(path)?,
            line: Vec::new(),
            n_read: 0,
            quotes: Quotes::new(delimiter),
            at_end: false,
            budget: MAX_ROW_BYTES,
        };
        let reader =
            csv::ReaderBuilder::new().has_headers(false).flexible(true).delimiter(delimiter).from_reader(lines);
        Ok(Self { reader, cells: csv::ByteRecord::new() })
    }

    /// Returns the next row, or `None` at the end of the file. Skips blank lines.
    pub(super) fn next_row(&mut self) -> Result<Option<CsvRow<'_>>> {
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
        Ok(Some(CsvRow { line, cells: &self.cells, problem }))
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
