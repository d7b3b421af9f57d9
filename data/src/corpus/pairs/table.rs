//! Files of columns: TSV without quoting, and CSV with it.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::by_language::{ByLanguage, one_language_in};
use super::header::{
    Columns, Found, is_probably_header, keys_of_columns, rows_above, warning_of_marks, with_other_headers,
};
use super::{CorpusConfig, CorpusFormat, Header};
use crate::corpus::jq::piped;
use crate::error::{Error, Result};
use crate::formats::{CsvRows, FileFormat, LineReader, ROWS_TO_COMPARE};

/// Rows of a file that are looked at for further languages.
const MOST_ROWS: usize = 100_000;
/// Rows of each language that are kept.
const ROWS_OF_EACH: usize = 25;

/// A TSV or CSV file, and where its texts are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub(crate) path: PathBuf,
    pub(crate) columns: Columns,
    /// Columns of the first row.
    pub(super) n_columns: usize,
    /// CSV: what separates columns. `None` for TSV.
    pub(crate) delimiter: Option<u8>,
    /// Whether cells of a TSV file seem to be in quotes, which stay text.
    pub(super) is_quoted: bool,
    /// What the user should know about how the columns were found.
    notes: Vec<String>,
}

impl Table {
    /// Reads the first rows of a file to find its columns.
    pub(super) fn open(path: &Path, format: CorpusFormat, config: &CorpusConfig) -> Result<Self> {
        let (delimiter, rows) = first_rows(path, format)?;
        check_delimiter(path, &rows)?;
        let Found { columns, mut notes } = Columns::find(path, &rows, config)?;
        let rows = &rows[rows_above(&rows)..];
        notes.extend(warning_of_marks(path, rows, columns));
        let first = rows.first();
        let (n_columns, is_quoted) = (first.map_or(0, Vec::len), delimiter.is_none() && are_quoted(rows));
        Ok(Self { path: path.into(), columns, n_columns, delimiter, is_quoted, notes })
    }

    /// Refuses a table with a row for each language, unless the user has said how it is read.
    pub(super) fn check_languages(path: &Path, format: CorpusFormat, config: &CorpusConfig) -> Result<()> {
        if config.header != Header::Auto || keys_of_columns(config).is_some() {
            return Ok(());
        }
        let (delimiter, rows) = first_rows(path, format)?;
        let n_above = rows_above(&rows);
        let rows = &rows[n_above..];
        let Some((first, others)) = rows.split_first() else { return Ok(()) };
        let names: Vec<&str> = first.iter().map(|name| name.trim()).collect();
        let are_names = is_probably_header(&names, others);
        let (names, rows) = if are_names { (Some(names.as_slice()), others) } else { (None, rows) };
        let format = if format == CorpusFormat::Tsv { FileFormat::TSV } else { FileFormat::CSV };
        // The rows of one language may follow the rows of another one.
        let of_file = |column: usize| {
            let rows = rows_of_each(path, delimiter, column).ok()?;
            ByLanguage::of(names, rows.get(usize::from(are_names)..)?)
        };
        let is_whole = n_above == 0 && rows.len() >= ROWS_TO_COMPARE - 1;
        let further = || one_language_in(names, rows).filter(|_| is_whole).and_then(of_file);
        match ByLanguage::of(names, rows).or_else(further) {
            Some(found) => Err(Error::corpus(path, found.advice(path, format, names))),
            None => Ok(()),
        }
    }

    /// Returns what the user should know about how the file is read.
    pub(super) fn notes(&self) -> Vec<String> {
        let of_quotes = self.is_quoted.then(|| {
            format!(
                "cells of {} are in quotes, which stay text, as TSV has no quoting; to read them without: --set \
                 data.corpus.format=csv",
                self.path.display()
            )
        });
        self.notes.iter().cloned().chain(of_quotes).collect()
    }

