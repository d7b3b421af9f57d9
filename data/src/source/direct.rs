//! Direct mode: batches of pairs without a token cache. Workers parse and tokenize the rows of each batch from the
//! text.
//!
//! Opening the data set takes one pass over the text. It finds the rows, the bad ones among them, and their lengths in
//! bytes. Buckets need lengths in tokens, which are estimated from the bytes with the ratio of a sample, on the safe
//! side. The true lengths are known after tokenization, when the shape of the batch is rounded. So shapes vary more
//! than from the cache, and a batch of unusually dense text can exceed its budget a little.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::{BatchSource, BatchWorker};
use crate::batch::{Buckets, Collator, EpochPlan, round_up};
use crate::cache::MappedFile;
use crate::corpus::{
    Columns, CorpusConfig, CorpusInput, Pair, PairCorpus, RowParser, RowReport, Table, length_problem,
    mark_of_special_tokens,
};
use crate::error::{Error, Result};
use crate::formats::{RowProblem, check_is_text, is_compressed};
use crate::host_batch::{HostBatch, Shape};
use crate::loader_config::LoaderConfig;
use crate::sampler::Order;
use crate::tokenizer::{PairEncoder, PairTokenizers};

/// Rows of the sample that estimates tokens from bytes.
const SAMPLE_ROWS: usize = 2000;

/// Batches of pairs straight from uncompressed JSONL and TSV files.
#[derive(Debug)]
pub struct DirectSource {
    files: Vec<TextFile>,
    rows: Vec<RowSpan>,
    buckets: Buckets,
    parser: RowParser,
    tokenizers: PairTokenizers,
    corpus: CorpusConfig,
    bucket_multiple: usize,
    report: RowReport,
    over_long: AtomicU64,
}

#[derive(Debug)]
struct TextFile {
    path: PathBuf,
    map: MappedFile,
    /// TSV: where the texts are. `None` for JSONL.
    columns: Option<Columns>,
    seen: FileState,
}

/// Size and time stamp of a file, to notice that somebody writes to it. The map would show new text under old offsets,
/// and the resulting rows would not belong to any corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileState {
    bytes: u64,
    modified: Option<SystemTime>,
}

/// The place of a row's line.
#[derive(Debug, Clone, Copy)]
struct RowSpan {
    start: u64,
    len: u32,
    file: u32,
}

impl DirectSource {
    /// Finds the rows of uncompressed JSONL or TSV files. Counts bad rows and refuses too many of them, as
    /// [`prepare_pairs`](crate::prepare_pairs) does. Only rows with too many tokens are found later: they are skipped
    /// and counted when their batch is made.
    ///
    /// # Errors
    ///
    /// If a file is compressed, parallel or unreadable, if too many rows are bad, or if the configuration is invalid.
    pub fn open(corpus: &PairCorpus, tokenizers: &PairTokenizers, config: &LoaderConfig) -> Result<Self> {
        let parser = RowParser::new(corpus.config());
        let FoundRows { files, rows, text_bytes, report } = FoundRows::of(corpus, &parser)?;
        corpus.check(&report)?;

        let estimate = TokenEstimate::from_sample(&files, &rows, &parser, tokenizers)?;
        let limits = (corpus.config().max_source_len, corpus.config().max_target_len);
        let cap = |len: usize, max: usize| if max == 0 { len } else { len.min(max) };
        let lengths = text_bytes.iter().map(|(source, target)| {
            let source = estimate.tokens(*source, estimate.source_bytes_per_token);
            let target = estimate.tokens(*target, estimate.target_bytes_per_token);
            // A row that seems too long may not be: count it among the longest.
            (cap(source, limits.0).min(config.batch_tokens), cap(target, limits.1).min(config.batch_tokens))
        });
        let buckets = Buckets::new(lengths, limits, config)?;

        Ok(Self {
            files,
            rows,
            buckets,
            parser,
            tokenizers: tokenizers.clone(),
            corpus: corpus.config().clone(),
            bucket_multiple: config.bucket_multiple,
            report,
            over_long: AtomicU64::new(0),
        })
    }

    /// Returns the counts of kept and bad rows, taken when the files were opened.
    pub fn report(&self) -> &RowReport {
        &self.report
    }

    /// Returns how often a batch skipped a row with too many tokens. Each epoch counts again.
    pub fn over_long_rows(&self) -> u64 {
        self.over_long.load(Ordering::Relaxed)
    }

    /// Returns the buckets, made from estimated lengths.
    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    fn pair(&self, row: u32) -> Result<Pair<'_>> {
        let span = self.rows[row as usize];
        let file = &self.files[span.file as usize];
        file.parse(file.line(span), &self.parser).map_err(|problem| {
            Error::corpus(&file.path, format!("changed during the run: the row at byte {}: {problem}", span.start))
        })
    }
}

