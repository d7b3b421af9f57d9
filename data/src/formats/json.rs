//! JSON: one object per line, or one array of objects (`.json`).

use std::path::Path;

use super::json_array::JsonArray;
use super::line_reader::LineReader;
use super::{Format, Place, Records, Wanted, ending};
use crate::error::Result;

/// JSON Lines. A file `.json` may be an array.
pub(super) const JSON: Format =
    Format { name: "jsonl", endings: &["jsonl", "ndjson", "json"], is_binary: false, is_all_text: false, open };

fn open(path: &Path, _: &Wanted) -> Result<Box<dyn Records>> {
    let mut lines = LineReader::open(path)?;
    if ending(path) == "json" && lines.first_byte()? == Some(b'[') {
        return Ok(Box::new(JsonArray::new(path, lines)));
    }
    Ok(Box::new(Lines(lines)))
}

struct Lines(LineReader);

impl Records for Lines {
    fn next(&mut self, json: &mut Vec<u8>) -> Result<Option<Place>> {
        let offset = self.0.offset;
        let is_there = self.0.read_line(json)?;
        Ok(is_there.then(|| Place { offset, ..Place::at(self.0.line) }))
    }
}
