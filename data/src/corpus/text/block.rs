//! Blocks of documents, read in order and parsed by worker threads.
//!
//! A long document is cut into parts, so that no block is much larger than [`PART_BYTES`] and several threads can share
//! a book. A cut falls in front of a line end between two lines of letters. GPT-2's tokenizer and its relatives split
//! there in any case, so cutting a document does not change its tokens.

use std::borrow::Cow;
use std::ops::Range;

use super::{Conversation, Preference, TextConfig, TextCorpus, TextFile, TextFormat};
use crate::corpus::block_start::BlockStart;
use crate::error::{Error, Result};
use crate::formats::{LineReader, Place, Records, RowProblem, Wanted, json_lines_at, way_to_utf8};

/// Text of one block, unless a document is longer.
const BLOCK_BYTES: usize = 256 << 10;
/// Rows of one block, however short they are: a small compressed file can hold millions of empty lines.
const BLOCK_ROWS: usize = 1 << 16;
/// A longer document is cut at the next border between two lines of letters, ..
const PART_BYTES: usize = 1 << 20;
/// .. or, from this length on, at the next line end.
const MAX_PART_BYTES: usize = 2 << 20;

/// Some consecutive documents of one file.
pub(crate) struct TextBlock {
    /// Number of the file.
    pub(crate) file: usize,
    /// Whether it is the first of its file.
    pub(crate) is_first: bool,
    format: TextFormat,
    bytes: Vec<u8>,
    parts: Vec<PartSpan>,
}

/// The place of a document, or of a part of a long one, within the bytes of a block.
struct PartSpan {
    range: Range<usize>,
    /// Number of its first line, counted from 1.
    line: u64,
    /// Byte offset in the (decompressed) text of the file.
    offset: u64,
    /// The document started in an earlier part.
    continues: bool,
    /// The document continues in the next part.
    goes_on: bool,
    /// Why the record cannot be used.
    problem: Option<RowProblem>,
}

/// A document, or a part of a long one.
#[derive(Debug, PartialEq)]
pub(crate) struct DocumentPart<'a> {
    /// Number of its first line, counted from 1.
    pub(crate) line: u64,
    /// Whether it continues the document before.
    pub(crate) continues: bool,
    /// Whether it is the whole document.
    pub(crate) whole: bool,
    pub(crate) text: Result<Cow<'a, str>, RowProblem>,
}

impl TextBlock {
    /// Returns the length of its text.
    pub(crate) fn n_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns where it begins.
    pub(crate) fn start(&self) -> BlockStart {
        let (file, first) = (self.file, &self.parts[0]);
        match self.is_first {
            true => BlockStart { file, ..BlockStart::default() },
            false => BlockStart { file, offset: first.offset, lines: first.line - 1, second: 0 },
        }
    }

    /// Whether it begins with the rest of a document.
    pub(crate) fn continues(&self) -> bool {
        self.parts[0].continues
    }

