//! The fingerprint of a corpus: a hash of the text and of how it is read. Files with the same size and time stamp as
//! before are not read again.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blake3::Hash;
use serde::{Deserialize, Serialize};

use super::TokenCache;
use crate::corpus::{
    CorpusInput, LabelledText, PairCorpus, RowFilter, TextConfig, TextCorpus, TextFile, TextFormat,
    mark_of_special_tokens,
};
use crate::error::{Error, Result};
use crate::files::{open_file, read_file, write_fresh};
use crate::formats::FileFormat;
use crate::tokenizer::LabelledShape;

/// A file that changed less than this before it was hashed could change again without a new time stamp.
const SETTLED: Duration = Duration::from_secs(2);

/// Size and time stamp of a file when its contents had this hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SeenFile {
    path: PathBuf,
    bytes: u64,
    modified_ns: u64,
    blake3: String,
}

/// The files behind a cache, saved next to it as JSON. It only saves time: the cache's header decides.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Ledger {
    files: Vec<SeenFile>,
    /// Fingerprint of the cache that was made of them. Absent in the ledgers of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    cache: Option<String>,
    /// BLAKE3 hash of `files` as compact JSON, and of `cache`. Absent in the ledgers of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    digest: Option<String>,
}

impl Ledger {
    /// Returns the path next to the cache.
    pub(super) fn path(cache: &Path) -> PathBuf {
        let mut name = cache.as_os_str().to_owned();
        name.push(".files.json");
        name.into()
    }

    /// Reads the ledger of the last run; empty if there is none, or if it is damaged or cannot be read.
    pub(super) fn read(cache: &Path) -> Self {
        let found = read_file(&Self::path(cache)).ok().and_then(|json| serde_json::from_slice::<Self>(&json).ok());
        found.filter(|ledger| ledger.is_sound() != Some(false)).unwrap_or_default()
    }

    /// Replaces the ledger. Ignores failures: the next run then hashes the files again.
    pub(super) fn write(&self, path: &Path, fingerprint: String) {
        let of_cache = Self { cache: Some(fingerprint), ..self.clone() };
        let with_digest = Self { digest: Some(of_cache.computed_digest()), ..of_cache };
        let json = serde_json::to_vec_pretty(&with_digest).expect("plain data");
        let _ = write_fresh(&Self::path(path), &json);
    }

    fn computed_digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&serde_json::to_vec(&self.files).expect("plain data"));
        hasher.update(self.cache.as_deref().unwrap_or_default().as_bytes());
        hasher.finalize().to_hex().to_string()
    }

    /// Returns whether the ledger is as it was written; `None` if it does not say.
    fn is_sound(&self) -> Option<bool> {
        self.digest.as_ref().map(|digest| *digest == self.computed_digest())
    }

    fn by_path(&self) -> HashMap<&Path, &SeenFile> {
        self.files.iter().map(|file| (&*file.path, file)).collect()
    }
}

/// Verifies the record of a cache's text files, `CACHE.files.json`. Returns whether it has a digest to compare with:
/// earlier versions wrote none.
///
/// # Errors
///
/// If it cannot be read or was damaged.
pub fn verify_file_record(path: &Path) -> Result<bool> {
    sound_ledger(path).map(|ledger| ledger.digest.is_some())
}

/// Refuses a cache in whose place another one was made of the text files, according to the record next to it,
/// `CACHE.files.json`. The records of earlier versions do not say it.
///
/// # Errors
///
/// If the record is missing, was damaged, or belongs to another cache.
pub fn verify_record_of(cache: &TokenCache) -> Result<()> {
    let path = Ledger::path(cache.path());
    if !path.exists() {
        return Err(Error::cache(&path, "the record of the text files behind the cache is missing"));
    }
    match sound_ledger(&path)?.cache {
        Some(recorded) if recorded != cache.fingerprint() => {
            Err(Error::cache(cache.path(), "it holds another text than the one that was prepared here"))
        }
        _ => Ok(()),
    }
}

fn sound_ledger(path: &Path) -> Result<Ledger> {
    let json = read_file(path).map_err(Error::io(path, "reading"))?;
    let ledger: Ledger = serde_json::from_slice(&json)
        .map_err(|e| Error::cache(path, format!("its record of files is damaged ({e})")))?;
    match ledger.is_sound() {
        Some(false) => Err(Error::cache(path, "its record of files differs from the one that was written")),
        _ => Ok(ledger),
    }
}

/// Hashes a corpus of pairs, and trusts the ledger where size and time stamp are the same. Also returns the new ledger.
pub(super) fn pair_fingerprint(corpus: &PairCorpus, ledger: &Ledger) -> Result<(Hash, Ledger)> {
    let config = corpus.config();
    let mut hasher = blake3::Hasher::new();
    // Limits that decide which rows are kept.
    hasher.update(format!("{} {}\0", config.max_source_len, config.max_target_len).as_bytes());
    hasher.update(mark_of_special_tokens(config.split_special_tokens));
    // Nothing without a tag, so that caches of earlier versions stay valid.
    if let Some(tag) = &config.tag {
        hasher.update(format!("tag\0{tag}\0").as_bytes());
    }
    hasher.update(mark_of_filter(config.filter.as_deref()).as_bytes());
    let seen_before = ledger.by_path();
    let mut now = Ledger::default();

    for input in corpus.inputs() {
        let how = match input {
            CorpusInput::Jsonl(_) => format!("jsonl\0{}\0{}\0", config.source_field, config.target_field),
            CorpusInput::Records(_, format) => {
                format!("{}\0{}\0{}\0", format.name(), config.source_field, config.target_field)
            }
            CorpusInput::Table(table) => table.how_it_is_read(),
            CorpusInput::Parallel(..) => "parallel\0".to_owned(),
        };
        hasher.update(how.as_bytes());
        for path in input.files() {
            let (hash, seen) = hash_file(path, &seen_before)?;
            hasher.update(hash.as_bytes());
            now.files.extend(seen);
        }
    }
    Ok((hasher.finalize(), now))
}

