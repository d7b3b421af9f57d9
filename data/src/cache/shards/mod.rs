//! A corpus in shards: token caches of parts of it, made when they are needed and removed when others need their room.
//!
//! One pass over the text counts the rows and tokens of each shard ([`index`]). Later a shard is read again from its beginning,
//! tokenized, and compared with the hash of its first pass. [`room`] keeps the caches under the limit.

mod index;
mod room;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use blake3::Hash;

pub use self::index::verify_shard_index;
use self::index::{Cut, Index, Shard, index_of};
use self::room::Room;
use super::TokenCache;
use super::build::{Keeping, build, reason_to_build};
use super::format::{CacheKind, Header, NOT_A_CACHE};
use super::labels::Labels;
use super::rows::{Pairs, Rows, Texts};
use super::write::Writer;
use crate::corpus::{LabelledText, Packing, PairCorpus, RowReport, TextCorpus};
use crate::error::{Error, Result};
use crate::tokenizer::{ChatTemplate, LabelledShape, PairTokenizers, TextTokenizer};

/// Shards whose rows are shuffled together.
pub(crate) const WINDOW_SHARDS: usize = 8;
/// Largest size of the tokens of a shard, so that neither the start nor a resume waits long.
const MOST_SHARD_BYTES: u64 = 64 << 20;
/// Smaller shards are not worth their files.
const LEAST_SHARD_BYTES: u64 = 4 << 10;
/// A limit holds so many shards, more than two windows.
const SHARDS_OF_LIMIT: u64 = 20;
/// How often a cache that another process removed is made again.
const ATTEMPTS: usize = 4;

/// A corpus whose token cache stays under a limit on disk.
#[derive(Debug)]
pub struct Shards {
    rows: Box<dyn Rows>,
    index: Index,
    report: RowReport,
    room: Room,
}

impl Shards {
    /// Finds or makes the index of a plain text in `folder`, which will hold token caches of at most `limit` bytes.
    ///
    /// Making it reads and tokenizes the whole text once. An interrupted pass goes on behind the last shard that it has counted. The index
    /// counts documents by their lengths if each has rows of its own ([`Packing::Sentences`]).
    ///
    /// # Errors
    ///
    /// If the text cannot be read or changes meanwhile, if too many rows are bad, if the index cannot be written, or if two windows
    /// of shards exceed the limit.
    pub fn of_text(
        folder: &Path,
        corpus: TextCorpus,
        tokenizer: &TextTokenizer,
        limit: u64,
        num_threads: usize,
    ) -> Result<Self> {
        let multiple = usize::from(corpus.config().packing == Packing::Sentences);
        Self::prepare(folder, Box::new(Texts::documents(corpus, tokenizer)), multiple, limit, num_threads)
    }

    /// Does the same for pairs. The index counts them by their lengths, rounded up by [`round_up`](crate::round_up) to multiples of
    /// `length_multiple`, which is the loader's `bucket_multiple`.
    ///
    /// # Errors
    ///
    /// As [`Self::of_text`].
    pub fn of_pairs(
        folder: &Path,
        corpus: PairCorpus,
        tokenizers: &PairTokenizers,
        length_multiple: usize,
        limit: u64,
        num_threads: usize,
    ) -> Result<Self> {
        Self::prepare(folder, Box::new(Pairs::new(corpus, tokenizers)), length_multiple.max(1), limit, num_threads)
    }

    /// Does the same for conversations, or for answers to compare, which `template` writes. The index counts their lengths.
    ///
    /// # Errors
    ///
    /// As [`Self::of_text`], and if the tokenizer fails.
    pub fn of_conversations(
        folder: &Path,
        corpus: TextCorpus,
        tokenizer: &TextTokenizer,
        template: &ChatTemplate,
        limit: u64,
        num_threads: usize,
    ) -> Result<Self> {
        let rows = Texts::conversations(corpus, tokenizer, template)?;
        Self::prepare(folder, Box::new(rows), 1, limit, num_threads)
    }

    /// Does the same for labelled rows, whose classes are known, encoded as `shape` says. The index counts their lengths.
    ///
    /// # Errors
    ///
    /// As [`Self::of_text`].
    pub fn of_labels(
        folder: &Path,
        text: LabelledText,
        tokenizer: &TextTokenizer,
        shape: LabelledShape,
        limit: u64,
        num_threads: usize,
    ) -> Result<Self> {
        Self::prepare(folder, Box::new(Labels::new(text, tokenizer, shape)), 1, limit, num_threads)
    }

