//! The room that the caches of shards take on disk, for several processes that share a folder.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::super::build::with_suffix;
use crate::error::{Error, Result};
use crate::files::{create_fresh, open_own};

/// Locks of a folder. A shard uses the lock of its number modulo this.
const LOCKS: usize = 32;

/// A lock of shards. Dropping it unlocks. `None`: the folder does not support locks, so that two processes may make the same shard.
pub(super) struct ShardLock(#[expect(dead_code, reason = "held")] Option<File>);

/// The folder of the caches of shards.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) folder: PathBuf,
    /// Most bytes of all caches in it.
    pub(super) limit: u64,
}

impl Room {
    /// Returns the path of a shard's cache.
    pub(super) fn path(&self, shard: u32) -> PathBuf {
        self.folder.join(format!("{shard:06}.tokens"))
    }

    /// Locks a shard. Returns `None` if another process has the lock and this call does not wait.
    pub(super) fn lock(&self, shard: u32, waits: bool) -> Result<Option<ShardLock>> {
        let path = self.folder.join(format!("lock-{:02}", shard as usize % LOCKS));
        let file = match open_own(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                return Err(Error::Invalid(format!("the lock {}: {error}", path.display())));
            }
            Err(_) => return Ok(Some(ShardLock(None))),
            Ok(file) => file,
        };
        if waits {
            let locked = file.lock().is_ok();
            return Ok(Some(ShardLock(locked.then_some(file))));
        }
        Ok(match file.try_lock() {
            Ok(()) => Some(ShardLock(Some(file))),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Error(_)) => Some(ShardLock(None)),
        })
    }

    /// Reserves room for the cache of a shard, whose lock the caller holds: removes the oldest caches that are not `kept` until it
    /// fits. `bytes_of` returns the size of a shard's complete cache.
    pub(super) fn reserve(
        &self,
        shard: u32,
        kept: &dyn Fn(u32) -> bool,
        bytes_of: &dyn Fn(u32) -> Option<u64>,
    ) -> Result<()> {
        // One process at a time compares and reserves.
        let lock = open_own(&self.folder.join("lock-room"));
        let _ = lock.as_ref().map(File::lock);
        let mut found = self.files()?;
        found.retain(|file| file.shard != shard || !file.is_partial);
        for file in found.iter_mut().filter(|file| file.is_partial) {
            let is_left = self.lock(file.shard, false)?.is_some() && fs::remove_file(&file.path).is_ok();
            // What another process is writing has its size at the end.
            file.bytes = if is_left { 0 } else { bytes_of(file.shard).unwrap_or(file.bytes) };
        }

        let wanted = bytes_of(shard).unwrap_or(0);
        let mut taken: u64 = wanted + found.iter().map(|file| file.bytes).sum::<u64>();
        found.retain(|file| !file.is_partial && !kept(file.shard));
        found.sort_by_key(|file| file.modified);
        for file in found {
            if taken <= self.limit {
                break;
            }
            if fs::remove_file(&file.path).is_ok() {
                taken -= file.bytes;
            }
        }
        let reserved = with_suffix(&self.path(shard), ".partial");
        create_fresh(&reserved).map(drop).map_err(Error::io(&reserved, "creating the token cache"))
    }

    /// Lists the caches. One list can miss a cache that another process renames just then; two lists cannot.
    fn files(&self) -> Result<Vec<Found>> {
        let list = || -> Result<Vec<Found>> {
            let list = fs::read_dir(&self.folder).map_err(Error::io(&self.folder, "listing the folder"))?;
            Ok(list.flatten().filter_map(|entry| Found::of(&entry.path())).collect())
        };
        let (before, mut found) = (list()?, list()?);
        let missed: Vec<_> =
            before.into_iter().filter(|file| found.iter().all(|other| other.shard != file.shard)).collect();
        found.extend(missed);
        Ok(found)
    }
}

/// A cache, or the beginning of one.
struct Found {
    path: PathBuf,
    shard: u32,
    is_partial: bool,
    bytes: u64,
    modified: SystemTime,
}

impl Found {
    /// Returns `None` if the file is none, or was removed meanwhile.
    fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let (name, is_partial) = name.strip_suffix(".partial").map_or((name, false), |name| (name, true));
        let shard = name.strip_suffix(".tokens")?.parse().ok()?;
        let metadata = fs::symlink_metadata(path).ok()?;
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        Some(Self { path: path.into(), shard, is_partial, bytes: metadata.len(), modified })
    }
}
