//! Reading: checks size and hash of each file against the manifest before using it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use kiln_model::TransformerConfig;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde::de::DeserializeOwned;

use super::manifest::{Manifest, ManifestFile};
use super::{
    CheckpointError, EMA_FILE, FORMAT, MANIFEST_FILE, MODEL_CONFIG_FILE, MODEL_FILE, NamedTensor, OPTIMIZER_FILE,
    OUTER_FILE, Replicas, STATE_FILE, Snapshot, StoredFile, TrainerState, Weights, is_optimizer_state, replica_file,
};

/// Checks that no file of the checkpoint in `dir` has changed since it was written.
pub fn verify(dir: &Path) -> Result<Manifest, CheckpointError> {
    let manifest = read_manifest(dir)?;
    for file in &manifest.files {
        read_verified(dir, file)?;
    }
    Ok(manifest)
}

/// Reads and verifies the whole checkpoint in `dir`.
pub fn read(dir: &Path) -> Result<Snapshot, CheckpointError> {
    let manifest = read_manifest(dir)?;
    if !manifest.files.iter().any(|file| file.name == OPTIMIZER_FILE) {
        return Err(CheckpointError::WeightsOnly(dir.to_path_buf()));
    }
    let mut contents = HashMap::new();
    for file in &manifest.files {
        contents.insert(file.name.as_str(), read_verified(dir, file)?);
    }
    let average = contents.remove(EMA_FILE);
    let mut take = |name: &str| {
        let missing = || foreign(&dir.join(MANIFEST_FILE), format!("it lists no {name}"));
        contents.remove(name).ok_or_else(missing)
    };
    let weights = tensors(&dir.join(MODEL_FILE), &take(MODEL_FILE)?)?;
    let ema = average.map(|bytes| tensors(&dir.join(EMA_FILE), &bytes)).transpose()?;
    let state = state_of(dir, &take(STATE_FILE)?)?;
    let is_trained = |weight: &&NamedTensor| state.frozen.binary_search(&weight.name).is_err();
    let trained: Vec<&NamedTensor> = weights.iter().filter(is_trained).collect();
    let [first_moments, second_moments] = moments(&dir.join(OPTIMIZER_FILE), &take(OPTIMIZER_FILE)?, &trained)?;
    let replicas = match state.replicas.len() {
        0 => None,
        n => Some(replicas(dir, n, &trained, &mut take)?),
    };

    let model = model_of(dir, &take(MODEL_CONFIG_FILE)?)?;
    let mut files: Vec<_> =
        contents.into_iter().map(|(name, bytes)| StoredFile { name: name.to_string(), bytes }).collect();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Snapshot { weights, first_moments, second_moments, state, model, files, ema, replicas })
}

/// Reads the weights and what is needed to use them. Verifies everything but the optimizer's state.
///
/// # Errors
/// Also [`CheckpointError::NotFinite`], because nothing can be computed with such weights.
pub fn read_weights(dir: &Path) -> Result<Weights, CheckpointError> {
    let manifest = read_manifest(dir)?;
    let (mut weights, mut model, mut files) = (None, None, Vec::new());
    for file in manifest.files.iter().filter(|file| !is_optimizer_state(&file.name) && file.name != EMA_FILE) {
        let (path, bytes) = (dir.join(&file.name), read_verified(dir, file)?);
        match file.name.as_str() {
            MODEL_FILE => weights = Some(finite(&path, tensors(&path, &bytes)?)?),
            MODEL_CONFIG_FILE => model = Some(model_of(dir, &bytes)?),
            STATE_FILE => {}
            _ => files.push(StoredFile { name: file.name.clone(), bytes }),
        }
    }
    let missing = |name: &str| foreign(&dir.join(MANIFEST_FILE), format!("it lists no {name}"));
    Ok(Weights {
        step: manifest.step,
        weights: weights.ok_or_else(|| missing(MODEL_FILE))?,
        model: model.ok_or_else(|| missing(MODEL_CONFIG_FILE))?,
        files,
    })
}

