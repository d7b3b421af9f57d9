//! Lines above a table that do not belong to it: comments and titles.

use std::path::Path;

use super::messages::quoted;
use crate::corpus::jq::{fed, piped};
use crate::error::{Error, Result};
use crate::formats::{CsvRows, LineReader};

/// The most rows of a header.
const MOST_HEADERS: usize = 4;
/// Most lines above a table.
const MOST_LINES: usize = 50;

/// Returns how many of the first `rows` stand above the table: comments that begin with `#`, rows of one cell above wider rows, and rows of
/// few cells above a header.
pub(in crate::corpus) fn rows_above(rows: &[Vec<String>]) -> usize {
    let width = rows.iter().map(Vec::len).max().unwrap_or(0);
    let is_above = |row: &Vec<String>| {
        let n_filled = row.iter().filter(|cell| !cell.trim().is_empty()).count();
        let is_comment = row.first().is_some_and(|cell| cell.trim_start().starts_with('#'));
        n_filled <= 1 || is_comment && row.len() < width
    };
    let Some(at) = rows.iter().position(|row| !is_above(row)) else { return 0 };
    let n_wide = rows[at..].iter().filter(|row| row.len() > 1).count();
    if 2 * n_wide <= rows.len() - at {
        return 0;
    }
    if at > 0 { at } else { titles_above(rows) }
}

/// Returns how many rows with names and their values, such as `Account;12 34`, stand above the header of a table that is wider.
fn titles_above(rows: &[Vec<String>]) -> usize {
    let n_filled = |row: &[String]| row.iter().filter(|cell| !cell.trim().is_empty()).count();
    let width = n_filled(rows.iter().max_by_key(|row| n_filled(row)).map_or(&[], Vec::as_slice));
    let is_title = |row: &Vec<String>| width > 3 && 2 * n_filled(row) <= width;
    let at = rows.iter().position(|row| !is_title(row)).unwrap_or(0);
    // A header fills its cells with words, and the rows below are as wide.
    let has_digit = |cell: &String| cell.contains(|c: char| c.is_ascii_digit());
    let is_header = rows.get(at).is_some_and(|row| n_filled(row) == row.len() && !row.iter().any(has_digit));
    let below = rows.get(at + 1..).unwrap_or_default();
    let n_wide = below.iter().filter(|row| !is_title(row)).count();
    let differ = below.iter().any(|row| row.iter().any(has_digit));
    if is_header && differ && !below.is_empty() && 2 * n_wide > below.len() { at } else { 0 }
}

/// Refuses a survey of Qualtrics, whose header has the questions and ids of the columns in two further rows.
///
/// # Errors
///
/// If one of the first `rows` has these ids.
pub(in crate::corpus) fn refuse_further_headers(path: &Path, rows: &[Vec<String>]) -> Result<()> {
    let has_ids = |row: &Vec<String>| row.iter().any(|cell| cell.trim_start().starts_with("{\"ImportId\""));
    let Some(at) = rows.iter().take(MOST_HEADERS).position(has_ids) else { return Ok(()) };
    let script = format!(
        "python3 -c 'import csv, sys; [csv.writer(sys.stdout).writerow(row) for n, row in enumerate(csv.reader(open(0, encoding=\"utf-8-sig\", \
         newline=\"\"){})) if not 0 < n <= {at}]'",
        CsvRows::options_of_python(path)
    );
    Err(Error::corpus(
        path,
        format!(
            "its first {} rows are the names, questions and ids of the columns, as Qualtrics writes them\n  to keep the names alone: {} > \
             answers.csv\n  and read answers.csv",
            at + 1,
            fed(path, &script)
        ),
    ))
}

/// Refuses a table with lines above its first row, and says how to leave them out.
pub(in crate::corpus) fn refuse(path: &Path, rows: &[Vec<String>], n_above: usize) -> Error {
    let names: Vec<&str> = rows[n_above].iter().map(|name| name.trim()).collect();
    let above: Vec<&str> = rows[..n_above]
        .iter()
        .filter_map(|row| row.iter().map(|cell| cell.trim()).find(|cell| !cell.is_empty()))
        .collect();
    let first = line_of(path, &names).map_or_else(|| "N".to_owned(), |line| line.to_string());
    let ending = if crate::formats::ending(path) == "tsv" { "tsv" } else { "csv" };
    let command = piped(path, &format!("tail -n +{first}"));
    Error::corpus(
        path,
        format!(
            "comments or a title ({}) stand above the table, whose first row is {}\n  to leave them out: {command} > table.{ending}",
            quoted(&above),
            quoted(&names)
        ),
    )
}

