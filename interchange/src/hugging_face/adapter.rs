//! Reads a folder of adapters that `peft` made.

use std::fs;
use std::path::Path;

use kiln_data::files::read_file;
use kiln_model::hf::FileTensor;
use serde_json::Value;

use super::safetensors_file::SafetensorsFile;
use super::{ADAPTER_CONFIG_FILE, ADAPTER_FILE, FolderError};

/// Largest `adapter_config.json` in bytes. A file of peft has a few thousand.
const MOST_BYTES: u64 = 16 << 20;

/// An open folder of adapters, with its settings read, its weights mapped and their sizes checked.
#[derive(Debug)]
pub struct AdapterFolder {
    settings: Value,
    weights: SafetensorsFile,
}

impl AdapterFolder {
    /// Opens the folder `dir`.
    ///
    /// # Errors
    /// If the folder or one of its files does not exist or cannot be read, or the weights are truncated.
    pub fn open(dir: &Path) -> Result<Self, FolderError> {
        let missing = |reason: String| FolderError::NotAModel { path: dir.to_path_buf(), reason };
        let (settings, weights) = (dir.join(ADAPTER_CONFIG_FILE), dir.join(ADAPTER_FILE));
        if !settings.is_file() {
            return Err(missing(format!("it holds no {ADAPTER_CONFIG_FILE}, so it is not an adapter folder of peft")));
        }
        if !weights.is_file() {
            let pickle = if dir.join("adapter_model.bin").is_file() {
                ", only a Python pickle, which can run any code when it is read; save the adapter again with save_pretrained"
            } else {
                ""
            };
            return Err(missing(format!("it holds no {ADAPTER_FILE}{pickle}")));
        }

        let size = fs::metadata(&settings).map_err(FolderError::io("read", &settings))?.len();
        if size > MOST_BYTES {
            return Err(FolderError::bad_file(
                &settings,
                format!("has {size} bytes, but at most {MOST_BYTES} are read"),
            ));
        }
        let bytes = read_file(&settings).map_err(FolderError::io("read", &settings))?;
        let settings = serde_json::from_slice(&bytes)
            .map_err(|error| FolderError::bad_file(&settings, format!("cannot be read: {error}")))?;
        Ok(Self { settings, weights: SafetensorsFile::open(&weights)? })
    }

    /// The content of `adapter_config.json`.
    pub fn settings(&self) -> &Value {
        &self.settings
    }

    /// All tensors, with their bytes in the mapped file.
    pub fn tensors(&self) -> Vec<FileTensor<'_>> {
        self.weights.tensors()
    }
}
