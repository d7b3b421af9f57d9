//! Files of columns: TSV without quoting, and CSV with it.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::header::Columns;
use super::{CorpusConfig, CorpusFormat};
use crate::corpus::line_reader::LineReader;
use crate::error::{Error, Result};

/// A longer row is a sign of a quote that is not closed.
const MAX_ROW_LINES: u64 = 100;
/// Rows that show which delimiter a CSV file has.
const ROWS_TO_COMPARE: usize = 50;
const MAX_ROW_BYTES: usize = 64 << 20;

/// A TSV or CSV file, and where its texts are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub(crate) path: PathBuf,
    pub(crate) columns: Columns,
    /// CSV: what separates columns. `None` for TSV.
    pub(crate) delimiter: Option<u8>,
}

impl Table {
    /// Reads the first row of a file to find its columns.
    pub(super) fn open(path: &Path, format: CorpusFormat, config: &CorpusConfig) -> Result<Self> {
        let (delimiter, first_row) = match format {
            CorpusFormat::Csv => {
                let (delimiter, row) = first_csv_row(path)?;
                (Some(delimiter), row)
            }
            _ => (None, first_tsv_row(path)?),
        };
        Ok(Self { path: path.into(), columns: Columns::find(path, &first_row, config)?, delimiter })
    }

    /// Describes how the file is read, for fingerprints.
    pub(crate) fn how_it_is_read(&self) -> String {
        let format = self.delimiter.map_or("tsv".to_owned(), |delimiter| format!("csv{}", char::from(delimiter)));
        let Columns { source, target, header } = self.columns;
        format!("{format}{} {source} {target}\0", if header { " header" } else { "" })
    }
}

fn first_tsv_row(path: &Path) -> Result<Vec<String>> {
    let mut line = Vec::new();
    LineReader::open(path)?.read_line(&mut line)?;
    let line = String::from_utf8_lossy(&line);
    Ok(if line.trim().is_empty() { Vec::new() } else { line.split('\t').map(str::to_owned).collect() })
}

/// Returns the delimiter of a file and its first row. The delimiter is the one that divides all of the first rows into the
/// same number of columns, or else the first that divides the first row.
fn first_csv_row(path: &Path) -> Result<(u8, Vec<String>)> {
    let mut candidates = Vec::new();
    for delimiter in *b",;\t" {
        let mut rows = CsvRows::open(path, delimiter)?;
        let Some(CsvRow { cells, .. }) = rows.next_row()? else { return Ok((delimiter, Vec::new())) };
        let first: Vec<String> = cells.iter().map(|cell| String::from_utf8_lossy(cell).into_owned()).collect();

        let mut is_even = first.len() > 1;
        for _ in 1..ROWS_TO_COMPARE {
            let Some(CsvRow { cells, .. }) = rows.next_row()? else { break };
            is_even &= cells.len() == first.len();
        }
        candidates.push((delimiter, first, is_even));
    }

    let even = candidates.iter().position(|(.., is_even)| *is_even);
    let chosen = even.or_else(|| candidates.iter().position(|(_, first, _)| first.len() > 1)).unwrap_or(0);
    let (delimiter, first, _) = candidates.swap_remove(chosen);
    Ok((delimiter, first))
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
    pub(super) problem: Option<String>,
}

impl CsvRows {
    pub(super) fn open(path: &Path, delimiter: u8) -> Result<Self> {
        let lines = Lines {
            path: path.into(),
            lines: LineReader::open(path)?,
            line: Vec::new(),
            n_read: 0,
            n_quotes: 0,
            at_end: false,
            budget: MAX_ROW_BYTES,
        };
        let reader =
            csv::ReaderBuilder::new().has_headers(false).flexible(true).delimiter(delimiter).from_reader(lines);
        Ok(Self { reader, cells: csv::ByteRecord::new() })
    }

    /// Returns the next row, or `None` at the end of the file. Skips blank lines.
    pub(super) fn next_row(&mut self) -> Result<Option<CsvRow<'_>>> {
        self.reader.get_mut().budget = MAX_ROW_BYTES;
        if !self.reader.read_byte_record(&mut self.cells).map_err(|error| self.error(error))? {
            return Ok(None);
        }

        let line = self.cells.position().map_or(0, csv::Position::line);
        let n_lines = self.reader.position().line() - line;
        let lines = self.reader.get_ref();
        let is_open_at_end = n_lines > 1 && lines.at_end && lines.n_quotes % 2 == 1;
        let problem = (n_lines > MAX_ROW_LINES || is_open_at_end)
            .then(|| format!("the row spans {n_lines} lines: a quote (\") in it is probably not closed"));
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

/// The text of a file with `\n` as line ends, so that the numbers of lines are right for Windows files.
struct Lines {
    path: PathBuf,
    lines: LineReader,
    line: Vec<u8>,
    /// Bytes of `line` that have been read.
    n_read: usize,
    n_quotes: usize,
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
            self.n_quotes += self.line.iter().filter(|byte| **byte == b'"').count();
        }

        if self.budget == 0 {
            let problem =
                format!("the row before line {} is longer than 64 MiB: a quote (\") is not closed", self.lines.line);
            return Err(io::Error::other(Error::corpus(&self.path, problem)));
        }
        let n = (self.line.len() - self.n_read).min(buffer.len()).min(self.budget);
        buffer[..n].copy_from_slice(&self.line[self.n_read..self.n_read + n]);
        self.n_read += n;
        self.budget -= n;
        Ok(n)
    }
}
