//! From source lines to target lines and from prompts to texts: batches of similar length, greedy, beam search or
//! sampling, order kept.
//!
//! Searches know models only as [`Sequences`]: rows that take a token and answer with logits.

pub mod batching;
pub mod beam;
mod error;
pub mod greedy;
pub mod sample;
pub mod sequences;
pub mod stop;
mod text;
mod translator;

pub use beam::beam_search;
pub use error::GenerateError;
pub use greedy::greedy;
pub use sequences::{Begun, Sequences, Targets, Texts, TokenRules};
pub use text::{Continuation, EndedBy, TextGenerator};
pub use translator::{Hypothesis, Translator};

use burn::tensor::Device;

use crate::device::is_cpu;

/// Steps between two looks at the tokens in greedy decoding; each look waits for the device, which a GPU feels.
fn steps_per_sync(device: &Device) -> usize {
    if is_cpu(device) { 1 } else { 8 }
}

#[cfg(test)]
mod tests;
