//! Lines of a text file, plain or compressed.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::binary::check_is_text;
use super::compressed;
use crate::error::{Error, Result};
use crate::files::open_file;

/// A longer line is a sign of a wrong format (a JSON array, a binary file). Refusing it bounds the memory.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Reads lines and counts them.
pub(crate) struct LineReader {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    /// Number of lines read so far, which is the number of the last line.
    pub(crate) line: u64,
    /// Bytes of (decompressed) text read so far.
    pub(crate) offset: u64,
}

impl LineReader {
    /// Opens a file. Recognizes compression by the first bytes, whatever the name says.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let reader = compressed::open(path)?;
        let mut lines = Self { path: path.into(), reader, line: 0, offset: 0 };
        lines.check_start()?;
        Ok(lines)
    }

    /// Returns the lines of `path` as texts, without a byte order mark, and with a sign in place of what is not UTF-8.
    ///
    /// # Errors
    /// If the file cannot be opened. A line that cannot be read is an error in its place.
    pub(crate) fn texts(path: &Path) -> Result<impl Iterator<Item = Result<String>>> {
        let (mut reader, mut line) = (Self::open(path)?, Vec::new());
        Ok(std::iter::from_fn(move || {
            line.clear();
            match reader.read_line(&mut line) {
                Ok(false) => None,
                Ok(true) => Some(Ok(String::from_utf8_lossy(&line).into_owned())),
                Err(error) => Some(Err(error)),
            }
        }))
    }

    /// Opens an uncompressed file behind its first `offset` bytes, which have `lines` lines; both 0 as [`Self::open`].
    pub(crate) fn open_at(path: &Path, offset: u64, lines: u64) -> Result<Self> {
        if offset == 0 {
            return Self::open(path);
        }
        let mut file = open_file(path).map_err(Error::io(path, "opening the corpus"))?;
        file.seek(SeekFrom::Start(offset)).map_err(Error::io(path, "reading"))?;
        let reader = Box::new(BufReader::with_capacity(compressed::BUFFER_BYTES, file));
        Ok(Self { path: path.into(), reader, line: lines, offset })
    }

    /// Refuses a file that is not UTF-8 text from its first bytes on, and skips a byte order mark.
    fn check_start(&mut self) -> Result<()> {
        let start = self.reader.fill_buf().map_err(Error::io(&self.path, "reading"))?;
        check_is_text(&self.path, start)?;
        if start.starts_with(&[0xef, 0xbb, 0xbf]) {
            self.reader.consume(3);
            self.offset = 3;
        }
        Ok(())
    }

    /// Appends the next line to `bytes`, without its line end. Returns `false` at the end of the file.
    pub(crate) fn read_line(&mut self, bytes: &mut Vec<u8>) -> Result<bool> {
        let start = bytes.len();
        if !self.read_line_with_end(bytes)? {
            return Ok(false);
        }
        for end in [b'\n', b'\r'] {
            if bytes.len() > start && bytes.last() == Some(&end) {
                bytes.pop();
            }
        }
        Ok(true)
    }

    /// Appends the next line to `bytes`, with its line end. Returns `false` at the end of the file.
    pub(crate) fn read_line_with_end(&mut self, bytes: &mut Vec<u8>) -> Result<bool> {
        let mut limited = self.reader.by_ref().take(MAX_LINE_BYTES);
        let read = limited.read_until(b'\n', bytes).map_err(Error::io(&self.path, "reading"))?;
        if read == 0 {
            return Ok(false);
        }
        self.line += 1;
        self.offset += read as u64;
        if read as u64 == MAX_LINE_BYTES && bytes.last() != Some(&b'\n') {
            return Err(Error::corpus(
                &self.path,
                format!(
                    "line {} is longer than 64 MiB, wanted one short row per line (JSONL, not a JSON array)",
                    self.line
                ),
            ));
        }
        Ok(true)
    }

    /// Reads a first line `sep=;`, with which Excel names the delimiter of a table, and returns the delimiter. `None` if the file has no
    /// such line, and then nothing is read.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub(crate) fn skip_delimiter_line(&mut self) -> Result<Option<u8>> {
        let mut found = None;
        let n_read = self.with_buffer(|buffer| {
            found = delimiter_line(buffer);
            found.map_or(0, |(_, n_bytes)| n_bytes)
        })?;
        self.line += u64::from(n_read > 0);
        Ok(found.map(|(delimiter, _)| delimiter))
    }

    /// Returns the first byte of the text that is not white space, without reading it. `None` if there is none near.
    pub(super) fn first_byte(&mut self) -> Result<Option<u8>> {
        let mut first = None;
        self.with_buffer(|buffer| {
            first = buffer.iter().copied().find(|byte| !byte.is_ascii_whitespace());
            0
        })?;
        Ok(first)
    }

    /// Whether no text is left.
    pub(super) fn is_at_end(&mut self) -> Result<bool> {
        let mut is_at_end = false;
        self.with_buffer(|buffer| {
            is_at_end = buffer.is_empty();
            0
        })?;
        Ok(is_at_end)
    }

    /// Skips white space.
    pub(super) fn skip_blank(&mut self) -> Result<()> {
        let n_blank = |buffer: &[u8]| buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        while self.with_buffer(n_blank)? > 0 {}
        Ok(())
    }

    /// Passes the next bytes to `read`, none at the end of the file. Skips as many as it returns, and returns that number.
    pub(super) fn with_buffer(&mut self, read: impl FnOnce(&[u8]) -> usize) -> Result<usize> {
        let buffer = self.reader.fill_buf().map_err(Error::io(&self.path, "reading"))?;
        let n_read = read(buffer);
        self.reader.consume(n_read);
        self.offset += n_read as u64;
        Ok(n_read)
    }

    /// Reads to the end of the file and returns the number of its lines.
    pub(crate) fn count_rest(&mut self) -> Result<u64> {
        let mut scrap = Vec::new();
        while self.read_line(&mut scrap)? {
            scrap.clear();
        }
        Ok(self.line)
    }
}

