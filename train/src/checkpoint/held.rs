//! A folder that must stay where it is.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A folder that must stay where it is. The handle keeps the system from giving its number to another one.
#[derive(Debug)]
pub(super) struct HeldFolder {
    path: PathBuf,
    handle: Option<File>,
}

impl HeldFolder {
    /// Holds the folder `path`. Where the system opens no folders, only its name counts.
    pub(super) fn of(path: &Path) -> Self {
        Self { path: path.to_path_buf(), handle: File::open(path).ok() }
    }

    /// Returns whether the path still leads to the same folder.
    pub(super) fn is_in_place(&self) -> bool {
        let Ok(now) = fs::metadata(&self.path) else { return false };
        let before = self.handle.as_ref().and_then(|handle| handle.metadata().ok());
        before.is_none_or(|before| identity(&before) == identity(&now))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(unix)]
fn identity(folder: &fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (folder.dev(), folder.ino())
}

#[cfg(not(unix))]
fn identity(folder: &fs::Metadata) -> bool {
    folder.is_dir()
}
