//! Lines of a text file, plain or compressed.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::binary::check_is_text;
use crate::error::{Error, Result};
use crate::files::open_file;

/// A longer line is a sign of a wrong format (a JSON array, a binary file). Refusing it bounds the memory.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Returns the lines of a file, plain or compressed, that are not blank.
///
/// # Errors
///
/// If the file cannot be read or is not UTF-8.
pub fn lines_of(path: &Path) -> Result<Vec<String>> {
    let (mut reader, mut lines) = (LineReader::open(path)?, Vec::new());
    let mut line = Vec::new();
    while reader.read_line(&mut line)? {
        if !line.trim_ascii().is_empty() {
            let not_utf8 = |_| Error::corpus(path, format!("line {} is not valid UTF-8", reader.line));
            lines.push(String::from_utf8(std::mem::take(&mut line)).map_err(not_utf8)?);
        }
        line.clear();
    }
    Ok(lines)
}

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
        let file = open_file(path).map_err(Error::io(path, "opening the corpus"))?;
        let mut file = BufReader::with_capacity(1 << 18, file);
        let start = file.fill_buf().map_err(Error::io(path, "reading"))?;
        let reader: Box<dyn BufRead + Send> = match start {
            [0x1f, 0x8b, ..] => Box::new(BufReader::with_capacity(1 << 18, flate2::bufread::MultiGzDecoder::new(file))),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => {
                let decoder = zstd::Decoder::with_buffer(file).map_err(Error::io(path, "starting to decompress"))?;
                Box::new(BufReader::with_capacity(1 << 18, decoder))
            }
            _ => Box::new(file),
        };
        let mut lines = Self { path: path.into(), reader, line: 0, offset: 0 };
        lines.check_start()?;
        Ok(lines)
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

    /// Reads to the end of the file and returns the number of its lines.
    pub(crate) fn count_rest(&mut self) -> Result<u64> {
        let mut scrap = Vec::new();
        while self.read_line(&mut scrap)? {
            scrap.clear();
        }
        Ok(self.line)
    }
}
