//! The exchange of gradients in an optimizer step: each rank adds up its slice of the gradients of all ranks.
//!
//! Every sum has the order of the ranks, so that N ranks make the step that one rank makes over N micro-batches, bit for bit.
//! Nothing here reads a tensor of a GPU.

use std::ops::Add;

use anyhow::Result;
use burn::tensor::Tensor;

use super::exchange::Exchange;
use super::state::TrainState;
use crate::optim::FlatGradients;

/// Sums over the labels of a micro-batch or group, on the device.
#[derive(Debug, Clone)]
#[doc(hidden)]
pub struct Sums {
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

/// Returns the sums and gradients over all ranks: the gradients of the whole model, or, if the optimizer is sharded, of
/// this rank's slice, with the sums of squares of all. Replicas keep their own.
///
/// # Errors
/// If another rank has failed.
pub(super) fn reduce<M>(state: &TrainState<M>, sums: Sums, gradients: FlatGradients) -> Result<(Sums, FlatGradients)> {
    let TrainState { ranks, optimizer, exchange: Exchange::Gradients(slices), .. } = state else {
        return Ok((sums, gradients));
    };
    let FlatGradients(gradients) = gradients;

    let mut sum = match ranks.communicator() {
        _ if slices.are_whole() => slices.add_up(&ranks.concatenate(gradients.values, slices.bounds())?),
        Some(nccl) => nccl.add_up(gradients.values, slices.slice()),
        None => slices.add_up(&ranks.exchange(gradients.values, slices.bounds())?),
    };
    let Sums { loss, nll, n_labels } = sums;
    let summary = Tensor::cat(vec![sum.squares().clone(), loss, nll, n_labels], 0);
    let summary = ranks.concatenate(summary, slices.summary_bounds())?;
    if !optimizer.is_sharded() && !slices.are_whole() {
        sum.values = ranks.concatenate(sum.values, slices.bounds())?;
    }
    let (gradients, totals) = slices.with_summary(sum, &summary);
    Ok((sums_of_all(&totals), gradients))
}

/// Adds up the losses and labels of all ranks, in their order.
fn sums_of_all(totals: &[Tensor<1>]) -> Sums {
    let of = |totals: &Tensor<1>| {
        let [loss, nll, n_labels] = [0, 1, 2].map(|at| totals.clone().narrow(0, at, 1));
        Sums { loss, nll, n_labels }
    };
    let first = of(&totals[0]);
    totals[1..].iter().map(of).fold(first, |sum, next| sum + next)
}
