//! A lock lets only one process train in a run folder.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use kiln_data::files::open_own;
use thiserror::Error;

/// The locked file in the run folder. It stays when the run ends: if it were removed, two processes could lock two
/// files of the same name.
pub const LOCK_FILE: &str = "run.lock";

/// Why a run folder cannot be locked.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another process trains there.
    #[error(
        "{}: {} is training in this run folder; wait until it ends (SIGTERM saves and ends it), or choose another folder with --run",
        dir.display(),
        pid.map_or("another process".to_string(), |pid| format!("process {pid}"))
    )]
    Taken {
        /// The run folder.
        dir: PathBuf,
        /// The process, if the file names it.
        pid: Option<u32>,
    },
    /// The folder or the file cannot be made.
    #[error("{}: cannot be written; fix permissions, or choose another folder with --run", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// The right to train in a run folder, as long as this value lives.
///
/// It is a lock of the operating system, which ends with the process in every case. The file that a killed run leaves
/// behind does therefore not block the next one.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

impl RunLock {
    /// Takes the lock of `run_dir`, which is created if necessary. Does not wait.
    ///
    /// # Errors
    /// If another process holds the lock, or if the folder cannot be written.
    pub fn take(run_dir: &Path) -> Result<Self, LockError> {
        let path = run_dir.join(LOCK_FILE);
        let io = |path: &Path| {
            let path = path.to_path_buf();
            |source| LockError::Io { path, source }
        };
        fs::create_dir_all(run_dir).map_err(io(run_dir))?;
        let opened = open_own(&path);
        let mut file = opened.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => io(&path)(error),
            _ => io(run_dir)(error),
        })?;

        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                // The error names the process if the file can be read.
                let _ = file.read_to_string(&mut text);
                return Err(LockError::Taken { dir: run_dir.to_path_buf(), pid: text.trim().parse().ok() });
            }
            // Some network file systems have no locks; training goes on without one.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(io(&path)(error)),
        }

        let write_pid = || {
            file.set_len(0)?;
            writeln!(file, "{}", std::process::id())
        };
        // Only messages to others need the process id. The next write reports a full disk.
        let _: io::Result<()> = { write_pid }();
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_process_learns_who_holds_the_folder_and_a_dead_one_holds_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("runs/a");
        // Left by a process that was killed: a name, but no lock.
        fs::create_dir_all(&dir).expect("writable");
        fs::write(dir.join(LOCK_FILE), "4194304999\n").expect("writable");
        let lock = RunLock::take(&dir).expect("nobody holds it");
        let error = RunLock::take(&dir).expect_err("held").to_string();
        let pid = std::process::id().to_string();
        for part in ["runs/a: process", pid.as_str(), "--run"] {
            assert!(error.contains(part), "{part:?} is missing in {error}");
        }
        drop(lock);
        RunLock::take(&dir).expect("given back");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("file"), "in the way").expect("writable");
        let error = RunLock::take(&folder.path().join("file/run")).expect_err("no folder").to_string();
        assert!(error.contains("file/run: cannot be written") && error.contains("--run"), "{error}");
    }
}