/// The rows of all files.
#[derive(Default)]
struct FoundRows {
    files: Vec<TextFile>,
    rows: Vec<RowSpan>,
    /// Length of source and target of each row.
    text_bytes: Vec<(u32, u32)>,
    report: RowReport,
}

impl FoundRows {
    fn of(corpus: &PairCorpus, parser: &RowParser) -> Result<Self> {
        let mut found = Self::default();
        for input in corpus.inputs() {
            let file = TextFile::open(input)?;
            let n_header_lines = usize::from(file.columns.is_some_and(|columns| columns.header));
            for (number, line) in (1..).zip(file.lines()).skip(n_header_lines) {
                let text = &file.map.bytes()[line.clone()];
                match file.parse(text, parser) {
                    Ok(pair) => {
                        found.report.add_kept(1);
                        let len = u32::try_from(line.len())
                            .map_err(|_| Error::corpus(&file.path, format!("line {number} is longer than 4 GiB")))?;
                        found.rows.push(RowSpan { start: line.start as u64, len, file: found.files.len() as u32 });
                        found.text_bytes.push((pair.source.len() as u32, pair.target.len() as u32));
                    }
                    Err(problem) => found.report.add_bad(&file.path, number, &problem),
                }
            }
            found.files.push(file);
        }

        if found.rows.len() > u32::MAX as usize {
            return Err(Error::Invalid("the corpus has more than 4,294,967,295 rows: split it".into()));
        }
        Ok(found)
    }
}

impl TextFile {
    fn open(input: &CorpusInput) -> Result<Self> {
        let (path, columns) = match input {
            CorpusInput::Jsonl(path) => (path, None),
            CorpusInput::Table(Table { path, columns, delimiter: None, .. }) => (path, Some(*columns)),
            CorpusInput::Table(Table { path, .. }) | CorpusInput::Records(path, _) | CorpusInput::Parallel(path, _) => {
                return Err(Error::corpus(
                    path,
                    "direct mode reads JSONL and TSV, not CSV and parallel files: use the token cache (data.direct = \
                     false)",
                ));
            }
        };

        let seen = FileState::of(path)?;
        let map = MappedFile::open(path, "opening the corpus")?;
        if is_compressed(map.bytes()) {
            return Err(Error::corpus(
                path,
                "is compressed, and direct mode reads rows in any order: decompress it, or use the token cache \
                 (data.direct = false)",
            ));
        }
        check_is_text(path, map.bytes())?;
        Ok(Self { path: path.clone(), map, columns, seen })
    }

    /// Fails if the file changed since it was opened.
    fn check_unchanged(&self) -> Result<()> {
        if FileState::of(&self.path)? == self.seen {
            return Ok(());
        }
        Err(Error::corpus(
            &self.path,
            "changed during the run, and direct mode reads it in every epoch: restore it, or start a new run and do not edit \
             the text (with data.direct = false the token cache keeps a copy)",
        ))
    }

    /// Returns the byte ranges of the lines, without line ends.
    fn lines(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        let bytes = self.map.bytes();
        let mut start = if bytes.starts_with(&[0xef, 0xbb, 0xbf]) { 3 } else { 0 };
        std::iter::from_fn(move || {
            let rest = bytes.get(start..).filter(|rest| !rest.is_empty())?;
            let len = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
            let line = start..start + len;
            start += len + 1;
            let end = line.end - usize::from(bytes[line.clone()].last() == Some(&b'\r'));
            Some(line.start..end)
        })
    }

    fn line(&self, span: RowSpan) -> &[u8] {
        &self.map.bytes()[span.start as usize..span.start as usize + span.len as usize]
    }

    fn parse<'a>(&self, line: &'a [u8], parser: &RowParser) -> Result<Pair<'a>, RowProblem> {
        match self.columns {
            Some(columns) => parser.parse_tsv(line, columns),
            None => parser.parse_jsonl(line),
        }
    }
}

impl FileState {
    fn of(path: &Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(Error::io(path, "reading its size and time stamp"))?;
        Ok(Self { bytes: metadata.len(), modified: metadata.modified().ok() })
    }
}

/// Estimates the tokens of a text from its bytes.
struct TokenEstimate {
    source_bytes_per_token: f64,
    target_bytes_per_token: f64,
}

