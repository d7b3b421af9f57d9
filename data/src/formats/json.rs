//! JSON: one object per line, or one array of objects (`.json`).

use std::path::Path;

use super::json_array::JsonArray;
use super::line_reader::LineReader;
use super::python_numbers::without_nan;
use super::{Format, Place, Records, Wanted, ending};
use crate::error::Result;

/// JSON Lines. A file `.json` may be an array.
pub(super) const JSON: Format =
    Format { name: "jsonl", endings: &["jsonl", "ndjson", "json"], is_binary: false, is_all_text: false, open };

fn open(path: &Path, _: &Wanted) -> Result<Box<dyn Records>> {
    let mut lines = LineReader::open(path)?;
    if is_array(path, &mut lines)? {
        return Ok(Box::new(JsonArray::new(path, lines)));
    }
    Ok(Box::new(Lines(lines)))
}

fn is_array(path: &Path, lines: &mut LineReader) -> Result<bool> {
    Ok(ending(path) == "json" && lines.first_byte()? == Some(b'['))
}

/// Whether a file of JSON has a record per line.
///
/// # Errors
///
/// If it cannot be read.
pub(crate) fn is_json_lines(path: &Path) -> Result<bool> {
    Ok(!is_array(path, &mut LineReader::open(path)?)?)
}

/// Opens JSON Lines behind the first `offset` bytes, which have `lines` lines.
pub(super) fn lines_at(path: &Path, offset: u64, lines: u64) -> Result<Box<dyn Records>> {
    Ok(Box::new(Lines(LineReader::open_at(path, offset, lines)?)))
}

struct Lines(LineReader);

impl Records for Lines {
    fn next(&mut self, json: &mut Vec<u8>) -> Result<Option<Place>> {
        let (offset, start) = (self.0.offset, json.len());
        let is_there = self.0.read_line(json)?;
        without_nan(json, start);
        Ok(is_there.then(|| Place { offset, ..Place::at(self.0.line) }))
    }
}
