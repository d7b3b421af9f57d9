//! Why text cannot be generated, and what to do.

use burn::tensor::{ExecutionError, TensorReadError};
use thiserror::Error;

/// Why lines cannot be translated or prompts continued.
#[derive(Debug, Error)]
pub enum GenerateError {
    /// A source does not fit the model.
    #[error(
        "line {line} has {found} tokens, but the model reads at most {limit} (model.max_positions): split it into sentences"
    )]
    TooLong {
        /// Line number, counted from 1.
        line: usize,
        /// Its tokens, the end token included.
        found: usize,
        /// Positions of the model.
        limit: usize,
    },
    /// A prompt does not fit the model.
    #[error(
        "prompt {prompt} has {found} tokens, but the model has {limit} positions (model.max_positions), and its continuation needs \
         one at least: shorten it"
    )]
    PromptTooLong {
        /// Number of the prompt, counted from 1.
        prompt: usize,
        /// Its tokens, the start token included.
        found: usize,
        /// Positions of the model.
        limit: usize,
    },
    /// A prompt without a token.
    #[error("prompt {prompt} is empty: give the model something to continue, a word is enough")]
    EmptyPrompt {
        /// Number of the prompt, counted from 1.
        prompt: usize,
    },
    /// A token that is to end a text is not in the vocabulary.
    #[error(
        "the vocabulary has no token {0:?} (--stop-token, generate.stop_tokens): spell it as tokenizer.json does, or end at \
         any text with --stop"
    )]
    UnknownStopToken(String),
    /// More results than beams.
    #[error(
        "{n_best} results per line were asked for, but generate.beam_size is {beam_size}: raise it to at least {n_best}"
    )]
    TooFewBeams {
        /// Results asked for.
        n_best: usize,
        /// Beams there are.
        beam_size: usize,
    },
    /// The tokenizer is not the one that the model was trained with.
    #[error(
        "the tokenizer has {tokenizer} {side} tokens, the model {model}: use the tokenizer that is saved beside the weights"
    )]
    OtherVocabulary {
        /// "source" or "target".
        side: &'static str,
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Tokens of the model.
        model: usize,
    },
    /// The model's output is not a number anywhere.
    #[error(
        "the model gives no token any probability in row {row}: its weights hold values that are no numbers; take an earlier \
         checkpoint (--checkpoint step-N)"
    )]
    NoToken {
        /// Row of the input, counted from 1.
        row: u64,
    },
    /// Text to ids or ids to text.
    #[error(transparent)]
    Tokenizer(#[from] kiln_data::Error),
    /// Nobody takes the text any more.
    #[error("writing the generated text: {0}")]
    Output(#[from] std::io::Error),
    /// The device failed, often for want of memory.
    #[error(
        "the device failed while generating for {rows} rows of up to {len} tokens: {reason}; if memory ran out, lower generate.batch_tokens"
    )]
    Device {
        /// Rows of the batch.
        rows: usize,
        /// Padded length of sources or prompts.
        len: usize,
        /// What the device says.
        reason: String,
    },
}

/// Why a search came to no end: the device, which does not know the batch, or something that can be told as it is.
pub(super) enum Interruption {
    Device(String),
    Error(GenerateError),
}

impl Interruption {
    /// The error, with the batch that the device failed on.
    pub(super) fn on_batch(self, rows: usize, len: usize) -> GenerateError {
        match self {
            Self::Device(reason) => GenerateError::Device { rows, len, reason },
            Self::Error(error) => error,
        }
    }
}

impl From<ExecutionError> for Interruption {
    fn from(error: ExecutionError) -> Self {
        Self::Device(error.to_string())
    }
}

impl From<TensorReadError> for Interruption {
    fn from(error: TensorReadError) -> Self {
        Self::Device(error.to_string())
    }
}

impl From<GenerateError> for Interruption {
    fn from(error: GenerateError) -> Self {
        Self::Error(error)
    }
}
