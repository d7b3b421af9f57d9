//! One optimizer step. Nothing here reads a tensor, so the host never waits for the device.

use anyhow::Result;
use burn::tensor::{FloatDType, Tensor};
use kiln_model::{Batch, DropoutStream, RowSums, Transformer};

use super::exchange::Sums;
use super::state::TrainState;
use crate::eval::{Hiding, Masking, Model};
use crate::metrics::deferred::Measures;
use crate::optim::{FlatGradients, ParamTable};

/// Takes one optimizer step over `batches`, the micro-batches of one group.
///
/// The loss is the sum over all labels of the group, divided once by their number, which the device counts. The result
/// therefore does not depend on how the labels are distributed over micro-batches. Counters of steps and micro-batches
/// advance; the caller keeps the data position and the tokens. The device decides whether the step makes an update, and counts the
/// updates.
///
/// # Panics
/// If the group is empty, or if `state` has been joined with other ranks: [`Trainer`](super::Trainer) steps with them.
pub fn train_step<M: Model>(state: &mut TrainState<M>, batches: &[Batch]) -> Measures {
    assert!(!state.ranks.are_many(), "a step of one rank");
    train_step_with(state, &in_order(batches), batches.len() as u64, compute_gradients)
        .expect("a step that waits for nobody")
}

/// Takes a step over `batches`, the numbered micro-batches of this rank, together with the other ranks. The numbers count
/// from the first micro-batch of the step; the step takes up `n_numbers` over all ranks. `gradients_of` returns the sums
/// and gradients of each, added to the gradients of the micro-batches before.
///
/// # Errors
/// If another rank has failed.
pub(super) fn train_step_with<M: Model>(
    state: &mut TrainState<M>,
    batches: &[(u64, &Batch)],
    n_numbers: u64,
    gradients_of: impl FnMut(&TrainState<M>, &MicroBatch<'_>, Option<FlatGradients>) -> (Sums, FlatGradients),
) -> Result<Measures> {
    let (sums, gradients) = accumulate(state, batches, state.micro_steps, gradients_of);
    let (sums, gradients) = state.exchange.reduce(&state.ranks, &state.optimizer, sums, gradients)?;
    update(state, n_numbers, sums, gradients)
}

/// Numbers micro-batches from 0.
pub(super) fn in_order(batches: &[Batch]) -> Vec<(u64, &Batch)> {
    (0..).zip(batches).collect()
}

/// Computes sums and gradients of `batches`, the first of which is micro-batch number `first_micro_step` of the run.
/// Changes nothing. Gradients carry the loss scale, if there is one.
#[doc(hidden)]
pub fn group_gradients<M: Model>(
    state: &TrainState<M>,
    batches: &[Batch],
    first_micro_step: u64,
) -> (Sums, FlatGradients) {
    accumulate(state, &in_order(batches), first_micro_step, compute_gradients)
}

/// Adds up the sums and gradients of this rank's part of a group.
fn accumulate<M: Model>(
    state: &TrainState<M>,
    batches: &[(u64, &Batch)],
    first_micro_step: u64,
    mut gradients_of: impl FnMut(&TrainState<M>, &MicroBatch<'_>, Option<FlatGradients>) -> (Sums, FlatGradients),
) -> (Sums, FlatGradients) {
    // A sum of many gradients needs more precision than each of them.
    let dtype = if batches.len() > 1 { FloatDType::F32 } else { state.dtype };
    let loss_factor = state.optimizer.loss_factor();

    let mut group: Option<(Sums, FlatGradients)> = None;
    for &(number, batch) in batches {
        let number = first_micro_step + number;
        let is_alone = batches.len() == 1;
        let micro_batch = MicroBatch { batch, number, is_alone, dtype, loss_factor: loss_factor.as_ref() };
        let (sums_before, gradients_before) = group.unzip();
        let (sums, gradients) = gradients_of(state, &micro_batch, gradients_before);
        let sums = match sums_before {
            Some(before) => before + sums,
            None => sums,
        };
        group = Some((sums, gradients));
    }
    group.expect("a group has at least one micro-batch")
}

/// Runs forward and backward of a micro-batch.
pub(super) fn compute_gradients<M: Model>(
    state: &TrainState<M>,
    MicroBatch { batch, number, dtype, loss_factor, .. }: &MicroBatch<'_>,
    before: Option<FlatGradients>,
) -> (Sums, FlatGradients) {
    let pass = Pass::of(state, *loss_factor);
    let stream = pass.is_random().then(|| DropoutStream::new(state.seed, *number, &state.device));
    pass.run(batch, stream.as_ref(), *dtype, before)
}

/// Updates the weights with the gradients of a group of `n_numbers` micro-batches, and the counters.
///
/// # Errors
/// If another rank has failed.
#[doc(hidden)]
pub fn update<M: Model>(
    state: &mut TrainState<M>,
    n_numbers: u64,
    sums: Sums,
    gradients: FlatGradients,
) -> Result<Measures> {
    state.micro_steps += n_numbers;
    state.step += 1;

    let Sums { loss, nll, n_labels, of_sources, .. } = sums;
    let TrainState { step, ranks, optimizer, exchange, .. } = state;
    let numbers = exchange.update(*step, ranks, optimizer, gradients, [n_labels.clone(), loss.clone()])?;
    if let Some(ema) = &mut state.ema {
        ema.update(state.step, &state.optimizer.state().master, &numbers);
    }
    state.model = state.optimizer.write_back(state.model.clone());
    let numbers = numbers.values().clone();
    Ok(Measures { loss_sum: loss, nll_sum: nll, target_tokens: n_labels, numbers, of_sources })
}

/// One micro-batch of a step.
pub(super) struct MicroBatch<'a> {
    pub(super) batch: &'a Batch,
    /// Counted from the start of the run: it seeds masks and dropout.
    pub(super) number: u64,
    /// Whether the group has no other micro-batch.
    pub(super) is_alone: bool,
    /// Dtype of the accumulated gradients.
    pub(super) dtype: FloatDType,
    /// Factor of the loss before backward, `[1]`; `None` for 1.
    pub(super) loss_factor: Option<&'a Tensor<1>>,
}

/// The inputs of forward and backward, apart from the batch. Neither changes them.
pub(super) struct Pass<'a, M = Transformer> {
    pub(super) model: &'a M,
    pub(super) table: &'a ParamTable,
    pub(super) masking: Option<&'a Masking>,
    pub(super) hiding: Option<&'a Hiding>,
    pub(super) label_smoothing: f64,
    /// Whether the model has dropout.
    pub(super) has_dropout: bool,
    /// Factor of the loss before backward, `[1]`; `None` for 1.
    pub(super) loss_factor: Option<&'a Tensor<1>>,
    /// Whether the losses of rows are wanted, too.
    pub(super) by_row: bool,
}