    /// Parses the documents. Invalid UTF-8 in a part of a long document is an error, since other parts may be in use
    /// already.
    pub(crate) fn document_parts<'a>(
        &'a self,
        corpus: &'a TextCorpus,
    ) -> impl Iterator<Item = Result<DocumentPart<'a>>> + 'a {
        self.parts.iter().map(move |part| {
            let whole = !part.continues && !part.goes_on;
            let text = match self.text(part) {
                Err(problem) if !whole => return Err(Error::corpus(corpus.path_of(self), problem.to_string())),
                Ok(text) if whole => self.document(text, corpus),
                text => text,
            };
            Ok(DocumentPart { line: part.line, continues: part.continues, whole, text })
        })
    }

    /// Parses the lines of a file of conversations. Returns each with its number, counted from 1.
    pub(crate) fn conversations(
        &self,
        config: &TextConfig,
    ) -> impl Iterator<Item = (u64, Result<Conversation, RowProblem>)> {
        self.parsed(move |line| {
            let row = Conversation::parse(line, &config.field)?;
            config.check_record(line)?;
            config.check_text(&row.contents()).map(|()| row)
        })
    }

    /// Parses the lines of a file of preferences, as [`Self::conversations`] does.
    pub(crate) fn preferences(
        &self,
        config: &TextConfig,
    ) -> impl Iterator<Item = (u64, Result<Preference, RowProblem>)> {
        self.parsed(move |line| {
            let row = Preference::parse(line)?;
            config.check_record(line)?;
            config.check_text(&row.contents()).map(|()| row)
        })
    }

    /// Returns the records of a file of labelled rows, each with the number of its line.
    pub(crate) fn records(&self) -> impl Iterator<Item = (u64, Result<&[u8], RowProblem>)> {
        self.parts.iter().map(|part| {
            let record = part.problem.clone().map_or_else(|| Ok(&self.bytes[part.range.clone()]), Err);
            (part.line, record)
        })
    }

    fn parsed<T>(
        &self,
        parse: impl Fn(&str) -> Result<T, RowProblem>,
    ) -> impl Iterator<Item = (u64, Result<T, RowProblem>)> {
        self.parts.iter().map(move |part| {
            let parsed = self.text(part).and_then(|line| match line.trim().is_empty() {
                true => Err(RowProblem::NoText),
                false => parse(&line),
            });
            (part.line, parsed)
        })
    }

    /// Returns the text of a part, with `\n` as line ends.
    fn text(&self, part: &PartSpan) -> Result<Cow<'_, str>, RowProblem> {
        if let Some(problem) = &part.problem {
            return Err(problem.clone());
        }
        let bytes = &self.bytes[part.range.clone()];
        let text = std::str::from_utf8(bytes).map_err(|e| {
            let at = e.valid_up_to();
            let line = part.line + bytes[..at].iter().filter(|b| **b == b'\n').count() as u64;
            let line_start = bytes[..at].iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
            // The report names the line that the document begins with.
            let place =
                if line == part.line { "the line" } else { &*format!("line {line} of the file, in this document,") };
            RowProblem::Malformed(format!(
                "byte {} of {place} is 0x{:02x} (byte offset {}), not valid UTF-8: {}",
                at - line_start + 1,
                bytes[at],
                part.offset + at as u64,
                way_to_utf8(bytes)
            ))
        })?;
        Ok(if text.contains("\r\n") { Cow::Owned(text.replace("\r\n", "\n")) } else { Cow::Borrowed(text) })
    }

    fn document<'a>(&self, text: Cow<'a, str>, corpus: &TextCorpus) -> Result<Cow<'a, str>, RowProblem> {
        if text.trim().is_empty() {
            return Err(RowProblem::NoText);
        }
        let config = corpus.config();

        let [text] = match (self.format, text) {
            (TextFormat::Chat, text) => {
                let row = Conversation::parse(&text, &config.field)?;
                config.check_record(&text)?;
                return config.check_text(&row.contents()).map(|()| Cow::Owned(row.to_text()));
            }
            (TextFormat::Preferences, text) => {
                let row = Preference::parse(&text)?;
                config.check_record(&text)?;
                return config.check_text(&row.contents()).map(|()| Cow::Owned(row.to_text()));
            }
            (TextFormat::Jsonl | TextFormat::Records, Cow::Borrowed(line)) => corpus.field().parse(line)?,
            (TextFormat::Jsonl | TextFormat::Records, Cow::Owned(line)) => {
                corpus.field().parse(&line)?.map(|text| Cow::Owned(text.into_owned()))
            }
            (_, text) => [text],
        };
        if text.trim().is_empty() {
            return Err(RowProblem::NoText);
        }
        config.check_document(&text)?;
        config.check_text(&text).map(|()| text)
    }
}

/// All blocks of a text, in order.
pub(crate) struct TextBlocks<'a> {
    files: &'a [TextFile],
    /// What is read of records whose documents are fields.
    wanted: Wanted,
    next_file: usize,
    /// Bytes and lines of the next file that come before the first block.
    skipped: (u64, u64),
    open: Option<OpenFile>,
}

enum OpenFile {
    Records(Box<dyn Records>),
    Text(OpenText),
}

struct OpenText {
    format: TextFormat,
    reader: LineReader,
    /// Bytes read already that belong to the next part: a line end and the line behind it.
    carried: Vec<u8>,
    /// The next part continues the document before.
    continues: bool,
    /// Whether a part was read from this file.
    begun: bool,
}

impl<'a> TextBlocks<'a> {
    /// Reads from `start` on, a block's beginning.
    pub(crate) fn starting_at(files: &'a [TextFile], wanted: Wanted, start: BlockStart) -> Self {
        Self { files, wanted, next_file: start.file, skipped: (start.offset, start.lines), open: None }
    }

    fn next_block(&mut self) -> Result<Option<TextBlock>> {
        loop {
            let is_first = self.open.is_none();
            let open = match &mut self.open {
                Some(open) => open,
                None => {
                    let Some(file) = self.files.get(self.next_file) else { return Ok(None) };
                    self.next_file += 1;
                    self.open.insert(OpenFile::open(file, &self.wanted, std::mem::take(&mut self.skipped))?)
                }
            };
            let number = self.next_file - 1;
            let format = self.files[number].format;
            let mut block = TextBlock { file: number, is_first, format, bytes: Vec::new(), parts: Vec::new() };
            let has_room = |block: &TextBlock| block.bytes.len() < BLOCK_BYTES && block.parts.len() < BLOCK_ROWS;
            while has_room(&block) && open.read_part(&mut block)? {}
            if !block.parts.is_empty() {
                return Ok(Some(block));
            }
            self.open = None;
        }
    }
}