impl TokenEstimate {
    /// Tokenizes a sample of rows from the whole corpus and takes the 20th percentile: four of five rows have more
    /// bytes per token than the chosen ratio.
    fn from_sample(
        files: &[TextFile],
        rows: &[RowSpan],
        parser: &RowParser,
        tokenizers: &PairTokenizers,
    ) -> Result<Self> {
        let mut encoder = tokenizers.encoder();
        let (mut source, mut target, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        let mut ratio = |text: &str, is_source: bool| {
            ids.clear();
            if is_source {
                encoder.encode_source(text, &mut ids)?
            } else {
                encoder.encode_target(text, &mut ids)?
            };
            Ok::<_, Error>(text.len() as f64 / ids.len().max(1) as f64)
        };
        for row in rows.iter().step_by(rows.len().div_ceil(SAMPLE_ROWS).max(1)) {
            let file = &files[row.file as usize];
            if let Ok(pair) = file.parse(file.line(*row), parser) {
                source.push(ratio(&pair.source, true)?);
                target.push(ratio(&pair.target, false)?);
            }
        }

        let low_fifth = |ratios: &mut Vec<f64>| {
            ratios.sort_by(f64::total_cmp);
            ratios.get(ratios.len() / 5).copied().unwrap_or(1.0)
        };
        Ok(Self { source_bytes_per_token: low_fifth(&mut source), target_bytes_per_token: low_fifth(&mut target) })
    }

    /// Returns the estimated number of tokens, eos included.
    fn tokens(&self, bytes: u32, bytes_per_token: f64) -> usize {
        (f64::from(bytes) / bytes_per_token).ceil() as usize + 1
    }
}

impl BatchSource for DirectSource {
    fn plan(&self, order: Order) -> EpochPlan {
        self.buckets.plan(order)
    }

    fn batches_per_epoch(&self) -> u64 {
        self.buckets.batches_per_epoch()
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        None
    }

    /// Reads and hashes the whole text.
    fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.tokenizers.fingerprint().as_bytes());
        let CorpusConfig { source_field, target_field, .. } = &self.corpus;
        let columns = [self.corpus.source_column, self.corpus.target_column];
        let limits = [self.corpus.max_source_len, self.corpus.max_target_len];
        hasher.update(format!("{source_field}\0{target_field}\0{columns:?}{limits:?}").as_bytes());
        hasher.update(mark_of_special_tokens(self.corpus.split_special_tokens));
        for file in &self.files {
            hasher.update(blake3::hash(file.map.bytes()).as_bytes());
        }
        for row in &self.rows {
            hasher.update(&row.start.to_le_bytes()).update(&row.len.to_le_bytes()).update(&row.file.to_le_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        let encoder = self.tokenizers.encoder().splitting_special_tokens(self.corpus.split_special_tokens);
        Box::new(DirectWorker { encoder, source: self, ids: Vec::new(), ends: Vec::new() })
    }
}

struct DirectWorker {
    source: Arc<DirectSource>,
    encoder: PairEncoder,
    /// Ids of all rows of a batch, source and target in turn.
    ids: Vec<u32>,
    /// Row number, end of its source ids, end of its target ids.
    ends: Vec<(u32, usize, usize)>,
}

impl BatchWorker for DirectWorker {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> Result<()> {
        let (rows, _) = plan.batch(index);
        let Self { source, encoder, ids, ends } = self;
        source.files.iter().try_for_each(TextFile::check_unchanged)?;
        ids.clear();
        ends.clear();

        // Tokenize all rows, to know the longest.
        let (mut source_len, mut target_len) = (0, 0);
        for &row in rows {
            let pair = source.pair(row)?;
            let start = ids.len();
            encoder.encode_source(&pair.source, ids)?;
            let middle = ids.len();
            encoder.encode_target(&pair.target, ids)?;

            let (source_tokens, target_tokens) = (middle - start + 1, ids.len() - middle + 1);
            if length_problem(source_tokens, target_tokens, &source.corpus).is_some() {
                source.over_long.fetch_add(1, Ordering::Relaxed);
                ids.truncate(start);
                continue;
            }
            ends.push((row, middle, ids.len()));
            (source_len, target_len) = (source_tokens.max(source_len), target_tokens.max(target_len));
        }

        // Fix the shape and write them.
        let pad = |len: usize, max: usize| {
            let padded = round_up(len, source.bucket_multiple);
            if max == 0 { padded } else { padded.min(max) }
        };
        let shape = Shape {
            batch_size: ends.len(),
            source_len: pad(source_len, source.corpus.max_source_len),
            target_len: pad(target_len, source.corpus.max_target_len),
        };
        let mut collator = Collator::new(batch, shape, source.tokenizers.special());
        let mut start = 0;
        for &(row, middle, end) in &*ends {
            collator.push(row, &ids[start..middle], &ids[middle..end]);
            start = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
