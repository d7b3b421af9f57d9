//! Files as records: the first of two layers between a file and the rows of a task.
//!
//! ```text
//! file -compressed-> bytes -Format-> records, each a JSON object -corpus-> rows of a task
//! ```
//!
//! A [`Format`] turns the bytes of a file into records. Each is the text of one JSON object, which every task of
//! [`crate::corpus`] reads: so each format serves each task. A new format is one file in this folder and a line of [`FORMATS`].

#[cfg(feature = "arrow")]
mod arrow;
mod binary;
mod cell_list;
#[cfg(feature = "arrow")]
mod columns;
mod compressed;
mod conll;
mod conll_lines;
mod csv_rows;
#[cfg(all(test, feature = "arrow"))]
mod damage;
mod delimiter;
mod encoding;
mod entries;
mod json;
mod json_array;
mod line_ends;
mod line_reader;
#[cfg(not(feature = "arrow"))]
mod needs_arrow;
#[cfg(feature = "arrow")]
mod parquet;
mod problem;
mod python_numbers;
mod row_text;
mod table;
mod table_shape;
#[cfg(feature = "arrow")]
mod thrift;

#[cfg(not(feature = "arrow"))]
use self::needs_arrow as arrow;
#[cfg(not(feature = "arrow"))]
use self::needs_arrow as parquet;

use std::fmt;
use std::path::Path;

pub(crate) use binary::OUT_OF_FOLDER;
pub(crate) use cell_list::words_of_cell;
pub(crate) use compressed::is_plain;
pub use conll_lines::{WordColumns, WordForm, is_conll};
pub(crate) use csv_rows::{CsvRow, CsvRows};
pub(crate) use delimiter::ROWS_TO_COMPARE;
pub use delimiter::delimiter_of;
pub use encoding::way_to_utf8;
pub(crate) use encoding::{is_western_file, way_of_lossy};
pub use entries::{Split, find_files};
pub(crate) use entries::{TEST, TRAIN, VALID};
pub(crate) use json::is_json_lines;
pub(crate) use line_ends::with_one_line_end;
pub(crate) use line_reader::LineReader;
pub(crate) use problem::{OPEN_QUOTE, RowProblem};
pub(crate) use table::Width;

use self::line_ends::OneLineEnd;
use crate::error::Result;

/// All formats. Those without a line here are the ones that only one task has: parallel files, and documents of plain text.
const FORMATS: [&Format; 7] = [&json::JSON, &table::CSV, &table::TSV, &conll::CONLL, &conll::CONLLU, &PARQUET, &ARROW];

/// Parquet tables. Reading them needs a feature; knowing them does not.
const PARQUET: Format =
    Format { name: "parquet", endings: &["parquet"], is_binary: true, is_all_text: false, open: parquet::open };
/// Arrow tables.
const ARROW: Format =
    Format { name: "arrow", endings: &["arrow", "feather"], is_binary: true, is_all_text: false, open: arrow::open };

/// How the bytes of a file become records.
pub(crate) struct Format {
    /// Stands in fingerprints and messages.
    name: &'static str,
    /// Endings of names of such files, in lower case.
    endings: &'static [&'static str],
    /// Whether such files are not text.
    is_binary: bool,
    /// Whether such files have texts alone, so that a number is a text, too.
    is_all_text: bool,
    /// Opens a file. Reads the fields that are wanted of each record, and others where that costs nothing. Fails if the file cannot be
    /// read, or is not of this format.
    open: fn(&Path, &Wanted) -> Result<Box<dyn Records>>,
}

/// The records of a file, in order.
pub(crate) trait Records: Send {
    /// Appends the next record to `json`: one JSON object. Returns where it is, or `None` at the end of the file, also when called again.
    ///
    /// # Errors
    ///
    /// If the file cannot be read further.
    fn next(&mut self, json: &mut Vec<u8>) -> Result<Option<Place>>;
}

/// Where a record is in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Number of its first line, or of the record where a file has no lines. Counted from 1.
    pub(crate) line: u64,
    /// Its byte offset in the decompressed file, as far as the format knows it.
    pub(crate) offset: u64,
    /// Why the record cannot be used.
    pub(crate) problem: Option<RowProblem>,
}

impl Place {
    /// Returns the place of a usable record.
    pub(crate) fn at(line: u64) -> Self {
        Self { line, offset: 0, problem: None }
    }
}

/// The fields that a task reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Names of fields of each record, perhaps with the path to a nested one. `None` wants all fields.
    pub(crate) fields: Option<Vec<String>>,
    /// Those among `fields` that records may lack.
    pub(crate) optional: Vec<String>,
    /// Those among `fields` that hold lists of words.
    pub(crate) lists: Vec<String>,
}

