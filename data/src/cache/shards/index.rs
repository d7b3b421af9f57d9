//! The index of a corpus in shards: where each begins, and what its cache holds. One pass over the text makes it.
//!
//! A file of JSON lines: a head, a line per shard, and a last line with a hash of the lines before. A line is written when its shard has
//! been counted, so a count that was killed goes on behind the last complete shard. The whole index is synced once, at its end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use blake3::{Hash, Hasher};
use serde::{Deserialize, Serialize};

use super::super::build::{rename_synced, with_suffix};
use super::super::encode::EncodedBlock;
use super::super::fingerprint::Ledger;
use super::super::format::{CacheKind, Header};
use super::super::rows::{Placed, Rows};
use super::super::seen::SeenRows;
use crate::corpus::{BlockStart, RowFilter, RowReport};
use crate::error::{Error, Result};
use crate::files::{open_own, read_file};
use crate::loader_config::round_up;

const FORMAT: u32 = 1;
/// What fails if the disk is full.
const WRITING: &str = "writing the index of shards";

/// A part of a text whose cache is made and removed as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shard {
    /// Where its first block begins.
    pub(super) start: BlockStart,
    /// Blocks of text.
    pub(super) blocks: usize,
    /// Documents or pairs that are kept.
    pub(super) documents: u64,
    /// Numbers of its cache: tokens, without special tokens, ..
    pub(super) tokens: u64,
    /// .. and among them those that are not tokens, but lengths or labels.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) others: u64,
    /// Rows that are not packed from documents: source length and target length, both rounded up ([`round_up`]), and the number of rows
    /// that have them. Of a document the tokens, without special ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) cells: Vec<(u32, u32, u64)>,
    /// Rows that repeat an earlier one of the text and are dropped, by their numbers in the shard, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) repeated: Vec<u32>,
    /// Size of its cache.
    pub(super) bytes: u64,
    /// Hash of its tokens, in hex.
    pub(super) hash: String,
    /// Counts of its documents.
    pub(super) report: RowReport,
}

/// What an index was made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    format: u32,
    /// Hash of the text and of how it is read.
    corpus: String,
    tokenizer: String,
    /// Bytes of tokens and offsets that end a shard.
    shard_bytes: u64,
    /// Lengths are rounded up to multiples of this. 0 for documents that are packed.
    #[serde(default, skip_serializing_if = "is_packed")]
    length_multiple: usize,
}

fn is_packed(length_multiple: &usize) -> bool {
    *length_multiple == 0
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The last line.
#[derive(Debug, Serialize, Deserialize)]
struct End {
    shards: usize,
    /// Hash of all lines before.
    hash: String,
}

/// The shards of a corpus.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) shards: Vec<Shard>,
    /// Hash of the text and of how it is read.
    pub(super) corpus: Hash,
    /// The multiple to which lengths are rounded up. 0 for documents that are packed.
    pub(super) length_multiple: usize,
    /// Shards that this call counted; 0 if the index was there.
    pub(super) n_counted: usize,
}

/// How a corpus is cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    /// Bytes of tokens and offsets that end a shard.
    pub(super) shard_bytes: u64,
    /// Lengths are rounded up to multiples of this. 0 for documents that are packed.
    pub(super) length_multiple: usize,
}

