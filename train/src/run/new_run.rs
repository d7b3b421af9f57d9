//! A run that is made at once, from weights: averaged or imported. It appears under its name when it is complete.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kiln_data::files::replace::{rename, replace_file, sync_dir};
use kiln_model::{LazyTensor, TransformerConfig};

use super::error::RunError;
use super::folder::free;
use super::lock::{LOCK_FILE, LockError, RunLock};
use crate::checkpoint::{Checkpoints, RUN_CONFIG_FILE, StoredFile, Weights};

/// The part of a run folder that may be there before the run, and that stays.
const CACHE: &str = "cache";

/// A run folder in the making, `RUN.partial` next to its place. What a killed process left there does not matter; a process that still
/// makes the same run is one.
#[derive(Debug)]
pub struct NewRun {
    dir: PathBuf,
    partial: PathBuf,
    /// Folders above that did not exist, innermost first.
    missing: Vec<PathBuf>,
    _lock: RunLock,
}

impl NewRun {
    /// Begins the run in `dir`, which must be free. Only one process at a time makes it.
    ///
    /// # Errors
    /// [`RunError::BeingMade`] if another process makes it, [`RunError::Exists`] if there is a run already, and if the folder cannot
    /// be written.
    pub fn begin(dir: &Path) -> Result<Self> {
        let name = dir.file_name().unwrap_or(OsStr::new("run")).to_string_lossy();
        let partial = dir.with_file_name(format!("{name}.partial"));
        let missing = dir.ancestors().skip(1).take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists());
        let missing = missing.map(Path::to_path_buf).collect();
        let lock = RunLock::take(&partial).map_err(|error| match error {
            LockError::Taken { pid, .. } => anyhow::Error::new(RunError::BeingMade { dir: dir.to_path_buf(), pid }),
            error => error.into(),
        })?;
        let new = Self { dir: dir.to_path_buf(), partial, missing, _lock: lock };
        free(new.dir.clone(), "--out")?;
        new.clear(&[LOCK_FILE, CACHE])?;
        Ok(new)
    }

    /// Writes `weights` as the only checkpoint of the run, and lets the run appear. Returns the checkpoint's folder.
    ///
    /// # Errors
    /// If the run folder cannot be written, or the weights come without a configuration.
    pub fn finish(self, weights: &Weights) -> Result<PathBuf> {
        let checkpoint = Checkpoints::of_run(&self.partial).save_weights(weights)?;
        self.appear(&checkpoint, &weights.files)
    }

    /// Does the same as [`Self::finish`] with weights that are read one by one. Weights of 16 bits stay so.
    ///
    /// # Errors
    /// As [`Self::finish`].
    pub fn finish_with(
        self,
        weights: &[LazyTensor<'_>],
        model: &TransformerConfig,
        files: &[StoredFile],
    ) -> Result<PathBuf> {
        let checkpoint = Checkpoints::of_run(&self.partial).save_tensors(0, weights, model, files)?;
        self.appear(&checkpoint, files)
    }

    /// Lets the run appear under its name, with the configuration that is one of its `files`.
    fn appear(self, checkpoint: &Path, files: &[StoredFile]) -> Result<PathBuf> {
        let config = files.iter().find(|file| file.name == RUN_CONFIG_FILE);
        let config = config.with_context(|| format!("the checkpoint has no {RUN_CONFIG_FILE}"))?;
        replace_file(&self.partial.join(RUN_CONFIG_FILE), &config.bytes)?;

        // Caches that were prepared for this run go along.
        let prepared = self.dir.join(CACHE);
        if prepared.is_dir() {
            rename(&prepared, &self.partial.join(CACHE))?;
        }
        if self.dir.is_dir() {
            fs::read_dir(&self.dir)
                .into_iter()
                .flatten()
                .flatten()
                .try_for_each(|entry| fs::remove_file(entry.path()))
                .and_then(|()| fs::remove_dir(&self.dir))
                .with_context(|| format!("{}: cannot be replaced by the new run", self.dir.display()))?;
        }
        rename(&self.partial, &self.dir)?;
        if let Some(parent) = self.dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync_dir(parent)?;
        }
        let inside = checkpoint.strip_prefix(&self.partial).context("a checkpoint lies in its run")?;
        let checkpoint = self.dir.join(inside);
        // Whoever waits for it finds a run under the name.
        let _ = fs::remove_file(self.dir.join(LOCK_FILE));
        Ok(checkpoint)
    }

    /// Removes what is in the making but the entries `kept`.
    fn clear(&self, kept: &[&str]) -> Result<()> {
        for entry in fs::read_dir(&self.partial).into_iter().flatten().flatten() {
            let path = entry.path();
            if !entry.file_name().to_str().is_some_and(|name| kept.contains(&name)) {
                let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                removed.with_context(|| {
                    format!("{}: cannot be removed; it is left from a killed process", path.display())
                })?;
            }
        }
        Ok(())
    }
}

impl Drop for NewRun {
    /// Removes what a failure leaves, with the lock as the last; there is nothing after [`Self::finish`].
    fn drop(&mut self) {
        if self.partial.join(CACHE).is_dir() {
            let _ = self.clear(&[CACHE]);
        } else {
            let _ = fs::remove_dir_all(&self.partial);
        }
        for folder in &self.missing {
            // Only an empty folder is removed.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Makes a run with a single checkpoint, which can be used and started from. Returns the checkpoint's folder.
///
/// # Errors
/// As [`NewRun::begin`] and [`NewRun::finish`].
pub fn write_run(dir: &Path, weights: &Weights) -> Result<PathBuf> {
    NewRun::begin(dir)?.finish(weights)
}
