//! How good a model is: loss over batches, BLEU and chrF over generated text.

pub mod bleu;
pub mod chrf;
pub mod evaluation;
#[cfg(test)]
mod golden;
pub mod loss;

pub use evaluation::{Evaluation, evaluate};
pub use loss::{ValidationLoss, validation_loss};
