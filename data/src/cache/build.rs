//! Building a token cache: parse and tokenize in parallel, write in order, appear when complete.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::TokenCache;
use super::encode::{PairBlockEncoder, TextBlockEncoder};
use super::fingerprint::{Ledger, pair_fingerprint, text_fingerprint};
use super::format::{CacheKind, Header};
use super::write::Writer;
use crate::corpus::{PairCorpus, RowParser, RowReport, TextCorpus, for_each_block};
use crate::error::{Error, Result};
use crate::tokenizer::{PairTokenizers, TextTokenizer};

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
/// cache. A cache that is there is read once and compared with its hashes. A second process that wants the same cache waits
/// and then uses it.
///
/// `progress` is called now and then with the number of rows seen so far.
pub fn prepare_pairs(
    path: &Path,
    corpus: &PairCorpus,
    tokenizers: &PairTokenizers,
    num_threads: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<Prepared> {
    let header = Header {
        source_vocab_size: tokenizers.source_vocab_size() as u32,
        target_vocab_size: tokenizers.target_vocab_size() as u32,
        max_source_len: corpus.config().max_source_len as u32,
        max_target_len: corpus.config().max_target_len as u32,
        ..Header::new(CacheKind::Pairs, tokenizers.fingerprint_hash())
    };
    let parser = RowParser::new(corpus.config());
    let write = |writer: &mut Writer, narrow: bool| {
        for_each_block(
            corpus.blocks(),
            num_threads,
            || PairBlockEncoder::new(corpus, tokenizers.encoder(), narrow),
            |encoder, block| encoder.encode(&block, &parser),
            |block| {
                writer.push(block)?;
                progress(writer.report.rows());
                Ok(())
            },
        )
    };
    open_or_build(path, header, &|ledger| pair_fingerprint(corpus, ledger), &|report| corpus.check(report), write)
}

/// The same for plain text: the documents of `corpus`, tokenized. How they are packed into rows is not part of the cache.
pub fn prepare_text(
    path: &Path,
    corpus: &TextCorpus,
    tokenizer: &TextTokenizer,
    num_threads: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<Prepared> {
    let vocab_size = tokenizer.vocab_size() as u32;
    let header = Header {
        source_vocab_size: vocab_size,
        target_vocab_size: vocab_size,
        ..Header::new(CacheKind::Text, tokenizer.fingerprint_hash())
    };
    let write = |writer: &mut Writer, narrow: bool| {
        for_each_block(
            corpus.blocks(),
            num_threads,
            || TextBlockEncoder::new(corpus, tokenizer.encoder(), narrow),
            |encoder, block| encoder.encode(&block),
            |block| {
                writer.push(block)?;
                progress(writer.report.rows());
                Ok(())
            },
        )
    };
    open_or_build(path, header, &|ledger| text_fingerprint(corpus, ledger), &|report| corpus.check(report), write)
}

/// `header` says what is wanted; the fingerprint of the corpus is filled in here. `write` writes all rows, with narrow
/// tokens or wide ones.
fn open_or_build(
    path: &Path,
    mut header: Header,
    fingerprint: &dyn Fn(&Ledger) -> Result<(blake3::Hash, Ledger)>,
    check: &dyn Fn(&RowReport) -> Result<()>,
    write: impl FnOnce(&mut Writer, bool) -> Result<()>,
) -> Result<Prepared> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Error::io(folder, "creating the cache folder"))?;
    }
    // Without a lock (a read-only folder, some network file systems) a cache that fits can still be used, and two builders
    // at worst do the same work twice.
    let lock = File::create(with_suffix(path, ".lock"));
    let _ = lock.as_ref().map(File::lock);

    let (corpus_hash, ledger) = fingerprint(&Ledger::read(path))?;
    header.corpus = corpus_hash;
    let built_because = reason_to_build(path, &header)?;
    if built_because.is_some() {
        let unchanged = || -> Result<()> {
            let seen_while_built = fingerprint(&ledger)?.0;
            if seen_while_built == corpus_hash {
                return Ok(());
            }
            Err(Error::Invalid(format!(
                "token cache {}: the text changed while it was read, so the cache would hold neither the old nor the new \
                 one: run again when nobody writes to the text",
                path.display()
            )))
        };
        build(path, header, check, write, &unchanged)?;
    }
    ledger.write(path);
    let cache = TokenCache::open(path)?;
    check(cache.report())?;
    Ok(Prepared { cache, built_because })
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// `None` if the cache that is there fits. A file that is no cache at all is an error: it is not ours to replace.
fn reason_to_build(path: &Path, wanted: &Header) -> Result<Option<String>> {
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
    let reason = if header.kind != wanted.kind {
        Some("it holds rows of another task")
    } else if header.tokenizer != wanted.tokenizer {
        Some("the tokenizer changed")
    } else if header.corpus != wanted.corpus {
        Some("the text, its fields or the length limits changed")
    } else if cache.verify().is_err() {
        // Reading it all costs less than the first epoch, which reads it too; a flipped bit would be another token.
        Some("its tokens are not those that were written")
    } else {
        None
    };
    Ok(reason.map(Into::into))
}

fn build(
    path: &Path,
    mut header: Header,
    check: &dyn Fn(&RowReport) -> Result<()>,
    write: impl FnOnce(&mut Writer, bool) -> Result<()>,
    unchanged: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let narrow = header.source_vocab_size.max(header.target_vocab_size) <= 1 << 16;
    header.token_bytes = if narrow { 2 } else { 4 };
    let temporary = Temporary { path: with_suffix(path, ".partial") };
    let mut writer = Writer::create(&temporary.path, header.kind)?;
    write(&mut writer, narrow)?;
    check(&writer.report)?;
    unchanged()?;
    writer.finish(header)?;
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
