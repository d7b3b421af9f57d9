//! Building a token cache: parse and tokenize in parallel, write in order, rename when complete.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::TokenCache;
use super::fingerprint::Ledger;
use super::format::{Header, NOT_A_CACHE};
use super::rows::{Pairs, Rows, Texts};
use super::write::{FINISHING, Writer};
use crate::corpus::{BlockStart, PairCorpus, RowReport, TextCorpus};
use crate::error::{Error, Result};
use crate::files::open_own;
use crate::tokenizer::{ChatTemplate, PairTokenizers, TextTokenizer};

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
    prepare(path, &Pairs::new(corpus.clone(), tokenizers), num_threads, progress)
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
    prepare(path, &Texts::documents(corpus.clone(), tokenizer), num_threads, progress)
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
    prepare(path, &Texts::conversations(corpus.clone(), tokenizer, template)?, num_threads, progress)
}

fn prepare(path: &Path, rows: &dyn Rows, num_threads: usize, progress: &mut dyn FnMut(u64)) -> Result<Prepared> {
    let write = |writer: &mut Writer| {
        writer.watch_repeated(rows.filter());
        rows.encode(BlockStart::default(), 0..usize::MAX, num_threads, &mut |block| {
            writer.push(block.encoded)?;
            progress(writer.report.rows());
            Ok(())
        })
    };
    let fingerprint = |ledger: &Ledger| rows.fingerprint(ledger);
    open_or_build(path, rows.header().clone(), &fingerprint, &|report| rows.check(report), write)
}

/// Opens or builds the cache that `header` describes; this function fills in the fingerprint of the corpus. `write`
/// writes all rows.
fn open_or_build(
    path: &Path,
    mut header: Header,
    fingerprint: &dyn Fn(&Ledger) -> Result<(blake3::Hash, Ledger)>,
    check: &dyn Fn(&RowReport) -> Result<()>,
    write: impl FnOnce(&mut Writer) -> Result<()>,
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
        build(path, header, Keeping::Synced, |writer| {
            write(writer)?;
            check(&writer.report)?;
            unchanged()
        })?;
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

/// What a power cut may leave of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeping {
    /// All of it.
    Synced,
    /// Anything: the cache is verified before it is used, and made again if it is damaged. Waiting for the disk has taken 10 ms for each
    /// shard (`benches/results/2026-11-28-streamed-pairs.md`).
    Unsynced,
}

/// Writes a cache to a temporary file, and renames that when `write` has ended.
pub(super) fn build(
    path: &Path,
    mut header: Header,
    keeping: Keeping,
    write: impl FnOnce(&mut Writer) -> Result<()>,
) -> Result<()> {
    header.token_bytes = if header.is_narrow() { 2 } else { 4 };
    let temporary = Temporary { path: with_suffix(path, ".partial") };
    let mut writer = Writer::create(&temporary.path, header.kind)?;
    write(&mut writer)?;
    let file = writer.finish(header)?;
    if keeping == Keeping::Unsynced {
        return fs::rename(&temporary.path, path).map_err(Error::io(path, RENAMING));
    }
    file.sync_all().map_err(Error::io(&temporary.path, FINISHING))?;
    rename_synced(&temporary.path, path)
}

const RENAMING: &str = "renaming the finished cache";

/// Gives a finished file its name.
pub(super) fn rename_synced(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(Error::io(to, RENAMING))?;
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
