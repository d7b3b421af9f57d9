//! The files that a run was imported from, so that `kiln train --from FOLDER` takes no run for another folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use kiln_data::files::{open_file, read_file};
use kiln_train::checkpoint::Checkpoints;

/// The file in the checkpoint of an imported run: the BLAKE3 hash of each file of the model folder.
pub(super) const MADE_FROM_FILE: &str = "imported_from.json";

/// The kinds of files that a model folder is read from.
const KINDS: [&str; 9] = ["json", "txt", "jinja", "model", "spm", "safetensors", "bin", "pt", "pth"];

/// Returns the content of [`MADE_FROM_FILE`] for the model folder `dir`.
///
/// # Errors
/// If a file cannot be read.
pub(super) fn record(dir: &Path) -> Result<Vec<u8>> {
    Ok(serde_json::to_vec_pretty(&hashes(dir)?)?)
}

/// Returns whether `run` was imported from the files that `dir` holds now, without adapters, tokenizers or languages from elsewhere.
///
/// # Errors
/// If a file of `dir` cannot be read.
pub(super) fn is_made_from(run: &Path, dir: &Path) -> Result<bool> {
    let Ok(checkpoint) = Checkpoints::of_run(run).usual() else { return Ok(false) };
    let Ok(recorded) = read_file(&checkpoint.join(MADE_FROM_FILE)) else { return Ok(false) };
    let recorded: BTreeMap<String, String> = serde_json::from_slice(&recorded).unwrap_or_default();
    Ok(!recorded.is_empty() && recorded == hashes(dir)?)
}

/// Returns the hash of each file that a model may be read from, by its name.
fn hashes(dir: &Path) -> Result<BTreeMap<String, String>> {
    let mut hashes = BTreeMap::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry.with_context(|| dir.display().to_string())?.path();
        let is_read = path.extension().is_some_and(|kind| KINDS.iter().any(|known| kind.eq_ignore_ascii_case(known)));
        if !is_read || !path.is_file() {
            continue;
        }
        let mut hasher = blake3::Hasher::new();
        let file = open_file(&path).with_context(|| path.display().to_string())?;
        hasher.update_reader(file).with_context(|| path.display().to_string())?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        hashes.insert(name, hasher.finalize().to_hex().to_string());
    }
    Ok(hashes)
}
