//! Reading: checks size and hash of each file against the manifest before using it.

use std::io::{self, Read, Seek};
use std::path::Path;

use kiln_data::files::read_file;
use serde::de::DeserializeOwned;

use super::manifest::{Manifest, ManifestFile};
use super::open::{OpenCheckpoint, OpenWeights};
use super::tensor_file::{open_verified, short_hash};
use super::{CheckpointError, EMA_FILE, FORMAT, MANIFEST_FILE, OPTIMIZER_FILE, Snapshot, Weights};

/// Checks that no file of the checkpoint in `dir` has changed since it was written.
pub fn verify(dir: &Path) -> Result<Manifest, CheckpointError> {
    let manifest = read_manifest(dir)?;
    for file in &manifest.files {
        open_verified(dir, file)?;
    }
    Ok(manifest)
}

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

pub(super) fn read_manifest(dir: &Path) -> Result<Manifest, CheckpointError> {
    let path = dir.join(MANIFEST_FILE);
    let bytes = match read_file(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound && dir.is_dir() => {
            return Err(CheckpointError::NotACheckpoint(dir.to_path_buf()));
        }
        Err(source) => return Err(CheckpointError::io("read", &path)(source)),
    };
    let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(|error| CheckpointError::Damaged {
        file: path.clone(),
        found: format!("invalid JSON ({error})"),
        wanted: "a manifest".to_string(),
    })?;

    let format = value.get("format").and_then(serde_json::Value::as_u64);
    if !format.is_some_and(|format| (1..=u64::from(FORMAT)).contains(&format)) {
        let format = format.map_or("it has no format number".to_string(), |format| format!("format {format}"));
        return Err(foreign(&path, format!("{format}; this version reads format 1 to {FORMAT}")));
    }

    let manifest: Manifest = serde_json::from_value(value).map_err(|error| CheckpointError::Damaged {
        file: path.clone(),
        found: error.to_string(),
        wanted: "a manifest".to_string(),
    })?;
    let digest = manifest.computed_digest();
    if digest != manifest.digest {
        return Err(CheckpointError::Damaged {
            file: path,
            found: short_hash(&digest),
            wanted: short_hash(&manifest.digest),
        });
    }

    match manifest.files.iter().find(|file| file.name.contains(['/', '\\']) || file.name.starts_with('.')) {
        Some(file) => Err(foreign(&path, format!("it lists {:?}, which is not a plain file name", file.name))),
        None => Ok(manifest),
    }
}

/// Reads a file whose size and hash are those of the manifest.
pub(super) fn read_verified(dir: &Path, expected: &ManifestFile) -> Result<Vec<u8>, CheckpointError> {
    let mut file = open_verified(dir, expected)?;
    let mut bytes = Vec::with_capacity(expected.bytes as usize);
    file.rewind()
        .and_then(|()| file.read_to_end(&mut bytes))
        .map_err(CheckpointError::io("read", &dir.join(&expected.name)))?;
    Ok(bytes)
}

pub(super) fn foreign(file: &Path, reason: String) -> CheckpointError {
    CheckpointError::Foreign { file: file.to_path_buf(), reason }
}

pub(super) fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, CheckpointError> {
    serde_json::from_slice(bytes).map_err(|error| foreign(path, error.to_string()))
}