    fn prepare(
        folder: &Path,
        rows: Box<dyn Rows>,
        length_multiple: usize,
        limit: u64,
        num_threads: usize,
    ) -> Result<Self> {
        let Some(shard_bytes) = shard_bytes(limit) else {
            let least = SHARDS_OF_LIMIT * LEAST_SHARD_BYTES;
            return Err(Error::Invalid(format!("data.cache_limit is {limit} bytes: set at least {least}")));
        };

        fs::create_dir_all(folder).map_err(Error::io(folder, "creating the cache folder"))?;
        let cut = Cut { shard_bytes, length_multiple };
        let index = index_of(&folder.join("index.jsonl"), &*rows, cut, num_threads)?;
        check_limit(&index.shards, &*rows, limit)?;
        let mut report = RowReport::default();
        index.shards.iter().for_each(|shard| report.merge(shard.report.clone()));
        rows.check(&report)?;
        let room = Room { folder: folder.into(), limit };
        Ok(Self { rows, index, report, room })
    }

    /// Returns the number of shards.
    pub fn n_shards(&self) -> usize {
        self.index.shards.len()
    }

    /// Returns the number of shards that were counted; 0 if the index was complete.
    pub fn n_counted(&self) -> usize {
        self.index.n_counted
    }

    /// Returns the number of tokens, as [`TokenCache::n_tokens`] does.
    pub fn n_tokens(&self) -> u64 {
        self.index.shards.iter().map(|shard| shard.tokens - shard.others).sum()
    }

    /// Returns the bytes that the token caches of all shards would take.
    pub fn n_bytes(&self) -> u64 {
        self.index.shards.iter().map(|shard| shard.bytes).sum()
    }

    /// Returns the counts of kept and bad rows.
    pub fn report(&self) -> &RowReport {
        &self.report
    }

