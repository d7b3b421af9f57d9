//! Runs the largest batches before training, so that a run that will not fit in memory fails in its first minute
//! instead of hours later.
//!
//! The training batch that needs most memory goes forward and backward, and the largest validation batch forward.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use burn::tensor::Device;
use kiln_data::{BatchSource, EpochPlan, HostBatch, Order, Shape, panic_text};
use kiln_ranks::Ranks;

use crate::config::{ByteSize, size};
use crate::device::held_memory::HeldMemory;
use crate::device::upload_split;
use crate::eval::{Model, validation_loss};
use crate::metrics::host_sync::waiting;
use crate::optim::FlatGradients;
use crate::train::guard::allocation;
use crate::train::state::TrainState;
use crate::train::step::group_gradients;

/// Why a probe failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// This batch does not fit into the device's memory.
    Memory { shape: Shape, reason: String },
    /// Anything else.
    Other(anyhow::Error),
}

/// Returns the memory of a training step on a batch of `shape`, in bytes.
pub(super) fn bytes<M: Model>(state: &TrainState<M>, shape: Shape) -> u64 {
    state.model.train_bytes(shape, &state.device, state.dtype)
}

/// Makes batch `index` of `plan`, as the loader would.
pub(super) fn read(source: &Arc<dyn BatchSource>, plan: &EpochPlan, index: usize) -> Result<HostBatch> {
    let mut batch = HostBatch::default();
    let mut worker = source.clone().worker();
    // A worker's panic is an error, as it is in the loader.
    catch_unwind(AssertUnwindSafe(|| worker.fill(plan, index, &mut batch))).map_err(kiln_data::Error::from_panic)??;
    Ok(batch)
}

/// Makes the batch of `source` that needs most memory.
pub(super) fn largest_batch<M: Model>(source: &Arc<dyn BatchSource>, state: &TrainState<M>) -> Result<HostBatch> {
    let plan = source.plan(Order::Sequential);
    let largest = (0..plan.len()).max_by_key(|index| bytes(state, plan.batch(*index).1));
    read(source, &plan, largest.context("a data set has batches")?)
}

/// Runs forward and backward as in a step over `grad_accum_steps` such batches, each cut into `splits` micro-batches.
pub(super) fn forward_backward<M: Model>(
    state: &TrainState<M>,
    batch: &HostBatch,
    [grad_accum_steps, splits]: [usize; 2],
) -> Result<()> {
    // Two micro-batches already accumulate in f32, and more of them need no more memory.
    let n_uploads = grad_accum_steps.min(2);
    let mut batches: Vec<_> = (0..n_uploads).flat_map(|_| upload_split(batch, splits, &state.device)).collect();
    batches.truncate(2);
    let (_, FlatGradients(gradients)) = group_gradients(state, &batches, state.micro_steps);
    // Host sync: the run has not begun. One element is enough, and its kernel is there.
    let read = waiting(|| gradients.values.narrow(0, 0, 1).try_into_data()).map(drop);
    read.map_err(|error| anyhow!("{error}"))
}

/// Runs forward as in a validation.
pub(super) fn forward<M: Model>(state: &TrainState<M>, batch: &HostBatch) -> Result<()> {
    let model = state.model.valid();
    let batches = std::iter::once(anyhow::Ok(batch.clone()));
    // Host sync, as above.
    validation_loss(&model, batches, state.label_smoothing, state.masking.as_ref(), &state.device, &Ranks::alone())
        .map(drop)
}

/// Tries the largest batches, each cut into `splits` micro-batches.
pub(super) fn try_largest<M: Model>(
    state: &TrainState<M>,
    train: &Arc<dyn BatchSource>,
    valid: Option<&Arc<dyn BatchSource>>,
    grad_accum_steps: usize,
    splits: usize,
) -> Result<(), Failure> {
    let batch = largest_batch(train, state).map_err(Failure::Other)?;
    guarded(batch.shape(), || forward_backward(state, &batch, [grad_accum_steps, splits]))?;
    if let Some(valid) = valid {
        let batch = largest_batch(valid, state).map_err(Failure::Other)?;
        guarded(batch.shape(), || forward(state, &batch))?;
    }
    Ok(())
}

/// Tries the largest batches, with `counts` of uploads and of micro-batches, and fails if they take more memory than the run may hold.
pub(super) fn try_within<M: Model>(
    limit: Option<&ByteSize>,
    state: &TrainState<M>,
    train: &Arc<dyn BatchSource>,
    valid: Option<&Arc<dyn BatchSource>>,
    counts: [usize; 2],
) -> Result<(), Failure> {
    let watched = limit.and_then(|limit| Some((limit, HeldMemory::watch(&state.device)?)));
    try_largest(state, train, valid, counts[0], counts[1])?;
    let Some((limit, held)) = watched else { return Ok(()) };
    let peak = held.take_peak();
    if peak <= limit.bytes() {
        return Ok(());
    }
    let shape = largest_batch(train, state).map_err(Failure::Other)?.shape();
    Err(Failure::Memory { shape, reason: format!("train.memory_limit = {limit}, and {} were held", size(peak)) })
}

/// Returns all unused memory to the device. Earlier failures may show here once more; they have been reported.
pub(super) fn make_room(device: &Device) {
    drop(waiting(|| device.sync()));
    device.memory_cleanup();
    drop(waiting(|| device.sync()));
}

/// Catches failures of `attempt`: when memory runs out, a backend panics or returns an error, at the operation or at
/// the next read.
pub(super) fn guarded(shape: Shape, attempt: impl FnOnce() -> Result<()>) -> Result<(), Failure> {
    let error = match catch_unwind(AssertUnwindSafe(attempt)) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error,
        Err(panic) => anyhow!(panic_text(&*panic)),
    };
    Err(match allocation(&format!("{error:#}")) {
        Some(reason) => Failure::Memory { shape, reason },
        None => Failure::Other(error.context(format!("the device failed while the largest batch, {shape}, was tried"))),
    })
}
