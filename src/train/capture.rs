//! Forward and backward of recurring shapes as CUDA graphs: the host enqueues one replay instead of some hundred kernels.
//!
//! What a replay can take over, and what it cannot:
//! - Host numbers are frozen in it. None that matters is left: seed and draw of dropout lie in a tensor that is written over
//!   before each replay, the loss scale and the counters of the optimizer are the device's own, and sites, probabilities and
//!   shapes are the same whenever a shape comes back.
//! - It reads the buffers that it was recorded with. The batch is copied into those of the first; weights stay where they are,
//!   for the optimizer writes them in place. Sums and gradients come out in the same buffers each time, so the sums are
//!   copied for whoever reads them later, and the gradients are the optimizer's at once.
//! - The optimizer stays outside, two launches. A recording that the backend refuses leaves unreadable whatever it would have
//!   written; of forward and backward that is nothing worth keeping, of the optimizer it would be the weights.
//! - Each recording keeps its activations to itself for as long as it lives, see [`kiln_kernels::capture`]. Memory therefore
//!   decides how many shapes are recorded.
//!
//! A recording must give the gradients, bit for bit, that the same batch gave without it, before it takes part in training.

use std::collections::HashMap;
use std::fmt;
use std::time::Instant;

use burn::tensor::{Device, Int, Tensor, Transaction};
use kiln_data::Shape;
use kiln_kernels::{CaptureError, Captured, can_capture, capture, overwrite};
use kiln_model::{Batch, DropoutStream};

use super::feed::shape_of;
use super::state::TrainState;
use super::step::{Pass, Sums, finish_step, group_gradients};
use crate::config::Capture;
use crate::device::reserved_bytes;
use crate::metrics::deferred::Measures;
use crate::optim::{FlatGradients, ParamTable};

/// Sums and gradients of a micro-batch.
type Results = (Sums, FlatGradients);

/// Steps of a shape before it is recorded: it recurs, and its kernels are compiled and chosen.
const STEPS_BEFORE: u32 = 3;
/// `auto` records where the host needs more than this share of a step's time.
const HOST_SHARE: f64 = 0.5;
/// What the order of a sum of losses may change of it.
const SUM_TOLERANCE: f32 = 1e-5;
/// Share of the device's memory up to which recordings may be made.
const MEMORY_SHARE: f64 = 0.7;

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
    /// Sums and gradients of `batch`. Both are the caller's until the next replay; the sums for good.
    fn run(&mut self, state: &TrainState, batch: &Batch) -> Result<Results, CaptureError>;
}

/// How recordings are made.
trait Record: Send {
    /// Records forward and backward of `batch`; `None` if it does not pay.
    fn record(
        &mut self,
        state: &TrainState,
        batch: &Batch,
        only_if_it_pays: bool,
    ) -> Result<Option<Box<dyn Replay>>, CaptureError>;
}

enum Entry {
    /// Steps that it was in.
    Seen(u32),
    Recorded(Box<dyn Replay>),
    /// Computed as it comes.
    Never,
}

/// Training steps that replay what recurs.
///
/// It holds on to the weights of the state it was first used with: use it with no other.
pub struct CapturedSteps {
    mode: Capture,
    recorder: Box<dyn Record>,
    entries: HashMap<Key, Entry>,
    /// Whether recordings are still made.
    is_open: bool,
    /// Padded tokens of the smallest shape that did not pay: a larger one does not pay either.
    pays_below: usize,
    /// Bytes that the most expensive recording took.
    largest_bytes: u64,
    notes: Vec<String>,
}

impl fmt::Debug for CapturedSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturedSteps").field("mode", &self.mode).field("recorded", &self.n_recorded()).finish()
    }
}

impl CapturedSteps {
    /// Nothing recorded yet. On a device without graphs every step is computed as it comes.
    pub fn new(mode: Capture, device: &Device) -> Self {
        let mut steps = Self::with_recorder(mode, Box::new(Graphs));
        if !can_capture(device) {
            steps.is_open = false;
            if mode == Capture::On {
                steps
                    .notes
                    .push("train.capture = \"on\": the CPU has no CUDA graphs, steps are computed as they come".into());
            }
        }
        steps
    }

    fn with_recorder(mode: Capture, recorder: Box<dyn Record>) -> Self {
        let (entries, notes) = (HashMap::new(), Vec::new());
        Self { mode, recorder, entries, is_open: mode != Capture::Off, pays_below: usize::MAX, largest_bytes: 0, notes }
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
        let replayed = match batches {
            [batch] => self.replay(state, batch),
            _ => None,
        };
        let (sums, gradients) = replayed.unwrap_or_else(|| group_gradients(state, batches, state.micro_steps));
        finish_step(state, batches, sums, gradients)
    }

