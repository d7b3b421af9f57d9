//! Every shape once before the clock starts: kernels are compiled and chosen when they are first launched, and a training
//! loop that meets its last shape after an hour would stop for it then.
//!
//! Each shape of the training data goes forward and backward, each of the validation data forward, and the optimizer takes a
//! step on a scratch parameter. No weight, counter or stream of random numbers moves: the run is the same with and without.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use burn::module::Param;
use burn::tensor::{DType, FloatDType, Tensor};
use kiln_data::{BatchSource, EpochPlan, Order, Shape};
use kiln_kernels::compilation::{KernelCount, kernel_count};
use kiln_kernels::optim::ALIGNMENT;

use super::probe::{bytes, forward, forward_backward, read};
use super::state::TrainState;

/// What a warm-up did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Warmed {
    shapes: usize,
    elapsed: Duration,
    /// Since the process began; `None` where nothing is compiled.
    kernels: Option<KernelCount>,
}

impl fmt::Display for Warmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "warmed {} shapes in {:.1} s", self.shapes, self.elapsed.as_secs_f64())?;
        match self.kernels {
            Some(KernelCount { compiled, loaded, tuned }) => {
                write!(f, ": {compiled} kernels compiled, {loaded} kept from before, {tuned} choices timed")
            }
            None => Ok(()),
        }
    }
}

/// Runs every shape of the data once, cut into `splits` micro-batches, `show`ing how many of how many are done. `started` is
/// when the first of them was tried.
///
/// # Errors
/// If the data cannot be read or the device fails.
pub(super) fn warm_up(
    state: &TrainState,
    [train, valid]: [Option<&Arc<dyn BatchSource>>; 2],
    [grad_accum_steps, splits]: [usize; 2],
    started: Instant,
    mut show: impl FnMut(usize, usize) -> Result<()>,
) -> Result<Warmed> {
    let plans = [train, valid].map(|source| source.map(|source| (source, source.plan(Order::Sequential))));
    let shapes: Vec<Vec<usize>> =
        plans.iter().map(|plan| plan.as_ref().map_or(Vec::new(), |(_, plan)| first_of_each(plan, state))).collect();
    let n_shapes = shapes.iter().map(Vec::len).sum();
    let mut done = 0;
    for (is_valid, (source, shapes)) in [false, true].into_iter().zip(plans.iter().zip(&shapes)) {
        let Some((source, plan)) = source else { continue };
        for &index in shapes {
            show(done, n_shapes)?;
            let batch = read(source, plan, index)?;
            let ran = match is_valid {
                false => forward_backward(state, &batch, [grad_accum_steps, splits]),
                true => forward(state, &batch),
            };
            ran.with_context(|| format!("the device failed while a batch of {} was tried", batch.shape()))?;
            done += 1;
        }
    }
    show(done, n_shapes)?;
    step_on_scratch(state)?;
    Ok(Warmed { shapes: n_shapes, elapsed: started.elapsed(), kernels: kernel_count() })
}

/// The number of the first batch of each shape, those that need most memory first: what they leave behind serves the others.
fn first_of_each(plan: &EpochPlan, state: &TrainState) -> Vec<usize> {
    let mut first = BTreeMap::new();
    for index in 0..plan.len() {
        let Shape { batch_size, source_len, target_len } = plan.batch(index).1;
        first.entry([batch_size, source_len, target_len]).or_insert(index);
    }
    let mut indices: Vec<usize> = first.into_values().collect();
    indices.sort_by_key(|index| std::cmp::Reverse(bytes(state, plan.batch(*index).1)));
    indices
}

/// The optimizer's kernels do not depend on how many parameters there are, so a few stand in for the model's: on a GPU a step
/// writes over weights and moments.
fn step_on_scratch(state: &TrainState) -> Result<()> {
    let device = state.device.clone().autodiff();
    let scratch = Param::from_tensor(Tensor::<1>::ones([ALIGNMENT], (&device, DType::F32)));
    let mut optimizer = state.optimizer.like(&scratch, state.dtype);
    let scratch = optimizer.attach(scratch);
    let one = Tensor::<1>::ones([1], (&state.device, DType::F32));
    for accumulation in [state.dtype, FloatDType::F32] {
        let mut gradients = scratch.val().sum().backward();
        let gradients = optimizer.table().flatten_gradients(&scratch, &mut gradients, accumulation, None);
        let numbers = optimizer.step(gradients, one.clone(), one.clone());
        // Host sync: the run has not begun.
        numbers.values().clone().try_into_data().context("trying the optimizer")?;
    }
    Ok(())
}
