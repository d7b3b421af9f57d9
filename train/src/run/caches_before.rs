//! The token caches of a run that is to be continued, as they were: a start that is refused puts them back.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::dataset::streamed::SHARDS;

/// Folder of the run in which links to the caches stand while a run is prepared.
const KEPT: &str = "cache.before";
/// The caches of a run.
const CACHE: &str = "cache";
/// Endings of files that never stay: locks, which must have one name, and caches that are being made.
const PASSING: [&str; 2] = ["lock", "partial"];

/// Puts the caches back when it is dropped, unless the run has begun.
///
/// Caches are replaced and never changed, so that a second link keeps the old ones. It takes no space.
pub(super) struct CachesBefore {
    dir: PathBuf,
}

impl CachesBefore {
    /// Links the caches of the run in `dir`. Call it with the lock of the folder. Where the file system has no links, nothing is kept.
    pub(super) fn of(dir: &Path) -> Self {
        let before = Self { dir: dir.to_path_buf() };
        // A start that was killed has not put them back.
        before.put_back();
        if for_each_file(&dir.join(CACHE), &dir.join(KEPT), |file, link| fs::hard_link(file, link)).is_err() {
            let _ = fs::remove_dir_all(dir.join(KEPT));
        }
        before
    }

    /// Keeps the caches of now: the run has begun.
    pub(super) fn forget(self) {
        let _ = fs::remove_dir_all(self.dir.join(KEPT));
    }

    fn put_back(&self) {
        let (cache, kept) = (self.dir.join(CACHE), self.dir.join(KEPT));
        if !kept.is_dir() {
            return;
        }
        // Nothing here may hide the error that ends the run.
        let _ = remove_what_is_new(&cache, &kept);
        // Over the files there. A second link to the same file changes nothing.
        let _ = for_each_file(&kept, &cache, |file, place| fs::rename(file, place));
        let _ = fs::remove_dir_all(kept);
    }
}

impl Drop for CachesBefore {
    fn drop(&mut self) {
        self.put_back();
    }
}

/// Returns the entries of a folder that decide which rows are read: the path of each, and whether it is a folder.
fn entries(dir: &Path) -> io::Result<Vec<(PathBuf, bool)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let is_passing = path.extension().is_some_and(|ending| PASSING.iter().any(|passing| ending == *passing));
        let is_folder = path.is_dir();
        // Several processes make and remove shards, and a link would keep one on the disk.
        let stays = !is_passing && !is_shards(&path);
        if stays && (is_folder || path.is_file()) {
            found.push((path, is_folder));
        }
    }
    Ok(found)
}

/// Whether a folder has the shards of a training text, or of a source of a mixture.
fn is_shards(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(SHARDS))
}

fn name(path: &Path) -> &Path {
    Path::new(path.file_name().unwrap_or_default())
}

/// Calls `apply` with each file of `from`, and of its folders, and with its place in `to`, where the folders are made.
fn for_each_file(from: &Path, to: &Path, apply: fn(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for (path, is_folder) in entries(from)? {
        let place = to.join(name(&path));
        if is_folder { for_each_file(&path, &place, apply) } else { apply(&path, &place) }?;
    }
    Ok(())
}

/// Removes the files of `dir` that `before` lacks.
fn remove_what_is_new(dir: &Path, before: &Path) -> io::Result<()> {
    for (path, is_folder) in entries(dir)? {
        let there = before.join(name(&path));
        match is_folder {
            true if there.is_dir() => remove_what_is_new(&path, &there)?,
            true => fs::remove_dir_all(&path)?,
            false if !there.is_file() => fs::remove_file(&path)?,
            false => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_come_back_unless_the_run_begins() {
        let folder = tempfile::tempdir().expect("a folder");
        let (dir, cache) = (folder.path(), folder.path().join(CACHE));
        let write = |name: &str, text: &str| {
            let path = cache.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
            fs::write(path.with_extension("new"), text).expect("writable");
            fs::rename(path.with_extension("new"), path).expect("writable");
        };
        let read = |name: &str| fs::read_to_string(cache.join(name)).ok();
        write("train.tokens", "old");
        write("sources/a.tokens", "old");

        let before = CachesBefore::of(dir);
        write("train.tokens", "new");
        write("valid.tokens", "new");
        write("sources/b.tokens", "new");
        drop(before);
        assert_eq!(["train.tokens", "sources/a.tokens"].map(read), [Some("old".into()), Some("old".into())]);
        assert_eq!(["valid.tokens", "sources/b.tokens"].map(read), [None, None]);
        assert!(!dir.join(KEPT).exists());

        let before = CachesBefore::of(dir);
        write("train.tokens", "new");
        before.forget();
        assert_eq!(read("train.tokens"), Some("new".into()));

        // Killed: the next start puts them back first.
        std::mem::forget(CachesBefore::of(dir));
        write("train.tokens", "other");
        drop(CachesBefore::of(dir));
        assert_eq!(read("train.tokens"), Some("new".into()));
        assert!(!dir.join(KEPT).exists());
    }
}
