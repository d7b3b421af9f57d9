//! Forward and backward of recurring shapes as CUDA graphs: the host enqueues one replay instead of some hundred kernels.
//!
//! What a replay can take over, and what it cannot:
//! - Host numbers are frozen in it. None that matters is left: seed and draw of dropout lie in a tensor that is written over
//!   before each replay, the loss scale and the counters of the optimizer are the device's own, and sites, probabilities and
//!   shapes are the same whenever a shape comes back.
//! - It reads the buffers that it was recorded with. The batch is copied into those of the first; weights stay where they are,
//!   for the optimizer writes them in place. Sums and gradients come out in the same buffers each time, so the sums are
//!   copied for whoever reads them later, and the gradients are the optimizer's at once, or added to those of the group.
//! - The optimizer stays outside, two launches. A recording that the backend refuses leaves unreadable whatever it would have
//!   written; of forward and backward that is nothing worth keeping, of the optimizer it would be the weights.
//! - Each recording keeps its activations to itself for as long as it lives, see [`kiln_kernels::capture`]. Memory therefore
//!   decides how many shapes are recorded.
//!
//! A recording must give the gradients, bit for bit, that its batch gives without it, and another batch, before it takes part in
//! training.

mod graph;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;

use burn::tensor::Device;
use graph::Graphs;
use kiln_data::Shape;
use kiln_kernels::Settings;
use kiln_kernels::capture::{CaptureError, can_capture};
use kiln_model::Batch;

use super::feed::shape_of;
use super::state::TrainState;
use super::step::{Sums, finish_step, group_gradients_from};
use crate::config::Capture;
use crate::device::reserved_bytes;
use crate::metrics::deferred::Measures;
use crate::optim::FlatGradients;

/// Sums and gradients of a micro-batch.
type Results = (Sums, FlatGradients);

/// When recordings are made.
#[derive(Debug, Clone, Copy)]
struct Policy {
    /// Micro-batches of a shape before it is recorded.
    times_before: u32,
    /// Share of the device's memory up to which recordings may be made.
    memory_share: f64,
}

impl Policy {
    /// `None` for never.
    fn of(mode: Capture) -> Option<Self> {
        match mode {
            // A recording costs as much as seven to ten runs of forward and backward. It spares one in forty to a hundred where the
            // device has always enough to do, and most of the time where it waits for the host.
            Capture::Auto => Some(Self { times_before: 500, memory_share: 0.4 }),
            // Kernels are compiled and chosen by then.
            Capture::On => Some(Self { times_before: 3, memory_share: 0.7 }),
            Capture::Off => None,
        }
    }
}

/// Micro-batches that can share a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    shape: Shape,
    /// Whether a batch of text has positions, documents, token types.
    parts: [bool; 3],
}

impl Key {
    fn of(batch: &Batch) -> Self {
        let parts = match batch {
            Batch::Pairs(_) => [false; 3],
            Batch::Text(text) => [text.positions.is_some(), text.documents.is_some(), text.token_types.is_some()],
        };
        Self { shape: shape_of(batch), parts }
    }
}

/// A recording that takes part in training.
trait Replay: Send {
    /// Sums and gradients of `batch`, micro-batch number `micro_step` of the run. Both are the caller's until the next replay;
    /// the sums for good.
    fn run(&mut self, state: &TrainState, batch: &Batch, micro_step: u64) -> Result<Results, CaptureError>;
}

/// How recordings are made.
trait Record: Send {
    /// Records forward and backward of `batch`.
    fn record(&mut self, state: &TrainState, batch: &Batch) -> Result<Box<dyn Replay>, CaptureError>;
}

enum Entry {
    /// How often.
    Seen(u32),
    Recorded(Box<dyn Replay>),
    /// Computed as it comes.
    Never,
}

/// Training steps that replay what recurs.
///
/// It holds on to the weights of the state it was first used with: use it with no other.
pub struct CapturedSteps {
    /// `None` where no more recordings are made.
    policy: Option<Policy>,
    recorder: Box<dyn Record>,
    entries: HashMap<Key, Entry>,
    /// Bytes that the most expensive recording took.
    largest_bytes: u64,
    notes: Vec<String>,
}

