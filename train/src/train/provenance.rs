//! The origin of a checkpoint: fingerprints of its data and vocabulary, and the files that are stored with it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use kiln_data::BatchSource;
use kiln_data::files::read_file;

use crate::checkpoint::{RUN_CONFIG_FILE, StoredFile};
use crate::config::Config;
use crate::dataset::Vocabulary;

/// The part of a snapshot that does not change during training.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provenance {
    /// Fingerprint of the training data.
    pub data_fingerprint: String,
    /// Batches of an epoch of the training data.
    pub epoch_batches: Option<u64>,
    /// Fingerprint of the validation data.
    pub validation_fingerprint: Option<String>,
    /// Fingerprint of the tokenizers.
    pub tokenizer_fingerprint: String,
    /// `config.toml`, `tokenizer.json`, ...
    pub files: Vec<StoredFile>,
}

impl Provenance {
    /// Collects the files by saving the tokenizers once inside `run_dir`. This also shows early that the folder can be
    /// written. A rank that saves nothing has no `run_dir`, and no files.
    pub fn new(
        config: &Config,
        train: &dyn BatchSource,
        validation: Option<&dyn BatchSource>,
        vocabulary: &Vocabulary,
        run_dir: Option<&Path>,
    ) -> Result<Self> {
        Ok(Self {
            data_fingerprint: train.fingerprint(),
            epoch_batches: Some(train.batches_per_epoch()),
            validation_fingerprint: validation.map(BatchSource::fingerprint),
            tokenizer_fingerprint: vocabulary.fingerprint(),
            files: run_dir.map_or(Ok(Vec::new()), |dir| stored_files(config, vocabulary, dir))?,
        })
    }
}

/// Returns `config.toml` and the tokenizer's files.
fn stored_files(config: &Config, vocabulary: &Vocabulary, run_dir: &Path) -> Result<Vec<StoredFile>> {
    let mut files = vocabulary_files(vocabulary, &run_dir.join("checkpoints").join("tokenizer.tmp"))?;
    files.push(StoredFile { name: RUN_CONFIG_FILE.to_string(), bytes: config.to_toml().into_bytes() });
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// Returns the files of a vocabulary as a checkpoint stores them. Writes them to the folder `dir`, and removes it.
pub(crate) fn vocabulary_files(vocabulary: &Vocabulary, dir: &Path) -> Result<Vec<StoredFile>> {
    let read = || -> Result<Vec<StoredFile>> {
        if dir.exists() {
            fs::remove_dir_all(dir)?; // left by a run that was killed at this point
        }
        fs::create_dir_all(dir)?;
        vocabulary.save(dir)?;
        let mut files = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            files.push(StoredFile { name, bytes: read_file(&entry.path())? });
        }
        fs::remove_dir_all(dir)?;
        Ok(files)
    };
    read().with_context(|| {
        format!("{} cannot be written; choose another run folder or fix its permissions", dir.display())
    })
}
