//! Forward and backward of recurring shapes as CUDA graphs: the host enqueues one replay instead of some hundred
//! kernels.
//!
//! What a recording contains, and what it does not:
//! - Numbers of the host are frozen in it, and all of them are constants of the shape: sites, probabilities, sizes. Seed and
//!   micro-batch number of dropout lie in a tensor that is overwritten before each replay. The loss scale and the counters of
//!   the optimizer live on the device.
//! - It reads the buffers that it was recorded with. Each batch is copied into the buffers of the first one; the weights stay in
//!   place, because the optimizer updates them in place. Sums and gradients come out in the same buffers each time. The sums
//!   are therefore copied; the gradients are used by the optimizer at once, or added to the gradients of the group.
//! - The optimizer, two launches, is not recorded. A recording that the backend refuses leaves its outputs unreadable. The outputs
//!   of forward and backward can be computed again, but the outputs of the optimizer are the weights.
//! - Each recording keeps its activations for as long as it lives, see [`kiln_kernels::capture`]. Memory therefore limits the
//!   number of recorded shapes.
//!
//! Before a recording takes part in training, it must reproduce the gradients of its own batch and of another batch bit
//! for bit.

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
use kiln_model::{Batch, Transformer};

use super::exchange::Sums;
use super::feed::shape_of;
use super::state::TrainState;
use super::step::{MicroBatch, compute_gradients, in_order, train_step_with};
use crate::config::Capture;
use crate::device::{device_name, machine_of, reserved_bytes};
use crate::eval::Model;
use crate::metrics::deferred::Measures;
use crate::optim::FlatGradients;

/// Sums and gradients of a micro-batch.
type Results = (Sums, FlatGradients);

/// The rule for making recordings.
#[derive(Debug, Clone, Copy)]
struct Policy {
    /// Micro-batches of a shape before the shape is recorded.
    times_before: u32,
    /// Share of the device's memory that may be in use for another recording to be made.
    memory_share: f64,
}

impl Policy {
    /// Returns the policy of a mode; `None` for never.
    fn of(mode: Capture) -> Option<Self> {
        match mode {
            // A recording costs as much as seven to ten runs of forward and backward. It saves 1 to 2.5 % of the time
            // where the device is always busy, and most of the time where the device waits for the host.
            Capture::Auto => Some(Self { times_before: 500, memory_share: 0.4 }),
            // By then, kernels are compiled and chosen.
            Capture::On => Some(Self { times_before: 3, memory_share: 0.7 }),
            Capture::Off => None,
        }
    }
}

/// What was replayed since the last line of metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Replayed {
    /// Fraction of the micro-batches; `None` if there were none, or if nothing is ever recorded.
    pub(super) share: Option<f64>,
    /// Recordings that take part in training; `None` if nothing is ever recorded.
    pub(super) graphs: Option<usize>,
}

/// Identifies micro-batches that can share a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    shape: Shape,
    /// Whether a batch of text has positions, documents and token types.
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
trait Replay<M>: Send {
    /// Computes sums and gradients of `batch`, micro-batch number `micro_step` of the run. The gradients are valid
    /// until the next replay, the sums for good.
    fn run(&mut self, state: &TrainState<M>, batch: &Batch, micro_step: u64) -> Result<Results, CaptureError>;
}

/// Makes recordings.
trait Record<M>: Send {
    /// Records forward and backward of `batch`.
    fn record(&mut self, state: &TrainState<M>, batch: &Batch) -> Result<Box<dyn Replay<M>>, CaptureError>;
}

/// What is known about a shape.
enum Entry<M> {
    /// The number of its micro-batches so far.
    Seen(u32),
    Recorded(Box<dyn Replay<M>>),
    /// Always computed eagerly.
    Never,
}

/// Takes training steps, and replays forward and backward of shapes that recur.
///
/// It keeps the weights of the state it was first used with, so it must not be used with another state.
pub struct CapturedSteps<M: Model = Transformer> {
    /// `None` if no more recordings are made.
    policy: Option<Policy>,
    recorder: Box<dyn Record<M>>,
    entries: HashMap<Key, Entry<M>>,
    /// Bytes of the largest recording.
    largest_bytes: u64,
    /// Micro-batches since they were last taken: replayed ones and all. `None` where nothing is ever recorded.
    counted: Option<[u64; 2]>,
    /// Whether everything is computed eagerly for now.
    is_paused: bool,
    notes: Vec<String>,
}

impl<M: Model> fmt::Debug for CapturedSteps<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturedSteps").field("policy", &self.policy).field("recorded", &self.n_recorded()).finish()
    }
}

