//! One optimizer step. Nothing here reads a tensor: the device is never waited for.

use std::ops::Add;

use burn::tensor::{FloatDType, Tensor};
use kiln_model::{Batch, DropoutStream, Transformer};

use super::feed::tokens_of;
use super::state::TrainState;
use crate::eval::Masking;
use crate::metrics::deferred::Measures;
use crate::optim::{FlatGradients, ParamTable};

/// Takes one optimizer step over `batches`, the micro-batches of one group.
///
/// The loss is the sum over all labels of the group, divided once by their number, which the device counts: how they are
/// dealt out to micro-batches does not matter. Counters of steps and micro-batches move; the data position is the caller's.
/// Whether the step makes an update is decided, and counted, on the device.
///
/// # Panics
/// If the group is empty.
pub fn train_step(state: &mut TrainState, batches: &[Batch]) -> Measures {
    let (sums, gradients) = group_gradients(state, batches, state.micro_steps);
    finish_step(state, batches, sums, gradients)
}

/// The optimizer's part of a step over `batches`, and the counters.
pub(crate) fn finish_step(state: &mut TrainState, batches: &[Batch], sums: Sums, gradients: FlatGradients) -> Measures {
    let Sums { loss, nll, n_labels } = sums;
    for batch in batches {
        let [source_tokens, target_tokens] = tokens_of(batch);
        state.micro_steps += 1;
        state.source_tokens += source_tokens;
        state.target_tokens += target_tokens;
    }
    state.step += 1;
    let numbers = state.optimizer.step(gradients, n_labels.clone(), loss.clone());
    state.model = state.optimizer.write_back(state.model.clone());
    Measures { loss_sum: loss, nll_sum: nll, target_tokens: n_labels, numbers: numbers.values().clone() }
}

/// Sums and gradients of `batches`, the first of which is micro-batch number `first_micro_step` of the run. Changes nothing.
/// Gradients carry the loss scale, if there is one.
pub(crate) fn group_gradients(state: &TrainState, batches: &[Batch], first_micro_step: u64) -> (Sums, FlatGradients) {
    group_gradients_from(state, batches, first_micro_step, |_, _| None)
}

/// [`group_gradients`], where `known` may have the sums and gradients of a micro-batch with this number.
pub(super) fn group_gradients_from(
    state: &TrainState,
    batches: &[Batch],
    first_micro_step: u64,
    mut known: impl FnMut(u64, &Batch) -> Option<(Sums, FlatGradients)>,
) -> (Sums, FlatGradients) {
    // A sum of many gradients needs more digits than each of them.
    let accumulation = if batches.len() > 1 { FloatDType::F32 } else { state.dtype };
    let factor = state.optimizer.loss_factor();
    let pass = Pass::of(state, factor.as_ref());
    let mut accumulated: Option<(Sums, FlatGradients)> = None;
    for (micro_step, batch) in (first_micro_step..).zip(batches) {
        let (before, gradients_before) = accumulated.unzip();
        let (sums, gradients) = match known(micro_step, batch) {
            Some(alone) if batches.len() == 1 => alone,
            Some((sums, gradients)) => (sums, pass.table.accumulate(gradients, accumulation, gradients_before)),
            None => {
                let stream = pass.is_random().then(|| DropoutStream::new(state.seed, micro_step, &state.device));
                pass.run(batch, stream.as_ref(), accumulation, gradients_before)
            }
        };
        let sums = match before {
            Some(before) => before + sums,
            None => sums,
        };
        accumulated = Some((sums, gradients));
    }
    accumulated.expect("a group has at least one micro-batch")
}

/// What forward and backward of a micro-batch are made of, besides the batch. They change nothing.
pub(super) struct Pass<'a> {
    pub(super) model: &'a Transformer,
    pub(super) table: &'a ParamTable,
    pub(super) masking: Option<&'a Masking>,
    pub(super) label_smoothing: f64,
    /// Whether the model drops anything.
    pub(super) drops: bool,
    /// What the loss is multiplied by before it is differentiated, `[1]`.
    pub(super) factor: Option<&'a Tensor<1>>,
}

impl<'a> Pass<'a> {
    pub(super) fn of(state: &'a TrainState, factor: Option<&'a Tensor<1>>) -> Self {
        let TrainState { model, optimizer, masking, label_smoothing, .. } = state;
        let (table, masking) = (optimizer.table(), masking.as_ref());
        Self { model, table, masking, label_smoothing: *label_smoothing, drops: state.has_dropout(), factor }
    }

    /// Whether it needs a random stream.
    pub(super) fn is_random(&self) -> bool {
        self.drops || self.masking.is_some()
    }

    /// Sums of `batch` and its gradients: in `dtype`, or added to those of `before`. Masks and dropout are sites of one
    /// stream, which the seed and the number of the micro-batch decide.
    pub(super) fn run(
        &self,
        batch: &Batch,
        stream: Option<&DropoutStream>,
        dtype: FloatDType,
        before: Option<FlatGradients>,
    ) -> (Sums, FlatGradients) {
        let masked = self.masking.zip(stream).map(|(masking, stream)| masking.mask(batch, stream));
        let dropout = stream.filter(|_| self.drops);
        let losses = self.model.loss(masked.as_ref().unwrap_or(batch), self.label_smoothing, dropout);
        let scaled = match self.factor {
            Some(factor) => losses.loss_sum.clone() * Tensor::from_inner(factor.clone()),
            None => losses.loss_sum.clone(),
        };
        let mut gradients = scaled.backward();
        let sums =
            Sums { loss: losses.loss_sum.inner(), nll: losses.nll_sum.inner(), n_labels: losses.n_labels.inner() };
        (sums, self.table.flatten_gradients(self.model, &mut gradients, dtype, before))
    }
}

/// What the micro-batches of a group add up to, on the device.
#[derive(Debug, Clone)]
pub(crate) struct Sums {
    pub(super) loss: Tensor<1>,
    pub(super) nll: Tensor<1>,
    pub(super) n_labels: Tensor<1>,
}

impl Add for Sums {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { loss: self.loss + other.loss, nll: self.nll + other.nll, n_labels: self.n_labels + other.n_labels }
    }
}
