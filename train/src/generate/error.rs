//! Errors of generation, each with its remedy.

use burn::tensor::{ExecutionError, TensorReadError};
use thiserror::Error;

use kiln_metrics::units::first_few;

/// The reasons why lines cannot be translated or prompts cannot be continued.
#[derive(Debug, Error)]
pub enum GenerateError {
    /// A source does not fit the model.
    #[error(
        "line {line} has {found} tokens, but the model reads at most {limit} (model.max_positions): split the line into sentences{}",
        further(others)
    )]
    TooLong {
        /// Line number, counted from 1.
        line: usize,
        /// Its tokens, the end token included.
        found: usize,
        /// Positions of the model.
        limit: usize,
        /// Numbers of further lines that are too long.
        others: Vec<usize>,
    },
    /// The words that a translation begins with leave no room.
    #[error(
        "line {line}: its translation begins with {found} tokens, start token included, but the model has {limit} positions \
         (model.max_positions): shorten what stands behind the tab"
    )]
    PrefixTooLong {
        /// Line number, counted from 1.
        line: usize,
        /// Tokens in front of the first that is searched.
        found: usize,
        /// Positions of the model.
        limit: usize,
    },
    /// A prompt does not fit the model.
    #[error(
        "prompt {prompt} has {found} tokens, but the model has {limit} positions (model.max_positions), and the continuation \
         needs at least one of them: shorten the prompt"
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
    #[error("prompt {prompt} is empty: give the model at least one word to continue")]
    EmptyPrompt {
        /// Number of the prompt, counted from 1.
        prompt: usize,
    },
    /// A line without a mask.
    #[error("line {line} has no mask to fill in: write {mask} in place of a token")]
    NoMask {
        /// Line number, counted from 1.
        line: usize,
        /// Spelling of the mask token.
        mask: String,
    },
    /// A stop token is not in the vocabulary.
    #[error(
        "the vocabulary has no token {0:?} (--stop-token, generate.stop_tokens): spell it as tokenizer.json does, or use \
         --stop, which takes any text"
    )]
    UnknownStopToken(String),
    /// A bad word has a token that the vocabulary does not have.
    #[error(
        "the vocabulary has no token {0:?} (generate.bad_words): spell each token as tokenizer.json does, with spaces between the \
         tokens of a word"
    )]
    UnknownBadWord(String),
    /// Int8 on a GPU.
    #[error("int8 is for searches on the CPU: leave --int8 out, or add --device cpu")]
    Int8OnGpu,
    /// More results than beams.
    #[error(
        "{n_best} results per line need at least as many beams, but generate.beam_size is {beam_size}: raise it to {n_best}"
    )]
    TooFewBeams {
        /// Results requested per line.
        n_best: usize,
        /// Beams of the search.
        beam_size: usize,
    },
    /// The tokenizer and the model do not belong together.
    #[error(
        "the tokenizer has {tokenizer} {side} tokens, but the model has {model}: use the tokenizer that was saved with the weights"
    )]
    OtherVocabulary {
        /// "source" or "target".
        side: &'static str,
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Tokens of the model.
        model: usize,
    },
    /// No logit of a row is a number.
    #[error(
        "the model gives no token a probability in row {row}, because some of its weights are NaN or infinite: use an earlier \
         checkpoint (--checkpoint step-N)"
    )]
    NoToken {
        /// Row of the input, counted from 1.
        row: u64,
    },
    /// The tokenizer cannot encode or decode a text.
    #[error(transparent)]
    Tokenizer(#[from] kiln_data::Error),
    /// The generated text cannot be written.
    #[error("cannot write the generated text: {0}")]
    Output(#[from] std::io::Error),
    /// The device failed, often because memory ran out.
    #[error(
        "the device failed while generating for {rows} rows of up to {len} tokens: {reason}; if memory ran out, lower \
         generate.batch_tokens"
    )]
    Device {
        /// Rows of the batch.
        rows: usize,
        /// Padded length of sources or prompts.
        len: usize,
        /// The device's message.
        reason: String,
    },
}

/// The reason why a search stopped: a failure of the device, which still lacks the batch, or a complete error.
pub(super) enum Interruption {
    Device(String),
    Error(GenerateError),
}

impl Interruption {
    /// Returns the error, with the shape of the batch on which the device failed.
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

/// Names further lines with the same problem.
fn further(lines: &[usize]) -> String {
    if lines.is_empty() { String::new() } else { format!("; too long, too: {}", first_few(lines)) }
}
