//! From gradients to new weights: flat parameter groups, AdamW, the learning rate.

pub mod adamw;
pub mod param_groups;
pub mod schedule;

pub use adamw::AdamW;
pub use param_groups::{FlatGradients, Group, ParamEntry, ParamTable};
pub use schedule::LearningRate;