/// Returns `tensors`, all of whose elements are finite numbers.
fn finite(path: &Path, tensors: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, CheckpointError> {
    let wrong = tensors.iter().find_map(|tensor| Some((tensor.name.clone(), tensor.not_finite()?)));
    match wrong {
        Some((tensor, value)) => Err(CheckpointError::NotFinite { file: path.to_path_buf(), tensor, value }),
        None => Ok(tensors),
    }
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
    let manifest = read_manifest(dir)?;
    let listed = manifest.files.iter().find(|file| file.name == EMA_FILE);
    let file = listed.ok_or_else(|| CheckpointError::NoAverage(dir.to_path_buf()))?;
    let path = dir.join(EMA_FILE);
    let averaged = finite(&path, tensors(&path, &read_verified(dir, file)?)?)?;
    let mut averaged: HashMap<String, NamedTensor> =
        averaged.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    let mut weights = read_weights(dir)?;
    // Frozen weights have no average.
    for weight in &mut weights.weights {
        if let Some(average) = averaged.remove(&weight.name) {
            *weight = average;
        }
    }
    Ok(weights)
}

/// Reads the state of the training, and nothing else; `None` if the checkpoint in `dir` holds weights only.
pub(crate) fn state(dir: &Path) -> Result<Option<TrainerState>, CheckpointError> {
    let manifest = read_manifest(dir)?;
    let listed = manifest.files.iter().find(|file| file.name == STATE_FILE);
    listed.map(|file| state_of(dir, &read_verified(dir, file)?)).transpose()
}

/// Parses the state of the checkpoint in `dir`, and refuses one that no training can have had.
fn state_of(dir: &Path, bytes: &[u8]) -> Result<TrainerState, CheckpointError> {
    let path = dir.join(STATE_FILE);
    let state: TrainerState = parse(&path, bytes)?;
    match state.validate().as_slice() {
        [] => Ok(state),
        problems => Err(foreign(&path, problems.join("; "))),
    }
}

/// Parses the shape of the model in `dir`, and refuses one that a user could not have set.
fn model_of(dir: &Path, bytes: &[u8]) -> Result<TransformerConfig, CheckpointError> {
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
    let bytes = match fs::read(&path) {
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
    if format != Some(u64::from(FORMAT)) {
        let format = format.map_or("it has no format number".to_string(), |format| format!("format {format}"));
        return Err(foreign(&path, format!("{format}; this version reads format {FORMAT}")));
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

/// Reads a file and compares its size and hash with the manifest. The size comes first, so that a damaged manifest cannot
/// cause an allocation larger than the file.
fn read_verified(dir: &Path, expected: &ManifestFile) -> Result<Vec<u8>, CheckpointError> {
    let path = dir.join(&expected.name);
    let damaged = |found: String, wanted: String| CheckpointError::Damaged { file: path.clone(), found, wanted };
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(damaged("no such file".to_string(), format!("{} bytes", expected.bytes)));
        }
        Err(source) => return Err(CheckpointError::io("read", &path)(source)),
    };
    let size = file.metadata().map_err(CheckpointError::io("read", &path))?.len();
    if size != expected.bytes {
        return Err(damaged(format!("{size} bytes"), format!("{} bytes", expected.bytes)));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    file.read_to_end(&mut bytes).map_err(CheckpointError::io("read", &path))?;
    let hash = blake3::hash(&bytes).to_hex();
    if hash.as_str() != expected.blake3 {
        return Err(damaged(short_hash(&hash), short_hash(&expected.blake3)));
    }
    Ok(bytes)
}

/// Returns as much of a hash as distinguishes it from another one.
fn short_hash(hash: &str) -> String {
    format!("BLAKE3 {}..", hash.get(..12).unwrap_or(hash))
}

fn foreign(file: &Path, reason: String) -> CheckpointError {
    CheckpointError::Foreign { file: file.to_path_buf(), reason }
}

fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, CheckpointError> {
    serde_json::from_slice(bytes).map_err(|error| foreign(path, error.to_string()))
}

/// Reads all tensors of a file, sorted by name.
fn tensors(path: &Path, bytes: &[u8]) -> Result<Vec<NamedTensor>, CheckpointError> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| foreign(path, error.to_string()))?;
    let mut tensors = Vec::with_capacity(file.len());
    for (name, view) in file.tensors() {
        if view.dtype() != Dtype::F32 {
            return Err(foreign(path, format!("{name} is {:?}, not F32", view.dtype())));
        }
        let values = view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        tensors.push(NamedTensor { name, shape: view.shape().to_vec(), values });
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tensors)
}

/// Reads what `n` devices do not share. `take` returns the bytes of a file.
fn replicas(
    dir: &Path,
    n: usize,
    weights: &[&NamedTensor],
    take: &mut impl FnMut(&str) -> Result<Vec<u8>, CheckpointError>,
) -> Result<Replicas, CheckpointError> {
    let momentum = tensors(&dir.join(OUTER_FILE), &take(OUTER_FILE)?)?;
    let other_moments = (1..n).map(|replica| {
        let name = replica_file(replica);
        moments(&dir.join(&name), &take(&name)?, weights)
    });
    Ok(Replicas { momentum, other_moments: other_moments.collect::<Result<_, _>>()? })
}

/// Reads both moments of each weight, in the order of `weights`.
fn moments(path: &Path, bytes: &[u8], weights: &[&NamedTensor]) -> Result<[Vec<NamedTensor>; 2], CheckpointError> {
    let mut by_name: HashMap<_, _> =
        tensors(path, bytes)?.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    let mut of = |moment: &str| -> Result<Vec<NamedTensor>, CheckpointError> {
        let mut found = Vec::with_capacity(weights.len());
        for weight in weights {
            let name = format!("{moment}.{}", weight.name);
            let tensor = by_name.remove(&name).ok_or_else(|| foreign(path, format!("it has no {name}")))?;
            if tensor.shape != weight.shape {
                let reason = format!("{name} has the shape {:?}, its weight {:?}", tensor.shape, weight.shape);
                return Err(foreign(path, reason));
            }
            found.push(NamedTensor { name: weight.name.clone(), ..tensor });
        }
        Ok(found)
    };

    let both = [of("m")?, of("v")?];
    match by_name.keys().min() {
        Some(name) => Err(foreign(path, format!("{name} belongs to no trained weight of {MODEL_FILE}"))),
        None => Ok(both),
    }
}
