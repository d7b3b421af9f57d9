//! Scores of a model: loss and accuracy on batches, BLEU and chrF of generated text.

pub mod bleu;
pub mod chrf;
pub mod evaluation;
#[cfg(test)]
mod golden;
pub mod loss;
mod masking;
mod model;

pub use evaluation::{Evaluation, evaluate, score};
pub use loss::{MaskedAccuracy, ValidationLoss, validation_loss};
pub use masking::Masking;
pub use model::Model;
