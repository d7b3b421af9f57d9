//! Makes, checks and feeds a recording. On the CPU nothing is recorded, but everything else here works there, too.

use burn::tensor::{Int, Tensor};
use kiln_kernels::capture::{CaptureError, Captured, capture, overwrite};
use kiln_model::{Batch, DropoutStream, RowSums};

use super::{Record, Replay, Results, TrainState};
use crate::eval::Model;
use crate::metrics::host_sync;
use crate::optim::{FlatGradients, ParamTable};
use crate::train::exchange::Sums;
use crate::train::step::Pass;

/// Relative difference that the order of additions may make in a sum of losses.
const SUM_TOLERANCE: f32 = 1e-5;

/// Recordings on the device.
pub(super) struct Graphs;

impl<M: Model> Record<M> for Graphs {
    fn record(&mut self, state: &TrainState<M>, batch: &Batch) -> Result<Box<dyn Replay<M>>, CaptureError> {
        // Another batch shows whether the recording froze something of its own. Its gradients are computed before
        // recording, so that nothing else needs memory while the recording takes the free memory.
        let (other, next) = (reversed(batch), state.micro_steps + 1);
        let mut inputs = Inputs::of(state, &other, next);
        let mut work = forward_backward(state, inputs.batch.clone(), inputs.words.clone());
        let wanted = fingerprint(&work())?;
        inputs.give(state, batch, state.micro_steps);

        // Record.
        let table = state.optimizer.table();
        let (captured, [first, second]) = capture(&state.device, work, fingerprint)?;
        let (first, second, replayed) = (first?, second?, fingerprint(captured.replay()?)?);
        let agree = |what: &str, found: &[f32], wanted: &[f32]| match difference(table, found, wanted) {
            Some(difference) => Err(CaptureError::new(format!("{what} gives other numbers: {difference}"))),
            None => Ok(()),
        };

        // Check: first whether the computation is repeatable at all, then the replays.
        agree("computing the same batch twice", &first, &second)?;
        agree("a replay", &replayed, &second)?;
        inputs.give(state, &other, next);
        agree("a replay with another batch", &fingerprint(captured.replay()?)?, &wanted)?;
        Ok(Box::new(Recording { captured, inputs }))
    }
}

/// Returns the random words of micro-batch number `micro_step`: a function of seed and number.
pub(super) fn words<M>(state: &TrainState<M>, micro_step: u64) -> Tensor<1, Int> {
    DropoutStream::words(state.seed, micro_step, &state.device)
}

/// Returns a function that runs forward and backward of `batch` with the weights at the time of the call and the random
/// numbers of `words`.
pub(super) fn forward_backward<M: Model>(
    state: &TrainState<M>,
    batch: Batch,
    words: Option<Tensor<1, Int>>,
) -> impl FnMut() -> Results + Send + use<M> {
    let (model, table) = (state.model.clone(), state.optimizer.table().clone());
    let (masking, hiding) = (state.masking.clone(), state.hiding.clone());
    let (label_smoothing, has_dropout, dtype) = (state.label_smoothing, state.model.has_dropout(), state.dtype);
    let by_row = state.is_mixed;
    let factor = state.optimizer.loss_factor_at_call();
    move || {
        let factor = factor();
        let stream = words.clone().map(DropoutStream::over);
        let (masking, hiding) = (masking.as_ref(), hiding.as_ref());
        let loss_factor = factor.as_ref();
        let (model, table) = (&model, &table);
        let pass = Pass { model, table, masking, hiding, label_smoothing, has_dropout, loss_factor, by_row };
        pass.run(&batch, stream.as_ref(), dtype, None)
    }
}

/// Reads loss, negative log-likelihood, number of labels, and the sums of squares of all gradients. Waits for the
/// device.
fn fingerprint((sums, FlatGradients(gradients)): &Results) -> Result<Vec<f32>, CaptureError> {
    let parts = [&sums.loss, &sums.nll, &sums.n_labels, gradients.squares()];
    let data = host_sync::read(parts.into_iter().cloned()).map_err(CaptureError::new)?;
    Ok(data.into_iter().flat_map(|data| data.try_into_vec::<f32>().expect("sums are f32")).collect())
}

/// Describes where two fingerprints differ; `None` if they agree bit for bit. The sums of the losses, which are only
/// reported, may differ by rounding: the backend may add them in another order every time.
pub(super) fn difference(table: &ParamTable, found: &[f32], wanted: &[f32]) -> Option<String> {
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

/// Copies `source` into a buffer of its own: the buffer of `source` may be shared.
fn overwritable(source: &Tensor<1, Int>) -> Tensor<1, Int> {
    overwrite(source.zeros_like(), source.clone())
}

/// The inputs of a recording, in buffers of its own.
struct Inputs {
    batch: Batch,
    /// The random words, if anything is random.
    words: Option<Tensor<1, Int>>,
}

impl Inputs {
    fn of<M: Model>(state: &TrainState<M>, batch: &Batch, micro_step: u64) -> Self {
        let words = Pass::of(state, None).is_random().then(|| overwritable(&words(state, micro_step)));
        let mut own = batch.clone();
        each_part(&mut own, batch, |target, source| *target = overwritable(source));
        Self { batch: own, words }
    }

    /// Overwrites the inputs with a batch that has the same [`Key`](super::Key).
    fn give<M>(&mut self, state: &TrainState<M>, batch: &Batch, micro_step: u64) {
        refill(&mut self.batch, batch);
        self.words = self.words.take().map(|target| overwrite(target, words(state, micro_step)));
    }
}

/// Forward and backward as a graph.
struct Recording {
    captured: Captured<Results>,
    inputs: Inputs,
}

impl<M: Model> Replay<M> for Recording {
    fn run(&mut self, state: &TrainState<M>, batch: &Batch, micro_step: u64) -> Result<Results, CaptureError> {
        self.inputs.give(state, batch, micro_step);
        let (Sums { loss, nll, n_labels, rows, .. }, gradients) = self.captured.replay()?;
        let copy = |sum: &Tensor<1>| sum.clone() * 1.0;
        let [loss, nll, n_labels] = [loss, nll, n_labels].map(copy);
        let rows = rows.as_ref().map(|rows| RowSums { nll: copy(&rows.nll), n_labels: copy(&rows.n_labels) });
        Ok((Sums { loss, nll, n_labels, rows, of_sources: None }, gradients.clone()))
    }
}

/// Copies `source` into the buffers of `target`, a batch with the same [`Key`](super::Key).
pub(super) fn refill(target: &mut Batch, source: &Batch) {
    each_part(target, source, |target, source| *target = overwrite(target.clone(), source.clone()));
}

/// Returns another batch of the same shape: each part reversed.
pub(super) fn reversed(batch: &Batch) -> Batch {
    let mut reversed = batch.clone();
    each_part(&mut reversed, batch, |target, source| *target = source.clone().flip([0]));
    reversed
}

/// Calls `f` with every tensor of `target` and its counterpart in `source`, a batch with the same [`Key`](super::Key).
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
