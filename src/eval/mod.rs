//! How good a model is: loss and accuracy over batches, BLEU and chrF over generated text.

pub mod bleu;
pub mod chrf;
pub mod evaluation;
#[cfg(test)]
mod golden;
pub mod loss;
mod masking;

pub use evaluation::{Evaluation, evaluate};
pub use loss::{MaskedAccuracy, ValidationLoss, validation_loss};
pub use masking::Masking;
