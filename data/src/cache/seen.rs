//! Which rows of a text were seen before, in bounded memory.
//!
//! A row is known by a hash of 128 bits. Recent hashes are in a table. A full table becomes a sorted file, which is searched
//! through a memory map. So the answer is exact for any number of rows, and memory does not grow with them.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use ahash::RandomState;

use super::mmap::MappedFile;
use crate::error::{Error, Result};
use crate::files::create_fresh;

/// Hashes in memory: what a table of 2^24 places takes, 300 MB.
const MOST_RECENT: usize = (1 << 24) / 8 * 7;

/// The rows of a text so far.
pub(super) struct SeenRows {
    recent: HashSet<u128, RandomState>,
    most_recent: usize,
    /// Earlier hashes, each run sorted. Their files have no name any more.
    runs: Vec<MappedFile>,
    path: PathBuf,
}

impl SeenRows {
    /// Starts without rows. Files with earlier hashes are made next to `cache`.
    pub(super) fn new(cache: &Path) -> Self {
        let mut path = cache.as_os_str().to_owned();
        path.push(".rows");
        Self { recent: HashSet::default(), most_recent: MOST_RECENT, runs: Vec::new(), path: path.into() }
    }

    /// Adds a row. Returns whether it is new.
    ///
    /// # Errors
    ///
    /// If a file cannot be written or read.
    pub(super) fn insert(&mut self, hash: u128) -> Result<bool> {
        let is_earlier = |run: &MappedFile| {
            let hashes: &[u128] = bytemuck::cast_slice(run.bytes());
            hashes.binary_search(&hash).is_ok()
        };
        if self.runs.iter().any(is_earlier) || !self.recent.insert(hash) {
            return Ok(false);
        }
        if self.recent.len() == self.most_recent {
            self.spill()?;
        }
        Ok(true)
    }

    /// Moves the recent hashes to a file.
    fn spill(&mut self) -> Result<()> {
        let mut sorted: Vec<u128> = self.recent.drain().collect();
        sorted.sort_unstable();
        let mut file = create_fresh(&self.path).map_err(Error::io(&self.path, "writing the hashes of rows"))?;
        file.write_all(bytemuck::cast_slice(&sorted)).map_err(Error::io(&self.path, "writing the hashes of rows"))?;
        drop(file);
        self.runs.push(MappedFile::open(&self.path, "reading the hashes of rows")?);
        // The map keeps the contents. Where a mapped file cannot be removed, the next run replaces it.
        let _ = fs::remove_file(&self.path);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_new_once_whether_they_are_in_memory_or_in_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut seen = SeenRows { most_recent: 10, ..SeenRows::new(&folder.path().join("rows.tokens")) };
        // Numbers that are far apart, in an order of their own.
        let hash = |i: u128| (i * 7919 % 95) << 100;
        let mut known = HashSet::new();
        for i in 0..400 {
            assert_eq!(seen.insert(hash(i)).expect("a writable folder"), known.insert(hash(i)), "{i}");
            assert!(seen.recent.len() < 10);
        }
        assert_eq!((known.len(), seen.runs.len()), (95, 9));
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 0, "no file is left");
    }
}
