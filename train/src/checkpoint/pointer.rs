//! The files `last` and `best`, each of which names a checkpoint. One that is damaged, or that names another checkpoint than it
//! should, is an error: nobody may get other weights than the ones that were asked for.

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use kiln_data::files::open_file;

use super::{CheckpointError, Checkpoints, folder_name, read, step_of, verify};

/// The files that point to a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pointer {
    /// The newest checkpoint.
    Last,
    /// The one with the best validation.
    Best,
}

impl Pointer {
    /// Name of its file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Best => "best",
        }
    }
}

/// The longest content of a pointer that is shown in a message, in bytes. A sound one has 14.
const SHOWN: u64 = 64;

/// How long a reader waits for a training that has saved a checkpoint and moves its pointers next, in tenths of a second.
const PATIENCE: usize = 10;

impl Checkpoints {
    /// The folder that `pointer` names.
    ///
    /// # Errors
    /// [`CheckpointError::Missing`] if the file does not exist, [`CheckpointError::Pointer`] if it does not name a checkpoint.
    pub fn pointed(&self, pointer: Pointer) -> Result<PathBuf, CheckpointError> {
        let file = self.dir.join(pointer.name());
        let mut bytes = Vec::new();
        match open_file(&file).and_then(|opened| opened.take(SHOWN).read_to_end(&mut bytes)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&file).is_err() => {
                return Err(self.missing(pointer.name()));
            }
            Err(source) => return Err(CheckpointError::io("read", &file)(source)),
        }

        let bad = |problem| CheckpointError::Pointer { file: file.clone(), problem, may_be_late: false };
        let name = String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(&bytes)).into_owned();
        if step_of(&name).is_none_or(|step| folder_name(step) != name) {
            return Err(bad(format!("it is damaged: it holds {name:?}, which is not the name of a checkpoint")));
        }
        match self.dir.join(&name) {
            path if path.is_dir() => Ok(path),
            _ => Err(bad(format!("it names {name}, which does not exist"))),
        }
    }

    /// The folder that `pointer` names, which must be the one that the checkpoints themselves make it name: the newest that is
    /// sound, or the one with the best validation.
    ///
    /// # Errors
    /// As [`Self::pointed`], and [`CheckpointError::Pointer`] if it names another one, or is missing though there is a best one.
    pub fn agreed(&self, pointer: Pointer) -> Result<PathBuf, CheckpointError> {
        let pointed = match self.pointed(pointer) {
            Err(CheckpointError::Missing { .. }) => None,
            pointed => Some(pointed?),
        };
        let (wanted, why) = match pointer {
            Pointer::Last => (self.newer_than(pointed.as_ref())?, "is newer"),
            Pointer::Best => (self.best_instead_of(pointed.as_ref())?, "had the best validation"),
        };
        let file = self.dir.join(pointer.name());
        let step = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).and_then(step_of);
        match (pointed, wanted) {
            (Some(path), None) => Ok(path),
            (None, None) => Err(self.missing(pointer.name())),
            (Some(path), Some(wanted)) => {
                let named = step(&path).map(folder_name).unwrap_or_default();
                let problem = format!("it names {named}, but {} {why}", folder_name(wanted));
                Err(CheckpointError::Pointer { file, problem, may_be_late: step(&path) < Some(wanted) })
            }
            (None, Some(wanted)) => {
                let problem = format!("it is missing, but {} {why}", folder_name(wanted));
                Err(CheckpointError::Pointer { file, problem, may_be_late: true })
            }
        }
    }

    /// Returns the step of a sound checkpoint that is newer than the one in `path`.
    fn newer_than(&self, path: Option<&PathBuf>) -> Result<Option<u64>, CheckpointError> {
        let Some(path) = path else { return Ok(None) };
        let all = self.list()?;
        let newer = all.iter().rev().take_while(|(_, found)| found != path);
        let is_sound = |found: &PathBuf| self.ensure_own(found).and_then(|()| verify(found)).is_ok();
        Ok({ newer }.find(|(_, found)| is_sound(found)).map(|(step, _)| *step))
    }

    /// Returns the step of the best validation if that is not the one of the checkpoint in `path`. The newest checkpoint knows it;
    /// it cannot speak about newer ones, which are damaged, nor about one that was deleted.
    fn best_instead_of(&self, path: Option<&PathBuf>) -> Result<Option<u64>, CheckpointError> {
        let all = self.list()?;
        let readable = all.iter().rev().filter(|(_, found)| self.ensure_own(found).is_ok());
        let known = { readable }.find_map(|(step, found)| Some((*step, read::state(found).ok()??.best)));
        let Some((newest, best)) = known else { return Ok(None) };
        let Some(path) = path else { return Ok(best.map(|best| best.step)) };
        let is_newer = all.iter().any(|(step, found)| found == path && *step > newest);
        let best = best.filter(|best| !is_newer && all.iter().any(|(step, _)| *step == best.step));
        Ok(best.map(|best| best.step).filter(|step| *path != self.dir.join(folder_name(*step))))
    }

    /// As [`Self::agreed`], but waits a moment for a training that has just saved.
    fn awaited(&self, pointer: Pointer) -> Result<PathBuf, CheckpointError> {
        for _ in 0..PATIENCE {
            match self.agreed(pointer) {
                Err(CheckpointError::Pointer { may_be_late: true, .. }) => sleep(Duration::from_millis(100)),
                result => return result,
            }
        }
        self.agreed(pointer)
    }

    /// Finds the folder for `wanted`: `last`, `best`, a folder's name or a step's number. Without a `last` pointer, the newest
    /// folder is the last one.
    ///
    /// # Errors
    /// If the checkpoint does not exist, if the pointer is damaged, or if the checkpoint belongs to another run.
    pub fn resolve(&self, wanted: &str) -> Result<PathBuf, CheckpointError> {
        let all = self.list()?;
        let found = match wanted {
            "last" => match self.awaited(Pointer::Last) {
                Err(CheckpointError::Missing { .. }) => all.last().map(|(_, path)| path.clone()),
                last => Some(last?),
            },
            "best" => Some(self.awaited(Pointer::Best)?),
            name => {
                let step = step_of(name).or_else(|| name.parse().ok());
                step.and_then(|step| all.iter().find(|(found, _)| *found == step)).map(|(_, path)| path.clone())
            }
        };
        let found = found.ok_or_else(|| self.missing(wanted))?;
        self.ensure_own(&found)?;
        Ok(found)
    }

    /// Finds the checkpoint to use if none is named: the best one, or the last one of a run that was never validated.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub fn usual(&self) -> Result<PathBuf, CheckpointError> {
        match self.resolve("best") {
            Err(CheckpointError::Missing { .. }) => self.resolve("last"),
            best => best,
        }
    }

    fn missing(&self, wanted: &str) -> CheckpointError {
        let names: Vec<_> = self.list().into_iter().flatten().map(|(step, _)| folder_name(step)).collect();
        let have = match names.as_slice() {
            [] => ": it holds none; train first".to_string(),
            names => format!("; it holds {}", names.join(", ")),
        };
        CheckpointError::Missing { wanted: wanted.to_string(), dir: self.dir.clone(), have }
    }
}
