//! Reading: checks size and hash of each file against the manifest before using it.

use std::path::Path;

use super::manifest::Manifest;
use super::open::{OpenCheckpoint, OpenWeights};
use super::tensor_file::open_verified;
use super::verified::{read_manifest, read_verified, state_of};
use super::{CheckpointError, EMA_FILE, OPTIMIZER_FILE, STATE_FILE, Snapshot, TrainerState, Weights};

/// Checks that no file of the checkpoint in `dir` has changed since it was written.
pub fn verify(dir: &Path) -> Result<Manifest, CheckpointError> {
    let manifest = read_manifest(dir)?;
    for file in &manifest.files {
        open_verified(dir, file)?;
    }
    Ok(manifest)
}

/// Checks that no file of the checkpoint in `dir` but those with tensors has changed since it was written: seconds less for a large model.
pub(super) fn verify_small(dir: &Path) -> Result<(), CheckpointError> {
    let manifest = read_manifest(dir)?;
    let mut small = manifest.files.iter().filter(|file| !file.name.ends_with(TENSORS));
    small.try_for_each(|file| open_verified(dir, file).map(drop))
}

/// How the names of files with tensors end.
const TENSORS: &str = ".safetensors";

/// Reads and verifies the whole checkpoint in `dir`.
pub fn read(dir: &Path) -> Result<Snapshot, CheckpointError> {
    let manifest = read_manifest(dir)?;
    if !manifest.files.iter().any(|file| file.name == OPTIMIZER_FILE) {
        return Err(CheckpointError::WeightsOnly(dir.to_path_buf()));
    }
    let snapshot = OpenCheckpoint::of_manifest(dir, &manifest)?.into_snapshot();
    snapshot.ok_or_else(|| CheckpointError::WeightsOnly(dir.to_path_buf()))
}

/// Reads the weights and what is needed to use them. Verifies everything but the optimizer's state.
///
/// # Errors
/// Also [`CheckpointError::NotFinite`], because nothing can be computed with such weights.
pub fn read_weights(dir: &Path) -> Result<Weights, CheckpointError> {
    OpenWeights::trained(dir)?.read()
}

/// Returns whether the checkpoint in `dir` has averaged weights.
pub fn has_average(dir: &Path) -> Result<bool, CheckpointError> {
    Ok(read_manifest(dir)?.files.iter().any(|file| file.name == EMA_FILE))
}

/// Reads the averaged weights of the checkpoint in `dir`, instead of the weights that were trained.
///
/// # Errors
/// [`CheckpointError::NoAverage`] if it has none.
pub fn read_average(dir: &Path) -> Result<Weights, CheckpointError> {
    OpenWeights::averaged(dir)?.read()
}

/// Reads the state of the training, and nothing else; `None` if the checkpoint in `dir` holds weights only.
pub fn state(dir: &Path) -> Result<Option<TrainerState>, CheckpointError> {
    let manifest = read_manifest(dir)?;
    let listed = manifest.files.iter().find(|file| file.name == STATE_FILE);
    listed.map(|file| state_of(dir, &read_verified(dir, file)?)).transpose()
}
