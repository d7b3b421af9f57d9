//! Scores of a model: loss and accuracy on batches, BLEU and chrF of generated text.

pub mod bleu;
pub mod chrf;
pub mod classes;
mod entities;
pub mod evaluation;
pub mod figures;
#[cfg(test)]
mod golden;
mod hiding;
mod init;
pub mod loss;
mod masking;
mod model;
mod ratio;

pub use classes::{ClassScore, ClassScores, class_scores};
pub use entities::EntityScores;
pub use evaluation::{Evaluation, evaluate, score};
pub use figures::figures;
pub use hiding::Hiding;
pub use init::{Init, Part};
pub use loss::{MaskedAccuracy, ValidationLoss, validation_loss};
pub use masking::Masking;
pub use model::Model;
