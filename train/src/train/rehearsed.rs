//! Steps that were looked at.

use std::time::Instant;

use kiln_data::Shape;

use crate::metrics::Round;
use crate::metrics::deferred::StepFacts;

/// A step that was looked at.
#[derive(Debug, Clone)]
pub struct RehearsedStep {
    /// What the host knows about it.
    pub facts: StepFacts,
    /// The shapes of its micro-batches.
    pub shapes: Vec<Shape>,
    /// Fraction of its micro-batches that were replayed as CUDA graphs; `None` where nothing can be recorded.
    pub replayed_share: Option<f64>,
    /// When it began, with the next batch.
    pub started: Instant,
    /// When the host was done with it. The device may not be.
    pub ended: Instant,
}

/// Steps that were looked at.
pub type Rehearsed = Round<RehearsedStep>;