    /// Sums and gradients from a recording, if there is one or it is time to make it.
    fn replay(&mut self, state: &TrainState, batch: &Batch) -> Option<Results> {
        if !self.is_open && self.entries.is_empty() {
            return None;
        }
        let key = Key::of(batch);
        let entry = self.entries.entry(key).or_insert(Entry::Seen(0));
        if let Entry::Seen(steps) = entry {
            *steps += 1;
            if *steps <= STEPS_BEFORE || !self.is_open {
                return None;
            }
            let entry = self.record(state, batch, key.shape).map_or(Entry::Never, Entry::Recorded);
            self.entries.insert(key, entry);
        }
        let Some(Entry::Recorded(recording)) = self.entries.get_mut(&key) else { return None };
        let results = recording.run(state, batch);
        results.inspect_err(|error| self.give_up(key, error)).ok()
    }

    fn record(&mut self, state: &TrainState, batch: &Batch, shape: Shape) -> Option<Box<dyn Replay>> {
        let only_if_it_pays = self.mode == Capture::Auto;
        if only_if_it_pays && shape.padded_tokens() >= self.pays_below {
            return None;
        }
        let before = reserved_bytes(&state.device);
        if !self.has_room(state, before) {
            self.is_open = false;
            self.notes.push(format!(
                "steps of {} shape(s) are replayed as CUDA graphs; memory for more is not there, so others are computed as they come",
                self.n_recorded()
            ));
            return None;
        }
        match self.recorder.record(state, batch, only_if_it_pays) {
            Ok(Some(recording)) => {
                let bytes =
                    before.zip(reserved_bytes(&state.device)).map_or(0, |(before, after)| after.saturating_sub(before));
                self.largest_bytes = self.largest_bytes.max(bytes);
                return Some(recording);
            }
            Ok(None) => self.pays_below = shape.padded_tokens(),
            Err(error) => self.give_up(Key::of(batch), &error),
        }
        None
    }

    /// Before the first recording nobody knows what one costs, but not more than everything so far.
    fn has_room(&self, state: &TrainState, reserved: Option<u64>) -> bool {
        let Some((reserved, capacity)) = reserved.zip(state.device.memory_capacity()) else { return true };
        let next = if self.n_recorded() == 0 { reserved } else { self.largest_bytes };
        (reserved + next) as f64 <= MEMORY_SHARE * capacity as f64
    }

    /// What failed once would fail again: the recordings that work go on, no more are made.
    fn give_up(&mut self, key: Key, error: &CaptureError) {
        self.entries.insert(key, Entry::Never);
        self.is_open = false;
        self.notes.push(format!(
            "steps of shape {} are not replayed as a CUDA graph but computed as they come, and so are those of shapes to come: {error}",
            key.shape
        ));
    }
}

/// Recordings on the device.
struct Graphs;

impl Record for Graphs {
    fn record(
        &mut self,
        state: &TrainState,
        batch: &Batch,
        only_if_it_pays: bool,
    ) -> Result<Option<Box<dyn Replay>>, CaptureError> {
        let words = Pass::of(state, None).is_random().then(|| overwritable(&words(state)));
        let mut inputs = batch.clone();
        each_part(&mut inputs, batch, |target, source| *target = overwritable(source));
        let mut work = forward_backward(state, inputs.clone(), words.clone());
        if only_if_it_pays && host_share(&mut work, &state.device)? < HOST_SHARE {
            return Ok(None);
        }
        let table = state.optimizer.table();
        let (captured, [first, second]) = capture(&state.device, work, fingerprint)?;
        let (first, second, replayed) = (first?, second?, fingerprint(captured.replay()?)?);
        // Whether a computation can be compared at all is the first question.
        for (found, what) in [(first, "computing the same batch twice"), (replayed, "a replay")] {
            if let Some(difference) = difference(table, &found, &second) {
                return Err(CaptureError::new(format!("{what} gives other numbers: {difference}")));
            }
        }
        Ok(Some(Box::new(Recording { captured, batch: inputs, words })))
    }
}

/// Seed and draw of the next micro-batch.
fn words(state: &TrainState) -> Tensor<1, Int> {
    DropoutStream::words(state.seed, state.micro_steps, &state.device)
}

/// Forward and backward of `batch` whenever it is called, with the weights of that time and the random numbers of `words`.
fn forward_backward(
    state: &TrainState,
    batch: Batch,
    words: Option<Tensor<1, Int>>,
) -> impl FnMut() -> Results + Send + use<> {
    let (model, table, masking) = (state.model.clone(), state.optimizer.table().clone(), state.masking.clone());
    let (label_smoothing, drops, dtype) = (state.label_smoothing, state.has_dropout(), state.dtype);
    let factor = state.optimizer.loss_factor_at_call();
    move || {
        let factor = factor();
        let stream = words.clone().map(DropoutStream::over);
        let masking = masking.as_ref();
        let pass = Pass { model: &model, table: &table, masking, label_smoothing, drops, factor: factor.as_ref() };
        pass.run(&batch, stream.as_ref(), dtype, None)
    }
}

