//! How good a model is: loss and accuracy over batches, BLEU and chrF over generated text.

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
