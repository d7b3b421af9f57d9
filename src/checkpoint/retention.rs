//! Which checkpoints stay: the last n and the best one.

use std::fs;

use super::write::remove_dir_if_there;
use super::{CheckpointError, Checkpoints, Pointer, folder_name};

impl Checkpoints {
    /// Deletes all but the newest `keep_last` checkpoints (at least one) and those the pointers name. Call it after a
    /// save that succeeded, so that a sound one always remains.
    pub fn retain(&self, keep_last: usize) -> Result<(), CheckpointError> {
        let all = self.list()?;
        let pointed = [self.pointed(Pointer::Last), self.pointed(Pointer::Best)];
        let n_old = all.len().saturating_sub(keep_last.max(1));
        for (step, path) in &all[..n_old] {
            if pointed.iter().flatten().any(|kept| kept == path) {
                continue;
            }
            // A kill in the middle of deleting must not leave half a checkpoint under a good name.
            let stale = self.dir().join(format!("{}.stale", folder_name(*step)));
            remove_dir_if_there(&stale)?;
            fs::rename(path, &stale).map_err(CheckpointError::io("rename", path))?;
            remove_dir_if_there(&stale)?;
        }
        Ok(())
    }

    /// Deletes what a killed run left behind: unfinished saves and unfinished deletions.
    pub fn clean(&self) -> Result<(), CheckpointError> {
        let Ok(entries) = fs::read_dir(self.dir()) else { return Ok(()) };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let unfinished = name.strip_suffix(".tmp").or_else(|| name.strip_suffix(".stale"));
            if unfinished.is_some_and(|name| super::step_of(name).is_some()) {
                remove_dir_if_there(&entry.path())?;
            }
        }
        Ok(())
    }
}
