//! PairBlocks of whole rows, read in order, parsed by worker threads.

use std::ops::Range;

use super::{CorpusInput, Pair, RowParser};
use crate::corpus::RowProblem;
use crate::corpus::line_reader::LineReader;
use crate::error::{Error, Result};

/// Text of one block: large enough that passing it to another thread costs nothing, small enough that a few workers
/// share a small corpus.
const BLOCK_BYTES: usize = 256 << 10;

/// Some consecutive rows of one entry of the corpus.
pub(crate) struct PairBlock {
    /// Number of the entry.
    pub(crate) input: usize,
    /// Line number of the first row, counted from 1.
    first_line: u64,
    kind: RowKind,
    bytes: Vec<u8>,
    /// Lines within `bytes`; for parallel files source and target lines alternate.
    lines: Vec<Range<usize>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RowKind {
    Jsonl,
    Tsv,
    Parallel,
}

impl PairBlock {
    /// Parses the rows and returns them with their line numbers.
    pub(crate) fn rows<'a>(
        &'a self,
        parser: &'a RowParser,
    ) -> impl Iterator<Item = (u64, Result<Pair<'a>, RowProblem>)> + 'a {
        let step = if self.kind == RowKind::Parallel { 2 } else { 1 };
        self.lines.chunks(step).zip(self.first_line..).map(move |(lines, number)| {
            let line = &self.bytes[lines[0].clone()];
            let row = match self.kind {
                RowKind::Jsonl => parser.parse_jsonl(line),
                RowKind::Tsv => parser.parse_tsv(line),
                RowKind::Parallel => parser.parse_parallel(line, &self.bytes[lines[1].clone()]),
            };
            (number, row)
        })
    }
}

/// All blocks of a corpus, in order.
pub(crate) struct PairBlocks<'a> {
    inputs: &'a [CorpusInput],
    next_input: usize,
    open: Option<OpenInput>,
}

struct OpenInput {
    kind: RowKind,
    first: LineReader,
    second: Option<LineReader>,
}

impl<'a> PairBlocks<'a> {
    pub(crate) fn new(inputs: &'a [CorpusInput]) -> Self {
        Self { inputs, next_input: 0, open: None }
    }

    fn open_next(&mut self) -> Result<Option<OpenInput>> {
        let Some(input) = self.inputs.get(self.next_input) else { return Ok(None) };
        self.next_input += 1;
        let (kind, first, second) = match input {
            CorpusInput::Jsonl(path) => (RowKind::Jsonl, path, None),
            CorpusInput::Tsv(path) => (RowKind::Tsv, path, None),
            CorpusInput::Parallel(source, target) => (RowKind::Parallel, source, Some(LineReader::open(target)?)),
        };
        Ok(Some(OpenInput { kind, first: LineReader::open(first)?, second }))
    }

    fn next_block(&mut self) -> Result<Option<PairBlock>> {
        loop {
            let open = match &mut self.open {
                Some(open) => open,
                None => match self.open_next()? {
                    Some(open) => self.open.insert(open),
                    None => return Ok(None),
                },
            };

            let index = self.next_input - 1;
            let mut block = PairBlock {
                input: index,
                first_line: open.first.line + 1,
                kind: open.kind,
                bytes: Vec::with_capacity(BLOCK_BYTES + 4096),
                lines: Vec::new(),
            };
            while block.bytes.len() < BLOCK_BYTES && read_row(open, &mut block, &self.inputs[index])? {}
            if !block.lines.is_empty() {
                return Ok(Some(block));
            }
            self.open = None;
        }
    }
}

/// Adds one row to the block; `false` at the end of the entry.
fn read_row(open: &mut OpenInput, block: &mut PairBlock, input: &CorpusInput) -> Result<bool> {
    let start = block.bytes.len();
    let first = open.first.read_line(&mut block.bytes)?;
    let middle = block.bytes.len();
    let Some(second) = &mut open.second else {
        if first {
            block.lines.push(start..middle);
        }
        return Ok(first);
    };

    let also = second.read_line(&mut block.bytes)?;
    if first != also {
        let (source, target) = (open.first.count_rest()?, second.count_rest()?);
        let files = input.files();
        return Err(Error::Invalid(format!(
            "parallel files differ in length: {} has {source} lines, {} has {target}; line n of one must be the \
             translation of line n of the other",
            files[0].display(),
            files[1].display()
        )));
    }
    if first {
        block.lines.extend([start..middle, middle..block.bytes.len()]);
    }
    Ok(first)
}

impl Iterator for PairBlocks<'_> {
    type Item = Result<PairBlock>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_block().transpose()
    }
}
