//! Building a token cache: parse and tokenize in parallel, write in order, rename when complete.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::TokenCache;
use super::encode::{ChatBlockEncoder, PairBlockEncoder, TextBlockEncoder};
use super::fingerprint::{Ledger, pair_fingerprint, text_fingerprint};
use super::format::{CacheKind, Header, NOT_A_CACHE};
use super::write::Writer;
use crate::corpus::{Learn, PairCorpus, RowParser, RowReport, TextCorpus, for_each_block};
use crate::error::{Error, Result};
use crate::files::open_own;
use crate::tokenizer::{ChatEncoder, ChatTemplate, PairTokenizers, TextTokenizer};

/// A cache that is ready to use.
#[derive(Debug)]
pub struct Prepared {
    /// The cache.
    pub cache: TokenCache,
    /// Why it was built; `None` if the existing one fits.
    pub built_because: Option<String>,
}

/// Opens the cache of pairs at `path`, or builds it if it was not made from this text with these tokenizers.
///
/// An existing cache is read once and compared with its hashes. A new one is written to a temporary file, synced and
/// renamed, so that an interrupted build never leaves a partial cache. A second process that needs the same cache waits
/// and then uses it. `progress` receives the number of rows read so far, from time to time.
///
/// # Errors
///
/// If the text cannot be read or changes meanwhile, if too many rows are bad, if the cache cannot be written, or if the
/// file at `path` is not a token cache.
pub fn prepare_pairs(
    path: &Path,
    corpus: &PairCorpus,
    tokenizers: &PairTokenizers,
    num_threads: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<Prepared> {
    let header = pair_header(corpus, tokenizers);
    let parser = RowParser::new(corpus.config());
    let write = |writer: &mut Writer, narrow: bool| {
        writer.watch_repeated(corpus.config().filter.as_deref());
        for_each_block(
            corpus.blocks(),
            num_threads,
            || PairBlockEncoder::new(corpus, tokenizers, narrow),
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

/// Does the same as [`prepare_pairs`] for plain text. The cache holds whole documents;
/// [`TextSource`](crate::TextSource) packs them into rows.
pub fn prepare_text(
    path: &Path,
    corpus: &TextCorpus,
    tokenizer: &TextTokenizer,
    num_threads: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<Prepared> {
    let header = text_header(tokenizer);
    let write = |writer: &mut Writer, narrow: bool| {
        writer.watch_repeated(corpus.config().filter.as_deref());
        for_each_block(
            corpus.blocks(),
            num_threads,
            || TextBlockEncoder::new(corpus, tokenizer, narrow),
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

/// Does the same as [`prepare_text`] for conversations, which `template` writes. The cache holds their ids, and which of
/// them the model learns; [`ChatSource`](crate::ChatSource) packs them into rows. Of preferences it holds both conversations, for a
/// [`PreferenceSource`](crate::PreferenceSource).
pub fn prepare_chat(
    path: &Path,
    corpus: &TextCorpus,
    tokenizer: &TextTokenizer,
    template: &ChatTemplate,
    num_threads: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<Prepared> {
    let (kind, learn) = match corpus.config().is_preferences() {
        true => (CacheKind::Preferences, Learn::LastAnswer),
        false => (CacheKind::Chat, corpus.config().learn),
    };
    let header = Header { kind, ..text_header(tokenizer) };

    let special = tokenizer.special_encoder()?;
    let splits = corpus.config().split_special_tokens;
    let encoder = || ChatEncoder::new(special.clone(), template.clone(), learn).splitting_special_tokens(splits);
    let write = |writer: &mut Writer, _| {
        writer.watch_repeated(corpus.config().filter.as_deref());
        for_each_block(
            corpus.blocks(),
            num_threads,
            || ChatBlockEncoder::new(corpus, encoder()),
            |encoder, block| encoder.encode(&block),
            |block| {
                writer.push(block)?;
                progress(writer.report.rows());
                Ok(())
            },
        )
    };

    let fingerprint = |ledger: &Ledger| {
        let (text, ledger) = text_fingerprint(corpus, ledger)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(text.as_bytes()).update(template.source().as_bytes());
        Ok((hasher.finalize(), ledger))
    };
    open_or_build(path, header, &fingerprint, &|report| corpus.check(report), write)
}

/// Returns the header of a cache of pairs, without what the text decides.
pub(super) fn pair_header(corpus: &PairCorpus, tokenizers: &PairTokenizers) -> Header {
    Header {
        source_vocab_size: tokenizers.source_vocab_size() as u32,
        target_vocab_size: tokenizers.target_vocab_size() as u32,
        max_source_len: corpus.config().max_source_len as u32,
        max_target_len: corpus.config().max_target_len as u32,
        ..Header::new(CacheKind::Pairs, tokenizers.fingerprint_hash())
    }
}

/// Does the same for documents.
pub(super) fn text_header(tokenizer: &TextTokenizer) -> Header {
    let vocab_size = tokenizer.vocab_size() as u32;
    Header {
        source_vocab_size: vocab_size,
        target_vocab_size: vocab_size,
        ..Header::new(CacheKind::Text, tokenizer.fingerprint_hash())
    }
}

/// Opens or builds the cache that `header` describes; this function fills in the fingerprint of the corpus. `write`
/// writes all rows, with 16-bit tokens if its second argument is true.
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
    // Locking fails in read-only folders and on some network file systems. An existing cache is usable nevertheless,
    // and two builders at worst do the same work twice.
    let lock = open_own(&with_suffix(path, ".lock"));
    if let Err(error) = &lock
        && error.kind() == std::io::ErrorKind::InvalidInput
    {
        let problem = format!("the lock {}: {error}", with_suffix(path, ".lock").display());
        return Err(Error::Invalid(problem));
    }
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
                 text: run again when nothing writes to it",
                path.display()
            )))
        };
        build(path, header, check, write, &unchanged)?;
    }
    let cache = TokenCache::open(path)?;
    ledger.write(path, cache.fingerprint());
    check(cache.report())?;
    Ok(Prepared { cache, built_because })
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns why the cache must be built; `None` if the existing one fits. A file that is not a cache is an error: Kiln
/// does not replace it.
pub(super) fn reason_to_build(path: &Path, wanted: &Header) -> Result<Option<String>> {
    match fs::metadata(path) {
        Err(_) => return Ok(Some("there was none".into())),
        Ok(file) if file.len() == 0 => return Ok(Some("the file is empty".into())),
        Ok(_) => {}
    }
    let cache = match TokenCache::open(path) {
        Ok(cache) => cache,
        Err(Error::Cache { problem, .. }) if !problem.starts_with(NOT_A_CACHE) => return Ok(Some(problem)),
        Err(error) => return Err(error),
    };

    let header = cache.header();
    let reason = if header.kind != wanted.kind {
        Some("it holds rows of another task")
    } else if header.tokenizer != wanted.tokenizer {
        Some("the tokenizer changed")
    } else if header.corpus != wanted.corpus {
        Some("the text, its fields, filters or length limits changed")
    } else if cache.verify().is_err() {
        // A flipped bit would be another token. Reading all of it takes less time than the first epoch.
        Some("its tokens differ from the ones that were written")
    } else {
        None
    };
    Ok(reason.map(Into::into))
}

pub(super) fn build(
    path: &Path,
    mut header: Header,
    check: &dyn Fn(&RowReport) -> Result<()>,
    write: impl FnOnce(&mut Writer, bool) -> Result<()>,
    unchanged: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let narrow = header.is_narrow();
    header.token_bytes = if narrow { 2 } else { 4 };
    let temporary = Temporary { path: with_suffix(path, ".partial") };
    let mut writer = Writer::create(&temporary.path, header.kind)?;
    write(&mut writer, narrow)?;
    check(&writer.report)?;
    unchanged()?;
    writer.finish(header)?;
    rename_synced(&temporary.path, path)
}

/// Gives a finished file its name.
pub(super) fn rename_synced(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(Error::io(to, "renaming the finished cache"))?;
    if let Some(folder) = to.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        // The rename itself must survive a power cut. Not every system can sync a folder.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
    Ok(())
}

/// Removes the file of a failed build. After the rename it no longer exists.
struct Temporary {
    path: PathBuf,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
