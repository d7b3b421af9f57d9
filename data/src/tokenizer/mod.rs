//! Text to token ids and back, through Hugging Face `tokenizers`.

mod config;

pub use config::{Normalization, TokenizerConfig, TokenizerKind};

/// Ids of the tokens that steer a sequence-to-sequence model; the same in the source and the target vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct SpecialIds {
    /// Fills rows up to the padded length; ignored by the loss.
    pub pad: u32,
    /// Starts the decoder.
    pub bos: u32,
    /// Ends every row.
    pub eos: u32,
    /// Stands for what the vocabulary cannot spell.
    pub unk: u32,
}
