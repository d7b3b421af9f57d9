//! Writing files so that a kill or a power cut leaves them whole: synced, then renamed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A file operation that the operating system refused.
#[derive(Debug, Error)]
#[error("cannot {action} {path}: {source}")]
pub struct FileError {
    /// "read", "write", "sync", ...
    pub action: &'static str,
    /// File or folder.
    pub path: PathBuf,
    /// The system's reason.
    pub source: io::Error,
}

impl FileError {
    /// Makes the error of `action` on `path` from the system's reason.
    fn of(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self { action, path, source }
    }
}

/// Writes a file so that it is either complete or as it was before, even if the process is killed or the power fails.
///
/// # Errors
/// If the file or the temporary file next to it cannot be written.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);

    let written = write_synced(&temporary, bytes).and_then(|()| rename(&temporary, path));
    if written.is_err() {
        // Do not leave an incomplete file on a full disk.
        let _ = fs::remove_file(&temporary);
    }
    written?;

    match path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        Some(dir) => sync_dir(dir),
        None => Ok(()),
    }
}

/// Writes a file and waits until it is on disk.
pub fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    super::write_synced(path, bytes).map_err(FileError::of("write", path))
}

/// Makes the names in `dir` survive a power cut. Windows has no such call and needs none.
pub fn sync_dir(dir: &Path) -> Result<(), FileError> {
    if cfg!(unix) {
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(FileError::of("sync", dir))?;
    }
    Ok(())
}

/// Renames a file or folder.
pub fn rename(from: &Path, to: &Path) -> Result<(), FileError> {
    fs::rename(from, to).map_err(FileError::of("rename to", to))
}

/// Removes a folder and everything in it, if it exists.
pub fn remove_dir_if_there(path: &Path) -> Result<(), FileError> {
    super::remove_dir_if_there(path).map_err(FileError::of("remove", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).expect("a folder");
        let mut names: Vec<_> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("config.toml");
        replace_file(&path, b"seed = 1\n").expect("writable");
        replace_file(&path, b"seed = 2\n").expect("writable");
        assert_eq!(
            (fs::read(&path).expect("there"), names(dir.path())),
            (b"seed = 2\n".to_vec(), vec!["config.toml".into()])
        );

        let in_the_way = dir.path().join("folder");
        fs::create_dir_all(in_the_way.join("x")).expect("writable");
        assert!(replace_file(&in_the_way, b"text").is_err());
        assert_eq!(names(dir.path()), ["config.toml", "folder"], "nothing temporary is left");
    }
}
