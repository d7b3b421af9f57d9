//! Windows line ends within the strings of records, which are one line end each.

use std::borrow::Cow;

use super::{Place, Records};
use crate::error::Result;

/// Records whose strings have `\n` for each `\r\n`. A lone `\r` stays: it is a character of the text.
pub(super) struct OneLineEnd(pub(super) Box<dyn Records>);

impl Records for OneLineEnd {
    fn next(&mut self, json: &mut Vec<u8>) -> Result<Option<Place>> {
        let start = json.len();
        let place = self.0.next(json)?;
        without_returns(json, start);
        Ok(place)
    }
}

/// Returns a text with `\n` for each `\r\n`.
pub(crate) fn with_one_line_end(text: &[u8]) -> Cow<'_, [u8]> {
    let is_end = |at: usize| text[at..].starts_with(b"\r\n");
    match (0..text.len()).any(is_end) {
        true => Cow::Owned((0..text.len()).filter(|at| !is_end(*at)).map(|at| text[at]).collect()),
        false => Cow::Borrowed(text),
    }
}

/// Removes each escaped `\r` in front of an escaped `\n` from the JSON behind `start`.
fn without_returns(json: &mut Vec<u8>, start: usize) {
    let Some(first) = json[start..].iter().position(|byte| *byte == b'\\') else { return };
    let (mut read, mut kept) = (start + first, start + first);
    while read < json.len() {
        let rest = &json[read..];
        if let Some(len) = escape_of(rest, b'r', b'd').filter(|len| escape_of(&rest[*len..], b'n', b'a').is_some()) {
            read += len;
            continue;
        }
        let len = if rest[0] == b'\\' { rest.len().min(2) } else { 1 };
        json.copy_within(read..read + len, kept);
        (read, kept) = (read + len, kept + len);
    }
    json.truncate(kept);
}

/// Returns the length of the escape that `json` begins with, if it is the one with this letter or with this last digit of its code.
fn escape_of(json: &[u8], letter: u8, digit: u8) -> Option<usize> {
    match json {
        [b'\\', found, ..] if *found == letter => Some(2),
        [b'\\', b'u', b'0', b'0', b'0', found, ..] if found.eq_ignore_ascii_case(&digit) => Some(6),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FileFormat, Wanted};
    use super::*;

    #[test]
    fn a_windows_line_end_within_a_string_is_one_line_end() {
        for (json, wanted) in [
            (r#"{"a": "x\r\ny"}"#, r#"{"a": "x\ny"}"#),
            (r#"{"a": "x\r\n\r\ny\r\n"}"#, r#"{"a": "x\n\ny\n"}"#),
            (r#"{"a": "x\u000D\u000ay \u000d\n"}"#, r#"{"a": "x\u000ay \n"}"#),
            (r#"{"a": "50 %\r100 %\r", "b\r\n": "\\r\\n \\\r\n"}"#, r#"{"a": "50 %\r100 %\r", "b\n": "\\r\\n \\\n"}"#),
            (r#"{"a": "\r"#, r#"{"a": "\r"#),
            (r"\", r"\"),
        ] {
            let mut made = format!("\\r\\n{json}").into_bytes();
            without_returns(&mut made, 4);
            assert_eq!(String::from_utf8_lossy(&made), format!("\\r\\n{wanted}"));
        }
        assert_eq!(&*with_one_line_end(b"a\r\nb\rc\r\r\n"), b"a\nb\rc\r\n");
    }

    #[test]
    fn all_formats_read_one_line_end() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in [
            ("a.jsonl", "{\"text\": \"x\\r\\ny\"}\r\n"),
            ("a.json", "[{\"text\": \"x\\r\\ny\"}]\r\n"),
            ("a.csv", "text\r\n\"x\r\ny\"\r\n"),
            ("a.tsv", "text\tn\r\n\"x\r\ny\"\t1\r\n"),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("writable");
            let format = FileFormat::by_name(&path).expect("a known ending");
            let (mut records, mut json) = (format.open(&path, &Wanted::all()).expect("text"), Vec::new());
            records.next(&mut json).expect("readable").expect("a record");
            let row: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
            assert_eq!(row["text"], "x\ny", "{name}");
        }
    }
}
