//! PairBlocks of whole rows, read in order, parsed by worker threads.

use std::ops::Range;

use super::header::Columns;
use super::row::utf8;
use super::{CorpusInput, Pair, RowParser, Table, keyed};
use crate::corpus::block_start::BlockStart;
use crate::error::{Error, Result};
use crate::formats::{
    CsvRow, CsvRows, FileFormat, LineReader, Records, RowProblem, Wanted, Width, json_lines_at, with_one_line_end,
};

/// Text of one block: large enough that passing it to another thread costs nothing, small enough that a few workers
/// share a small corpus.
const BLOCK_BYTES: usize = 256 << 10;
/// Rows of one block, however short they are: a small compressed file can hold millions of empty lines.
const BLOCK_ROWS: usize = 1 << 16;

/// Some consecutive rows of one entry of the corpus.
pub(crate) struct PairBlock {
    /// Number of the entry.
    pub(crate) input: usize,
    /// Whether it is the first of its entry.
    pub(crate) is_first: bool,
    /// Where its first row begins, as far as the format knows it.
    start: BlockStart,
    bytes: Vec<u8>,
    rows: Vec<RowSpan>,
}

/// A row, whose text lies within the bytes of its block.
struct RowSpan {
    /// Number of its first line, counted from 1.
    line: u64,
    text: RowText,
}

enum RowText {
    Json(Range<usize>),
    Tsv(Range<usize>, Columns, Option<Width>),
    /// Source and target.
    Sides(Range<usize>, Range<usize>),
    Unusable(RowProblem),
}

impl PairBlock {
    /// Returns the length of its text.
    pub(crate) fn n_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns where it begins.
    pub(crate) fn start(&self) -> BlockStart {
        match self.is_first {
            true => BlockStart { file: self.input, ..BlockStart::default() },
            false => self.start,
        }
    }

    /// Parses the rows and returns them with their line numbers.
    pub(crate) fn rows<'a>(
        &'a self,
        parser: &'a RowParser,
    ) -> impl Iterator<Item = (u64, Result<Pair<'a>, RowProblem>)> + 'a {
        self.rows.iter().map(move |RowSpan { line, text }| {
            let bytes = |range: &Range<usize>| &self.bytes[range.clone()];
            let row = match text {
                RowText::Json(range) => parser.parse_jsonl(bytes(range)),
                RowText::Tsv(range, columns, width) => parser.parse_tsv(bytes(range), *columns, *width),
                RowText::Sides(source, target) => parser.parse_sides(bytes(source), bytes(target)),
                RowText::Unusable(problem) => Err(problem.clone()),
            };
            (*line, row)
        })
    }

    /// Adds a row whose first line lies at `offset`, and in the second of parallel files at `second`.
    fn push(&mut self, (line, text): (u64, RowText), (offset, second): (u64, u64)) {
        if self.rows.is_empty() {
            self.start = BlockStart { file: self.input, offset, lines: line - 1, second };
        }
        self.rows.push(RowSpan { line, text });
    }

    /// Copies the two texts of a row of columns.
    fn push_csv(&mut self, CsvRow { line, cells, problem }: &CsvRow<'_>, columns: Columns, width: Option<Width>) {
        let shifted = width.and_then(|width| width.problem(cells.iter()));
        let mut copy = |column: usize| {
            let cell = cells.get(column).ok_or_else(|| RowProblem::no_column(column, cells.len(), "columns"))?;
            let start = self.bytes.len();
            self.bytes.extend_from_slice(&with_one_line_end(cell));
            Ok(start..self.bytes.len())
        };
        let text = match (problem, copy(columns.source), copy(columns.target)) {
            (Some(problem), ..) => RowText::Unusable(problem.clone()),
            (None, Ok(source), Ok(target)) => shifted.map_or(RowText::Sides(source, target), RowText::Unusable),
            (None, Err(problem), _) | (None, _, Err(problem)) => RowText::Unusable(problem),
        };
        self.push((*line, text), (0, 0));
    }
}

/// All blocks of a corpus, in order.
pub(crate) struct PairBlocks<'a> {
    inputs: &'a [CorpusInput],
    /// What is read of records.
    wanted: Wanted,
    next_input: usize,
    /// Where the first block of the next entry begins.
    start: BlockStart,
    open: Option<OpenInput>,
}

enum OpenInput {
    Records(Box<dyn Records>),
    /// With a header, all rows have its columns.
    Tsv(LineReader, Columns, Option<Width>),
    Csv(Box<CsvRows>, Columns, Option<Width>),
    Parallel(LineReader, LineReader),
}

