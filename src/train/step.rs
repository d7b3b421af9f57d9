//! One optimizer step. Nothing here reads a tensor: the device is never waited for.

use kiln_model::{Batch, DropoutStream};

use super::state::TrainState;
use crate::metrics::deferred::Measures;
use crate::optim::FlatGradients;

/// Takes one optimizer step over `batches`, the micro-batches of one group.
///
/// The loss is the sum over all target tokens of the group, divided once by their number: how they are dealt out to
/// micro-batches does not matter. Counters of steps and micro-batches move; the data position is the caller's.
///
/// # Panics
/// If the group has no target token.
pub fn train_step(state: &mut TrainState, batches: &[Batch]) -> Measures {
    let target_tokens: u64 = batches.iter().map(|batch| batch.target_tokens).sum();
    assert!(target_tokens > 0, "a group of micro-batches without a single target token");
    let mut accumulated: Option<(Measures, FlatGradients)> = None;
    for batch in batches {
        let dropout = state.model.config().dropout > 0.0;
        let stream = dropout.then(|| DropoutStream::new(state.seed, state.micro_steps, &state.device));
        let losses = state.model.loss(batch, state.label_smoothing, stream.as_ref());
        let mut gradients = (losses.loss_sum.clone() / target_tokens as f64).backward();
        let gradients = state.optimizer.table().flatten_gradients(&state.model, &mut gradients);
        let (loss_sum, nll_sum) = (losses.loss_sum.inner(), losses.nll_sum.inner());
        accumulated = Some(match accumulated {
            None => (Measures { grad_norm: loss_sum.zeros_like(), loss_sum, nll_sum }, gradients),
            Some((sums, before)) => {
                let sums = Measures {
                    loss_sum: sums.loss_sum + loss_sum,
                    nll_sum: sums.nll_sum + nll_sum,
                    grad_norm: sums.grad_norm,
                };
                (sums, before + gradients)
            }
        });
        state.micro_steps += 1;
        state.source_tokens += batch.source_tokens;
        state.target_tokens += batch.target_tokens;
    }
    let (mut measures, gradients) = accumulated.expect("a group has at least one micro-batch");
    state.step += 1;
    measures.grad_norm = state.optimizer.step(gradients, state.learning_rate.at(state.step), state.step);
    state.model = state.optimizer.write_back(state.model.clone(), state.dtype);
    measures
}
