//! Writes language models as GGUF files, which llama.cpp and the programs built on it read.
//!
//! The format is described in ggml's `docs/gguf.md`. A file holds the numbers of the model's shape, the vocabulary, and the weights under
//! llama.cpp's names. They come from the model as [`kiln_model::hf::plan_export`] gives it.

mod config;
mod file;
mod gemma;
mod metadata;
mod tensors;
mod vocabulary;

use std::io;
use std::path::{Path, PathBuf};

use file::GgufFile;
pub use file::GgufType;
use kiln_model::hf::{ExportPlan, Family};
use serde_json::Value;
use thiserror::Error;

/// The ending of a file's name.
pub const EXTENSION: &str = "gguf";

/// A model that cannot be written, and why.
#[derive(Debug, Error)]
pub enum GgufError {
    /// The operating system refused.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file exists already.
    #[error("{} exists already; name another file, or remove it", .0.display())]
    Taken(PathBuf),
    /// llama.cpp does not compute this model, or encodes its texts differently.
    #[error("llama.cpp does not compute the same: {0}; export a folder for transformers instead")]
    NotExpressible(String),
    /// The element type is too narrow.
    #[error("{tensor} has the weight {value}, which {stored} cannot hold; export with --dtype bf16 or --dtype f32")]
    Beyond {
        /// Name in the file.
        tensor: String,
        /// The weight.
        value: f32,
        /// The element type.
        stored: &'static str,
    },
}

/// The tokenizer's files, and what Kiln puts before a prompt.
#[derive(Debug)]
pub struct TokenizerFiles<'a> {
    /// `tokenizer.json`
    pub tokenizer: &'a Value,
    /// The chat template, if the model has one.
    pub chat_template: Option<&'a str>,
    /// Whether a prompt begins with the token `bos`.
    pub adds_bos: bool,
    /// The token that ends an answer of a conversation.
    pub end_of_turn: Option<u32>,
}

/// Writes the file `path`, completely or not at all. Matrices are stored as `stored` says, vectors in f32.
///
/// # Errors
/// If llama.cpp does not compute the model, if it would encode texts differently, if the file exists, or if it cannot be written.
pub fn write_gguf(
    path: &Path,
    name: &str,
    model: ExportPlan<'_>,
    tokenizer: &TokenizerFiles<'_>,
    stored: GgufType,
) -> Result<(), GgufError> {
    if path.exists() {
        return Err(GgufError::Taken(path.to_path_buf()));
    }
    let architecture = architecture(model.family)?;
    let mut file = GgufFile::default();
    metadata::add(&mut file, architecture, name, &model, stored)?;
    vocabulary::add(&mut file, &model.config, tokenizer)?;
    tensors::add(&mut file, model, stored)?;
    file.write(path)
}

/// Returns the longest text that llama.cpp computes in the same way, if the model is used with longer ones: it has a sliding window,
/// and llama.cpp lets a token of this architecture see all tokens before it. The file gives the number as the longest context.
pub fn longest_same_text(model: &ExportPlan<'_>) -> Option<u32> {
    let positions = config::size(&model.config, "max_position_embeddings");
    metadata::window(model.family, &model.config).filter(|window| *window < positions)
}

/// Returns llama.cpp's name of the architecture.
fn architecture(family: Family) -> Result<&'static str, GgufError> {
    match family {
        Family::Gpt2 => Ok("gpt2"),
        Family::Llama | Family::Mistral => Ok("llama"),
        Family::Qwen2 => Ok("qwen2"),
        Family::Qwen3 => Ok("qwen3"),
        Family::Gemma2 => Ok("gemma2"),
        Family::Gemma3 => Ok("gemma3"),
        other => Err(refused(format!(
            "it is given gpt2, llama, mistral, qwen2, qwen3 and gemma models by Kiln, and this is a {other} model"
        ))),
    }
}

fn refused(reason: impl Into<String>) -> GgufError {
    GgufError::NotExpressible(reason.into())
}

#[cfg(test)]
mod tests;
