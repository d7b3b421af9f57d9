//! Kiln's optimizers, schedules and data as Burn's traits: for programs with a training loop of their own, and for `burn-train`.
//!
//! | Burn | Kiln |
//! |---|---|
//! | `Optimizer`, `ModuleOptimizer` | [`ParameterOptimizer`], [`module_optimizer`] |
//! | gradient clipping by the global norm | [`clip_gradients`] |
//! | `LrScheduler` | [`BurnSchedule`] |
//! | `Dataset` | [`CachedRows`], [`SourceBatches`] |
//! | `DataLoader` | [`BatchLoader`] |
//!
//! `docs/burn.md` shows them at work, and says what has no counterpart.

mod clip;
mod dataset;
mod loader;
mod optimizer;
mod schedule;
#[cfg(test)]
mod tests;

pub use clip::clip_gradients;
pub use dataset::{CachedRows, SourceBatches};
pub use loader::BatchLoader;
pub use optimizer::{ParameterOptimizer, ParameterState, module_optimizer};
pub use schedule::BurnSchedule;