/// Finds or makes the index at `path` of a corpus that is cut into shards. A second process that needs it waits.
pub(super) fn index_of(path: &Path, rows: &dyn Rows, cut: Cut, num_threads: usize) -> Result<Index> {
    // As for a token cache, two processes at worst do the same work twice.
    let lock = open_own(&with_suffix(path, ".lock"));
    let _ = lock.as_ref().map(File::lock);
    let (hash, ledger) = rows.fingerprint(&Ledger::read(path))?;
    let Cut { shard_bytes, length_multiple } = cut;
    let (corpus, tokenizer) = (hash.to_hex().to_string(), rows.header().tokenizer.to_hex().to_string());
    let head = Head { format: FORMAT, corpus, tokenizer, shard_bytes, length_multiple };
    if let Some(shards) = complete(path, &head) {
        return Ok(Index { shards, corpus: hash, length_multiple, n_counted: 0 });
    }

    let drops_duplicates = rows.filter().is_some_and(RowFilter::drops_duplicates);
    let mut count = Count::begun(path, &head, rows.header().clone(), drops_duplicates)?;
    let n_before = count.shards.len();
    count.go_on(rows, num_threads)?;
    let mut report = RowReport::default();
    count.shards.iter().for_each(|shard| report.merge(shard.report.clone()));
    rows.check(&report)?;
    if rows.fingerprint(&ledger)?.0 != hash {
        return Err(Error::Invalid(format!(
            "{}: the text changed while it was counted, so the index would hold neither the old nor the new text: run again when \
             nothing writes to it",
            path.display()
        )));
    }
    let (shards, digest) = count.finish(path)?;
    ledger.write(path, digest);
    Ok(Index { n_counted: shards.len() - n_before, shards, corpus: hash, length_multiple })
}

/// Verifies the index of a corpus in shards. Returns the number of shards.
///
/// # Errors
///
/// If it cannot be read or was damaged.
pub fn verify_shard_index(path: &Path) -> Result<usize> {
    let bytes = read_file(path).map_err(Error::io(path, "reading"))?;
    let found =
        whole(&bytes).ok_or_else(|| Error::cache(path, "its index of shards differs from the one that was written"))?;
    Ok(found.1.len())
}

/// Reads a complete index with this head; `None` if there is another one, a damaged one, or none.
fn complete(path: &Path, head: &Head) -> Option<Vec<Shard>> {
    let (found, shards) = whole(&read_file(path).ok()?)?;
    (found == *head).then_some(shards)
}

/// Reads a complete index.
fn whole(bytes: &[u8]) -> Option<(Head, Vec<Shard>)> {
    let lines = bytes.strip_suffix(b"\n")?;
    let (before, end) = lines.split_at(lines.iter().rposition(|byte| *byte == b'\n')? + 1);
    let end: End = serde_json::from_slice(end).ok()?;
    let (found, shards, n_read) = read_lines(before);
    let is_whole = n_read == before.len() && end.hash == blake3::hash(before).to_hex().as_str();
    (is_whole && shards.len() == end.shards).then_some((found?, shards))
}

/// Reads the head and the shards of the lines that are complete. Returns their length, too.
fn read_lines(bytes: &[u8]) -> (Option<Head>, Vec<Shard>, usize) {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
    let Some(first) = lines.next() else { return (None, Vec::new(), 0) };
    let Ok(head) = serde_json::from_slice(first) else { return (None, Vec::new(), 0) };
    let (mut shards, mut n_read) = (Vec::new(), first.len());
    for line in lines {
        let Ok(shard) = serde_json::from_slice(line) else { break };
        shards.push(shard);
        n_read += line.len();
    }
    (Some(head), shards, n_read)
}

/// A count that is not complete.
struct Count {
    path: PathBuf,
    file: File,
    hasher: Hasher,
    shards: Vec<Shard>,
    open: Option<OpenShard>,
    cut: Cut,
    /// The rows so far, if repeated ones are dropped.
    seen: Option<SeenRows>,
    /// Of all caches.
    header: Header,
}

/// A shard to which blocks are added.
struct OpenShard {
    shard: Shard,
    cells: BTreeMap<(u32, u32), u64>,
    /// The lengths of the last row, which the next block may continue.
    last: Option<(u32, u32)>,
    hasher: Hasher,
    token_bytes: u64,
    /// Rows, with those that are dropped.
    n_read: u32,
}

