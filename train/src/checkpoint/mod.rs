//! Checkpoints: complete or invisible, verified when read.
//!
//! ```text
//! RUN/checkpoints/
//!   step-00002000/
//!     model.safetensors      master weights by parameter path; of an import, parameters stored in 16 bits stay so
//!     config.json            the model's shape
//!     tokenizer.json         and whatever else the tokenizers save
//!     config.toml            the run's configuration
//!     ema.safetensors        train.ema_decay: averaged weights by parameter path
//!     optimizer.safetensors  the optimizer's state by name and parameter path
//!     outer.safetensors      train.sync_every: momentum of the outer optimizer
//!     replica-N.safetensors  train.sync_every: the optimizer's state of device N
//!     trainer_state.json     step, data position, best validation
//!     manifest.json          size and BLAKE3 hash of every other file; written last
//!   last                     a file with the name of the newest folder
//!   best                     the same for the best validation
//!   run                      a hash that all checkpoints of the run share
//! ```
//!
//! An imported or averaged checkpoint holds weights only, without `optimizer.safetensors` and `trainer_state.json`. It can be
//! used and can start a new run, but cannot be resumed.
//!
//! A checkpoint is written to `step-N.tmp`, synced to disk, then renamed. A kill at any moment leaves either the complete
//! folder, or a temporary one that every reader ignores.

mod average;
mod held;
mod manifest;
mod open;
mod origin;
mod pointer;
mod read;
mod resume;
mod retention;
mod saver;
mod snapshot;
mod states;
mod tensor_file;
mod tensors;
mod verified;
mod write;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use kiln_data::files::replace::FileError;
use thiserror::Error;

pub use average::average;
use held::HeldFolder;
pub use manifest::{Manifest, ManifestFile};
pub use open::{OpenCheckpoint, OpenWeights};
pub use origin::RUN_FILE;
pub(crate) use origin::run_of;
pub use pointer::Pointer;
pub use read::state as read_state;
pub use read::{has_average, read, read_average, read_weights, verify};
use resume::folder_of_run;
pub(crate) use resume::lasting_fields;
pub use resume::{
    Difference, NotTheSameRun, Resume, all_differences, config_differences, fields, find_resume, is_within,
};
pub use saver::{SaveFailed, Saved, Saver};
pub use snapshot::{
    Best, FORMAT, LossScale, NamedTensor, Patience, ReplicaCounters, Replicas, Score, Snapshot, StoredFile,
    TrainerState, Weights,
};
pub use states::{NamedState, flat_states, named_states, states_from_bytes, states_to_bytes};
pub use tensors::{flat_tensor, initial_tensors, load_into, load_model, load_tensors, named_tensors};

/// The weights, by parameter path.
pub const MODEL_FILE: &str = "model.safetensors";
/// The state of the optimizer.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// Averaged weights, if `train.ema_decay` asks for them.
pub const EMA_FILE: &str = "ema.safetensors";
/// Momentum of the outer optimizer, if devices take steps alone.
pub const OUTER_FILE: &str = "outer.safetensors";
/// Counters and the data position.
pub const STATE_FILE: &str = "trainer_state.json";
/// The model's shape.
pub const MODEL_CONFIG_FILE: &str = "config.json";
/// Folder of the checkpoints of a run.
pub(crate) const CHECKPOINTS: &str = "checkpoints";
/// The run's configuration.
pub const RUN_CONFIG_FILE: &str = "config.toml";
/// Sizes and hashes of all other files.
pub const MANIFEST_FILE: &str = "manifest.json";

