//! Runs every shape once before the clock starts. Kernels are compiled and chosen when they are first launched, so a
//! shape that first appears after an hour would pause the training then.
//!
//! Each shape of the training data goes forward and backward, each shape of the validation data forward, and the
//! optimizer takes a step on a scratch parameter.

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
use crate::eval::Model;
use crate::metrics::host_sync::waiting;
use crate::train::state::TrainState;

/// The result of a warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::train) struct Warmed {
    shapes: usize,
    elapsed: Duration,
    /// Kernels since the start of the process; `None` where nothing is compiled.
    kernels: Option<KernelCount>,
}

impl fmt::Display for Warmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "warmed {} shapes in {:.1} s", self.shapes, self.elapsed.as_secs_f64())?;
        match self.kernels {
            Some(KernelCount { compiled, loaded, tuned }) => {
                write!(f, ": {compiled} kernels compiled, {loaded} loaded from the cache, {tuned} choices timed")
            }
            None => Ok(()),
        }
    }
}

/// Runs every shape of the data once, cut into `splits` micro-batches. `show` gets the number of shapes that are done
/// and of all shapes. `started` is the time at which the first one was tried.
///
/// # Errors
/// If the data cannot be read or the device fails.
pub(in crate::train) fn warm_up<M: Model>(
    state: &TrainState<M>,
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

/// Returns the number of the first batch of each shape. Shapes that need most memory come first: the memory pool that
/// they leave behind serves the others.
pub(super) fn first_of_each<M: Model>(plan: &EpochPlan, state: &TrainState<M>) -> Vec<usize> {
    let mut first = BTreeMap::new();
    for index in 0..plan.len() {
        let Shape { batch_size, source_len, target_len } = plan.batch(index).1;
        first.entry([batch_size, source_len, target_len]).or_insert(index);
    }
    let mut indices: Vec<usize> = first.into_values().collect();
    indices.sort_by_key(|index| std::cmp::Reverse(bytes(state, plan.batch(*index).1)));
    indices
}

/// Takes an optimizer step on a few scratch parameters, because on a GPU a step overwrites weights and state. The
/// optimizer's kernels do not depend on the number of parameters.
pub(super) fn step_on_scratch<M: Model>(state: &TrainState<M>) -> Result<()> {
    let device = state.device.clone().autodiff();
    let scratch = Param::from_tensor(Tensor::<1>::ones([ALIGNMENT], (&device, DType::F32)));
    let mut optimizer = state.optimizer.like(&scratch, state.dtype);
    let scratch = optimizer.attach(scratch);
    let one = Tensor::<1>::ones([1], (&state.device, DType::F32));
    for accumulation in [state.dtype, FloatDType::F32] {
        let mut gradients = scratch.val().narrow(0, 0, 1).backward();
        let gradients = optimizer.table().flatten_gradients(&scratch, &mut gradients, accumulation, None);
        let numbers = optimizer.step(gradients, one.clone(), one.clone());
        // Host sync: the run has not begun.
        waiting(|| numbers.values().clone().try_into_data()).context("trying the optimizer")?;
    }
    Ok(())
}