impl OpenShard {
    /// Returns a shard without blocks, whose first one begins at `start`.
    fn at(start: BlockStart) -> Self {
        let shard = Shard {
            start,
            blocks: 0,
            documents: 0,
            tokens: 0,
            others: 0,
            cells: Vec::new(),
            repeated: Vec::new(),
            bytes: 0,
            hash: String::new(),
            report: RowReport::default(),
        };
        Self { shard, cells: BTreeMap::new(), last: None, hasher: Hasher::new(), token_bytes: 0, n_read: 0 }
    }

    /// Counts the rows of a block by their lengths, which `rounded` rounds up.
    fn count_lengths(&mut self, kind: CacheKind, block: &EncodedBlock, rounded: impl Fn(u32) -> u32) -> Result<()> {
        for (at, row) in block.rows.iter().enumerate() {
            let (source, mut target) = lengths(kind, *row);
            let begun = self.last.filter(|_| at == 0 && block.continues);
            if let Some(begun) = begun {
                let n = self.cells.get_mut(&begun).expect("the last row was counted");
                *n -= 1;
                if *n == 0 {
                    self.cells.remove(&begun);
                }
                target = begun
                    .1
                    .checked_add(target)
                    .ok_or_else(|| Error::Invalid("a document has more than 4,294,967,295 tokens: divide it".into()))?;
            }
            let cell = (rounded(source), rounded(target));
            *self.cells.entry(cell).or_default() += 1;
            self.last = Some(cell);
        }
        Ok(())
    }
}

impl Count {
    /// Goes on with an interrupted count of the same text, or begins. A count that drops repeated rows begins anew, since it must know all
    /// rows before.
    fn begun(index: &Path, head: &Head, header: Header, drops_duplicates: bool) -> Result<Self> {
        let path = with_suffix(index, ".partial");
        let mut file = open_own(&path).map_err(Error::io(&path, "creating the index of shards"))?;
        let bytes = read_file(&path).unwrap_or_default();
        let (found, shards, n_read) = match read_lines(&bytes) {
            (Some(found), shards, n_read) if found == *head && !drops_duplicates => (true, shards, n_read),
            _ => (false, Vec::new(), 0),
        };
        file.set_len(n_read as u64).map_err(Error::io(&path, "writing"))?;
        let mut hasher = Hasher::new();
        hasher.update(&bytes[..n_read]);
        if !found {
            write_line(&path, &mut file, &mut hasher, head)?;
        }
        let cut = Cut { shard_bytes: head.shard_bytes, length_multiple: head.length_multiple };
        let seen = drops_duplicates.then(|| SeenRows::new(&path));
        Ok(Self { path, file, hasher, shards, open: None, cut, seen, header })
    }

    /// Reads the text behind the last complete shard.
    fn go_on(&mut self, rows: &dyn Rows, num_threads: usize) -> Result<()> {
        let can_start_within = rows.can_start_within()?;
        let last = self.shards.last().map(|shard| (shard.start, shard.blocks));
        let (start, n_known) = last.unwrap_or_default();
        rows.encode(start, n_known..usize::MAX, num_threads, &mut |block| {
            let is_border = !block.continues && (block.is_first || can_start_within[block.start.file]);
            self.push(block, is_border)
        })?;
        self.close()
    }

