//! Prompts for a decoder, checked on the host, before they go to the device.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::config::TransformerConfig;

/// A problem with a batch of prompts. Rows and positions count from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// The batch has no rows.
    #[error("the batch has no prompts; give at least one")]
    NoPrompts,
    /// A row has no tokens.
    #[error(
        "prompt {row} is empty; a decoder needs at least one token to continue (the start or end-of-text token will do)"
    )]
    Empty {
        /// Number of the prompt.
        row: usize,
    },
    /// A row fills the model's positions and leaves no room to continue.
    #[error(
        "prompt {row} has {len} tokens, but the model has {max_positions} positions for a text, of which the continuation needs at least one; \
         shorten the prompt to {} tokens",
        max_positions - 1
    )]
    TooLong {
        /// Number of the prompt.
        row: usize,
        /// Its tokens.
        len: usize,
        /// Positions of the model, without a learned prompt.
        max_positions: usize,
    },
    /// An id is outside the vocabulary.
    #[error(
        "token {position} of prompt {row} has the id {id}, but the model has ids 0 to {}; tokenizer and weights do not belong \
         together",
        vocab_size - 1
    )]
    UnknownId {
        /// Number of the prompt.
        row: usize,
        /// Position in the prompt.
        position: usize,
        /// The id.
        id: i64,
        /// Tokens of the model's vocabulary.
        vocab_size: usize,
    },
}

/// A batch of prompts of any lengths, right-padded.
#[derive(Debug, Clone)]
pub struct Prompts {
    /// `[B * T]`
    pub ids: Tensor<1, Int>,
    /// Tokens of each row, `[B]`.
    pub lengths: Tensor<1, Int>,
    /// B.
    pub batch_size: usize,
    /// T, the longest row.
    pub len: usize,
}

impl Prompts {
    /// Checks `rows` against the model and copies them to `device`.
    ///
    /// # Errors
    /// If there are no rows, or if a row is empty, leaves no position for a continuation, or holds an id outside the
    /// vocabulary.
    pub fn new<I: Copy + Into<i64>>(
        rows: &[Vec<I>],
        config: &TransformerConfig,
        device: &Device,
    ) -> Result<Self, PromptError> {
        let len = rows.iter().map(Vec::len).max().ok_or(PromptError::NoPrompts)?;
        let mut ids = vec![config.pad_id.cast_signed(); rows.len() * len];
        for (row, tokens) in rows.iter().enumerate() {
            let max_positions = config.text_positions();
            match tokens.len() {
                0 => return Err(PromptError::Empty { row }),
                len if len >= max_positions => return Err(PromptError::TooLong { row, len, max_positions }),
                _ => {}
            }

            for (position, &id) in tokens.iter().enumerate() {
                let (id, vocab_size) = (id.into(), config.vocab_size());
                let known = usize::try_from(id).is_ok_and(|id| id < vocab_size);
                match i32::try_from(id) {
                    Ok(small) if known => ids[row * len + position] = small,
                    _ => return Err(PromptError::UnknownId { row, position, id, vocab_size }),
                }
            }
        }

        let device = device.clone().inner();
        let on_device = |values: Vec<i32>| {
            let n = values.len();
            Tensor::from_data(TensorData::new(values, [n]), (&device, DType::I32))
        };
        let lengths = rows.iter().map(|tokens| i32::try_from(tokens.len()).expect("below max_positions")).collect();
        Ok(Self { ids: on_device(ids), lengths: on_device(lengths), batch_size: rows.len(), len })
    }
}
