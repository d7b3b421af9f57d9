//! The size of a data set, counted without parsing it: enough to choose a model by.

use std::path::{Path, PathBuf};

use super::pairs::Table;
use super::text::files_below;
use crate::error::Result;
use crate::formats::{FileFormat, LineReader, Split, Wanted, find_files};

/// Counts the lines with text in files of pairs, without rows that name columns. Of two parallel files (`news.en,news.it`), the first
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
    let lines = count(&files, enough + names, &Wanted::only([]), |line| u64::from(!line.trim_ascii().is_empty()))?;
    Ok(lines.saturating_sub(names))
}

/// Counts the words, divided by white space, in files and folders of plain text. Tags of CoNLL files are not words. Stops at `enough`.
///
/// # Errors
///
/// If a file or folder cannot be read.
pub fn count_words(entries: &[PathBuf], enough: u64) -> Result<u64> {
    let mut files = Vec::new();
    find_files(entries, Split::Train, true)?.iter().try_for_each(|entry| files_below(entry, &mut files))?;
    let words = |line: &[u8]| line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).count() as u64;
    let (tagged, others): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|file| FileFormat::by_name(file).is_some_and(FileFormat::has_tags));
    let n_tagged = count(&tagged, enough, &Wanted::all(), |line| words(line).min(1))?;
    Ok(n_tagged + count(&others, enough - n_tagged, &Wanted::all(), words)?)
}

/// Counts in the `wanted` fields of records, and in the lines of other files.
fn count(files: &[impl AsRef<Path>], enough: u64, wanted: &Wanted, in_line: impl Fn(&[u8]) -> u64) -> Result<u64> {
    let (mut total, mut line) = (0, Vec::new());
    for file in files {
        let has_records = |format: &FileFormat| format.is_binary() || *format == FileFormat::JSON;
        if let Some(format) = FileFormat::by_name(file.as_ref()).filter(has_records) {
            let mut records = format.open(file.as_ref(), wanted)?;
            while total < enough && records.next(&mut line)?.is_some() {
                total += in_line(&line);
                line.clear();
            }
            continue;
        }
        let mut lines = LineReader::open(file.as_ref())?;
        if FileFormat::by_name(file.as_ref()).is_some() {
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
