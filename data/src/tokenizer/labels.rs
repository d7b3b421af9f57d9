//! How labelled rows are encoded, and where their labels are.

use serde_json::Value;

use super::spm_file::Stored;
use super::{LabelledEncoder, LabelledRow, TextTokenizer, TokenizerConfig, refuse, train};
use crate::corpus::{Labelled, LabelledInput, LabelledText};
use crate::error::Result;

/// Model settings that decide how labelled rows are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LabelledShape {
    /// Longest row in tokens.
    pub max_len: usize,
    /// Whether the model distinguishes the types of tokens.
    pub has_types: bool,
    /// Whether the model is a decoder, which reads the class at the last token.
    pub is_decoder: bool,
    /// Whether special tokens that a text spells are split like other text.
    pub splits_special_tokens: bool,
}

impl LabelledShape {
    /// Makes an encoder of such rows for one thread.
    ///
    /// # Errors
    ///
    /// As [`LabelledEncoder::new`].
    pub fn encoder(self, tokenizer: &TextTokenizer) -> Result<LabelledEncoder> {
        let encoder = match self.is_decoder {
            true => LabelledEncoder::for_decoder(tokenizer, self.max_len),
            false => LabelledEncoder::new(tokenizer, self.max_len),
        }?;
        Ok(encoder.splitting_special_tokens(self.splits_special_tokens))
    }
}

impl LabelledRow {
    /// Returns the place and the class of each label of `row`, of which this is the encoding.
    pub fn label_places(&self, row: &Labelled) -> Vec<(u32, u32)> {
        match &row.input {
            LabelledInput::Text { .. } => row.labels.iter().map(|label| (0, *label)).collect(),
            LabelledInput::Words(_) => {
                let places = self.words.iter().zip(&row.labels);
                places.filter_map(|(place, label)| Some(((*place)?, *label))).collect()
            }
        }
    }
}

impl TextTokenizer {
    /// Reads a tokenizer that was trained.
    pub(super) fn of_trained(json: String, config: &TokenizerConfig) -> Result<Self> {
        Self::parse(Stored { json, model: None }, None, config, &Value::Null)
    }

    /// Trains on the texts of labelled rows. The result is the same as for these texts in memory.
    ///
    /// # Errors
    ///
    /// If the rows cannot be read, or as [`Self::train_on_documents`].
    pub fn train_on_labelled(config: &TokenizerConfig, text: &LabelledText, num_threads: usize) -> Result<Self> {
        refuse(config.validate_for_text())?;
        Self::of_trained(train::train_on_labelled(config, text, num_threads)?, config)
    }
}
