//! Runs the largest batches before training, so that a run that will not fit in memory fails in its first minute
//! instead of hours later.
//!
//! The training batch that needs most memory goes forward and backward, and the largest validation batch forward.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use burn::tensor::Device;
use kiln_data::{BatchSource, EpochPlan, HostBatch, Order, Shape, panic_text};

use crate::device::upload_split;
use crate::distributed::Ranks;
use crate::eval::{Model, validation_loss};
use crate::optim::FlatGradients;
use crate::train::guard::{allocation, explained};
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
    // Host sync: the run has not begun.
    let sum = gradients.values.sum().try_into_data().map(drop);
    sum.map_err(|error| anyhow!("{error}"))
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

/// Returns all unused memory to the device. Earlier failures may show here once more; they have been reported.
fn make_room(device: &Device) {
    drop(device.sync());
    device.memory_cleanup();
    drop(device.sync());
}

/// Catches failures of `attempt`: when memory runs out, a backend panics or returns an error, at the operation or at
/// the next read.
fn guarded(shape: Shape, attempt: impl FnOnce() -> Result<()>) -> Result<(), Failure> {
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

/// Finds the number of micro-batches that every batch must be cut into: `splits` if they fit, otherwise, if `auto`,
/// twice as many until they fit. `attempt` tries a number, and `note` gets a line about each that is too small.
///
/// Each attempt gets a fresh state from `begin`, because a failed one can leave every tensor it touched unreadable,
/// including the weights. The state of the last attempt is returned.
pub(super) fn fit<S>(
    device: &Device,
    splits: usize,
    auto: bool,
    begin: impl Fn() -> Result<S>,
    attempt: impl Fn(&S, usize) -> Result<(), Failure>,
    mut note: impl FnMut(&str) -> Result<()>,
) -> Result<(S, usize)> {
    let mut splits = splits.max(1);
    loop {
        let state = begin()?;
        let (shape, reason) = match attempt(&state, splits) {
            Ok(()) => return Ok((state, splits)),
            Err(Failure::Other(error)) => return Err(error),
            Err(Failure::Memory { shape, reason }) => (shape, reason),
        };

        ensure!(
            auto && splits < shape.batch_size,
            "out of device memory for the largest batch, {} in {splits} micro-batch(es), tried before the first step; {} ({reason})",
            explained(shape),
            if auto {
                "a single row is already too much: lower the length limits of the data or use a smaller model"
            } else {
                "start with --auto-micro-batch, or lower loader.batch_tokens and raise train.grad_accum_steps by the same factor"
            }
        );

        splits = (2 * splits).min(shape.batch_size);
        note(&format!("{shape} does not fit into memory: cutting every batch into {splits} micro-batches"))?;
        drop(state);
        make_room(device);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const SHAPE: Shape = Shape { batch_size: 6, source_len: 40, target_len: 50 };

    /// A device on which `SHAPE` fits in `needed` parts.
    fn device(needed: usize) -> impl Fn(&Cell<bool>, usize) -> Result<(), Failure> {
        move |is_spoiled, splits| {
            assert!(!is_spoiled.replace(true), "a state of a failed attempt");
            guarded(SHAPE, || {
                assert!(splits >= needed, "several failures\n  can't allocate buffer of size: 12800\nAsked at:");
                Ok(())
            })
        }
    }

    fn fitted(needed: usize, auto: bool) -> (Result<usize>, Vec<String>) {
        let mut notes = Vec::new();
        let note = |note: &str| {
            notes.push(note.to_string());
            Ok(())
        };
        let result = fit(&Device::flex(), 1, auto, || Ok(Cell::new(false)), device(needed), note);
        (result.map(|(_, splits)| splits), notes)
    }

    #[test]
    fn micro_batches_are_halved_until_they_fit() {
        assert_eq!(fitted(1, false).0.expect("fits at once"), 1);
        let (splits, notes) = fitted(3, true);
        assert_eq!((splits.expect("fits in four"), notes.len()), (4, 2));
        assert!(notes[1].contains("6 x (40 + 50)") && notes[1].contains("into 4"), "{notes:?}");
        assert_eq!(fitted(6, true).0.expect("a row each"), 6);
    }

    #[test]
    fn a_batch_that_does_not_fit_is_named_with_a_remedy() {
        let error = fitted(2, false).0.expect_err("too large").to_string();
        for part in ["6 x (40 + 50)", "before the first step", "--auto-micro-batch", "of size: 12800)"] {
            assert!(error.contains(part), "{part:?} is missing in {error}");
        }
        let text = |_: &(), _| guarded(Shape::text(4, 1024), || Err(anyhow!("can't allocate buffer of size: 12800")));
        let error = fit(&Device::flex(), 1, false, || Ok(()), text, |_| Ok(())).expect_err("too large").to_string();
        assert!(error.contains("4 x 1024 (rows x tokens)"), "{error}");
        let error = fitted(7, true).0.expect_err("not even a row").to_string();
        assert!(error.contains("a single row is already too much"), "{error}");
    }

    #[test]
    fn another_failure_is_no_matter_of_memory() {
        let broken = |_: &(), _| guarded(SHAPE, || Err(anyhow!("an illegal address")));
        let error = format!("{:#}", fit(&Device::flex(), 1, true, || Ok(()), broken, |_| Ok(())).expect_err("broken"));
        assert!(error.contains("an illegal address") && error.contains("6 x (40 + 50)"), "{error}");
    }
}
