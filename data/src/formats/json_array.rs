//! The elements of a JSON array, one after another, without reading the whole array.

use std::path::{Path, PathBuf};

use super::line_reader::LineReader;
use super::python_numbers::without_nan;
use super::{Place, Records};
use crate::error::{Error, Result};

/// A longer element is a sign of a string or a bracket that is not closed. Refusing it bounds the memory.
const MAX_ELEMENT_BYTES: usize = 64 << 20;

/// Reads the elements of an array. It looks for their ends only: whether an element is good JSON, its reader decides.
pub(super) struct JsonArray {
    path: PathBuf,
    bytes: LineReader,
    /// Elements read so far.
    n_read: u64,
    is_over: bool,
}

/// Where in an element a byte is.
#[derive(Default)]
struct Nesting {
    /// Open brackets and braces.
    depth: u32,
    in_string: bool,
    after_backslash: bool,
}

impl Nesting {
    /// Reads a byte. Returns whether it ends the element or separates it from the next one.
    fn ends_with(&mut self, byte: u8) -> bool {
        if self.in_string {
            self.in_string = self.after_backslash || byte != b'"';
            self.after_backslash = byte == b'\\' && !self.after_backslash;
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' if self.depth > 0 => self.depth -= 1,
            b',' | b']' | b'}' => return self.depth == 0,
            _ => {}
        }
        false
    }
}

impl JsonArray {
    /// Reads on behind the bracket that opens the array.
    pub(super) fn new(path: &Path, bytes: LineReader) -> Self {
        Self { path: path.into(), bytes, n_read: 0, is_over: false }
    }

    fn error(&self, found: &str) -> Error {
        Error::corpus(&self.path, format!("is not a JSON array: {found} behind element {}", self.n_read))
    }

    /// Appends an element without the separator behind it, and returns the separator.
    fn read_element(&mut self, json: &mut Vec<u8>) -> Result<u8> {
        let (start, mut nesting) = (json.len(), Nesting::default());
        loop {
            let mut separator = None;
            let (path, n_read) = (&self.path, self.n_read);
            let n_taken = self.bytes.with_buffer(|buffer| {
                let end = buffer.iter().position(|byte| nesting.ends_with(*byte));
                separator = end.map(|at| buffer[at]);
                json.extend_from_slice(&buffer[..end.unwrap_or(buffer.len())]);
                end.map_or(buffer.len(), |at| at + 1)
            })?;

            if json.len() - start > MAX_ELEMENT_BYTES {
                let found = format!("element {} is longer than 64 MiB: a quote or a bracket is not closed", n_read + 1);
                return Err(Error::corpus(path, found));
            }
            match separator {
                Some(separator) => return Ok(separator),
                None if n_taken == 0 => return Err(self.error("the file ends without the bracket that closes it,")),
                None => {}
            }
        }
    }
}

impl Records for JsonArray {
    fn next(&mut self, json: &mut Vec<u8>) -> Result<Option<Place>> {
        if self.is_over {
            return Ok(None);
        }
        if self.n_read == 0 {
            // The bracket that opens the array.
            self.bytes.skip_blank()?;
            self.bytes.with_buffer(|_| 1)?;
        }

        self.bytes.skip_blank()?;
        let start = json.len();
        let separator = self.read_element(json)?;
        without_nan(json, start);
        self.is_over = separator == b']';
        let is_empty = json[start..].trim_ascii().is_empty();
        match separator {
            b']' if is_empty && self.n_read == 0 => return Ok(None),
            b',' | b']' if !is_empty => {}
            _ => return Err(self.error("an element is missing, or a bracket is wrong,")),
        }
        if self.is_over {
            self.bytes.skip_blank()?;
        }
        if self.is_over && self.bytes.first_byte()?.is_some() {
            return Err(self.error("there is more text after the bracket that closes it,"));
        }
        self.n_read += 1;
        Ok(Some(Place::at(self.n_read)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{FileFormat, Wanted};

    /// Reads a file to its end or to the first error.
    fn read(text: &str) -> (Vec<String>, Option<String>) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.json");
        fs::write(&path, text).expect("writable");
        let mut records = FileFormat::JSON.open(&path, &Wanted::all()).expect("text");
        let (mut found, mut json) = (Vec::new(), Vec::new());
        loop {
            match records.next(&mut json) {
                Ok(None) => return (found, None),
                Err(error) => return (found, Some(error.to_string())),
                Ok(Some(place)) => assert_eq!((place.line, place.problem), (found.len() as u64 + 1, None)),
            }
            found.push(String::from_utf8(std::mem::take(&mut json)).expect("text"));
        }
    }

    #[test]
    fn elements_are_divided_wherever_brackets_and_quotes_lie() {
        let elements =
            [r#"{"a": "x, ] } \" \\"}"#, r#"{"b": [1, {"c": "]"}]}"#, "7", r#""\\""#, "[]", "{\n  \"d\": 1\n}"];
        for separator in [",", ",\n", " , "] {
            let text = format!(" \n[{}\n]\n", elements.join(separator));
            let (found, error) = read(&text);
            assert_eq!(error, None);
            assert_eq!(found.iter().map(|json| json.trim()).collect::<Vec<_>>(), elements);
        }
        assert_eq!(read("[]"), (Vec::new(), None));
        assert_eq!(read("[ \n ]").0, Vec::<String>::new());
    }

    #[test]
    fn damage_is_named_with_the_element() {
        for (text, n_found, wanted) in [
            ("[{\"a\": 1}, {\"b\": ", 1, "the file ends without the bracket that closes it, behind element 1"),
            ("[{\"a\": \"1}, {}]", 0, "behind element 0"),
            ("[1, 2", 1, "behind element 1"),
            ("[1,, 2]", 1, "an element is missing, or a bracket is wrong, behind element 1"),
            ("[1, 2}", 1, "a bracket is wrong"),
            ("[1, ]", 1, "an element is missing"),
            ("[1] [2]", 0, "more text after the bracket"),
            ("[", 0, "the file ends"),
        ] {
            let (found, error) = read(text);
            let error = error.unwrap_or_else(|| panic!("{text}: no error"));
            assert!(found.len() == n_found && error.contains(wanted), "{text}: {found:?} {error}");
        }
    }

    #[test]
    fn lines_stay_lines() {
        let (found, error) = read("{\"a\": 1}\n\n[1]\n");
        assert_eq!((found.as_slice(), error), (&["{\"a\": 1}".to_owned(), String::new(), "[1]".into()][..], None));
    }
}
