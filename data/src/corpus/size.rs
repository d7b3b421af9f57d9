//! The size of a data set, counted without parsing it: enough to choose a model by.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::pairs::Table;
use super::path::value_at;
use super::text::files_below;
use crate::error::Result;
use crate::formats::{CsvRows, FileFormat, LineReader, Split, Wanted, find_files};

/// Counts the rows with text in files of pairs, without rows that name columns. Of two parallel files (`news.en,news.it`), the first
/// counts. Stops at `enough`.
///
/// # Errors
///
/// If a file cannot be read.
pub fn count_pairs(entries: &[PathBuf], enough: u64) -> Result<u64> {
    let first = |entry: &PathBuf| match entry.to_string_lossy().split_once(',') {
        Some((source, _)) if !entry.exists() => source.trim().into(),
        _ => entry.clone(),
    };
    let files: Vec<PathBuf> = find_files(entries, Split::Train, false)?.iter().map(first).collect();
    let names = files.iter().filter(|file| Table::begins_with_names(file)).count() as u64;
    let enough = enough + names;

    let (tables, others): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|file| FileFormat::by_name(file) == Some(FileFormat::CSV));
    let mut total = 0;
    for table in &tables {
        // A cell may have several lines.
        let (delimiter, _) = CsvRows::first_rows(table)?;
        let mut rows = CsvRows::open(table, delimiter)?;
        while total < enough && rows.next_row()?.is_some() {
            total += 1;
        }
    }
    let has_text = |line: &[u8]| u64::from(!line.trim_ascii().is_empty());
    total += count(&others, enough - total, (&Wanted::only([]), &[]), |_| 1, has_text)?;
    Ok(total.saturating_sub(names))
}

/// Counts the words, divided by white space, in files and folders of plain text, and in the texts of records. Tags of CoNLL files are not
/// words. Stops at `enough`.
///
/// # Errors
///
/// If a file or folder cannot be read.
pub fn count_words(entries: &[PathBuf], enough: u64) -> Result<u64> {
    count_words_in(entries, &[], enough)
}

/// Does the same, and counts these `fields` alone in records that have one of them.
///
/// # Errors
///
/// As [`count_words`].
pub fn count_words_in(entries: &[PathBuf], fields: &[String], enough: u64) -> Result<u64> {
    let mut files = Vec::new();
    find_files(entries, Split::Train, true)?.iter().try_for_each(|entry| files_below(entry, &mut files))?;
    let (tagged, others): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|file| FileFormat::by_name(file).is_some_and(FileFormat::has_tags));

    let n_tagged = count(&tagged, enough, (&Wanted::all(), &[]), |_| 0, |line| words(line).min(1))?;
    let in_record = |record: &[u8]| {
        let Ok(Value::Object(row)) = serde_json::from_slice(record) else { return words(record) };
        let named: Vec<&Value> = fields.iter().filter_map(|field| value_at(&row, field)).collect();
        let all = || row.values().map(words_of).sum();
        if named.is_empty() { all() } else { named.into_iter().map(words_of).sum() }
    };
    Ok(n_tagged + count(&others, enough - n_tagged, (&Wanted::all(), fields), in_record, words)?)
}

/// Counts the words of a line.
fn words(line: &[u8]) -> u64 {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).count() as u64
}

