//! Generates target lines from source lines and texts from prompts, by greedy search, beam search or sampling, fills in
//! masked tokens, and predicts classes.
//!
//! Lines of similar length share a batch; results keep the order of the lines. Searches know a model only as [`Sequences`]:
//! rows that take a token and return the logits of the next.

mod bans;
pub mod batching;
pub mod beam;
mod classify;
mod conversation;
mod error;
mod fill;
pub mod greedy;
mod impression;
mod recorded;
pub mod sample;
pub mod sequences;
pub mod stop;
mod text;
mod token_scores;
mod translator;

pub use bans::Bans;
pub use beam::beam_search;
pub use classify::{ClassPredictor, Classified};
pub use conversation::Conversation;
pub use error::GenerateError;
pub use fill::{Candidate, Filled, MaskFiller};
pub use greedy::greedy;
pub(crate) use impression::impression;
pub use sequences::{Begun, Sequences, Targets, Texts, TokenRules};
pub use text::{Continuation, EndedBy, TextGenerator};
pub use token_scores::TokenScore;
pub use translator::{Hypothesis, Translator};

use std::sync::Arc;

use burn::tensor::Device;
use kiln_kernels::int8::{Int8, Int8Weights};

use crate::device::is_cpu;

/// Returns the number of steps between two reads of the tokens in greedy search. Each read waits for the device, which is
/// expensive on a GPU.
pub fn steps_per_sync(device: &Device) -> usize {
    if is_cpu(device) { 1 } else { 8 }
}

/// Rounds weights for searches in int8, if they are wanted.
fn int8_weights(
    kind: Option<Int8>,
    device: &Device,
    round: impl FnOnce(Int8) -> Int8Weights,
) -> Result<Option<Arc<Int8Weights>>, GenerateError> {
    match kind {
        Some(_) if !is_cpu(device) => Err(GenerateError::Int8OnGpu),
        kind => Ok(kind.map(|kind| Arc::new(round(kind)))),
    }
}

#[cfg(test)]
mod tests;