impl Wanted {
    /// Wants every field.
    pub(crate) fn all() -> Self {
        Self::default()
    }

    /// Wants some fields, all of which records must have.
    pub(crate) fn only(fields: impl IntoIterator<Item = String>) -> Self {
        Self { fields: Some(fields.into_iter().collect()), ..Self::default() }
    }

    /// Returns which of the columns called `names` hold the wanted fields. Returns all if a field is missing, so that the problem of the
    /// row can name what there is.
    #[cfg_attr(not(feature = "arrow"), allow(dead_code, reason = "the other formats read whole records"))]
    pub(crate) fn columns(&self, names: &[&str]) -> Vec<usize> {
        let all = || (0..names.len()).collect();
        let Some(fields) = &self.fields else { return all() };
        // A field has the name of a column, or a path to it begins with that name.
        let leads = |name: &str, field: &str| {
            field.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let is_missing =
            |field: &&String| !names.iter().any(|name| leads(name, field)) && !self.optional.contains(field);
        match fields.iter().find(is_missing) {
            Some(_) => all(),
            None => (0..names.len()).filter(|at| fields.iter().any(|field| leads(names[*at], field))).collect(),
        }
    }
}

/// One of the formats.
#[derive(Clone, Copy)]
pub struct FileFormat(&'static Format);

impl FileFormat {
    /// JSON Lines, or a JSON array.
    pub(crate) const JSON: Self = Self(&json::JSON);
    /// CSV with a header.
    pub(crate) const CSV: Self = Self(&table::CSV);
    /// TSV with a header.
    pub(crate) const TSV: Self = Self(&table::TSV);

    /// Finds the format of a file by its name, without the endings of compressed files.
    pub fn by_name(path: &Path) -> Option<Self> {
        let ending = ending(path);
        FORMATS.into_iter().find(|format| format.endings.contains(&ending.as_str())).map(Self)
    }

    /// Returns its name in fingerprints and messages.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Whether such files are not text.
    pub(crate) fn is_binary(self) -> bool {
        self.0.is_binary
    }

    /// Whether such files have texts alone, so that a number is a text, too.
    pub(crate) fn is_all_text(self) -> bool {
        self.0.is_all_text
    }

    /// Whether its records are sentences whose words have tags.
    pub(crate) fn has_tags(self) -> bool {
        [conll::CONLL.name, conll::CONLLU.name].contains(&self.name())
    }

    /// Opens a file of this format: each line end within a text is `\n`.
    pub(crate) fn open(self, path: &Path, wanted: &Wanted) -> Result<Box<dyn Records>> {
        Ok(Box::new(OneLineEnd((self.0.open)(path, wanted)?)))
    }
}

impl fmt::Debug for FileFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl PartialEq for FileFormat {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for FileFormat {}

/// Opens JSON Lines behind the first `offset` bytes, which have `lines` lines.
///
/// # Errors
///
/// If the file cannot be read.
pub(crate) fn json_lines_at(path: &Path, offset: u64, lines: u64) -> Result<Box<dyn Records>> {
    Ok(Box::new(OneLineEnd(json::lines_at(path, offset, lines)?)))
}

/// Returns the ending of a name in lower case, without the endings of compressed files.
pub(crate) fn ending(path: &Path) -> String {
    let name = path.to_string_lossy().to_ascii_lowercase();
    let stem = compressed::without_endings(&name);
    Path::new(stem).extension().map(|ending| ending.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Appends `text` to `json` as a JSON string.
pub(crate) fn write_string(json: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(json, text).expect("memory");
}

/// Returns the records of a file in the format that its name says, else in JSON: each is one line of JSON, with its line in the file. A
/// record that cannot be used becomes an object without fields, so that whoever reads it counts it.
///
/// # Errors
///
/// If the file cannot be read in its format.
pub fn records_of(path: &Path) -> Result<Vec<(u64, String)>> {
    let mut records = FileFormat::by_name(path).unwrap_or(FileFormat::JSON).open(path, &Wanted::all())?;
    let (mut rows, mut json) = (Vec::new(), Vec::new());
    while let Some(place) = records.next(&mut json)? {
        let parsed = serde_json::from_slice::<serde_json::Value>(&json);
        let row = match (place.problem, parsed) {
            (None, Ok(row)) => row.to_string(),
            _ => "{}".to_owned(),
        };
        rows.push((place.line, row));
        json.clear();
    }
    Ok(rows)
}
