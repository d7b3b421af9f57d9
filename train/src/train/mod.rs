//! Training: the loop ([`trainer`]), one optimizer step ([`step`]), what it changes ([`state`]), and what goes in and
//! comes out ([`Setup`], [`Outcome`]).
//!
//! To follow one step, read `trainer` (the loop), `feed` (its batches), `step` (forward, backward, update), `exchange` (with
//! other ranks), `state` (weights and counters) and `due` (logging, validation, saving). `preflight` runs before the first step and `guard`
//! handles failures; [`capture`] replaces the computation of gradients by a replay.

mod assemble;
mod best;
pub mod capture;
mod course;
mod device_time;
mod due;
mod ends;
mod exchange;
pub mod feed;
mod forecast;
mod guard;
mod held;
mod host_copy;
mod lines;
mod measured;
mod memory_limit;
mod new_kernels;
mod outcome;
mod patience;
mod preflight;
mod profile_steps;
mod profiling;
mod provenance;
mod rehearse;
mod rehearsed;
mod setup;
mod slow_link;
pub mod state;
pub mod step;
mod summary;
mod together;
pub mod trainer;

pub use capture::CapturedSteps;
#[doc(hidden)]
pub(crate) use forecast::time_ahead;
pub use held::Held;
pub use lines::STEPS_BEHIND;
pub use outcome::{Ended, Outcome};
#[doc(hidden)]
pub use preflight::compile_step;
#[doc(hidden)]
pub use profiling::{PROFILE_FOLDER, ProfiledRun, StepProfiler, Watched};
pub use provenance::Provenance;
pub(crate) use provenance::vocabulary_files;
pub use rehearsed::{Rehearsed, RehearsedStep};
pub use setup::{Setup, Signals, Validation};
#[doc(hidden)]
pub use slow_link::accumulation_for;
pub use state::{Start, TrainState};
pub use step::train_step;
pub use trainer::Trainer;

#[cfg(test)]
mod tests;
