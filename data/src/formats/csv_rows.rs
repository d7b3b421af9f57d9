//! The rows of a CSV or TSV file, with quotes as in RFC 4180. A quote that takes in further rows is not one that opens a cell.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use super::FileFormat;
use super::delimiter::{DELIMITERS, ROWS_TO_COMPARE, likeliest};
use super::line_reader::LineReader;
use super::problem::RowProblem;
use super::row_text::{Found, Quoting, RowText};
use super::table_shape::{TableShape, have_escapes};
use crate::error::Result;
use crate::terminal::shell_path;

/// A row with more lines is a sign of a quote that is not closed, unless it has all columns.
const USUAL_ROW_LINES: usize = 100;
/// The most lines and bytes that are searched for the end of a row.
const MOST_ROW_LINES: usize = 10_000;
const MAX_ROW_BYTES: usize = 64 << 20;
/// Lines that show what rows look like.
const LINES_OF_SHAPE: usize = 200;
/// Rows that are searched for quotes which belong to the text.
const ROWS_OF_QUOTES: usize = 100_000;

/// The rows of a CSV file, in order.
pub(crate) struct CsvRows {
    path: PathBuf,
    lines: LineReader,
    /// Lines that have been read and are in no row yet.
    ahead: VecDeque<Vec<u8>>,
    /// Number of the last line of the last row.
    number: u64,
    /// Whether lines end as on old Macs, with `\r` alone.
    has_mac_lines: bool,
    quoting: Quoting,
    shape: TableShape,
    row: RowText,
    /// The last line that a stray quote would take in: a quote that does not close properly up to it is one more.
    suspect: u64,
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

    /// Returns what `csv.reader` of Python needs to read a file as Kiln does, behind the name of the file: `, delimiter=";"`.
    pub(crate) fn options_of_python(path: &Path) -> String {
        let delimiter = Self::first_rows_by_name(path).map_or(b',', |(delimiter, _)| delimiter);
        let of_delimiter = match delimiter {
            b',' => String::new(),
            b'\t' => ", delimiter=\"\\t\"".to_owned(),
            other => format!(", delimiter=\"{}\"", char::from(other)),
        };
        of_delimiter + Self::options_of_quotes(path, delimiter).unwrap_or_default()
    }

