//! Compiles the kernels of the first steps on all cores, before the largest batch is tried.
//!
//! The steps are gone through twice: here their launches are discarded and only the kernels are collected, afterwards they
//! run. What remains for the second time are choices that the backend makes by timing several kernels.

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Instant;

use kiln_data::{BatchSource, Order};
use kiln_kernels::compilation::{AheadError, KernelCount, compile_ahead};
use kiln_model::Batch;

use super::probe::{forward, forward_backward, read, try_largest};
use super::warm_up::{first_of_each, step_on_scratch};
use crate::eval::Model;
use crate::metrics::host_sync::waiting;
use crate::optim::FlatGradients;
use crate::train::state::TrainState;
use crate::train::step::group_gradients;

/// Compiles the kernels of the largest batches and of the optimizer. If any were missing in the cache and `every_shape` is
/// set, compiles the kernels of the other shapes, too: where the first ones come from the cache, the others do, and loading them
/// one after another takes less time than going through all shapes twice. `show` gets the number of kernels that are done
/// and of all.
///
/// Returns a note, if there were kernels. Nothing fails here: what goes wrong goes wrong again when the batches run, and
/// is reported then.
pub(super) fn compile_kernels<M: Model>(
    state: &TrainState<M>,
    [train, valid]: [Option<&Arc<dyn BatchSource>>; 2],
    counts: [usize; 2],
    every_shape: bool,
    mut show: impl FnMut(usize, usize),
) -> Option<String> {
    let started = Instant::now();
    let largest = || {
        // The numbers that it reads are arbitrary, so an error says nothing.
        let _ = train.map(|train| try_largest(state, train, valid, counts[0], counts[1]));
        let _ = step_on_scratch(state);
    };
    let done = compile_ahead(&state.device, largest, &mut show).and_then(|first| {
        if first.compiled == 0 || !every_shape {
            return Ok(first);
        }
        let others = compile_ahead(&state.device, || go_through(state, [train, valid], counts), &mut show)?;
        Ok(KernelCount { compiled: first.compiled + others.compiled, loaded: first.loaded + others.loaded, ..first })
    });

    match done {
        Ok(KernelCount { compiled: 0, loaded: 0, .. }) => None,
        Ok(KernelCount { compiled, loaded, .. }) => {
            let secs = started.elapsed().as_secs_f64();
            Some(format!("compiled {compiled} kernels and loaded {loaded} from the cache in {secs:.1} s"))
        }
        Err(error) => Some(format!("kernels are compiled one after another, because {error}")),
    }
}

/// Enqueues forward and backward of each shape of the training data, and forward of each shape of the validation data.
fn go_through<M: Model>(state: &TrainState<M>, [train, valid]: [Option<&Arc<dyn BatchSource>>; 2], counts: [usize; 2]) {
    for (is_valid, source) in [(false, train), (true, valid)] {
        let Some(source) = source else { continue };
        let plan = source.plan(Order::Sequential);
        for index in first_of_each(&plan, state) {
            let Ok(batch) = read(source, &plan, index) else { continue };
            // As above.
            let _ = match is_valid {
                false => forward_backward(state, &batch, counts),
                true => forward(state, &batch),
            };
        }
    }
}

/// Compiles the kernels of a step on `batch`, of its validation and of the optimizer, on all cores. `show` gets the number of
/// kernels that are done and of all.
///
/// # Errors
/// If the device fails.
pub fn compile_step<M: Model>(
    state: &TrainState<M>,
    batch: &Batch,
    show: impl FnMut(usize, usize),
) -> Result<KernelCount, AheadError> {
    let step = || {
        let (sums, FlatGradients(gradients)) = group_gradients(state, from_ref(batch), state.micro_steps);
        // Reading keeps the backend from dropping what nobody needs.
        let _ = waiting(|| (sums.loss.try_into_data(), gradients.values.narrow(0, 0, 1).try_into_data()));
        let losses = state.model.valid().loss(batch, state.label_smoothing, None);
        let _ = waiting(|| losses.loss_sum.try_into_data());
        let _ = step_on_scratch(state);
    };
    compile_ahead(&state.device, step, show)
}
