//! Building a token cache: parse and tokenize in parallel, write in order, appear when complete.

use std::fs::{self, File};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::TokenCache;
use super::fingerprint::{Ledger, fingerprint};
use super::format::{HEADER_BYTES, Header};
use crate::corpus::{Block, Corpus, Pair, RowParser, RowProblem, RowReport, for_each_block};
use crate::error::{Error, Result};
use crate::tokenizer::{Encoder, Tokenizers};

/// A cache that is ready to use.
#[derive(Debug)]
pub struct Prepared {
    /// The cache.
    pub cache: TokenCache,
    /// Why it was built; `None` if the one that was there fits.
    pub built_because: Option<String>,
}

/// Opens the cache at `path` if it was made from this text with these tokenizers, or else builds it: into a temporary
/// file that is synced and renamed, so that an interrupted build leaves nothing behind that could be mistaken for a
/// cache. A second process that wants the same cache waits and then uses it.
///
/// `progress` is called now and then with the number of rows seen so far.
pub fn prepare(
    path: &Path,
    corpus: &Corpus,
    tokenizers: &Tokenizers,
    num_threads: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<Prepared> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Error::io(folder, "creating the cache folder"))?;
    }
    // Without a lock (a read-only folder, some network file systems) a cache that fits can still be used, and two builders
    // at worst do the same work twice.
    let lock = File::create(with_suffix(path, ".lock"));
    let _ = lock.as_ref().map(File::lock);

    let (corpus_hash, ledger) = fingerprint(corpus, &Ledger::read(path))?;
    let built_because = match reason_to_build(path, corpus_hash, tokenizers)? {
        None => None,
        Some(reason) => {
            build(path, corpus, corpus_hash, tokenizers, num_threads, progress)?;
            Some(reason)
        }
    };
    ledger.write(path);
    let cache = TokenCache::open(path)?;
    corpus.check(cache.report())?;
    Ok(Prepared { cache, built_because })
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// `None` if the cache that is there fits. A file that is no cache at all is an error: it is not ours to replace.
fn reason_to_build(path: &Path, corpus_hash: blake3::Hash, tokenizers: &Tokenizers) -> Result<Option<String>> {
    match fs::metadata(path) {
        Err(_) => return Ok(Some("there is none yet".into())),
        Ok(file) if file.len() == 0 => return Ok(Some("the file is empty".into())),
        Ok(_) => {}
    }
    let cache = match TokenCache::open(path) {
        Ok(cache) => cache,
        Err(Error::Cache { problem, .. }) if !problem.starts_with("is no token cache") => return Ok(Some(problem)),
        Err(error) => return Err(error),
    };
    let header = cache.header();
    if header.tokenizer != tokenizers.fingerprint_hash() {
        return Ok(Some("the tokenizer changed".into()));
    }
    if header.corpus != corpus_hash {
        return Ok(Some("the text, its fields or the length limits changed".into()));
    }
    Ok(None)
}

fn build(
    path: &Path,
    corpus: &Corpus,
    corpus_hash: blake3::Hash,
    tokenizers: &Tokenizers,
    num_threads: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let (source_vocab_size, target_vocab_size) = (tokenizers.source_vocab_size(), tokenizers.target_vocab_size());
    let narrow = source_vocab_size.max(target_vocab_size) <= 1 << 16;
    let temporary = Temporary { path: with_suffix(path, ".partial") };
    let mut writer = Writer::create(&temporary.path)?;
    let parser = RowParser::new(corpus.config());
    for_each_block(
        corpus,
        num_threads,
        || BlockEncoder { corpus, encoder: tokenizers.encoder(), narrow, source: Vec::new(), target: Vec::new() },
        |encoder, block| encoder.encode(&block, &parser),
        |block| {
            writer.push(block)?;
            progress(writer.report.rows());
            Ok(())
        },
    )?;
    corpus.check(&writer.report)?;
    writer.finish(Header {
        token_bytes: if narrow { 2 } else { 4 },
        n_rows: 0,
        n_tokens: 0,
        report_bytes: 0,
        source_vocab_size: source_vocab_size as u32,
        target_vocab_size: target_vocab_size as u32,
        max_source_len: corpus.config().max_source_len as u32,
        max_target_len: corpus.config().max_target_len as u32,
        tokenizer: tokenizers.fingerprint_hash(),
        corpus: corpus_hash,
        tokens_hash: blake3::hash(&[]),
        index_hash: blake3::hash(&[]),
    })?;
    fs::rename(&temporary.path, path).map_err(Error::io(path, "renaming the finished cache"))?;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        // The rename itself must survive a power cut; not every system can sync a folder.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
    Ok(())
}

