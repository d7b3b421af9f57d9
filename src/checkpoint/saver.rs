//! Saving off the training thread: the loop pays for one copy from the device, a thread for hashing, writing and syncing.

use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kiln_data::panic_text;
use thiserror::Error;

use super::{CheckpointError, Checkpoints, Snapshot};

/// A checkpoint that is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Its folder.
    pub path: PathBuf,
    /// How long hashing, writing and syncing took.
    pub elapsed: Duration,
}

/// Why there is no checkpoint.
#[derive(Debug, Error)]
pub enum SaveFailed {
    /// It could not be written, or older ones not be deleted.
    #[error(
        "the run goes no further without its checkpoint; free space or fix permissions, then continue with --resume"
    )]
    Checkpoint(#[from] CheckpointError),
    /// The thread could not be started.
    #[error("the run goes no further without its checkpoint: no thread can be started to write it")]
    Thread(#[source] std::io::Error),
    /// A broken invariant while writing.
    #[error("the run goes no further without its checkpoint: writing it panicked: {0}")]
    Panicked(String),
}

type Job = JoinHandle<Result<Saved, SaveFailed>>;

/// Writes snapshots of one run, one at a time and in order.
///
/// At most one save is under way: host memory holds at most one snapshot besides the one that is being handed over. An
/// error comes out of the next call, whichever it is. Dropping the saver waits for the save under way.
#[derive(Debug)]
pub struct Saver {
    checkpoints: Checkpoints,
    keep_last: usize,
    under_way: Option<Job>,
}

impl Saver {
    /// Keeps the newest `keep_last` checkpoints and the best one.
    pub fn new(checkpoints: Checkpoints, keep_last: usize) -> Self {
        Self { checkpoints, keep_last, under_way: None }
    }

    /// Waits for the save under way, then begins this one. `snapshot` is called on the other thread: naming and sorting
    /// what was copied from the device costs the loop nothing. Returns the save that was waited for.
    ///
    /// # Errors
    /// If the save before failed; then this one is not begun.
    pub fn begin(
        &mut self,
        is_best: bool,
        snapshot: impl FnOnce() -> Snapshot + Send + 'static,
    ) -> Result<Option<Saved>, SaveFailed> {
        let before = self.wait()?;
        let (checkpoints, keep_last) = (self.checkpoints.clone(), self.keep_last);
        let save = move || {
            let start = Instant::now();
            let path = checkpoints.save(&snapshot(), is_best)?;
            checkpoints.retain(keep_last)?;
            Ok(Saved { path, elapsed: start.elapsed() })
        };
        let thread = thread::Builder::new().name("kiln-save".into()).spawn(save).map_err(SaveFailed::Thread)?;
        self.under_way = Some(thread);
        Ok(before)
    }

    /// The save that has ended since the last call, if one has. Does not wait.
    pub fn poll(&mut self) -> Result<Option<Saved>, SaveFailed> {
        if self.under_way.as_ref().is_some_and(JoinHandle::is_finished) { self.wait() } else { Ok(None) }
    }

    /// Waits for the save under way, if there is one.
    pub fn wait(&mut self) -> Result<Option<Saved>, SaveFailed> {
        match self.under_way.take().map(JoinHandle::join) {
            None => Ok(None),
            Some(Ok(result)) => result.map(Some),
            Some(Err(panic)) => Err(SaveFailed::Panicked(panic_text(&*panic))),
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        // Whoever drops it on the way out of an error has an error to show already; what is on its way to disk is worth the wait.
        let _ = self.wait();
    }
}
