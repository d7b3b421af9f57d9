//! Saves checkpoints in the background: the training loop copies tensors from the device, a thread hashes, writes and syncs.

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

/// Why a checkpoint could not be saved.
#[derive(Debug, Error)]
pub enum SaveFailed {
    /// It could not be written, or older ones could not be deleted.
    #[error(
        "the run goes no further without its checkpoint; free space or fix permissions, then continue with --resume"
    )]
    Checkpoint(#[from] CheckpointError),
    /// The thread could not be started.
    #[error("the run goes no further without its checkpoint: no thread can be started to write it")]
    Thread(#[source] std::io::Error),
    /// The thread panicked.
    #[error("the run goes no further without its checkpoint: writing it panicked: {0}")]
    Panicked(String),
}

type Job = JoinHandle<Result<Saved, SaveFailed>>;

/// Writes snapshots of one run, one after another and in order.
///
/// At most one save is in progress, so host memory holds at most two snapshots: the one being written and the next. The next
/// call of any method returns the error of a failed save. Dropping the saver waits for the save in progress.
#[derive(Debug)]
pub struct Saver {
    checkpoints: Checkpoints,
    keep_last: usize,
    in_progress: Option<Job>,
}

impl Saver {
    /// Where it saves.
    pub(crate) fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Keeps the newest `keep_last` checkpoints and the best one.
    pub fn new(checkpoints: Checkpoints, keep_last: usize) -> Self {
        Self { checkpoints, keep_last, in_progress: None }
    }

    /// Waits for the save in progress, then starts this one. Returns the save that it waited for.
    ///
    /// The thread calls `snapshot`, so that the training loop does not spend time on naming and sorting tensors.
    ///
    /// # Errors
    /// If the previous save failed. Then this one is not started.
    pub fn begin(
        &mut self,
        is_best: bool,
        snapshot: impl FnOnce() -> Snapshot + Send + 'static,
    ) -> Result<Option<Saved>, SaveFailed> {
        let previous = self.wait()?;

        let (checkpoints, keep_last) = (self.checkpoints.clone(), self.keep_last);
        let save = move || {
            let start = Instant::now();
            let saved = checkpoints.save(&snapshot(), is_best);
            let saved = saved.and_then(|path| checkpoints.retain(keep_last).map(|()| path));
            let path = saved.map_err(|error| checkpoints.moved_meanwhile().unwrap_or(error))?;
            Ok(Saved { path, elapsed: start.elapsed() })
        };

        let thread = thread::Builder::new().name("kiln-save".into()).spawn(save).map_err(SaveFailed::Thread)?;
        self.in_progress = Some(thread);
        Ok(previous)
    }

    /// Returns the save that has finished since the last call, if any, without waiting.
    pub fn poll(&mut self) -> Result<Option<Saved>, SaveFailed> {
        if self.in_progress.as_ref().is_some_and(JoinHandle::is_finished) { self.wait() } else { Ok(None) }
    }

    /// Waits for the save in progress, if there is one.
    pub fn wait(&mut self) -> Result<Option<Saved>, SaveFailed> {
        match self.in_progress.take().map(JoinHandle::join) {
            None => Ok(None),
            Some(Ok(result)) => result.map(Some),
            Some(Err(panic)) => Err(SaveFailed::Panicked(panic_text(&*panic))),
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        // The save in progress is worth the wait. If the caller is returning an error, that error matters more.
        let _ = self.wait();
    }
}