    /// Adds a block to the open shard, or to a new one if it can begin with the block.
    fn push(&mut self, Placed { start, mut encoded, .. }: Placed, is_border: bool) -> Result<()> {
        let n_read = encoded.rows.len() as u32;
        let repeated = self.seen.as_mut().map_or(Ok(Vec::new()), |seen| encoded.drop_repeated(seen))?;
        let documents = encoded.rows.len() as u64 - u64::from(encoded.continues);
        let kind = self.header.kind;
        let row_bytes = if kind.has_first_lengths() { 8 + 4 } else { 8 };
        let bytes = encoded.tokens.len() as u64 + row_bytes * documents;
        let is_full =
            |open: &OpenShard| open.token_bytes + row_bytes * open.shard.documents + bytes > self.cut.shard_bytes;
        if is_border && self.open.as_ref().is_some_and(is_full) {
            self.close()?;
        }

        let open = self.open.get_or_insert_with(|| OpenShard::at(start));
        open.hasher.update(&encoded.tokens);
        open.token_bytes += encoded.tokens.len() as u64;
        open.shard.blocks += 1;
        open.shard.documents += documents;
        open.shard.tokens += encoded.rows.iter().map(|(_, tokens)| u64::from(*tokens)).sum::<u64>();
        open.shard.others += encoded.rows.iter().map(|row| n_others(kind, *row)).sum::<u64>();
        open.shard.repeated.extend(repeated.iter().map(|row| open.n_read + row));
        open.n_read += n_read;
        // Long lengths are rounded up to more than the multiple, and 1 keeps all of them.
        match self.cut.length_multiple {
            0 => {}
            1 => open.count_lengths(kind, &encoded, |len| len)?,
            multiple => open.count_lengths(kind, &encoded, |len| round_up(len as usize, multiple) as u32)?,
        }
        open.shard.report.merge(encoded.report);
        Ok(())
    }

    /// Ends the open shard and writes its line.
    fn close(&mut self) -> Result<()> {
        let Some(OpenShard { mut shard, cells, hasher, .. }) = self.open.take() else { return Ok(()) };
        shard.hash = hasher.finalize().to_hex().to_string();
        shard.cells = cells.into_iter().map(|((source, target), rows)| (source, target, rows)).collect();
        shard.bytes = cache_bytes(&shard, &self.header);
        write_line(&self.path, &mut self.file, &mut self.hasher, &shard)?;
        self.shards.push(shard);
        Ok(())
    }

    /// Writes the last line and renames the file.
    fn finish(mut self, path: &Path) -> Result<(Vec<Shard>, String)> {
        let digest = self.hasher.finalize().to_hex().to_string();
        let end = End { shards: self.shards.len(), hash: digest.clone() };
        write_line(&self.path, &mut self.file, &mut self.hasher, &end)?;
        self.file.sync_all().map_err(Error::io(&self.path, WRITING))?;
        rename_synced(&self.path, path)?;
        Ok((self.shards, digest))
    }
}

/// Returns the source and the target length of a row in a batch, special tokens included; of a document its tokens alone.
fn lengths(kind: CacheKind, (first, all): (u32, u32)) -> (u32, u32) {
    match kind {
        // The end token of each side.
        CacheKind::Pairs => (first + 1, all - first + 1),
        CacheKind::Chat | CacheKind::Text => (0, all),
        CacheKind::Preferences | CacheKind::Labelled => (0, first),
    }
}

/// Returns how many numbers of a row are not tokens.
fn n_others(kind: CacheKind, (first, all): (u32, u32)) -> u64 {
    match kind {
        CacheKind::Labelled => u64::from(all - first),
        CacheKind::Preferences => 1,
        CacheKind::Pairs | CacheKind::Text | CacheKind::Chat => 0,
    }
}

fn write_line(path: &Path, file: &mut File, hasher: &mut Hasher, line: &impl Serialize) -> Result<()> {
    let mut json = serde_json::to_vec(line).expect("plain data");
    json.push(b'\n');
    hasher.update(&json);
    file.write_all(&json).map_err(Error::io(path, WRITING))
}

/// Returns the size of the cache of a shard, whose header is like `header`.
fn cache_bytes(shard: &Shard, header: &Header) -> u64 {
    let header = Header {
        token_bytes: if header.is_narrow() { 2 } else { 4 },
        n_rows: shard.documents,
        n_tokens: shard.tokens,
        report_bytes: serde_json::to_vec(&shard.report).expect("plain data").len() as u64,
        ..header.clone()
    };
    header.layout().map_or(u64::MAX, |sections| sections.report.end as u64)
}