/// Returns the number of the line that has all `names`.
fn line_of(path: &Path, names: &[&str]) -> Option<usize> {
    let (mut lines, mut line) = (LineReader::open(path).ok()?, Vec::new());
    for number in 1..=MOST_LINES {
        line.clear();
        if !lines.read_line(&mut line).ok()? {
            return None;
        }
        let text = String::from_utf8_lossy(&line).replace("\"\"", "\"");
        if names.iter().all(|name| text.contains(name)) {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::corpus::pairs::{CorpusConfig, Header, PairCorpus};

    fn open(name: &str, text: &str, config: &CorpusConfig) -> std::result::Result<Vec<String>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(name);
        fs::write(&file, text).expect("writable");
        PairCorpus::open(&[file], config).map(|corpus| corpus.notes()).map_err(|error| error.to_string())
    }

    fn table(above: &str, header: &str, delimiter: &str) -> String {
        let row = |n: usize| format!("{n}{delimiter}Good morning {n}{delimiter}noun{delimiter}Buongiorno {n}\n");
        format!("{above}{}\n{}", header.replace('\t', delimiter), (0..9).map(row).collect::<String>())
    }

    #[test]
    fn lines_above_a_header_do_not_hide_it() {
        let header = "Number\tEnglish\tKind\tItaliano";
        let named =
            CorpusConfig { source_field: "English".into(), target_field: "Italiano".into(), ..CorpusConfig::default() };
        let yes = CorpusConfig { header: Header::Yes, ..CorpusConfig::default() };
        for (name, above, delimiter, line) in [
            ("a.tsv", "# Glossary, exported today\n", "\t", 2),
            ("a.tsv", "#one\n# two\n\n", "\t", 4),
            ("a.tsv", "Glossary of terms\n", "\t", 2),
            ("a.csv", "Glossary of terms\n\n", ",", 3),
            ("a.csv", "Glossary of terms,,,\n", ",", 2),
            ("a.csv", "# a comment, with a comma\n", ";", 2),
            ("a.csv", "Account;12 34\nPeriod;01.01.2024 - 31.12.2024\n\n", ";", 4),
            ("a.csv", "Account,12 34,,\n", ",", 2),
        ] {
            let text = table(above, header, delimiter);
            for config in [&CorpusConfig::default(), &named, &yes] {
                let found = open(name, &text, config).expect_err("lines above");
                let command = format!("tail -n +{line} ");
                assert!(found.contains("stand above the table") && found.contains(&command), "{above}: {found}");
                assert!(found.contains("\"Number\", \"English\""), "{found}");
            }
        }
    }

    #[test]
    fn a_table_without_names_is_read_as_before_and_its_width_is_said() {
        let pairs = table("# a comment\n", "0\tHow are you?\tnoun\tCome stai?", "\t");
        let notes = open("a.tsv", &pairs, &CorpusConfig::default()).expect("pairs");
        assert!(notes.iter().any(|note| note.contains("has 4 columns")), "{notes:?}");
        let row =
            |n: usize| format!("{}\t{}\t{}\tThe dog {n} barks.\tA dog barks {n} times.\n", n % 2, 1000 + n, 2000 + n);
        let marked = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n".to_owned() + &(0..60).map(row).collect::<String>();
        let asked = open("a.tsv", &marked, &CorpusConfig::default()).expect_err("names above numbers");
        assert!(asked.contains("looks like a header") && asked.contains("source_field=#1 String"), "{asked}");
        let two = "Hello\t\nGood morning.\tBuongiorno.\nThanks.\tGrazie.\n";
        assert_eq!(open("a.tsv", two, &CorpusConfig::default()), Ok(Vec::new()), "a pair with one side");
        assert_eq!(rows_above(&[vec!["#id".into(), "en".into()], vec!["1".into(), "a".into()]]), 0);
    }
}