impl<M: Model> CapturedSteps<M> {
    /// Starts without recordings. On a device without graphs, or with reference operators, every step is computed
    /// eagerly: the reference optimizer makes new weights in every step, and a recording would keep using the old ones.
    pub fn new(mode: Capture, device: &Device) -> Self {
        let mut steps = Self::with_recorder(mode, Box::new(Graphs));
        let obstacle = match can_capture(device) {
            false => format!("{} has no CUDA graphs", device_name(device)),
            true if Settings::current().reference_operators => {
                "reference operators make new weights in every step".into()
            }
            true => return steps,
        };
        (steps.policy, steps.counted) = (None, None);
        if mode == Capture::On {
            steps.notes.push(format!("train.capture: {obstacle}, so steps are computed eagerly"));
        }
        steps
    }

    fn with_recorder(mode: Capture, recorder: Box<dyn Record<M>>) -> Self {
        let policy = Policy::of(mode);
        let counted = policy.map(|_| [0; 2]);
        Self {
            policy,
            recorder,
            entries: HashMap::new(),
            largest_bytes: 0,
            counted,
            is_paused: false,
            notes: Vec::new(),
        }
    }

    /// Returns what was replayed since the last call.
    pub(super) fn take_replayed(&mut self) -> Replayed {
        let Some(counted) = &mut self.counted else { return Replayed::default() };
        let [replayed, all] = std::mem::take(counted);
        let share = (all > 0).then(|| replayed as f64 / all as f64);
        Replayed { share, graphs: Some(self.n_recorded()) }
    }

    /// Returns the micro-batches since the last call of [`Self::take_replayed`]: replayed ones and all. `None` where nothing is ever
    /// recorded.
    pub(super) fn counted(&self) -> Option<[u64; 2]> {
        self.counted
    }

    /// Computes everything eagerly until it is called with `false`, and makes no recordings meanwhile.
    pub(super) fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Returns the number of shapes that are replayed.
    pub fn n_recorded(&self) -> usize {
        self.entries.values().filter(|entry| matches!(entry, Entry::Recorded(_))).count()
    }

    /// Returns notes for the user, each once.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Takes the step that [`train_step`](super::train_step) takes, bit for bit.
    ///
    /// # Panics
    /// If `batches` is empty.
    pub fn step(&mut self, state: &mut TrainState<M>, batches: &[Batch]) -> Measures {
        let n_numbers = batches.len() as u64;
        let step = train_step_with(state, &in_order(batches), n_numbers, |state, micro_batch, before| {
            self.compute(state, micro_batch, before)
        });
        step.expect("a step that waits for nobody")
    }

    /// Computes sums and gradients of a micro-batch, by replay if possible, and adds the gradients to those `before`.
    pub(super) fn compute(
        &mut self,
        state: &TrainState<M>,
        micro_batch: &MicroBatch<'_>,
        before: Option<FlatGradients>,
    ) -> Results {
        let replayed = self.replay(state, micro_batch.batch, micro_batch.number);
        if let Some([n_replayed, n]) = &mut self.counted {
            (*n_replayed, *n) = (*n_replayed + u64::from(replayed.is_some()), *n + 1);
        }
        match replayed {
            Some(replayed) if micro_batch.is_alone => replayed,
            Some((sums, gradients)) => (sums, state.optimizer.table().accumulate(gradients, micro_batch.dtype, before)),
            None => compute_gradients(state, micro_batch, before),
        }
    }

    /// Replays a recording of the batch's shape, if there is one or it is time to make one.
    fn replay(&mut self, state: &TrainState<M>, batch: &Batch, micro_step: u64) -> Option<Results> {
        if self.is_paused || (self.policy.is_none() && self.entries.is_empty()) {
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

    fn record(&mut self, policy: Policy, state: &TrainState<M>, batch: &Batch) -> Option<Box<dyn Replay<M>>> {
        let before = reserved_bytes(&state.device);
        if !self.has_room(policy, state, before) {
            self.policy = None;
            self.notes.push(format!(
                "steps of {} shape(s) are replayed as CUDA graphs; {:.0} % of memory is not enough for more, so other steps are computed eagerly",
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

    /// Returns whether there is memory for another recording. The first one is assumed to need as much as all tensors
    /// so far.
    fn has_room(&self, policy: Policy, state: &TrainState<M>, reserved: Option<u64>) -> bool {
        let Some((reserved, capacity)) = reserved.zip(machine_of(&state.device).memory_bytes) else { return true };
        let next = if self.n_recorded() == 0 { reserved } else { self.largest_bytes };
        (reserved + next) as f64 <= policy.memory_share * capacity as f64
    }

    /// Stops making recordings, because the next one would fail, too. Recordings that work stay in use.
    fn give_up(&mut self, key: Key, error: &CaptureError) {
        self.entries.insert(key, Entry::Never);
        self.policy = None;
        self.notes.push(format!(
            "steps of shape {} are computed eagerly instead of being replayed as a CUDA graph, and so are steps of new shapes: {error}",
            key.shape
        ));
    }
}
