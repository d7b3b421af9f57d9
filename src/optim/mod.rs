//! Updates weights from gradients: parameters in one flat tensor, AdamW, and the learning rate.

pub mod adamw;
pub mod param_groups;
pub mod schedule;

pub use adamw::{AdamW, AdamWSetup};
pub use param_groups::{FlatGradients, ParamEntry, ParamTable};
pub use schedule::LearningRate;