/// A problem with a checkpoint, and its remedy.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The operating system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// "read", "write", "sync", ...
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The checkpoint does not exist.
    #[error("there is no checkpoint {wanted} in {dir}{have}")]
    Missing {
        /// The name that was asked for.
        wanted: String,
        /// The folder of checkpoints.
        dir: PathBuf,
        /// The checkpoints that exist, in words.
        have: String,
    },
    /// The folder has no manifest.
    #[error("{0} has no manifest.json, so it is not a finished Kiln checkpoint; choose another one")]
    NotACheckpoint(PathBuf),
    /// A file has changed since it was written.
    #[error("{file} is damaged: found {found}, wanted {wanted}")]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Its size or hash, in words.
        found: String,
        /// The size or hash in the manifest.
        wanted: String,
    },
    /// The files are intact, but this version of Kiln cannot read them.
    #[error("{file} was not written by this version of Kiln: {reason}")]
    Foreign {
        /// The file.
        file: PathBuf,
        /// The unexpected content.
        reason: String,
    },
    /// A file that names a checkpoint is damaged, is missing, or names another one than it should.
    #[error(
        "{}: {problem}; kiln train --resume sets it again; to use a checkpoint without it, name one with --checkpoint \
         step-NUMBER", .file.display()
    )]
    Pointer {
        /// `last` or `best`.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// Whether a training that goes on may be about to write it.
        may_be_late: bool,
    },
    /// The checkpoint was made by another run than its neighbours.
    #[error(
        "{}: it belongs to another run than {} says; move it away, or delete {} if all checkpoints are of one run",
        .path.display(), .record.display(), .record.display()
    )]
    OfAnotherRun {
        /// The checkpoint.
        path: PathBuf,
        /// The file that says which run the checkpoints belong to.
        record: PathBuf,
    },
    /// The run folder is no longer where it was when the run began.
    #[error(
        "{}: this run folder was moved or deleted while the run trained, which ends here, because its files would be in two \
         places; bring it back, or name its new place with --run, and continue with --resume", .0.display()
    )]
    Moved(PathBuf),
    /// The checkpoint has no state of the optimizer and no counters.
    #[error(
        "{} holds weights only, because it was imported or averaged, so it cannot be resumed; start a new run from it \
         with kiln train --from {}", .0.display(), folder_of_run(.0).display()
    )]
    WeightsOnly(PathBuf),
    /// The run kept no average of its weights.
    #[error(
        "{} has no averaged weights: the run was trained with train.ema_decay = 0; take --weights trained",
        .0.display()
    )]
    NoAverage(PathBuf),
    /// A weight is NaN or infinite.
    #[error(
        "{}: {tensor} has the weight {value}, so the model cannot compute: training diverged before this was saved; use an \
         earlier checkpoint (--checkpoint step-N)", .file.display()
    )]
    NotFinite {
        /// The file with the weights.
        file: PathBuf,
        /// Path of the parameter.
        tensor: String,
        /// Its first such element.
        value: f32,
    },
    /// No checkpoint that would be kept is sound, so none was deleted.
    #[error(
        "older checkpoints in {} are kept, because all newer ones are damaged: {}; check the disk", .dir.display(),
        .damaged.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    NoneSound {
        /// The folder of checkpoints.
        dir: PathBuf,
        /// What is wrong with each.
        damaged: Vec<CheckpointError>,
    },
    /// A checkpoint that was asked for cannot be used.
    #[error("{problem}; {}", match .sound {
        Some(sound) => format!("the newest sound checkpoint of this run is {sound}: take that one"),
        None => "no checkpoint of this run is sound: restore a copy, or train again".into(),
    })]
    Unusable {
        /// What is wrong with it.
        problem: Box<CheckpointError>,
        /// The name of the newest sound one, which `--checkpoint` takes.
        sound: Option<String>,
    },
    /// The weights do not fit the model of `config.json`.
    #[error("the weights do not fit the model of config.json: {0}")]
    Mismatch(String),
}

impl From<FileError> for CheckpointError {
    fn from(FileError { action, path, source }: FileError) -> Self {
        Self::Io { action, path, source }
    }
}

impl CheckpointError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }
}

/// The checkpoints of one run.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    dir: PathBuf,
    /// The run folder, while a run trains in it.
    held: Option<Arc<HeldFolder>>,
    /// Whether the checkpoint before the first step is never deleted.
    keeps_start: bool,
}

/// The result of [`Checkpoints::newest_sound`].
#[derive(Debug)]
pub struct NewestSound {
    /// The newest sound checkpoint and its folder, if there is one.
    pub found: Option<(PathBuf, Snapshot)>,
    /// The problems of newer checkpoints. Show them to the user.
    pub damaged: Vec<CheckpointError>,
}

/// The optimizer's state of device `replica`, if devices take steps alone; [`OPTIMIZER_FILE`] has the first one's.
fn replica_file(replica: usize) -> String {
    format!("replica-{replica}.safetensors")
}

/// Returns whether the file `name` is needed to train, and not to use the model.
fn is_optimizer_state(name: &str) -> bool {
    name == OPTIMIZER_FILE || name == OUTER_FILE || (name.starts_with("replica-") && name.ends_with(".safetensors"))
}

/// `step-00002000`.
pub fn folder_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step of a finished checkpoint's folder name; `None` for any other name.
fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?;
    (digits.len() >= 8 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}