impl fmt::Debug for CapturedSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturedSteps").field("policy", &self.policy).field("recorded", &self.n_recorded()).finish()
    }
}

impl CapturedSteps {
    /// Nothing recorded yet. Without graphs or with plain operators every step is computed as it comes: a plain optimizer makes
    /// new weights, and a recording would go on with the old ones.
    pub fn new(mode: Capture, device: &Device) -> Self {
        let mut steps = Self::with_recorder(mode, Box::new(Graphs));
        let obstacle = match can_capture(device) {
            false => "the CPU has no CUDA graphs",
            true if Settings::current().reference_operators => "reference operators make new weights in every step",
            true => return steps,
        };
        steps.policy = None;
        if mode == Capture::On {
            steps.notes.push(format!("train.capture: {obstacle}, so steps are computed as they come"));
        }
        steps
    }

    fn with_recorder(mode: Capture, recorder: Box<dyn Record>) -> Self {
        Self { policy: Policy::of(mode), recorder, entries: HashMap::new(), largest_bytes: 0, notes: Vec::new() }
    }

    /// Shapes that are replayed.
    pub fn n_recorded(&self) -> usize {
        self.entries.values().filter(|entry| matches!(entry, Entry::Recorded(_))).count()
    }

    /// What people should know; each thing is said once.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Takes the step that [`train_step`](super::train_step) takes, bit for bit.
    ///
    /// # Panics
    /// If `batches` is empty.
    pub fn step(&mut self, state: &mut TrainState, batches: &[Batch]) -> Measures {
        let replay = |micro_step, batch: &Batch| self.replay(state, batch, micro_step);
        let (sums, gradients) = group_gradients_from(state, batches, state.micro_steps, replay);
        finish_step(state, batches, sums, gradients)
    }

    /// Sums and gradients from a recording, if there is one or it is time to make it.
    fn replay(&mut self, state: &TrainState, batch: &Batch, micro_step: u64) -> Option<Results> {
        if self.policy.is_none() && self.entries.is_empty() {
            return None;
        }
        let key = Key::of(batch);
        let entry = self.entries.entry(key).or_insert(Entry::Seen(0));
        if let Entry::Seen(times) = entry {
            *times += 1;
            let policy = self.policy.filter(|policy| *times > policy.times_before)?;
            let entry = self.record(policy, state, batch).map_or(Entry::Never, Entry::Recorded);
            self.entries.insert(key, entry);
        }
        let Some(Entry::Recorded(recording)) = self.entries.get_mut(&key) else { return None };
        let results = recording.run(state, batch, micro_step);
        results.inspect_err(|error| self.give_up(key, error)).ok()
    }

    fn record(&mut self, policy: Policy, state: &TrainState, batch: &Batch) -> Option<Box<dyn Replay>> {
        let before = reserved_bytes(&state.device);
        if !self.has_room(policy, state, before) {
            self.policy = None;
            self.notes.push(format!(
                "steps of {} shape(s) are replayed as CUDA graphs; {:.0} % of memory would not do for more, so others are computed as they come",
                self.n_recorded(),
                100.0 * policy.memory_share
            ));
            return None;
        }
        let recorded = self.recorder.record(state, batch);
        let bytes = before.zip(reserved_bytes(&state.device)).map_or(0, |(before, after)| after.saturating_sub(before));
        self.largest_bytes = self.largest_bytes.max(bytes);
        recorded.inspect_err(|error| self.give_up(Key::of(batch), error)).ok()
    }

    /// Before the first recording nobody knows what one costs, but not more than everything so far.
    fn has_room(&self, policy: Policy, state: &TrainState, reserved: Option<u64>) -> bool {
        let Some((reserved, capacity)) = reserved.zip(state.device.memory_capacity()) else { return true };
        let next = if self.n_recorded() == 0 { reserved } else { self.largest_bytes };
        (reserved + next) as f64 <= policy.memory_share * capacity as f64
    }

    /// What failed once would fail again: the recordings that work go on, no more are made.
    fn give_up(&mut self, key: Key, error: &CaptureError) {
        self.entries.insert(key, Entry::Never);
        self.policy = None;
        self.notes.push(format!(
            "steps of shape {} are not replayed as a CUDA graph but computed as they come, and so are those of shapes to come: {error}",
            key.shape
        ));
    }
}
