//! Loss over a validation set.

use anyhow::{Context, Result, ensure};
use burn::tensor::{Device, Transaction};
use kiln_data::HostBatch;
use kiln_model::EncoderDecoder;

use crate::device::upload;

/// Losses over a whole set of batches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValidationLoss {
    /// Label-smoothed loss, nats per target token.
    pub loss: f64,
    /// Negative log-likelihood, nats per target token.
    pub nll: f64,
    /// Target tokens without padding.
    pub target_tokens: u64,
}

/// The loss of `model` (without autodiff, see [`burn::module::Module::valid`]) over `batches`, without dropout.
///
/// All batches are enqueued before the one host sync at the end.
pub fn validation_loss<E: Into<anyhow::Error>>(
    model: &EncoderDecoder,
    batches: impl Iterator<Item = Result<HostBatch, E>>,
    label_smoothing: f64,
    device: &Device,
) -> Result<ValidationLoss> {
    let mut sums = Transaction::default();
    let mut target_tokens = 0;
    for batch in batches {
        let batch = upload(&batch.map_err(Into::into).context("reading the validation data")?, device);
        let losses = model.loss(&batch, label_smoothing, None);
        sums = sums.register(losses.loss_sum).register(losses.nll_sum);
        target_tokens += batch.target_tokens;
    }
    ensure!(target_tokens > 0, "the validation data is empty: give data.valid files with text, or none");
    // Host sync: two numbers a batch, added up in f64.
    let values = sums.try_execute().context("reading the validation loss from the device")?;
    let mut totals = [0.0; 2];
    for (index, value) in values.iter().enumerate() {
        let value: &[f32] = value.as_slice().expect("losses are f32");
        totals[index % 2] += f64::from(value[0]);
    }
    let [loss, nll] = totals.map(|total| total / target_tokens as f64);
    Ok(ValidationLoss { loss, nll, target_tokens })
}
