//! Reads and writes model folders of Hugging Face's `transformers`: `config.json`, `model.safetensors` (or shards with an
//! index) and the tokenizer's files. [`kiln_model::hf`] interprets the tensors. Of older folders, it reads
//! `pytorch_model.bin`, without running the code that a pickle can hold.

mod adapter;
mod read;
mod safetensors_file;
mod spelling;
mod tokenizer_file;
mod torch;
mod write;

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use adapter::AdapterFolder;
pub use read::Folder;
pub use tokenizer_file::{PADDING, TokenizerFile};
pub use write::{StoredType, write_adapter, write_folder, write_model};

/// The configuration of the model.
pub const CONFIG_FILE: &str = "config.json";
/// The weights in one file.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// The index of shards: which file holds which weight.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// The weights in older folders.
pub const TORCH_FILE: &str = "pytorch_model.bin";
/// The index of shards of older folders.
pub const TORCH_INDEX_FILE: &str = "pytorch_model.bin.index.json";
/// The settings of adapters that `peft` made.
pub const ADAPTER_CONFIG_FILE: &str = "adapter_config.json";
/// Their weights.
pub const ADAPTER_FILE: &str = "adapter_model.safetensors";
/// The tokenizer.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// The SentencePiece model that a tokenizer was made of.
pub const SENTENCEPIECE_FILE: &str = "tokenizer.model";
/// The special tokens.
pub const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";
/// The ids at which generation starts and ends.
pub const GENERATION_CONFIG_FILE: &str = "generation_config.json";

/// A problem with a Hugging Face folder, and its remedy.
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
    /// The path is not a folder with a model.
    #[error("{}: {reason}", path.display())]
    NotAModel {
        /// The path.
        path: PathBuf,
        /// What is missing, and the remedy.
        reason: String,
    },
    /// A file has unexpected content.
    #[error("{}: {reason}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// The problem, and the remedy.
        reason: String,
    },
    /// The target of an export exists.
    #[error("{}: this folder exists already and is not empty; choose a new one", .0.display())]
    Taken(PathBuf),
    /// The element type of an export is too narrow.
    #[error("{tensor} has the weight {value}, which {stored} cannot hold; export with --dtype bf16 or --dtype f32")]
    Beyond {
        /// Name in the export.
        tensor: String,
        /// The weight.
        value: f32,
        /// The element type.
        stored: &'static str,
    },
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
