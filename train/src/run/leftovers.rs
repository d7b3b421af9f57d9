//! A run that fails before its first step leaves its folder as it was.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::caches_before::CachesBefore;

/// The entries of a run folder before a run, and the folders that are made for it.
pub(super) struct Before {
    dir: PathBuf,
    /// Names in the folder.
    names: BTreeSet<OsString>,
    /// Folders that do not exist yet, innermost first: the run folder and its parents.
    missing: Vec<PathBuf>,
}

impl Before {
    /// Looks at the folder. Call it before the folder is made.
    pub(super) fn of(dir: &Path) -> Self {
        let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
        let missing = dir.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists());
        Self { dir: dir.to_path_buf(), names, missing: missing.map(Path::to_path_buf).collect() }
    }

    /// Returns a value that removes what was added to the folder since, unless it is kept. Call it with the lock of the
    /// folder, so that nobody else adds to it.
    pub(super) fn guard(self) -> Leftovers {
        Leftovers { before: Some(self), caches: None }
    }
}

/// Removes what a failed run has added to its folder, or puts back what it has replaced there.
pub(super) struct Leftovers {
    before: Option<Before>,
    caches: Option<CachesBefore>,
}

impl Leftovers {
    /// For a run whose folder stays as it is.
    pub(super) fn none() -> Self {
        Self { before: None, caches: None }
    }

    /// For a run in `dir` that is continued. Call it with the lock of the folder.
    pub(super) fn of_resumed(dir: &Path) -> Self {
        Self { before: None, caches: Some(CachesBefore::of(dir)) }
    }

    /// Keeps everything: the run has begun.
    pub(super) fn keep(&mut self) {
        self.before = None;
        if let Some(caches) = self.caches.take() {
            caches.forget();
        }
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        let Some(Before { dir, names, missing }) = self.before.take() else { return };
        // Nothing here may hide the error that ends the run.
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if !names.contains(&entry.file_name()) {
                let path = entry.path();
                let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            }
        }
        for folder in missing {
            // Only an empty folder is removed.
            let _ = fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_failed_run_added_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("runs/a");
        let fill = |dir: &Path| {
            fs::create_dir_all(dir.join("checkpoints/step-1")).expect("writable");
            fs::write(dir.join("config.toml"), "").expect("writable");
        };

        let before = Before::of(&dir);
        fill(&dir);
        drop(before.guard());
        assert!(!folder.path().join("runs").exists(), "the parent was made for the run, too");

        fs::create_dir_all(dir.join("cache")).expect("writable");
        let before = Before::of(&dir);
        fill(&dir);
        drop(before.guard());
        let left: Vec<_> = fs::read_dir(&dir).expect("there").flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["cache"], "it was there before");

        let mut kept = Before::of(&dir).guard();
        fill(&dir);
        kept.keep();
        drop(kept);
        assert!(dir.join("config.toml").exists());
    }
}