/// Counts the words of all texts in a value.
fn words_of(value: &Value) -> u64 {
    match value {
        Value::String(text) => words(text.as_bytes()),
        Value::Array(list) => list.iter().map(words_of).sum(),
        Value::Object(fields) => fields.values().map(words_of).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// Counts in the `wanted` fields of records, in tables with one of the `columns`, and in the lines of other files.
fn count(
    files: &[impl AsRef<Path>],
    enough: u64,
    (wanted, columns): (&Wanted, &[String]),
    in_record: impl Fn(&[u8]) -> u64,
    in_line: impl Fn(&[u8]) -> u64,
) -> Result<u64> {
    let (mut total, mut line) = (0, Vec::new());
    for file in files {
        let path = file.as_ref();
        let records = match FileFormat::by_name(path) {
            Some(format) if format.is_binary() || format == FileFormat::JSON => Some(format.open(path, wanted)?),
            // A table without these columns is counted as it stands.
            Some(format) if !columns.is_empty() => format.open(path, &Wanted::only(columns.iter().cloned())).ok(),
            _ => None,
        };
        if let Some(mut records) = records {
            while total < enough && records.next(&mut line)?.is_some() {
                // A blank line is not a record.
                total += if line.trim_ascii().is_empty() { 0 } else { in_record(&line) };
                line.clear();
            }
            continue;
        }

        let mut lines = LineReader::open(path)?;
        if FileFormat::by_name(path).is_some() {
            lines.skip_delimiter_line()?; // of a table
        }
        while total < enough && lines.read_line(&mut line)? {
            total += in_line(&line);
            line.clear();
        }
    }
    Ok(total.min(enough))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn pairs_and_words_are_counted_up_to_a_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("a.en"), "one\n\ntwo words\nthree more words\n").expect("writable");
        fs::write(path("a.it"), "uno\n").expect("writable");
        let parallel = PathBuf::from(format!("{},{}", path("a.en").display(), path("a.it").display()));
        assert_eq!(count_pairs(&[parallel], 10).expect("readable"), 3);
        assert_eq!(count_pairs(&[path("a.en"), path("a.it")], 10).expect("readable"), 4);
        assert_eq!(count_pairs(&[path("a.en"), path("a.it")], 2).expect("readable"), 2);

        let rows = "abate\tAH0 B EY1 T\n".repeat(9);
        fs::write(path("named.tsv"), format!("word\tpronunciation\n{rows}")).expect("writable");
        assert_eq!(count_pairs(&[path("named.tsv")], 100).expect("readable"), 9, "names of columns");
        assert_eq!(count_pairs(&[path("named.tsv")], 5).expect("readable"), 5);
        fs::remove_file(path("named.tsv")).expect("there");
        assert_eq!(count_words(&[folder.path().into()], 100).expect("readable"), 7);
        assert_eq!(count_words(&[folder.path().into()], 5).expect("readable"), 5);
        fs::write(path("a.conll"), "A\tB-LOC\ntown\tO\n\nIt\tO\n").expect("writable");
        assert_eq!(count_words(&[path("a.conll"), path("a.en")], 100).expect("readable"), 9, "tags are not words");
        assert_eq!(count_words(&[path("a.conll"), path("a.en")], 2).expect("readable"), 2);
        fs::write(path("lines.csv"), "src,trg\n\"one\ntwo\n\nthree\",a\nfour,b\n").expect("writable");
        assert_eq!(count_pairs(&[path("lines.csv")], 100).expect("readable"), 2, "cells of several lines");
        assert_eq!(count_pairs(&[path("lines.csv")], 1).expect("readable"), 1);
        let nested = "[\n {\"id\": 1,\n  \"in\": {\"title\": \"two words\", \"tags\": [\"x\"]}}, {\"id\": 2}]";
        fs::write(path("nested.json"), nested).expect("writable");
        assert_eq!(count_words(&[path("nested.json")], 100).expect("readable"), 3, "neither names nor numbers");
        let title = ["in.title".to_owned(), "text".to_owned()];
        assert_eq!(count_words_in(&[path("nested.json")], &title, 100).expect("readable"), 2);
        fs::write(path("t.csv"), "id,text,label\n1,\"two\nwords\",x\n2,three,x\n").expect("writable");
        assert_eq!(count_words_in(&[path("t.csv")], &title, 100).expect("readable"), 3, "one column");
        fs::write(path("c.json"), "[{\"a\": 1}, {\"a\": 2}, {}]").expect("writable");
        assert_eq!(count_pairs(&[path("c.json")], 10).expect("readable"), 3);
        if cfg!(feature = "arrow") {
            for name in ["rows.parquet", "rows.arrow"] {
                let table = Path::new("testdata").join(name);
                assert_eq!(count_pairs(std::slice::from_ref(&table), 10).expect("readable"), 6, "{name}");
                assert!(count_words(&[table], 1000).expect("readable") > 60, "{name}");
            }
        }
        assert!(count_pairs(&[path("b.tsv")], 10).is_err() && count_words(&[path("b.txt")], 10).is_err());
    }
}