    /// Adds to an `error` about the table at `path` how it is read together with one of `entries` that has other names.
    pub(super) fn among(path: &Path, entries: &[PathBuf], error: Error) -> Error {
        let names = |path: &Path| {
            let format =
                FileFormat::by_name(path).filter(|format| [FileFormat::TSV, FileFormat::CSV].contains(format))?;
            let format = if format == FileFormat::TSV { CorpusFormat::Tsv } else { CorpusFormat::Csv };
            let (_, rows) = first_rows(path, format).ok()?;
            let (first, others) = rows.split_first()?;
            let names: Vec<&str> = first.iter().map(|name| name.trim()).collect();
            is_probably_header(&names, others)
                .then(|| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>())
        };

        match error {
            Error::Corpus { path: named, problem } if named == path => {
                let own = names(path);
                let other = entries
                    .iter()
                    .find(|other| own.is_some() && names(other).is_some_and(|other| Some(&other) != own.as_ref()));
                let sorted = |path: &Path| names(path).map(|names| names.into_iter().collect::<BTreeSet<String>>());
                let hint = match other {
                    Some(other) if sorted(other) == sorted(path) => {
                        format!(
                            "\n  {} has the same names in another order: flags with names read both",
                            other.display()
                        )
                    }
                    Some(other) => with_other_headers(other),
                    None => String::new(),
                };
                Error::Corpus { path: named, problem: problem + &hint }
            }
            error => error,
        }
    }

    /// Returns whether the first row of a TSV or CSV file seems to name its columns, whatever the run says about it.
    pub(in crate::corpus) fn begins_with_names(path: &Path) -> bool {
        let format = match FileFormat::by_name(path) {
            Some(format) if format == FileFormat::TSV => CorpusFormat::Tsv,
            Some(format) if format == FileFormat::CSV => CorpusFormat::Csv,
            _ => return false,
        };
        // What looks like a header of other names is an error here.
        Self::open(path, format, &CorpusConfig::default()).map_or(true, |table| table.columns.header)
    }

    /// Describes how the file is read, for fingerprints.
    pub(crate) fn how_it_is_read(&self) -> String {
        let format = self.delimiter.map_or("tsv".to_owned(), |delimiter| format!("csv{}", char::from(delimiter)));
        let Columns { source, target, header } = self.columns;
        format!("{format}{} {source} {target}\0", if header { " header" } else { "" })
    }
}

/// Refuses the first `rows` of a table that another delimiter divides, and says how to name it.
///
/// # Errors
///
/// If most of the rows have one column.
pub(in crate::corpus) fn check_delimiter(path: &Path, rows: &[Vec<String>]) -> Result<()> {
    let Some(found) = other_delimiter(rows) else { return Ok(()) };
    let ending = if FileFormat::by_name(path) == Some(FileFormat::TSV) { "tsv" } else { "csv" };
    Err(Error::corpus(
        path,
        format!(
            "its first row or most of its first rows have one column, and `{found}` divides each of them evenly: name this delimiter in a first \
             line, with (echo 'sep={found}'; {}) > rows.{ending}",
            piped(path, "cat")
        ),
    ))
}

/// Whether a program has probably quoted cells between tabs: some have doubled quotes inside or are not closed in their line, or all
/// cells of most rows are in quotes.
fn are_quoted(rows: &[Vec<String>]) -> bool {
    let is_in_quotes = |cell: &String| cell.len() > 1 && cell.starts_with('"') && cell.trim_end().ends_with('"');
    let is_escaped = |cell: &String| {
        let inside = cell.trim_end().strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default();
        inside.contains("\"\"") && !inside.replace("\"\"", "").contains('"')
    };
    let is_open =
        |row: &Vec<String>| row.last().is_some_and(|cell| cell.starts_with('"') && cell.matches('"').count() % 2 == 1);
    // A line that is not closed is followed by one that closes it, with too few columns.
    let is_broken = rows.windows(2).any(|two| is_open(&two[0]) && two[1].len() < rows[0].len());
    let n_quoted = rows.iter().filter(|row| row.iter().all(is_in_quotes)).count();
    is_broken || rows.iter().flatten().any(is_escaped) || 2 * n_quoted > rows.len()
}

/// Returns the delimiter that divides rows of one column evenly, if most rows are of that kind.
fn other_delimiter(rows: &[Vec<String>]) -> Option<char> {
    let n_single = rows.iter().filter(|row| row.len() == 1).count();
    let count =
        |row: &[String], delimiter: char| -> usize { row.iter().map(|cell| cell.matches(delimiter).count()).sum() };
    let is_even = |delimiter: &char| {
        let n = count(&rows[0], *delimiter);
        n > 0 && rows.iter().all(|row| count(row, *delimiter) == n)
    };
    // The delimiter of a header may stand next to commas of texts.
    let is_single = 2 * n_single > rows.len() || rows.len() > 2 && rows[0].len() == 1;
    if is_single { ['|', ';', ',', '^', '~'].into_iter().find(is_even) } else { None }
}

