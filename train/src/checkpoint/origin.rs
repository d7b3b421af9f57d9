//! The run that a checkpoint belongs to: a copy of another run's checkpoint among its own is refused.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use kiln_data::files::open_file;
use kiln_data::files::replace::replace_file;

use super::verified::read_manifest;
use super::{CHECKPOINTS, CheckpointError, Checkpoints, TrainerState, read};

/// The file next to the checkpoints that says which run they belong to.
pub const RUN_FILE: &str = "run";

impl Checkpoints {
    /// The file that says which run the checkpoints belong to.
    pub fn run_file(&self) -> PathBuf {
        self.dir.join(RUN_FILE)
    }

    /// Records the run of the first checkpoint.
    pub(super) fn record_run(&self, state: &TrainerState) -> Result<(), CheckpointError> {
        match &state.run {
            Some(run) if !self.run_file().exists() => {
                self.ensure_in_place()?;
                Ok(replace_file(&self.run_file(), format!("{run}\n").as_bytes())?)
            }
            _ => Ok(()),
        }
    }

    /// Forgets which run the checkpoints belong to: a run begins.
    pub(crate) fn forget_run(&self) -> Result<(), CheckpointError> {
        match fs::remove_file(self.run_file()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(CheckpointError::io("remove", &self.run_file())(error))
            }
            _ => Ok(()),
        }
    }

    /// Reads which run the checkpoints belong to. `None` if an earlier version has made them all.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn recorded_run(&self) -> Result<Option<String>, CheckpointError> {
        let mut bytes = Vec::new();
        match open_file(&self.run_file()).and_then(|file| file.take(1024).read_to_end(&mut bytes)) {
            Ok(_) => Ok(Some(String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(&bytes)).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(CheckpointError::io("read", &self.run_file())(source)),
        }
    }

    /// Refuses a checkpoint of another run. A damaged one passes, because reading it names the damage.
    ///
    /// # Errors
    /// [`CheckpointError::OfAnotherRun`].
    pub fn ensure_own(&self, path: &Path) -> Result<(), CheckpointError> {
        let Some(wanted) = self.recorded_run()? else { return Ok(()) };
        let is_own = match read::state(path) {
            Ok(Some(state)) => state.run.is_none_or(|run| run == wanted),
            // A run begins with weights only, and saves a state from then on.
            Ok(None) => read_manifest(path).is_ok_and(|manifest| manifest.step == 0),
            Err(_) => true,
        };
        match is_own {
            true => Ok(()),
            false => Err(CheckpointError::OfAnotherRun { path: path.to_path_buf(), record: self.run_file() }),
        }
    }

    /// The checkpoints next to the one in `path`, if it lies among the checkpoints of a run.
    pub fn around(path: &Path) -> Option<Self> {
        let dir = fs::canonicalize(path).ok()?.parent()?.to_path_buf();
        (dir.file_name()? == CHECKPOINTS).then(|| Self { dir, held: None, keeps_start: false })
    }
}

/// Returns what identifies a run: a hash of what it began with. Runs that begin with the same have the same bits.
pub(crate) fn run_of<'a>(parts: impl Iterator<Item = &'a [u8]>) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    hasher.finalize().to_hex().to_string()
}
