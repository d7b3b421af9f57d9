//! One optimizer step. Nothing here reads a tensor: the device is never waited for.

use std::ops::Add;

use burn::tensor::{FloatDType, Tensor};
use kiln_model::{Batch, DropoutStream};

use super::feed::tokens_of;
use super::state::TrainState;
use crate::metrics::deferred::Measures;
use crate::optim::FlatGradients;

/// Takes one optimizer step over `batches`, the micro-batches of one group.
///
/// The loss is the sum over all labels of the group, divided once by their number, which the device counts: how they are
/// dealt out to micro-batches does not matter. Counters of steps and micro-batches move; the data position is the caller's.
/// Whether the step makes an update is decided, and counted, on the device.
///
/// # Panics
/// If the group is empty.
pub fn train_step(state: &mut TrainState, batches: &[Batch]) -> Measures {
    let (Sums { loss, nll, n_labels }, gradients) = group_gradients(state, batches, state.micro_steps);
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
pub(super) fn group_gradients(state: &TrainState, batches: &[Batch], first_micro_step: u64) -> (Sums, FlatGradients) {
    // A sum of many gradients needs more digits than each of them.
    let accumulation = if batches.len() > 1 { FloatDType::F32 } else { state.dtype };
    let factor = state.optimizer.loss_factor();
    let mut accumulated: Option<(Sums, FlatGradients)> = None;
    for (micro_step, batch) in (first_micro_step..).zip(batches) {
        // Masks and dropout are sites of one stream, which the seed and the number of the micro-batch decide.
        let is_random = state.has_dropout() || state.masking.is_some();
        let stream = is_random.then(|| DropoutStream::new(state.seed, micro_step, &state.device));
        let masked = state.masking.as_ref().zip(stream.as_ref()).map(|(masking, stream)| masking.mask(batch, stream));
        let dropout = stream.as_ref().filter(|_| state.has_dropout());
        let losses = state.model.loss(masked.as_ref().unwrap_or(batch), state.label_smoothing, dropout);
        let scaled = match &factor {
            Some(factor) => losses.loss_sum.clone() * Tensor::from_inner(factor.clone()),
            None => losses.loss_sum.clone(),
        };
        let mut gradients = scaled.backward();
        let sums =
            Sums { loss: losses.loss_sum.inner(), nll: losses.nll_sum.inner(), n_labels: losses.n_labels.inner() };
        let (sums, before) = match accumulated {
            None => (sums, None),
            Some((sums_before, before)) => (sums_before + sums, Some(before)),
        };
        let table = state.optimizer.table();
        accumulated = Some((sums, table.flatten_gradients(&state.model, &mut gradients, accumulation, before)));
    }
    accumulated.expect("a group has at least one micro-batch")
}

/// What the micro-batches of a group add up to, on the device.
pub(super) struct Sums {
    pub(super) loss: Tensor<1>,
    nll: Tensor<1>,
    pub(super) n_labels: Tensor<1>,
}

impl Add for Sums {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { loss: self.loss + other.loss, nll: self.nll + other.nll, n_labels: self.n_labels + other.n_labels }
    }
}
