//! Folders as Hugging Face's `transformers` keeps them: `config.json`, `model.safetensors` (or shards with an index) and
//! the tokenizer's files. What the tensors mean is the business of [`kiln_model::hf`].
//!
//! Python pickles (`pytorch_model.bin`) are not read: unpickling runs whatever code the file holds.

mod read;
mod safetensors_file;
mod tokenizer_file;
mod write;

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use read::Folder;
pub use tokenizer_file::TokenizerFile;
pub use write::{StoredType, write_folder};

/// The model's configuration.
pub const CONFIG_FILE: &str = "config.json";
/// The weights in one file.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// Which shard holds which weight.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// The vocabulary and how text is cut.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// Spellings of special tokens.
pub const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";
/// Ids that generating begins and ends with.
pub const GENERATION_CONFIG_FILE: &str = "generation_config.json";

/// What is wrong with a Hugging Face folder, and what to do.
#[derive(Debug, Error)]
pub enum FolderError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// "read", "write", ...
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The path is no folder with a model.
    #[error("{}: {reason}", path.display())]
    NotAModel {
        /// What was named.
        path: PathBuf,
        /// What it lacks, and what to do.
        reason: String,
    },
    /// A file is not what it should be.
    #[error("{}: {reason}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The target of an export is taken.
    #[error("{}: this folder exists already and is not empty; name a new one", .0.display())]
    Taken(PathBuf),
}

impl FolderError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    fn bad_file(path: &Path, reason: impl Into<String>) -> Self {
        Self::BadFile { path: path.to_path_buf(), reason: reason.into() }
    }
}

#[cfg(test)]
mod tests;