/// Removes what is left of a build that failed; after the rename there is nothing left.
struct Temporary {
    path: PathBuf,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The rows of one block as they will lie in the file.
struct EncodedBlock {
    tokens: Vec<u8>,
    /// Source tokens and all tokens of each row.
    rows: Vec<(u32, u32)>,
    report: RowReport,
}

struct BlockEncoder<'a> {
    corpus: &'a Corpus,
    encoder: Encoder,
    narrow: bool,
    source: Vec<u32>,
    target: Vec<u32>,
}

impl BlockEncoder<'_> {
    fn encode(&mut self, block: &Block, parser: &RowParser) -> Result<EncodedBlock> {
        let mut encoded = EncodedBlock { tokens: Vec::new(), rows: Vec::new(), report: RowReport::default() };
        let path = self.corpus.inputs()[block.input].main_file();
        for (line, row) in block.rows(parser) {
            let problem = match row {
                Ok(pair) => self.encode_row(&pair, &mut encoded)?,
                Err(problem) => Some(problem),
            };
            match problem {
                Some(problem) => encoded.report.add_bad(path, line, &problem),
                None => encoded.report.add_kept(1),
            }
        }
        Ok(encoded)
    }

    fn encode_row(&mut self, pair: &Pair<'_>, encoded: &mut EncodedBlock) -> Result<Option<RowProblem>> {
        self.source.clear();
        self.target.clear();
        self.encoder.encode_source(&pair.source, &mut self.source)?;
        self.encoder.encode_target(&pair.target, &mut self.target)?;
        let problem = RowProblem::of_lengths(self.source.len() + 1, self.target.len() + 1, self.corpus.config());
        if problem.is_some() {
            return Ok(problem);
        }
        for id in self.source.iter().chain(&self.target) {
            if self.narrow {
                encoded.tokens.extend((*id as u16).to_le_bytes());
            } else {
                encoded.tokens.extend(id.to_le_bytes());
            }
        }
        encoded.rows.push((self.source.len() as u32, (self.source.len() + self.target.len()) as u32));
        Ok(None)
    }
}

/// Writes tokens as they come and keeps the index for the end.
struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
    hasher: blake3::Hasher,
    token_bytes: u64,
    offsets: Vec<u64>,
    source_lens: Vec<u32>,
    report: RowReport,
}

impl Writer {
    fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(Error::io(path, "creating the token cache"))?;
        let mut file = BufWriter::with_capacity(1 << 20, file);
        // The header comes last: until then the file has no magic number.
        file.write_all(&[0; HEADER_BYTES]).map_err(Error::io(path, "writing"))?;
        Ok(Self {
            path: path.into(),
            file,
            hasher: blake3::Hasher::new(),
            token_bytes: 0,
            offsets: vec![0],
            source_lens: Vec::new(),
            report: RowReport::default(),
        })
    }

    fn push(&mut self, block: EncodedBlock) -> Result<()> {
        self.write(&block.tokens)?;
        self.hasher.update(&block.tokens);
        self.token_bytes += block.tokens.len() as u64;
        let mut end = *self.offsets.last().expect("starts with 0");
        for (source, both) in block.rows {
            end += u64::from(both);
            self.offsets.push(end);
            self.source_lens.push(source);
        }
        if self.source_lens.len() > u32::MAX as usize {
            return Err(Error::Invalid(
                "the corpus has more than 4,294,967,295 rows, which one cache cannot number: split it".into(),
            ));
        }
        self.report.merge(block.report);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::io(&self.path, "writing"))
    }

    /// Completes `header` and the file.
    fn finish(mut self, mut header: Header) -> Result<()> {
        let report = serde_json::to_vec(&self.report).expect("plain data");
        header.n_rows = self.source_lens.len() as u64;
        header.n_tokens = *self.offsets.last().expect("starts with 0");
        header.report_bytes = report.len() as u64;
        header.tokens_hash = self.hasher.finalize();
        let padding = self.token_bytes.next_multiple_of(8) - self.token_bytes;
        self.write(&vec![0; padding as usize])?;
        let (offsets, source_lens) = (std::mem::take(&mut self.offsets), std::mem::take(&mut self.source_lens));
        let mut hasher = blake3::Hasher::new();
        for part in [bytemuck::cast_slice(&offsets), bytemuck::cast_slice(&source_lens), &report] {
            hasher.update(part);
            self.write(part)?;
        }
        header.index_hash = hasher.finalize();
        let finish = |file: &mut BufWriter<File>| {
            file.flush()?;
            file.get_mut().seek(SeekFrom::Start(0))?;
            file.get_mut().write_all(&header.to_bytes())?;
            file.get_mut().sync_all()
        };
        finish(&mut self.file).map_err(Error::io(&self.path, "finishing the token cache"))
    }
}
