//! `train.deterministic = true`: two runs with one seed end with the same bits, on a GPU too, or the run is refused.
//!
//! On a GPU the kernels of `kiln-kernels` add in a fixed order. What could still differ from run to run is what the backend's
//! autotune prefers by time where an operator has no kernel: such a run is refused. And since a promise about somebody else's
//! kernels is worth a look, the gradients of the largest batch are computed twice before the first step and compared.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use burn::tensor::TensorData;
use kiln_data::BatchSource;
use kiln_kernels::attention_is_fused;

use super::feed::upload_split;
use super::probe::largest_batch;
use super::state::TrainState;
use super::step::group_gradients;
use crate::device::{device_name, is_cpu};
use crate::optim::FlatGradients;

/// Sees to it that every step is repeatable; returns a line for people about what that has cost.
///
/// # Errors
/// If it cannot be, or is found not to be.
pub(super) fn ensure_repeatable(state: &TrainState, train: &Arc<dyn BatchSource>, splits: usize) -> Result<String> {
    let started = Instant::now();
    let head_dim = state.model.config().head_dim();
    if !is_cpu(&state.device) {
        ensure!(
            attention_is_fused(&state.device, state.dtype.into(), head_dim),
            "train.deterministic = true, but attention in {:?} with heads of {head_dim} has no kernel of its own on {}: what the \
             backend's autotune prefers there may change from run to run; take train.precision = \"bf16\" or \"fp16\" and heads (model.d_model \
             / model.n_heads) of 64 or 128, or set train.deterministic = false",
            state.dtype,
            device_name(&state.device)
        );
    }
    let batch = largest_batch(train, state)?;
    let micro_batches: Vec<_> = upload_split(&batch, splits, &state.device).into_iter().take(2).collect();
    let compute = || -> Result<[TensorData; 2]> {
        let (sums, FlatGradients(gradients)) = group_gradients(state, &micro_batches, state.micro_steps);
        // Host sync: the run has not begun.
        let read = |tensor: burn::tensor::Tensor<1>| tensor.try_into_data().context("reading gradients");
        Ok([read(sums.loss)?, read(gradients.values)?])
    };
    let ([loss, gradients], [loss_again, gradients_again]) = (compute()?, compute()?);
    ensure!(
        gradients.as_bytes() == gradients_again.as_bytes() && loss.as_bytes() == loss_again.as_bytes(),
        "train.deterministic = true, but the largest batch, {}, does not give the same gradients twice on {}; please report this, and \
         set train.deterministic = false to train all the same",
        batch.shape(),
        device_name(&state.device)
    );
    Ok(format!(
        "deterministic: the largest batch, {}, gives the same gradients twice, bit for bit (looked at for {:.1} s)",
        batch.shape(),
        started.elapsed().as_secs_f64()
    ))
}
