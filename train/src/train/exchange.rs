//! What the ranks of a run exchange: gradients in each step, or weights after several steps that each has taken alone.
//!
//! Each rank adds up its slice of the gradients. Every sum has the order of the ranks, so that N ranks make the step that one rank makes
//! over N micro-batches, bit for bit. Nothing here reads a tensor of a GPU.

use std::ops::Add;

use anyhow::Result;
use burn::tensor::{DType, FloatDType, Tensor};
use kiln_kernels::optim::StepNumbers;
use kiln_kernels::row_sums;
use kiln_model::RowSums;
use kiln_ranks::Ranks;

use crate::config::Config;
use crate::device::RowSources;
use crate::optim::{FlatGradients, FlatOptimizer, Outer, Slices};

/// Sums over the labels of a micro-batch or group, on the device.
#[derive(Debug, Clone)]
#[doc(hidden)]
pub struct Sums {
    pub(super) loss: Tensor<1>,
    pub(super) nll: Tensor<1>,
    pub(super) n_labels: Tensor<1>,
    /// A mixture: the sums of each row, of a micro-batch alone.
    pub(super) rows: Option<RowSums>,
    /// A mixture: negative log-likelihood of each source, then labels of each source, `[2 S]`, of this rank.
    pub(super) of_sources: Option<Tensor<1>>,
}

impl Sums {
    /// Adds up the rows of a micro-batch by their sources.
    pub(super) fn by_source(self, sources: Option<&RowSources>) -> Self {
        let Some((rows, sources)) = self.rows.as_ref().zip(sources) else { return Self { rows: None, ..self } };
        let is_of_source = sources.clone().float().cast(DType::F32);
        let [_, n_rows] = is_of_source.dims();
        let sum = |of_rows: &Tensor<1>| row_sums(is_of_source.clone() * of_rows.clone().reshape([1, n_rows]));
        let of_sources = Some(Tensor::cat(vec![sum(&rows.nll), sum(&rows.n_labels)], 0));
        Self { rows: None, of_sources, ..self }
    }
}

impl Add for Sums {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let of_sources = match (self.of_sources, other.of_sources) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        let (loss, nll, n_labels) = (self.loss + other.loss, self.nll + other.nll, self.n_labels + other.n_labels);
        Self { loss, nll, n_labels, rows: None, of_sources }
    }
}

/// What the ranks exchange.
#[derive(Debug)]
pub(super) enum Exchange {
    /// Nothing: there is one rank.
    Nothing,
    /// The gradients of each step, by slices.
    Gradients(Box<Slices>),
    /// The weights, now and then.
    Weights(Box<LocalSteps>),
}

/// Replicas that take steps alone and meet now and then (DiLoCo, Douillard et al. 2023). Each has whole weights and a state of its own.
#[derive(Debug)]
pub(super) struct LocalSteps {
    every: u64,
    /// The last step of the run, after which the replicas meet, too.
    last: u64,
    slices: Slices,
    outer: Outer,
}

impl LocalSteps {
    /// Starts from weights that all replicas have; with the outer momentum of an earlier run, `[n]`, f32, or none.
    /// What travels has `dtype`.
    pub(super) fn new(
        config: &Config,
        dtype: FloatDType,
        optimizer: &FlatOptimizer,
        momentum: Option<&Tensor<1>>,
        slices: Slices,
    ) -> Self {
        let factors = [config.optim.outer_lr, config.optim.outer_momentum];
        let outer = Outer::new(factors, dtype, &optimizer.state().master, momentum, &slices);
        Self { every: config.train.sync_every, last: config.train.steps, slices, outer }
    }

    /// Takes the outer step, and gives `optimizer` the weights that all replicas go on from.
    ///
    /// # Errors
    /// If another rank has failed.
    fn meet(&mut self, ranks: &Ranks, optimizer: &mut FlatOptimizer) -> Result<()> {
        let (bounds, gradient) = (self.slices.bounds(), self.outer.gradient(&optimizer.state().master));
        let change = match self.slices.are_whole() {
            true => self.outer.step(&ranks.concatenate(gradient, bounds)?),
            false => ranks.concatenate(self.outer.step(&ranks.exchange(gradient, bounds)?), bounds)?,
        };
        optimizer.set_master(self.outer.apply(change));
        Ok(())
    }

    /// Whether each rank has the whole outer momentum.
    pub(super) fn are_whole(&self) -> bool {
        self.slices.are_whole()
    }

    /// Outer momentum of this rank's slice, `[slice]`, f32.
    pub(super) fn momentum(&self) -> &Tensor<1> {
        self.outer.velocity()
    }
}