impl OpenInput {
    /// Opens an entry at the start of a block.
    fn open(input: &CorpusInput, wanted: &Wanted, start: BlockStart) -> Result<Self> {
        let BlockStart { offset, lines: n_lines, second, .. } = start;
        Ok(match input {
            CorpusInput::Jsonl(path) if offset > 0 => Self::Records(json_lines_at(path, offset, n_lines)?),
            CorpusInput::Jsonl(path) => Self::Records(FileFormat::JSON.open(path, wanted)?),
            CorpusInput::Records(path, format) => Self::Records(format.open(path, wanted)?),
            CorpusInput::Parallel(first, other) => {
                let first = LineReader::open_at(first, offset, n_lines)?;
                Self::Parallel(first, LineReader::open_at(other, second, n_lines)?)
            }

            CorpusInput::Table(Table { path, columns, delimiter: None, .. }) => {
                let mut lines = LineReader::open(path)?;
                lines.skip_delimiter_line()?;
                let mut header = Vec::new();
                let has_header = columns.header && lines.read_line(&mut header)?;
                let width = has_header.then(|| Width::of(header.split(|byte| *byte == b'\t')));
                if offset > 0 {
                    lines = LineReader::open_at(path, offset, n_lines)?;
                }
                Self::Tsv(lines, *columns, width)
            }
            CorpusInput::Table(Table { path, columns, delimiter: Some(delimiter), .. }) => {
                let mut rows = CsvRows::open(path, *delimiter)?;
                let header = if columns.header { rows.next_row()? } else { None };
                let width = header.map(|row| Width::of(row.cells.iter()));
                Self::Csv(Box::new(rows), *columns, width)
            }
        })
    }

    /// Adds one row to the block; `false` at the end of the entry.
    fn read_row(&mut self, block: &mut PairBlock, input: &CorpusInput) -> Result<bool> {
        let start = block.bytes.len();
        let (row, place) = match self {
            Self::Csv(rows, columns, width) => {
                let Some(row) = rows.next_row()? else { return Ok(false) };
                block.push_csv(&row, *columns, *width);
                return Ok(true);
            }
            Self::Records(records) => {
                let Some(place) = records.next(&mut block.bytes)? else { return Ok(false) };
                let json = RowText::Json(start..block.bytes.len());
                ((place.line, place.problem.map_or(json, RowText::Unusable)), (place.offset, 0))
            }
            Self::Tsv(lines, columns, width) => {
                let place = (lines.offset, 0);
                if !lines.read_line(&mut block.bytes)? {
                    return Ok(false);
                }
                ((lines.line, RowText::Tsv(start..block.bytes.len(), *columns, *width)), place)
            }
            Self::Parallel(first, second) => {
                let place = (first.offset, second.offset);
                let has_source = first.read_line(&mut block.bytes)?;
                let middle = block.bytes.len();
                let has_target = second.read_line(&mut block.bytes)?;
                match (has_source, has_target) {
                    (true, true) => {
                        // Messages about a row name the file of its source.
                        let problem = utf8(&block.bytes[middle..]).err().map(|problem| {
                            let (file, line) = (input.files()[1].display(), second.line);
                            RowText::Unusable(RowProblem::Malformed(format!("line {line} of {file}: {problem}")))
                        });
                        let sides = || RowText::Sides(start..middle, middle..block.bytes.len());
                        ((first.line, problem.unwrap_or_else(sides)), place)
                    }
                    (false, false) => return Ok(false),
                    _ => return Err(differ_in_length(first.count_rest()?, second.count_rest()?, input)),
                }
            }
        };

        block.push(row, place);
        Ok(true)
    }
}

fn differ_in_length(n_source: u64, n_target: u64, input: &CorpusInput) -> Error {
    let files = input.files();
    let joined = keyed::of_different_lengths([files[0], files[1]]).map_or(String::new(), |said| format!("\n{said}"));
    Error::Invalid(format!(
        "parallel files differ in length: {} has {n_source} lines, {} has {n_target}; line n of one must be the \
         translation of line n of the other{joined}",
        files[0].display(),
        files[1].display()
    ))
}

impl<'a> PairBlocks<'a> {
    /// Reads from `start` on, a block's beginning.
    pub(crate) fn starting_at(inputs: &'a [CorpusInput], wanted: Wanted, start: BlockStart) -> Self {
        Self { inputs, wanted, next_input: start.file, start, open: None }
    }

    fn next_block(&mut self) -> Result<Option<PairBlock>> {
        loop {
            let is_first = self.open.is_none() && self.start.offset == 0;
            let open = match &mut self.open {
                Some(open) => open,
                None => {
                    let Some(input) = self.inputs.get(self.next_input) else { return Ok(None) };
                    self.next_input += 1;
                    self.open.insert(OpenInput::open(input, &self.wanted, std::mem::take(&mut self.start))?)
                }
            };

            let index = self.next_input - 1;
            let bytes = Vec::with_capacity(BLOCK_BYTES + 4096);
            let start = BlockStart::default();
            let mut block = PairBlock { input: index, is_first, start, bytes, rows: Vec::new() };
            let has_room = |block: &PairBlock| block.bytes.len() < BLOCK_BYTES && block.rows.len() < BLOCK_ROWS;
            while has_room(&block) && open.read_row(&mut block, &self.inputs[index])? {}
            if !block.rows.is_empty() {
                return Ok(Some(block));
            }
            self.open = None;
        }
    }
}

impl Iterator for PairBlocks<'_> {
    type Item = Result<PairBlock>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_block().transpose()
    }
}
