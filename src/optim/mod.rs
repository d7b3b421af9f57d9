//! Updates weights from gradients: parameters in one flat tensor, its slices among ranks, AdamW,
//! their average, the outer optimizer of local steps, and the learning rate.

pub mod adamw;
pub mod ema;
pub mod frozen;
pub mod outer;
pub mod param_groups;
pub mod schedule;
pub mod slices;

pub use adamw::{AdamW, AdamWSetup};
pub use ema::Ema;
pub use frozen::Frozen;
pub use outer::Outer;
pub use param_groups::{FlatGradients, ParamEntry, ParamTable};
pub use schedule::LearningRate;
pub use slices::Slices;
