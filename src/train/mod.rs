//! Training: what changes ([`state`]), one step ([`step`]), replayed where it recurs ([`capture`]), and the loop
//! ([`trainer`]).

pub mod capture;
mod deterministic;
mod device_failure;
pub mod feed;
mod measured;
mod new_kernels;
mod non_finite;
mod probe;
mod provenance;
pub mod state;
pub mod step;
pub mod trainer;
mod warm_up;

pub use capture::CapturedSteps;
pub use provenance::Provenance;
pub use state::TrainState;
pub use step::train_step;
pub use trainer::{Ended, Outcome, Setup, Trainer};

#[cfg(test)]
mod tests;