    /// Returns the numbers of rows and tokens of each shard.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.index.shards.iter().map(|shard| (shard.documents, shard.tokens))
    }

    /// Returns what the rows are.
    pub(crate) fn kind(&self) -> CacheKind {
        self.rows.header().kind
    }

    /// Returns the lengths of the rows of each shard: source length and target length, both rounded up, and the number of rows. Of a
    /// document the tokens alone.
    pub(crate) fn cells(&self) -> impl Iterator<Item = &[(u32, u32, u64)]> {
        self.index.shards.iter().map(|shard| &*shard.cells)
    }

    /// Returns the longest allowed source and target rows in tokens, eos included; 0: no limit.
    pub(crate) fn max_lens(&self) -> (usize, usize) {
        let header = self.rows.header();
        (header.max_source_len as usize, header.max_target_len as usize)
    }

    /// Returns the multiple to which lengths are rounded up; 0 for documents that are packed.
    pub(crate) fn length_multiple(&self) -> usize {
        self.index.length_multiple
    }

    /// Returns a fingerprint of the tokens, of their division into shards, and of `settings`.
    pub(crate) fn fingerprint_with(&self, settings: &str) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.index.corpus.as_bytes());
        for Shard { documents, hash, .. } in &self.index.shards {
            hasher.update(&documents.to_le_bytes()).update(hash.as_bytes());
        }
        hasher.update(settings.as_bytes());
        hasher.finalize().to_hex().to_string()
    }

    /// Opens the caches of `wanted` shards, and makes those that are missing with `num_threads` threads. Caches that are not `kept` make
    /// room. Several processes share the work: each makes shards that no other one is making. Ends with an error when `stops` says so.
    ///
    /// # Errors
    ///
    /// If the text changed, or if a cache cannot be written.
    pub(crate) fn open(
        &self,
        wanted: &[u32],
        kept: &dyn Fn(u32) -> bool,
        num_threads: usize,
        stops: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<TokenCache>> {
        let mut caches: Vec<Option<TokenCache>> = wanted.iter().map(|_| None).collect();
        let mut waits = false;
        loop {
            let (mut n_opened, mut n_missing) = (0, 0);
            for (cache, shard) in caches.iter_mut().zip(wanted).filter(|(cache, _)| cache.is_none()) {
                if stops() {
                    return Err(Error::Stopped("the run ends".into()));
                }
                *cache = self.open_one(*shard, waits && n_opened == 0, kept, num_threads, stops)?;
                if cache.is_some() { n_opened += 1 } else { n_missing += 1 }
            }
            if n_missing == 0 {
                return Ok(caches.into_iter().flatten().collect());
            }
            // Other processes make what is left.
            waits = n_opened == 0;
        }
    }

    /// Opens the cache of a shard, or makes it. Returns `None` if another process is making it and this call does not wait.
    fn open_one(
        &self,
        shard: u32,
        waits: bool,
        kept: &dyn Fn(u32) -> bool,
        num_threads: usize,
        stops: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<TokenCache>> {
        let Some(_lock) = self.room.lock(shard, waits)? else { return Ok(None) };
        let (path, header) = (self.room.path(shard), self.header(shard));

        let mut attempt = 0;
        loop {
            if is_missing(&path, &header)? {
                let bytes_of = |shard: u32| self.index.shards.get(shard as usize).map(|shard| shard.bytes);
                self.room.reserve(shard, kept, &bytes_of)?;
                self.make(shard, &path, header.clone(), num_threads, stops)?;
            }
            attempt += 1;
            match TokenCache::open(&path) {
                Ok(cache) => return self.checked(shard, cache).map(Some),
                // Another process needed the room.
                Err(_) if !path.exists() && attempt < ATTEMPTS => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Tokenizes the rows of a shard that do not repeat earlier ones of the text into the cache at `path`.
    fn make(
        &self,
        shard: u32,
        path: &Path,
        header: Header,
        num_threads: usize,
        stops: &(dyn Fn() -> bool + Sync),
    ) -> Result<()> {
        let Shard { start, blocks, repeated, .. } = &self.index.shards[shard as usize];
        let write = |writer: &mut Writer| {
            let (mut n_read, mut repeated) = (0, repeated.as_slice());
            self.rows.encode(*start, 0..*blocks, num_threads, &mut |mut block| {
                if stops() {
                    return Err(Error::Stopped("the run ends".into()));
                }
                let end = n_read + block.encoded.rows.len() as u32;
                let (of_block, later) = repeated.split_at(repeated.partition_point(|row| *row < end));
                block.encoded.drop_rows(&of_block.iter().map(|row| row - n_read).collect::<Vec<_>>());
                (n_read, repeated) = (end, later);
                writer.push(block.encoded)
            })
        };
        build(path, header, Keeping::Unsynced, write).map_err(|error| self.with_remedy(error))
    }

    /// Adds to the error of a full disk what can be done.
    fn with_remedy(&self, error: Error) -> Error {
        match error {
            Error::Io { path, action, error } if is_full(error.kind()) => {
                let limit = self.room.limit;
                let found = format!(
                    "{error}: free some space, or lower data.cache_limit, which allows {limit} bytes of token caches"
                );
                Error::Io { path, action, error: io::Error::new(error.kind(), found) }
            }
            error => error,
        }
    }

    /// Refuses a cache that holds other tokens than the index counted.
    fn checked(&self, shard: u32, cache: TokenCache) -> Result<TokenCache> {
        let Shard { documents, hash, .. } = &self.index.shards[shard as usize];
        let header = cache.header();
        if header.n_rows == *documents && header.tokens_hash.to_hex().as_str() == hash {
            return Ok(cache);
        }
        Err(self.changed(shard, cache.path()))
    }

    /// Removes a cache that holds other rows than the index counted, and returns the error.
    pub(crate) fn changed(&self, shard: u32, cache: &Path) -> Error {
        // The next start reads the text again, and must not find this.
        let _ = fs::remove_file(cache);
        let file = self.rows.file(self.index.shards[shard as usize].start.file);
        Error::corpus(
            file,
            "the text changed during the run, which reads it again in every epoch (data.cache_limit): restore it, or start a new run and \
             do not edit the text",
        )
    }

    fn header(&self, shard: u32) -> Header {
        let mut hasher = blake3::Hasher::new();
        let Shard { hash, .. } = &self.index.shards[shard as usize];
        hasher.update(b"shard\0").update(self.index.corpus.as_bytes()).update(hash.as_bytes());
        let corpus: Hash = hasher.finalize();
        Header { corpus, ..self.rows.header().clone() }
    }
}

/// Whether the cache of a shard at `path` must be made. A file with other bytes is what a power cut has left of one.
fn is_missing(path: &Path, header: &Header) -> Result<bool> {
    let reason = reason_to_build(path, header);
    let is_other = matches!(&reason, Err(Error::Cache { problem, .. }) if problem.starts_with(NOT_A_CACHE));
    if is_other { Ok(true) } else { Ok(reason?.is_some()) }
}

/// Whether a disk, a quota or a limit of the system has no room for more.
fn is_full(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// Returns the size of the shards under a limit: a power of two, so that most changes of the limit leave the order alone. `None`: the
/// limit is too low.
fn shard_bytes(limit: u64) -> Option<u64> {
    let most = limit / SHARDS_OF_LIMIT;
    (most >= LEAST_SHARD_BYTES).then(|| (1 << most.ilog2()).min(MOST_SHARD_BYTES))
}

/// Refuses a limit that two windows of the largest shards exceed: the one in use and the next.
fn check_limit(shards: &[Shard], rows: &dyn Rows, limit: u64) -> Result<()> {
    let mut sizes: Vec<u64> = shards.iter().map(|shard| shard.bytes).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let needed: u64 = sizes.iter().take(2 * WINDOW_SHARDS).sum();
    if needed <= limit {
        return Ok(());
    }
    let largest = shards.iter().max_by_key(|shard| shard.bytes).expect("there are sizes");
    let file = rows.file(largest.start.file).display();
    Err(Error::Invalid(format!(
        "data.cache_limit is {limit} bytes, but two windows of {WINDOW_SHARDS} shards need up to {needed}: raise it to that. The \
         largest shard has {} bytes and begins in {file}; a file that is compressed, or whose records are not lines, is one shard, so it \
         can be split instead",
        largest.bytes
    )))
}
