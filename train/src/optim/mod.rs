//! Updates weights from gradients: parameters in one flat tensor, its slices among ranks, the optimizers of groups of parameters,
//! their average, the outer optimizer of local steps, and the learning rate.

pub mod adamw;
mod choice;
pub mod ema;
pub mod flat;
pub mod frozen;
pub mod groups;
pub mod muon;
pub mod optimizer;
pub mod outer;
pub mod param_groups;
pub mod schedule;
pub mod slices;
mod transfer;

pub use adamw::AdamW;
pub use ema::Ema;
pub use flat::{FlatOptimizer, Setup};
pub use frozen::Frozen;
pub use groups::{Group, Groups, StateSlot};
pub use muon::Muon;
pub use optimizer::{Cut, Optimizer};
pub use outer::Outer;
pub use param_groups::{FlatGradients, ParamEntry, ParamTable};
pub use schedule::LearningRate;
pub use slices::Slices;
