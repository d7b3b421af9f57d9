//! Files that Kiln has written from rows of other files, such as the two parts of `data.split`: which row is where.
//!
//! A list lies next to such a file. Its first line names the files that the rows come from, and line n + 1 says where row n was.

use std::path::{Path, PathBuf};

use crate::formats::LineReader;

/// Stands behind the name of a file in the name of its list.
const ENDING: &str = "origins";

/// Where rows come from: a file of several, and a line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins {
    files: Vec<PathBuf>,
    /// The number of the file, and the line, counted from 1.
    places: Vec<(usize, u64)>,
}

impl Origins {
    /// Adds the place of a row. The rows of a file follow each other.
    pub fn push(&mut self, file: &Path, line: u64) {
        if self.files.last().is_none_or(|last| last != file) {
            self.files.push(file.into());
        }
        self.places.push((self.files.len() - 1, line));
    }

    /// Returns the list of the `rows`, by their numbers from 0.
    ///
    /// # Panics
    ///
    /// If there is none of these numbers.
    pub fn list(&self, rows: impl Iterator<Item = usize>) -> String {
        let files = serde_json::to_string(&self.files.iter().map(|file| file.to_string_lossy()).collect::<Vec<_>>());
        let place = |row: usize| format!("{} {}\n", self.places[row].0, self.places[row].1);
        files.expect("texts") + "\n" + &rows.map(place).collect::<String>()
    }

    /// Returns where the list of `file` lies.
    pub fn path_of(file: &Path) -> PathBuf {
        let mut name = file.as_os_str().to_owned();
        name.push(".");
        name.push(ENDING);
        name.into()
    }
}

/// Names a place as a user knows it: where the row was that Kiln has copied there.
pub(super) fn place(file: &Path, line: u64) -> String {
    let (file, line) = origin(file, line).unwrap_or_else(|| (file.display().to_string(), line));
    format!("{file}:{line}")
}

/// Names files as a user knows them: those that the rows were in that Kiln has copied there.
pub(super) fn names<'a>(files: impl IntoIterator<Item = &'a Path>) -> Vec<String> {
    let of = |file: &Path| open(file).map_or_else(|| vec![file.display().to_string()], |(files, _)| files);
    files.into_iter().flat_map(of).collect()
}

fn origin(file: &Path, line: u64) -> Option<(String, u64)> {
    let (files, mut lines) = open(file)?;
    let mut text = Vec::new();
    for _ in 0..line {
        text.clear();
        lines.read_line(&mut text).ok().filter(|found| *found)?;
    }
    let (file, line) = std::str::from_utf8(&text).ok()?.split_once(' ')?;
    Some((files.get(file.parse::<usize>().ok()?)?.clone(), line.parse().ok()?))
}

/// Opens the list of `file` behind its first line, if there is one, and returns the files that it names.
fn open(file: &Path) -> Option<(Vec<String>, LineReader)> {
    let path = Origins::path_of(file);
    if !path.is_file() {
        return None;
    }
    let (mut lines, mut first) = (LineReader::open(&path).ok()?, Vec::new());
    lines.read_line(&mut first).ok()?;
    Some((serde_json::from_slice(&first).ok()?, lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copied_row_is_named_where_it_was_and_others_where_they_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let copy = folder.path().join("part.jsonl");
        let mut origins = Origins::default();
        for (file, line) in [("a.csv", 2), ("a.csv", 5), ("b c.csv", 2)] {
            origins.push(Path::new(file), line);
        }
        assert_eq!(place(&copy, 1), format!("{}:1", copy.display()));
        std::fs::write(Origins::path_of(&copy), origins.list([1, 2].into_iter())).expect("writable");
        assert_eq!([place(&copy, 1), place(&copy, 2)], ["a.csv:5", "b c.csv:2"]);
        assert_eq!(place(&copy, 3), format!("{}:3", copy.display()), "no such row");
        assert_eq!(names([copy.as_path(), Path::new("d.csv")]), ["a.csv", "b c.csv", "d.csv"]);
    }
}