/// Returns the first rows of a file, and for CSV what separates their columns.
fn first_rows(path: &Path, format: CorpusFormat) -> Result<(Option<u8>, Vec<Vec<String>>)> {
    if format != CorpusFormat::Csv && matches!(CsvRows::named_delimiter(path)?, None | Some(b'\t')) {
        return Ok((None, first_tsv_rows(path)?));
    }
    let (delimiter, rows) = CsvRows::first_rows(path)?;
    Ok((Some(delimiter), rows))
}

/// Returns the first rows of a file, up to a blank line in the table; none if its first line is blank.
fn first_tsv_rows(path: &Path) -> Result<Vec<Vec<String>>> {
    let (mut lines, mut line, mut rows) = (LineReader::open(path)?, Vec::new(), Vec::new());
    lines.skip_delimiter_line()?;
    while rows.len() < ROWS_TO_COMPARE && lines.read_line(&mut line)? {
        let text = String::from_utf8_lossy(&line);
        let is_blank = text.trim().is_empty();
        // A title may stand above the table.
        if is_blank && (rows.is_empty() || rows.iter().any(|row: &Vec<String>| row.len() > 1)) {
            break;
        }
        if !is_blank {
            rows.push(text.split('\t').map(str::to_owned).collect());
        }
        line.clear();
    }
    Ok(rows)
}

/// Returns a few rows with each value of a column, from the beginning of a file.
fn rows_of_each(path: &Path, delimiter: Option<u8>, column: usize) -> Result<Vec<Vec<String>>> {
    let (mut rows, mut counts, mut n) = (Vec::new(), HashMap::<String, usize>::new(), 0);
    let mut add = |row: Vec<String>| {
        n += 1;
        let count = counts.entry(row.get(column).cloned().unwrap_or_default()).or_default();
        *count += 1;
        if *count <= ROWS_OF_EACH {
            rows.push(row);
        }
        n < MOST_ROWS
    };

    match delimiter {
        Some(delimiter) => {
            let mut reader = CsvRows::open(path, delimiter)?;
            while let Some(row) = reader.next_row()? {
                if !add(row.cells.iter().map(|cell| String::from_utf8_lossy(cell).into_owned()).collect()) {
                    break;
                }
            }
        }
        None => {
            let (mut lines, mut line) = (LineReader::open(path)?, Vec::new());
            lines.skip_delimiter_line()?;
            while lines.read_line(&mut line)? {
                if !add(String::from_utf8_lossy(&line).split('\t').map(str::to_owned).collect()) {
                    break;
                }
                line.clear();
            }
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use crate::corpus::pairs::{CorpusConfig, PairCorpus};

    #[test]
    fn the_same_names_in_another_order_are_read_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let table = |name: &str, header: [&str; 3], delimiter: &str| {
            let row = |n: usize| header.map(|name| format!("{name} text {n}")).join(delimiter) + "\n";
            let file = folder.path().join(name);
            let rows = format!("{}\n{}", header.join(delimiter), (0..9).map(row).collect::<String>());
            std::fs::write(&file, rows).expect("writable");
            file
        };
        let one = table("a.csv", ["english", "french", "id"], ",");
        let turned = table("b.csv", ["french", "id", "english"], ";");
        let other = table("c.tsv", ["english", "italian", "id"], "\t");
        let refused = |files: [&std::path::PathBuf; 2]| {
            let files = files.map(Clone::clone);
            PairCorpus::open(&files, &CorpusConfig::default()).expect_err("names").to_string()
        };
        for files in [[&one, &turned], [&turned, &one]] {
            let said = refused(files);
            assert!(said.contains("has the same names in another order") && !said.contains("source_column"), "{said}");
        }
        assert!(refused([&one, &other]).contains("has other names"));

        let names = ["english", "french"].map(str::to_owned);
        let [source_field, target_field] = names;
        let config = CorpusConfig { source_field, target_field, ..CorpusConfig::default() };
        let (pairs, _) = PairCorpus::open(&[one, turned], &config).expect("named").read_all().expect("pairs");
        assert!(pairs.iter().all(|pair| pair.source.starts_with("english") && pair.target.starts_with("french")));
    }
}
