//! The time between marks in a GPU's queue of work, on the GPU's own clock.
//!
//! A mark is an event that the device passes when it has done everything before. The time between two marks is read later, once the
//! device has passed both: nobody waits.

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod gpu;
mod ops;
#[cfg(test)]
mod tests;

use std::sync::Arc;

#[cfg(not(feature = "cuda"))]
use absent::Marks;
use burn::backend::Dispatch;
use burn::tensor::{Device, Tensor};
#[cfg(feature = "cuda")]
use gpu::Marks;
use ops::LapOps;

/// The time between a mark and the one before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lap {
    /// What the mark at its end was called.
    pub what: &'static str,
    /// Milliseconds on the device's clock.
    pub ms: f32,
}

/// Marks the queue of a GPU.
#[derive(Debug)]
pub struct LapClock {
    marks: Arc<Marks>,
    /// Each mark takes it and returns it, so that marks and the work between them keep their order.
    token: Tensor<1>,
}

/// A mark, and what the time before it is called.
#[derive(Debug, Clone)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "read on GPUs only"))]
pub(crate) struct Mark {
    marks: Arc<Marks>,
    what: &'static str,
}

impl LapClock {
    /// Returns a clock for `device`; `None` on the CPU, which has done its work when an operator returns.
    pub fn of(device: &Device) -> Option<Self> {
        let device = device.clone().inner();
        let marks = Arc::new(Marks::of(&device)?);
        Some(Self { marks, token: Tensor::zeros([1], &device) })
    }

    /// Marks the queue behind everything that this thread has enqueued. `what` names the time since the last mark.
    pub fn mark(&mut self, what: &'static str) {
        let token = self.token.clone().into_dispatch();
        let mark = Mark { marks: self.marks.clone(), what };
        self.token = Tensor::from_dispatch(Dispatch::lap_mark(token, mark));
    }

    /// Takes the laps that have ended and were not taken before, oldest first, without waiting for the device. The last ones follow with a
    /// later call.
    pub fn take(&self) -> Vec<Lap> {
        Marks::take(&self.marks)
    }
}
