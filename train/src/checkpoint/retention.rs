//! Deletes old checkpoints, but always keeps a sound one, and cleans up after a killed run.

use std::fs;
use std::path::Path;

use kiln_data::files::replace::{remove_dir_if_there, rename, sync_dir};

use super::{CheckpointError, Checkpoints, Pointer, Snapshot, folder_name, verify};

impl Checkpoints {
    /// Deletes all checkpoints but the newest `keep_last` (at least one), those that the pointers name, and the one before the
    /// first step if it is kept.
    ///
    /// First it verifies that one of the kept checkpoints is sound. If none is, it deletes nothing, and the error lists the
    /// damaged ones. The last sound checkpoint therefore survives a disk that damages later files.
    pub fn retain(&self, keep_last: usize) -> Result<(), CheckpointError> {
        let all = self.list()?;
        let pointed = [self.pointed(Pointer::Last), self.pointed(Pointer::Best)];
        // Saving has set them; a pointer that names nothing keeps nothing.
        let is_pointed = |path: &Path| pointed.iter().flatten().any(|kept| kept == path);
        let n_old = all.len().saturating_sub(keep_last.max(1));
        let (old, new) = all.split_at(n_old);
        let is_kept = |step: u64| self.keeps_start && step == 0;
        let (kept, old): (Vec<_>, Vec<_>) = old.iter().partition(|(step, path)| is_pointed(path) || is_kept(*step));
        if old.is_empty() {
            return Ok(());
        }

        let mut damaged = Vec::new();
        let is_sound = |path: &Path| verify(path).map_err(|error| damaged.push(error)).is_ok();
        // The newest one is the most likely to be sound, and is still in the page cache.
        let remaining = new.iter().rev().chain(kept.into_iter().rev()).map(|(_, path)| path.as_path());
        if !{ remaining }.any(is_sound) {
            return Err(CheckpointError::NoneSound { dir: self.dir().to_path_buf(), damaged });
        }

        for (step, path) in old {
            // A kill during the deletion must not leave half a checkpoint under a valid name.
            let stale = self.dir().join(format!("{}.stale", folder_name(*step)));
            remove_dir_if_there(&stale)?;
            rename(path, &stale)?;
            remove_dir_if_there(&stale)?;
        }
        Ok(())
    }

    /// Deletes unfinished saves and finishes deletions of a killed run. If a save was replacing a checkpoint of the same step,
    /// the old one gets its name back.
    pub fn clean(&self) -> Result<(), CheckpointError> {
        let Ok(entries) = fs::read_dir(self.dir()) else { return Ok(()) };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.strip_suffix(".tmp").is_some_and(is_own) {
                remove_dir_if_there(&entry.path())?;
            } else if let Some(name) = name.strip_suffix(".stale").filter(|name| is_own(name)) {
                let target = self.dir().join(name);
                if !target.exists() && verify(&entry.path()).is_ok() {
                    rename(&entry.path(), &target)?;
                    sync_dir(self.dir())?;
                } else {
                    remove_dir_if_there(&entry.path())?;
                }
            }
        }
        Ok(())
    }

    /// Sets the pointers for a run that resumes from `snapshot` in the folder `resumed`. They can be out of date after a kill
    /// between a save and its pointers, or when a newer checkpoint is damaged.
    pub fn point_to(&self, resumed: &Path, snapshot: &Snapshot) -> Result<(), CheckpointError> {
        if let Some(name) = resumed.file_name().and_then(|name| name.to_str()) {
            self.set(Pointer::Last, name)?;
        }
        self.point_to_best(snapshot)?;
        // Where nothing is known to be the best, a damaged pointer to it would stay.
        let best = self.dir().join(Pointer::Best.name());
        match self.pointed(Pointer::Best) {
            Err(CheckpointError::Pointer { .. }) => {
                fs::remove_file(&best).map_err(CheckpointError::io("remove", &best))
            }
            _ => Ok(()),
        }
    }

    /// Lets `best` name the weights that the run began with. Returns whether they are here.
    ///
    /// # Errors
    /// If the pointer cannot be written.
    pub fn point_to_start(&self) -> Result<bool, CheckpointError> {
        let start = folder_name(0);
        self.set(Pointer::Best, &start)?;
        Ok(self.dir().join(start).is_dir())
    }

    /// Lets `best` name what `snapshot` knows as the best checkpoint, if it is still there.
    pub(super) fn point_to_best(&self, snapshot: &Snapshot) -> Result<(), CheckpointError> {
        match &snapshot.state.best {
            Some(best) => self.set(Pointer::Best, &folder_name(best.step)),
            None => Ok(()),
        }
    }

    /// Lets `pointer` name the folder `name`, if that exists and is not named already.
    fn set(&self, pointer: Pointer, name: &str) -> Result<(), CheckpointError> {
        let path = self.dir().join(name);
        match path.is_dir() && self.pointed(pointer).ok().as_ref() != Some(&path) {
            true => self.point(pointer, name),
            false => Ok(()),
        }
    }
}

/// Whether `name` is the name of a checkpoint. Other folders are left alone.
fn is_own(name: &str) -> bool {
    super::step_of(name).is_some()
}
