//! The exchange of gradients in an optimizer step: each rank adds up its slice of the gradients of all ranks.
//!
//! Every sum has the order of the ranks, so that N ranks make the step that one rank makes over N micro-batches, bit for bit.
//! Nothing here reads a tensor of a GPU.

use std::ops::Add;

use anyhow::Result;
use burn::tensor::Tensor;

use super::exchange::Exchange;
use super::state::TrainState;
use crate::distributed::Ranks;
use crate::optim::FlatGradients;

/// Sums over the labels of a micro-batch or group, on the device.
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

    let mut sum = slices.add_up(&ranks.exchange(gradients.values, slices.bounds())?);
    let squares = ranks.concatenate(sum.squares().clone(), slices.chunk_bounds())?;
    if !optimizer.is_sharded() {
        sum.values = ranks.concatenate(sum.values, slices.bounds())?;
    }
    Ok((sums_of_all(ranks, sums)?, slices.with_squares(sum, squares)))
}

/// Adds up the losses and labels of all ranks.
fn sums_of_all(ranks: &Ranks, Sums { loss, nll, n_labels }: Sums) -> Result<Sums> {
    let bounds: Vec<usize> = (0..=ranks.size()).map(|rank| 3 * rank).collect();
    let all = ranks.concatenate(Tensor::cat(vec![loss, nll, n_labels], 0), &bounds)?;

    let number = |at: usize| all.clone().narrow(0, at, 1);
    let of = |at: &usize| Sums { loss: number(*at), nll: number(at + 1), n_labels: number(at + 2) };
    let first = of(&bounds[0]);
    Ok(bounds[1..ranks.size()].iter().map(of).fold(first, |sum, next| sum + next))
}
