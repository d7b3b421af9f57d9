//! `train.deterministic = true`: two runs with the same seed end with the same bits, on a GPU too, or the run is
//! refused.
//!
//! On a GPU the kernels of `kiln-kernels` add in a fixed order. Where an operator has no such kernel, the backend's
//! autotune may prefer different kernels from run to run, so a run that needs one is refused. The backend's other
//! kernels are not under our control: the gradients of the largest batch are therefore computed twice before the first
//! step and compared.

use std::sync::Arc;
use std::time::Instant;

use super::probe::largest_batch;
use crate::device::{device_name, upload_split};
use crate::eval::Model;
use crate::metrics::host_sync::waiting;
use crate::optim::FlatGradients;
use crate::train::state::TrainState;
use crate::train::step::group_gradients;
use anyhow::{Context, Result, anyhow, ensure};
use burn::tensor::TensorData;
use kiln_data::BatchSource;

/// Checks that every step is repeatable, with deterministic operators installed. Returns a note on the check.
///
/// # Errors
/// If the model uses operators that are not repeatable, or if the check finds a difference.
pub(super) fn ensure_repeatable<M: Model>(
    state: &TrainState<M>,
    train: &Arc<dyn BatchSource>,
    splits: usize,
) -> Result<String> {
    let started = Instant::now();
    let refused = state.model.check_repeatable(&state.device, state.dtype);
    refused.map_err(|reason| anyhow!("train.deterministic = true, but {reason}"))?;

    let batch = largest_batch(train, state)?;
    let micro_batches: Vec<_> = upload_split(&batch, splits, &state.device).into_iter().take(2).collect();

    let compute = || -> Result<[TensorData; 2]> {
        let (sums, FlatGradients(gradients)) = group_gradients(state, &micro_batches, state.micro_steps);
        // Host sync: the run has not begun.
        let read = |tensor: burn::tensor::Tensor<1>| waiting(|| tensor.try_into_data()).context("reading gradients");
        Ok([read(sums.loss)?, read(gradients.values)?])
    };
    let ([loss, gradients], [loss_again, gradients_again]) = (compute()?, compute()?);

    ensure!(
        gradients.as_bytes() == gradients_again.as_bytes() && loss.as_bytes() == loss_again.as_bytes(),
        "train.deterministic = true, but the largest batch, {}, does not give the same gradients twice on {}; please report this, and \
         set train.deterministic = false to train without the guarantee",
        batch.shape(),
        device_name(&state.device)
    );
    Ok(format!(
        "deterministic: the largest batch, {}, gives the same gradients twice, bit for bit (checked in {:.1} s)",
        batch.shape(),
        started.elapsed().as_secs_f64()
    ))
}