impl Checkpoints {
    /// The checkpoints of the run in `run_dir`. The folder need not exist yet.
    pub fn of_run(run_dir: &Path) -> Self {
        Self { dir: run_dir.join(CHECKPOINTS), held: None, keeps_start: false }
    }

    /// Returns the same checkpoints. With `keeps_start` the one before the first step is never deleted.
    #[must_use]
    pub fn keeping_start(self, keeps_start: bool) -> Self {
        Self { keeps_start, ..self }
    }

    /// Returns the same checkpoints for a run that trains in the folder, which must stay in its place from now on.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub(crate) fn held(self) -> Result<Self, CheckpointError> {
        let run_dir = self.dir.parent().unwrap_or(&self.dir);
        fs::create_dir_all(run_dir).map_err(CheckpointError::io("create", run_dir))?;
        let held = Some(Arc::new(HeldFolder::of(run_dir)));
        Ok(Self { held, ..self })
    }

    /// Refuses to go on in a run folder that was moved or deleted: the files would be in two places.
    ///
    /// # Errors
    /// [`CheckpointError::Moved`].
    pub(crate) fn ensure_in_place(&self) -> Result<(), CheckpointError> {
        match &self.held {
            Some(held) if !held.is_in_place() => Err(CheckpointError::Moved(held.path().to_path_buf())),
            _ => Ok(()),
        }
    }

    /// Why a file could not be written, if the run folder is being moved or deleted: that may take a moment.
    fn moved_meanwhile(&self) -> Option<CheckpointError> {
        (0..10).find_map(|_| {
            let moved = self.ensure_in_place().err();
            if moved.is_none() {
                sleep(Duration::from_millis(100));
            }
            moved
        })
    }

    /// `RUN/checkpoints`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Lists finished checkpoints by step, oldest first. Temporary and foreign names are ignored.
    pub fn list(&self) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(CheckpointError::io("list", &self.dir)(source)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(CheckpointError::io("list", &self.dir))?;
            if let Some(step) = entry.file_name().to_str().and_then(step_of) {
                found.push((step, entry.path()));
            }
        }
        found.sort();
        Ok(found)
    }

    /// Returns the folder of the newest checkpoint whose files are as they were written, if there is one.
    pub fn newest_verified(&self) -> Result<Option<PathBuf>, CheckpointError> {
        let mut newest_first = self.list()?.into_iter().rev().map(|(_, path)| path);
        Ok(newest_first.find(|path| verify(path).is_ok()))
    }

    /// Returns the folder of the newest checkpoint whose vocabulary and configurations are as they were written, if there is one.
    pub fn newest_with_vocabulary(&self) -> Result<Option<PathBuf>, CheckpointError> {
        let mut newest_first = self.list()?.into_iter().rev().map(|(_, path)| path);
        Ok(newest_first.find(|path| read::verify_small(path).is_ok()))
    }

    /// Adds to the problem of a checkpoint which one to use instead.
    pub fn instead_of(&self, problem: CheckpointError) -> CheckpointError {
        match problem {
            CheckpointError::Damaged { .. } | CheckpointError::NotACheckpoint(_) => {
                let sound = self.newest_verified().ok().flatten();
                let sound = sound.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
                CheckpointError::Unusable { problem: Box::new(problem), sound }
            }
            problem => problem,
        }
    }

    /// Reads the weights that an untrained run starts from, if it has some.
    pub fn starting_weights(&self) -> Result<Option<Weights>, CheckpointError> {
        match self.list()?.as_slice() {
            [(0, path)] => match read(path) {
                Err(CheckpointError::WeightsOnly(_)) => read_weights(path).map(Some),
                _ => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// Reads the weights that the run started from.
    ///
    /// # Errors
    /// If the run has not kept them, or if they are damaged.
    pub fn weights_before_training(&self) -> Result<Weights, CheckpointError> {
        read_weights(&self.resolve(&folder_name(0))?)
    }

    /// Reads the newest sound checkpoint.
    pub fn newest_sound(&self) -> Result<NewestSound, CheckpointError> {
        let mut damaged = Vec::new();
        for (_, path) in self.list()?.into_iter().rev() {
            match self.ensure_own(&path).and_then(|()| read(&path)) {
                Ok(snapshot) => return Ok(NewestSound { found: Some((path, snapshot)), damaged }),
                Err(error) => damaged.push(error),
            }
        }
        Ok(NewestSound { found: None, damaged })
    }
}

#[cfg(test)]
mod tests;
