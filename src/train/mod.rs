//! Training: where the data comes from ([`data`]), what changes ([`state`]), one step ([`step`]), replayed where it
//! recurs ([`capture`]), the loop ([`trainer`]), and continuing it ([`resume`]).

pub mod capture;
pub mod data;
mod deterministic;
mod device_failure;
pub mod feed;
mod measured;
mod new_kernels;
mod non_finite;
mod probe;
mod provenance;
pub mod resume;
pub mod state;
pub mod step;
pub mod trainer;
mod warm_up;

pub use capture::CapturedSteps;
pub use data::RunData;
pub use provenance::Provenance;
pub use resume::{Resume, find as find_resume};
pub use state::TrainState;
pub use step::train_step;
pub use trainer::{Ended, Outcome, Setup, Trainer};

#[cfg(test)]
mod tests;
