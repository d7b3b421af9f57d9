//! Measurements of a run: the records of `kiln-metrics`, and how the training loop makes them.

pub mod deferred;
mod round;
mod span_clock;

pub use kiln_metrics::*;
pub use kiln_ranks::{host_sync, timeline};
pub use round::Round;
pub use span_clock::SpanClock;