/// The host's share of the time of `work`.
fn host_share(work: &mut impl FnMut() -> Results, device: &Device) -> Result<f64, CaptureError> {
    let mut share = 0.0;
    // Once to warm up.
    for _ in 0..2 {
        device.sync().map_err(CaptureError::new)?;
        let start = Instant::now();
        let results = work();
        device.flush().map_err(CaptureError::new)?;
        let host = start.elapsed();
        device.sync().map_err(CaptureError::new)?;
        share = host.as_secs_f64() / start.elapsed().as_secs_f64();
        // Held until the device had done it: what nobody holds is not computed.
        drop(results);
    }
    Ok(share)
}

/// Loss, negative log-likelihood, labels, and the sums of squares of all gradients. Waits for the device.
fn fingerprint((sums, FlatGradients(gradients)): &Results) -> Result<Vec<f32>, CaptureError> {
    let parts = [&sums.loss, &sums.nll, &sums.n_labels, gradients.squares()];
    let read = parts.into_iter().cloned().fold(Transaction::default(), Transaction::register);
    let data = read.try_execute().map_err(CaptureError::new)?;
    Ok(data.into_iter().flat_map(|data| data.try_into_vec::<f32>().expect("sums are f32")).collect())
}

/// Where two fingerprints differ; `None` if in no bit. But for the sums of the losses, which only people look at: the backend may
/// add them up in another order every time.
fn difference(table: &ParamTable, found: &[f32], wanted: &[f32]) -> Option<String> {
    let differ = |(found, wanted): (&f32, &f32)| found.to_bits() != wanted.to_bits();
    let far_apart = |found: f32, wanted: f32| (found - wanted).abs() > SUM_TOLERANCE * wanted.abs();
    let [(found_sums, found), (wanted_sums, wanted)] = [found.split_at(3), wanted.split_at(3)];
    let mut parts: Vec<_> = ["loss", "nll", "labels"]
        .into_iter()
        .zip(found_sums.iter().zip(wanted_sums))
        .filter(|&(name, (found, wanted))| differ((found, wanted)) && (name == "labels" || far_apart(*found, *wanted)))
        .map(|(name, (found, wanted))| format!("{name} {found} instead of {wanted}"))
        .collect();
    let mut first = 0;
    let differing: Vec<_> = table
        .entries()
        .iter()
        .filter(|entry| {
            let chunks = first..first + entry.place().n_chunks();
            first = chunks.end;
            found[chunks.clone()].iter().zip(&wanted[chunks]).any(differ)
        })
        .collect();
    if let (Some(first), Some(last)) = (differing.first(), differing.last()) {
        parts.push(format!(
            "gradients of {} of {} parameters, from {} to {}",
            differing.len(),
            table.entries().len(),
            first.path,
            last.path
        ));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// A copy of `source` in a buffer of its own: that of `source` may be somebody else's too.
fn overwritable(source: &Tensor<1, Int>) -> Tensor<1, Int> {
    overwrite(source.zeros_like(), source.clone())
}

/// Forward and backward as a graph.
struct Recording {
    captured: Captured<Results>,
    /// What it reads.
    batch: Batch,
    words: Option<Tensor<1, Int>>,
}

impl Replay for Recording {
    fn run(&mut self, state: &TrainState, batch: &Batch) -> Result<Results, CaptureError> {
        refill(&mut self.batch, batch);
        self.words = self.words.take().map(|target| overwrite(target, words(state)));
        let (Sums { loss, nll, n_labels }, gradients) = self.captured.replay()?;
        let [loss, nll, n_labels] = [loss, nll, n_labels].map(|sum| sum.clone() * 1.0);
        Ok((Sums { loss, nll, n_labels }, gradients.clone()))
    }
}

/// Copies the numbers of `source` to the buffers of `target`, a batch with the same [`Key`].
fn refill(target: &mut Batch, source: &Batch) {
    each_part(target, source, |target, source| *target = overwrite(target.clone(), source.clone()));
}

/// Calls `f` with every tensor of `target` and its counterpart in `source`, a batch with the same [`Key`].
fn each_part(target: &mut Batch, source: &Batch, f: impl Fn(&mut Tensor<1, Int>, &Tensor<1, Int>)) {
    match (target, source) {
        (Batch::Pairs(target), Batch::Pairs(source)) => {
            f(&mut target.source, &source.source);
            f(&mut target.target_input, &source.target_input);
            f(&mut target.labels, &source.labels);
            f(&mut target.source_lengths, &source.source_lengths);
            f(&mut target.target_lengths, &source.target_lengths);
        }
        (Batch::Text(target), Batch::Text(source)) => {
            f(&mut target.input, &source.input);
            f(&mut target.labels, &source.labels);
            f(&mut target.lengths, &source.lengths);
            for (target, source) in [
                (&mut target.positions, &source.positions),
                (&mut target.documents, &source.documents),
                (&mut target.token_types, &source.token_types),
            ] {
                if let (Some(target), Some(source)) = (target, source) {
                    f(target, source);
                }
            }
        }
        _ => unreachable!("batches with one key are of one kind"),
    }
}

#[cfg(test)]
mod tests;