/// Does the same for plain text.
pub(super) fn text_fingerprint(corpus: &TextCorpus, ledger: &Ledger) -> Result<(Hash, Ledger)> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"text\0");
    hasher.update(mark_of_special_tokens(corpus.config().split_special_tokens));
    hasher.update(mark_of_filter(corpus.config().filter.as_deref()).as_bytes());
    let seen_before = ledger.by_path();
    let mut now = Ledger::default();
    // Nothing for the default, so that caches of earlier versions stay valid.
    let field = &corpus.config().field;
    let named = if *field == TextConfig::default().field { "" } else { field };

    for TextFile { path, format, records } in corpus.text_files() {
        let name = records.map_or("", FileFormat::name);
        let how = match format {
            TextFormat::Records => format!("records {name} {}\0", corpus.config().field),
            TextFormat::Jsonl => format!("jsonl {}\0", corpus.config().field),
            TextFormat::Auto | TextFormat::BlankLines => "blank lines\0".into(),
            TextFormat::Files => "file\0".into(),
            TextFormat::Lines => "lines\0".into(),
            // The limit decides which conversations are kept.
            TextFormat::Chat => {
                format!("chat {:?} {}{named}\0", corpus.config().learn, corpus.config().seq_len)
            }
            TextFormat::Preferences => format!("preferences {}\0", corpus.config().seq_len),
        };

        // Nothing for JSON, so that caches of earlier versions stay valid.
        let is_told =
            matches!(format, TextFormat::Chat | TextFormat::Preferences) && *records != Some(FileFormat::JSON);
        let how = if is_told { format!("{name} {how}") } else { how };
        let (hash, seen) = hash_file(path, &seen_before)?;
        hasher.update(how.as_bytes()).update(hash.as_bytes());
        now.files.extend(seen);
    }
    Ok((hasher.finalize(), now))
}

/// Does the same for labelled rows. Without a `shape`, for the labels alone.
pub(super) fn label_fingerprint(
    text: &LabelledText,
    shape: Option<LabelledShape>,
    ledger: &Ledger,
) -> Result<(Hash, Ledger)> {
    let config = text.config();
    let mut hasher = blake3::Hasher::new();
    let fields = [&config.text_field, &config.pair_field, &config.label_field, &config.words_field, &config.tags_field];
    hasher.update(format!("labelled {:?} {fields:?} {:?} {shape:?}\0", text.task(), config.names).as_bytes());
    hasher.update(mark_of_filter(config.filter.as_deref()).as_bytes());
    let seen_before = ledger.by_path();
    let mut now = Ledger::default();
    for TextFile { path, records, .. } in text.text_files() {
        let (hash, seen) = hash_file(path, &seen_before)?;
        hasher.update(records.map_or("", FileFormat::name).as_bytes()).update(hash.as_bytes());
        now.files.extend(seen);
    }
    Ok((hasher.finalize(), now))
}

/// Returns what the fingerprint gets for a filter. Nothing without one, so that caches of earlier versions stay valid.
fn mark_of_filter(filter: Option<&RowFilter>) -> String {
    filter.map_or(String::new(), |filter| format!("filter\0{}\0", filter.mark()))
}

fn hash_file(path: &Path, seen_before: &HashMap<&Path, &SeenFile>) -> Result<(Hash, Option<SeenFile>)> {
    let stat = || std::fs::metadata(path).map_err(Error::io(path, "reading its size and time stamp"));
    let before = stat()?;
    let full_path = path.canonicalize().map_err(Error::io(path, "resolving the path"))?;
    let modified = before.modified().unwrap_or(UNIX_EPOCH);
    let modified_ns = modified.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    if let Some(seen) = seen_before.get(&*full_path)
        && (seen.bytes, seen.modified_ns) == (before.len(), modified_ns)
        && let Ok(hash) = Hash::from_hex(&seen.blake3)
    {
        return Ok((hash, Some((*seen).clone())));
    }

    let mut file = open_file(path).map_err(Error::io(path, "opening the corpus"))?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(Error::io(path, "reading"))? {
            0 => break,
            n => hasher.update(&buffer[..n]),
        };
    }

    let after = stat()?;
    if after.len() != before.len() || after.modified().ok() != before.modified().ok() {
        return Err(Error::corpus(path, "changed while it was being read: try again when it is complete"));
    }
    let hash = hasher.finalize();
    let settled = SystemTime::now().duration_since(modified).is_ok_and(|age| age > SETTLED);
    let seen = settled.then(|| SeenFile {
        path: full_path,
        bytes: before.len(),
        modified_ns,
        blake3: hash.to_hex().to_string(),
    });
    Ok((hash, seen))
}

#[cfg(test)]
mod tests;