impl Exchange {
    /// Returns the replicas, if each rank takes steps alone.
    pub(super) fn replicas(&self) -> Option<&LocalSteps> {
        match self {
            Self::Weights(replicas) => Some(replicas),
            Self::Nothing | Self::Gradients(_) => None,
        }
    }

    /// Returns the first step from `step` on after which all ranks have the same weights.
    pub(super) fn next_meeting(&self, step: u64) -> u64 {
        self.replicas().map_or(step, |replicas| meeting(step, replicas.every, replicas.last))
    }

    /// Returns the sums and gradients over all ranks: the gradients of the whole model, or, if the optimizer is sharded, of
    /// this rank's slice, with the sums of squares of all. One rank and replicas keep their own.
    ///
    /// # Errors
    /// If another rank has failed.
    pub(super) fn reduce(
        &self,
        ranks: &Ranks,
        optimizer: &FlatOptimizer,
        sums: Sums,
        gradients: FlatGradients,
    ) -> Result<(Sums, FlatGradients)> {
        let Self::Gradients(slices) = self else { return Ok((sums, gradients)) };
        let FlatGradients(gradients) = gradients;

        let mut sum = match ranks.communicator() {
            _ if slices.are_whole() => slices.add_up(&ranks.concatenate(gradients.values, slices.bounds())?),
            Some(nccl) => nccl.add_up(gradients.values, slices.slice()),
            None => slices.add_up(&ranks.exchange(gradients.values, slices.bounds())?),
        };
        let Sums { loss, nll, n_labels, of_sources, .. } = sums;
        let summary = Tensor::cat(vec![sum.squares().clone(), loss, nll, n_labels], 0);
        let summary = ranks.concatenate(summary, slices.summary_bounds())?;
        if !optimizer.is_sharded() && !slices.are_whole() {
            sum.values = ranks.concatenate(sum.values, slices.bounds())?;
        }
        let (gradients, totals) = slices.with_summary(sum, &summary);
        Ok((Sums { of_sources, ..sums_of_all(&totals) }, gradients))
    }

    /// Makes `step` with the gradients of all ranks, and leaves the weights of all ranks. See [`FlatOptimizer::step`] for the arguments.
    ///
    /// # Errors
    /// If another rank has failed.
    pub(super) fn update(
        &mut self,
        step: u64,
        ranks: &Ranks,
        optimizer: &mut FlatOptimizer,
        gradients: FlatGradients,
        [divisor, loss]: [Tensor<1>; 2],
    ) -> Result<StepNumbers> {
        if let (Self::Gradients(slices), Some(nccl), true) = (&*self, ranks.communicator(), optimizer.overlaps()) {
            return Ok(optimizer.step_and_complete(gradients, divisor, loss, nccl, slices.bounds()));
        }
        let numbers = optimizer.step(gradients, divisor, loss);
        self.complete(step, ranks, optimizer)?;
        Ok(numbers)
    }

    /// Ends `step`: brings in the slices of weights that other ranks have updated; or, if replicas meet, gives all the weights that the
    /// outer optimizer makes of theirs.
    ///
    /// # Errors
    /// If another rank has failed.
    fn complete(&mut self, step: u64, ranks: &Ranks, optimizer: &mut FlatOptimizer) -> Result<()> {
        let is_meeting = self.next_meeting(step) == step;
        match self {
            Self::Nothing => Ok(()),
            Self::Gradients(slices) => optimizer.complete(|own, all| ranks.all_gather(own, all, slices.bounds())),
            Self::Weights(replicas) if is_meeting => replicas.meet(ranks, optimizer),
            Self::Weights(_) => Ok(()),
        }
    }
}

/// Adds up the losses and labels of all ranks, in their order.
fn sums_of_all(totals: &[Tensor<1>]) -> Sums {
    let of = |totals: &Tensor<1>| {
        let [loss, nll, n_labels] = [0, 1, 2].map(|at| totals.clone().narrow(0, at, 1));
        Sums { loss, nll, n_labels, rows: None, of_sources: None }
    };
    let first = of(&totals[0]);
    totals[1..].iter().map(of).fold(first, |sum, next| sum + next)
}

/// Returns the first step from `step` on after which the replicas meet.
fn meeting(step: u64, every: u64, last: u64) -> u64 {
    let next = step.next_multiple_of(every);
    if step <= last { next.min(last) } else { next }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_meet_every_so_many_steps_and_at_the_end() {
        let meetings = [1, 9, 10, 11, 20, 21, 25].map(|step| meeting(step, 10, 25));
        assert_eq!(meetings, [10, 10, 10, 20, 20, 25, 25]);
    }
}
