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

    /// Returns the first byte of the text that is not white space, without reading it. `None` if there is none near.
    pub(super) fn first_byte(&mut self) -> Result<Option<u8>> {
        let mut first = None;
        self.with_buffer(|buffer| {
            first = buffer.iter().copied().find(|byte| !byte.is_ascii_whitespace());
            0
        })?;
        Ok(first)
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
