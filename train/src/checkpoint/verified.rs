//! The files of a checkpoint, each verified against the manifest before it is used.

use std::io::{self, Read, Seek};
use std::path::Path;

use kiln_data::files::read_file;
use kiln_model::TransformerConfig;
use serde::de::DeserializeOwned;

use super::manifest::{Manifest, ManifestFile};
use super::tensor_file::{open_verified, short_hash};
use super::{CheckpointError, FORMAT, MANIFEST_FILE, MODEL_CONFIG_FILE, STATE_FILE, TrainerState};

/// Parses the state of the checkpoint in `dir`, and refuses one that no training can have had.
pub(super) fn state_of(dir: &Path, bytes: &[u8]) -> Result<TrainerState, CheckpointError> {
    let path = dir.join(STATE_FILE);
    let state: TrainerState = parse(&path, bytes)?;
    match state.validate().as_slice() {
        [] => Ok(state),
        problems => Err(foreign(&path, problems.join("; "))),
    }
}

/// Parses the shape of the model in `dir`, and refuses one that a user could not have set.
pub(super) fn model_of(dir: &Path, bytes: &[u8]) -> Result<TransformerConfig, CheckpointError> {
    let path = dir.join(MODEL_CONFIG_FILE);
    let model: TransformerConfig = parse(&path, bytes)?;
    match model.validate().as_slice() {
        [] => Ok(model),
        problems => Err(foreign(&path, problems.join("; "))),
    }
}

/// Reads the manifest of the checkpoint in `dir`.
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

/// Reads a file whose size and hash agree with the manifest.
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

fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, CheckpointError> {
    serde_json::from_slice(bytes).map_err(|error| foreign(path, error.to_string()))
}