    fn options_of_quotes(path: &Path, delimiter: u8) -> Result<&'static str> {
        let mut rows = Self::open(path, delimiter)?;
        let (mut has_stray, mut has_quoted, mut has_blanks, mut n) = (false, false, false, 0);
        while n < ROWS_OF_QUOTES
            && let Some(row) = rows.next_row()?
        {
            has_stray |= row.problem.is_some();
            (has_stray, has_quoted) = (has_stray || rows.row.has_literal, has_quoted || !rows.row.quoted.is_empty());
            (has_blanks, n) = (has_blanks || rows.row.has_blanks, n + 1);
        }
        Ok(match (rows.quoting.has_escapes, has_stray && (delimiter == b'\t' || !has_quoted)) {
            (true, _) => ", escapechar=\"\\\\\", doublequote=False",
            (false, true) => ", quoting=csv.QUOTE_NONE",
            (false, false) if has_blanks => ", skipinitialspace=True",
            (false, false) => "",
        })
    }

    /// Opens a file whose columns `delimiter` divides. Skips a first line that names the delimiter.
    pub(crate) fn open(path: &Path, delimiter: u8) -> Result<Self> {
        let mut lines = LineReader::open(path)?;
        let number = u64::from(lines.skip_delimiter_line()?.is_some());
        let quoting = Quoting { delimiter, has_escapes: false };
        let mut rows = Self {
            path: path.into(),
            lines,
            ahead: VecDeque::new(),
            number,
            has_mac_lines: false,
            quoting,
            shape: TableShape::default(),
            row: RowText::default(),
            suspect: 0,
        };

        let mut first = Vec::new();
        while first.len() < LINES_OF_SHAPE
            && let Some(line) = rows.next_line()?
        {
            first.push(line);
        }
        rows.quoting.has_escapes = have_escapes(&first, delimiter);
        rows.shape = TableShape::of(&first, rows.quoting);
        first.into_iter().rev().for_each(|line| rows.put_back(&line));
        Ok(rows)
    }

    /// Returns the next row, or `None` at the end of the file. Skips blank lines.
    pub(crate) fn next_row(&mut self) -> Result<Option<CsvRow<'_>>> {
        let first = loop {
            match self.next_line()? {
                None => return Ok(None),
                Some(line) if line.is_empty() => {}
                Some(line) => break line,
            }
        };
        self.row.begin(&first);
        let line = self.number;

        let problem = match self.read_row()? {
            Some((at, why)) => self.without_stray(at, why, line),
            // A row next to a stray quote has quotes that belong to it, too.
            None if self.row.is_unclean && line <= self.suspect && self.quoting.delimiter != b'\t' => {
                Some(self.unclosed(line, "closes in the middle of a text", self.row.n_lines() as u64))
            }
            None => None,
        };
        Ok(Some(CsvRow { line, cells: &self.row.cells, problem }))
    }

    /// Reads the lines of the row that has begun. Returns where a quote opens that no line closes, and how one sees that.
    fn read_row(&mut self) -> Result<Option<(usize, &'static str)>> {
        let mut longest = None;
        loop {
            match self.row.read(self.quoting) {
                Found::Whole => {
                    let has_width = self.shape.width == Some(self.row.cells.len());
                    return Ok(longest.filter(|_| !has_width).map(|at| (at, "is probably not closed")));
                }
                Found::Closed(at) if self.takes_in_rows(at, self.row.cells.len() - 1) => {
                    return Ok(Some((at, "is probably not closed: the lines behind it are rows")));
                }
                Found::Closed(at) => {
                    longest = longest.or((self.row.n_lines() > USUAL_ROW_LINES).then_some(at));
                }
                Found::InText(at) => return Ok(Some((at, "is closed in the middle of a text"))),

                Found::Open(at) => {
                    let n_lines = self.row.n_lines();
                    if n_lines.is_multiple_of(USUAL_ROW_LINES) && self.takes_in_rows(at, self.row.cells.len()) {
                        return Ok(Some((at, "is probably not closed: the lines behind it are rows")));
                    }
                    if n_lines >= MOST_ROW_LINES || self.row.n_bytes() >= MAX_ROW_BYTES {
                        return Ok(Some((at, "is probably not closed")));
                    }
                    match self.next_line()? {
                        Some(line) => self.row.add(&line),
                        None => return Ok(Some((at, "is not closed"))),
                    }
                }
            }
        }
    }

    /// Whether the lines behind the line of a quote, which opens the cell `number`, are rows of their own.
    fn takes_in_rows(&self, at: usize, number: usize) -> bool {
        let lines = self.row.lines_from(self.row.line_of(at) + 1);
        self.shape.are_rows((&self.row.with_text_at(at, self.quoting), number), lines, self.quoting)
    }

    /// Ends the row with the line in which a stray quote opens, and gives the lines behind it back. Returns what is wrong with the row:
    /// nothing between tabs, where the quote is text.
    fn without_stray(&mut self, at: usize, why: &str, first: u64) -> Option<RowProblem> {
        self.suspect = self.suspect.max(self.number);
        let row = self.row.with_text_at(at, self.quoting);
        let rest: Vec<Vec<u8>> = self.row.lines_from(row.n_lines()).map(<[u8]>::to_vec).collect();
        rest.iter().rev().for_each(|line| self.put_back(line));
        self.row = row;

        let n_lines = self.row.n_lines() as u64;
        let is_text = self.quoting.delimiter == b'\t' && n_lines == 1;
        (!is_text).then(|| self.unclosed(first + n_lines - 1, why, n_lines))
    }

    fn unclosed(&self, opened: u64, why: &str, n_lines: u64) -> RowProblem {
        let found = format!(
            "a quote (\") that opens in line {opened} {why}; close it, or write a quote that belongs to the text twice (\"\"); if no text \
             spans lines, this leaves out the quotes of such lines: awk -F'\"' 'NF % 2 == 0 {{gsub(/\"/, \"\")}} 1' {} > rows.csv",
            shell_path(&self.path)
        );
        RowProblem::Unclosed(found, n_lines)
    }

    /// Returns the next line, without its end.
    fn next_line(&mut self) -> Result<Option<Vec<u8>>> {
        if self.ahead.is_empty() {
            let mut line = Vec::new();
            if !self.lines.read_line(&mut line)? {
                return Ok(None);
            }
            let is_first = self.lines.line == self.number + 1 && self.number < 2;
            self.has_mac_lines |= is_first && line.contains(&b'\r') && self.lines.is_at_end()?;
            match self.has_mac_lines {
                true => self.ahead.extend(line.split(|byte| *byte == b'\r').map(<[u8]>::to_vec)),
                false => self.ahead.push_back(line),
            }
        }
        self.number += 1;
        Ok(self.ahead.pop_front())
    }

    fn put_back(&mut self, line: &[u8]) {
        self.ahead.push_front(line.to_vec());
        self.number -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines and cells of the rows of a file, and what is wrong with rows that cannot be used.
    fn rows(name: &str, text: &str) -> Vec<(u64, Result<Vec<String>, String>)> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("writable");
        let delimiter = if name.ends_with(".tsv") { b'\t' } else { b',' };
        let (mut reader, mut rows) = (CsvRows::open(&path, delimiter).expect("a table"), Vec::new());
        while let Some(CsvRow { line, cells, problem }) = reader.next_row().expect("readable") {
            let cells = cells.iter().map(|cell| String::from_utf8_lossy(cell).into_owned()).collect();
            rows.push((line, problem.map_or(Ok(cells), |problem| Err(problem.to_string()))));
        }
        rows
    }

    #[test]
    fn a_stray_quote_takes_in_no_rows() {
        let good = |from: usize| -> String { (from..from + 20).map(|n| format!("a text {n},{}\n", n % 2)).collect() };
        let inch = "the screen of 5\",1\n";
        for (stray, behind) in [
            ("\"never closed,0\n", String::new()),
            ("\"closed by another one,0\n", good(50) + "\"b, \"\"c\"\"\",1\n"),
            ("\"closed by a stray one,0\n", good(50) + inch),
            ("\"the next row,0\n", inch.to_owned()),
        ] {
            let text = format!("text,label\n{}{stray}{behind}{}", good(0), good(100));
            let found = rows("a.csv", &text);
            let bad: Vec<u64> = found.iter().filter(|(_, row)| row.is_err()).map(|(line, _)| *line).collect();
            assert_eq!((found.len(), bad), (text.lines().count(), vec![22]), "{stray}: {found:?}");
            assert!(found[21].1.as_ref().is_err_and(|found| found.contains("opens in line 22")), "{found:?}");

            // Between tabs the quote is text, and nothing is lost.
            let found = rows("a.tsv", &text.replace(',', "\t"));
            let stray: Vec<String> = stray.trim_end().split(',').map(str::to_owned).collect();
            assert_eq!((found.len(), &found[21]), (text.lines().count(), &(22, Ok(stray))));
        }
    }

    #[test]
    fn texts_of_several_lines_stay_whole() {
        let prose = "Hello, world\n\nSee you, soon\nIt is 5, or 6";
        for (name, delimiter) in [("a.csv", ","), ("a.tsv", "\t")] {
            let row = |n: usize| format!("{}{delimiter}\"{prose} {n}\"\n\"{prose}\"{delimiter}{}\n", n % 2, n % 2);
            let text = format!("one{delimiter}other\n") + &(0..20).map(row).collect::<String>();
            let found = rows(name, &text);
            assert_eq!(found.len(), 41, "{found:?}");
            assert_eq!(found[1], (2, Ok(vec!["0".to_owned(), format!("{prose} 0")])));
        }
        let long = "a line, and more\n".repeat(300);
        let found = rows("a.csv", &format!("file,message\na,\"{long}\"\nb,\"{long}\"\n"));
        assert_eq!((found.len(), found[2].0), (3, 303));
        assert!(found.iter().all(|(_, row)| row.is_ok()), "a long mail has all columns");
        let found = rows("a.csv", "id,text\r1,a b\r2,\"c, d\"\r");
        assert_eq!(found[2], (3, Ok(vec!["2".to_owned(), "c, d".to_owned()])), "lines of an old Mac");
    }

    #[test]
    fn backslashes_in_front_of_quotes_are_read_where_a_file_has_them() {
        let found = rows("a.csv", "text,label\n\"He \\\"said\\\", and left\",0\n\"plain\",1\n");
        assert_eq!(found[1].1, Ok(vec!["He \"said\", and left".to_owned(), "0".to_owned()]));
        let found = rows("a.csv", "text,path\n\"He \"\"said\"\"\",\"C:\\\"\n\"plain\",\"D:\\\"\n");
        assert_eq!(found[1].1, Ok(vec!["He \"said\"".to_owned(), "C:\\".to_owned()]));
    }
}