/// Returns the delimiter that the first line of `text` names, and the length of that line with its end.
pub(super) fn delimiter_line(text: &[u8]) -> Option<(u8, usize)> {
    let (key, rest) = text.split_at_checked(4)?;
    let (delimiter, end) = rest.split_first()?;
    let n_end = match end {
        [b'\r', b'\n', ..] => 2,
        [b'\n', ..] => 1,
        [] => 0,
        _ => return None,
    };
    let is_usable = delimiter.is_ascii() && !b"\"\r\n".contains(delimiter);
    (key.eq_ignore_ascii_case(b"sep=") && is_usable).then_some((*delimiter, 5 + n_end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_names_the_delimiter_is_read_and_any_other_is_not() {
        for (text, wanted) in [
            ("sep=;\r\na;b\n", Some((b';', 7))),
            ("SEP=|\na|b\n", Some((b'|', 6))),
            ("sep=\t\na\tb\n", Some((b'\t', 6))),
            ("sep=,", Some((b',', 5))),
            ("sep=;;\n", None),
            ("sep=\n", None),
            ("sep=\"\n", None),
            ("sep", None),
            ("a;b\n", None),
        ] {
            assert_eq!(delimiter_line(text.as_bytes()), wanted, "{text:?}");
        }
    }

    #[test]
    fn lines_keep_their_numbers_behind_a_line_that_names_the_delimiter() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.csv");
        std::fs::write(&path, "\u{feff}sep=;\r\na;b\r\n").expect("writable");
        let mut lines = LineReader::open(&path).expect("text");
        assert_eq!(lines.skip_delimiter_line().expect("readable"), Some(b';'));
        let mut line = Vec::new();
        assert!(lines.read_line(&mut line).expect("readable"));
        assert_eq!((line.as_slice(), lines.line, lines.offset), (b"a;b".as_slice(), 2, 15));
        assert_eq!(lines.skip_delimiter_line().expect("readable"), None, "the end of the file");
    }
}