impl<'a, M: Model> Pass<'a, M> {
    pub(super) fn of(state: &'a TrainState<M>, loss_factor: Option<&'a Tensor<1>>) -> Self {
        let TrainState { model, optimizer, masking, hiding, label_smoothing, .. } = state;
        let (table, masking, hiding) = (optimizer.table(), masking.as_ref(), hiding.as_ref());
        let (label_smoothing, has_dropout, by_row) = (*label_smoothing, model.has_dropout(), state.is_mixed);
        Self { model, table, masking, hiding, label_smoothing, has_dropout, loss_factor, by_row }
    }

    /// Returns whether forward needs a random stream.
    pub(super) fn is_random(&self) -> bool {
        self.has_dropout || self.masking.is_some() || self.hiding.is_some()
    }

    /// Computes the sums of `batch` and its gradients: in `dtype`, or added to the gradients `before`. Masks and
    /// dropout are sites of one stream, which is a function of the seed and the number of the micro-batch.
    pub(super) fn run(
        &self,
        batch: &Batch,
        stream: Option<&DropoutStream>,
        dtype: FloatDType,
        before: Option<FlatGradients>,
    ) -> (Sums, FlatGradients) {
        // Forward.
        let masked = match (self.masking, self.hiding, stream) {
            (Some(masking), _, Some(stream)) => Some(masking.mask(batch, stream)),
            (None, Some(hiding), Some(stream)) => Some(hiding.hide(batch, stream)),
            _ => None,
        };
        let dropout = stream.filter(|_| self.has_dropout);
        let (batch, smoothing) = (masked.as_ref().unwrap_or(batch), self.label_smoothing);
        let by_row = self.by_row.then(|| self.model.loss_by_row(batch, smoothing, dropout)).flatten();
        let (losses, rows) = match by_row {
            Some((losses, rows)) => (losses, Some(RowSums { nll: rows.nll.inner(), n_labels: rows.n_labels.inner() })),
            None => (self.model.loss(batch, smoothing, dropout), None),
        };

        // Backward.
        let scaled = match self.loss_factor {
            Some(factor) => losses.loss_sum.clone() * Tensor::from_inner(factor.clone()),
            None => losses.loss_sum.clone(),
        };
        let mut gradients = scaled.backward();

        let (loss, nll, n_labels) = (losses.loss_sum.inner(), losses.nll_sum.inner(), losses.n_labels.inner());
        let sums = Sums { loss, nll, n_labels, rows, of_sources: None };
        (sums, self.table.flatten_gradients(self.model, &mut gradients, dtype, before))
    }
}