impl OpenFile {
    /// Opens a file behind `offset` bytes and `lines` lines, both 0 for its beginning.
    fn open(file: &TextFile, wanted: &Wanted, (offset, lines): (u64, u64)) -> Result<Self> {
        let TextFile { path, format, records } = file;
        let Some(records) = records else {
            let reader = LineReader::open_at(path, offset, lines)?;
            let (carried, begun) = (Vec::new(), offset > 0);
            return Ok(Self::Text(OpenText { format: *format, reader, carried, continues: false, begun }));
        };
        // Conversations have one of several layouts.
        let is_field = matches!(format, TextFormat::Jsonl | TextFormat::Records);
        let wanted = if is_field { wanted.clone() } else { Wanted::all() };
        Ok(Self::Records(match offset {
            0 => records.open(path, &wanted)?,
            _ => json_lines_at(path, offset, lines)?,
        }))
    }

    /// Adds a document, or a part of one, to the block. Returns `false` at the end of the file.
    fn read_part(&mut self, block: &mut TextBlock) -> Result<bool> {
        match self {
            Self::Text(text) if text.format == TextFormat::Lines => text.read_line(block),
            Self::Text(text) => text.read_document(block),
            Self::Records(records) => {
                let start = block.bytes.len();
                let Some(Place { line, offset, problem }) = records.next(&mut block.bytes)? else { return Ok(false) };
                let range = start..block.bytes.len();
                block.parts.push(PartSpan { range, line, offset, continues: false, goes_on: false, problem });
                Ok(true)
            }
        }
    }
}

impl OpenText {
    fn read_line(&mut self, block: &mut TextBlock) -> Result<bool> {
        loop {
            let (start, offset) = (block.bytes.len(), self.reader.offset);
            if !self.reader.read_line(&mut block.bytes)? {
                return Ok(false);
            }
            // A blank line is not a document.
            if block.bytes[start..].trim_ascii().is_empty() {
                block.bytes.truncate(start);
                continue;
            }
            let (range, line) = (start..block.bytes.len(), self.reader.line);
            block.parts.push(PartSpan { range, line, offset, continues: false, goes_on: false, problem: None });
            return Ok(true);
        }
    }

    fn read_document(&mut self, block: &mut TextBlock) -> Result<bool> {
        let start = block.bytes.len();
        let (mut line, mut offset) = (self.reader.line + 1, self.reader.offset);
        if self.continues {
            // The line that follows the cut was read already.
            (line, offset) = (line - 2, offset - self.carried.len() as u64);
            block.bytes.append(&mut self.carried);
        }

        loop {
            let end = block.bytes.len();
            let at_end = !self.reader.read_line_with_end(&mut block.bytes)?;
            let blank = block.bytes[end..].trim_ascii().is_empty();
            let separator = blank && self.format != TextFormat::Files;
            if separator && !at_end && end == start && !self.continues {
                block.bytes.truncate(start);
                (line, offset) = (self.reader.line + 1, self.reader.offset);
                continue;
            }

            let nothing = end == start && !self.continues && (self.begun || self.format != TextFormat::Files);
            if at_end && nothing {
                return Ok(false);
            }

            // Read on, unless the document ends here or is long enough to cut.
            let goes_on = !at_end && !separator;
            let cut = if goes_on { cut_before(&block.bytes[start..end], &block.bytes[end..]) } else { None };
            if goes_on && cut.is_none() {
                continue;
            }

            let range = match cut {
                Some(len) => {
                    self.carried = block.bytes.split_off(start + len);
                    start..start + len
                }
                None => {
                    block.bytes.truncate(end);
                    start..start + trim_line_ends(&block.bytes[start..end]).len()
                }
            };
            block.parts.push(PartSpan { range, line, offset, continues: self.continues, goes_on, problem: None });
            (self.continues, self.begun) = (goes_on, true);
            return Ok(true);
        }
    }
}

/// Returns where to cut a long part in front of `next`, the last line read: before the line end between them.
fn cut_before(part: &[u8], next: &[u8]) -> Option<usize> {
    if part.len() < PART_BYTES {
        return None;
    }
    let text = part.strip_suffix(b"\n")?;
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    let between_letters =
        text.last().is_some_and(u8::is_ascii_alphanumeric) && next.first().is_some_and(|b| !b.is_ascii_whitespace());
    (between_letters || part.len() >= MAX_PART_BYTES).then_some(text.len())
}

/// Returns the text without line ends at its end.
fn trim_line_ends(text: &[u8]) -> &[u8] {
    let len = text.iter().rposition(|b| !matches!(b, b'\n' | b'\r')).map_or(0, |last| last + 1);
    &text[..len]
}

impl Iterator for TextBlocks<'_> {
    type Item = Result<TextBlock>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_block().transpose()
    }
}
