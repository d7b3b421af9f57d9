//! The library of measurements: a model is prepared, warmed up and stepped on the clock, and its memory is read.
//!
//! [`Prepared`] makes the state, [`Stepper`] warms it up and takes its steps, [`time`] is the stopwatch, and [`PeakMemory`] reads the
//! memory. The stopwatch counts in rounds of the trainer ([`Round`](kiln_train::metrics::Round)), as the steps of a profile do. Steps and
//! operators are measured of any [`Model`](kiln_train::eval::Model).
//!
//! Each command is a view: `bench` is [`step_time`](super::step_time), [`operators`](super::operators), [`replay`](super::replay),
//! [`decoding`](super::decoding) and [`link`](super::link); `diagnose` is [`elimination`](super::elimination); `profile` is
//! [`profile`](super::profile); `check --precision` is [`precision`](super::precision); `memory --measure` is
//! [`ledger`](super::ledger).

mod memory;
mod pace;
mod prepared;
mod stepper;
mod work_clock;

pub(crate) use memory::PeakMemory;
pub use pace::Effort;
pub(crate) use pace::{Paced, time};
pub(crate) use prepared::Prepared;
pub(crate) use stepper::{StepPace, Stepper, Warmth, mean_loss};
pub(crate) use work_clock::WorkClock;
