//! Figures of a model of one's own: ratios of sums over the validation data.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use burn::tensor::{Device, Tensor};
use kiln_data::HostBatch;
use kiln_model::DropoutStream;
use kiln_ranks::Ranks;

use super::loss::{VALIDATION_MASKS, in_order, numbered};
use super::{Masking, Model, ValidationLoss};
use crate::device::upload;
use crate::metrics::host_sync;

/// Sums of a loss: the loss, the negative log-likelihood and the number of labels.
const N_LOSSES: usize = 3;

/// Returns the loss of `model` over `batches` without dropout, and each of its [`Model::FIGURES`]. Each of several
/// ranks passes its own batches and gets the figures of all. A figure whose denominator is 0 is 0.
///
/// All batches are enqueued before the one host sync at the end.
///
/// # Errors
/// If a batch cannot be read, the model does not compute its figures, the device or another rank fails, or labels are missing.
pub fn figures<M: Model, E: Into<anyhow::Error>>(
    model: &M,
    batches: impl Iterator<Item = Result<HostBatch, E>>,
    label_smoothing: f64,
    masking: Option<&Masking>,
    device: &Device,
    ranks: &Ranks,
) -> Result<(ValidationLoss, BTreeMap<String, f64>)> {
    let n_figures = M::FIGURES.len();
    let mut sums: Vec<Tensor<1>> = Vec::new();
    for batch in numbered(batches, ranks) {
        let (number, batch) = batch?;
        let mut batch = upload(&batch, device);
        if let Some(masking) = masking {
            batch = masking.mask(&batch, &DropoutStream::new(VALIDATION_MASKS, number, device));
        }
        let (losses, parts) = model
            .figures(&batch, label_smoothing)
            .with_context(|| format!("Model::figures returned None, but Model::FIGURES names {:?}", M::FIGURES))?;
        ensure!(
            parts.dims() == [n_figures, 2],
            "Model::figures returned a tensor of shape {:?} for {:?}: one row of numerator and denominator per figure, {:?}, is \
             needed",
            parts.dims(),
            M::FIGURES,
            [n_figures, 2]
        );
        let losses = [losses.loss_sum, losses.nll_sum, losses.n_labels];
        sums.push(Tensor::cat(losses.into_iter().chain([parts.flatten(0, 1)]).collect(), 0));
    }

    // Host sync: three numbers per batch, and two per figure.
    let values = host_sync::read(sums).context("reading the figures from the device")?;
    let bits: Vec<Vec<u32>> = values.iter().map(|value| value.iter::<f32>().map(f32::to_bits).collect()).collect();
    let of_ranks = ranks.share("sharing the figures", bits)?;
    let mut totals = vec![0.0; N_LOSSES + 2 * n_figures];
    for value in in_order(of_ranks.iter().map(Vec::as_slice).collect()) {
        totals.iter_mut().zip(value).for_each(|(total, bits)| *total += f64::from(f32::from_bits(*bits)));
    }

    let (losses, parts) = totals.split_at(N_LOSSES);
    let [loss, nll, n_labels] = losses else { unreachable!("split after three") };
    ensure!(*n_labels > 0.0, "the validation data is empty: give it rows with labels, or leave it out");
    let loss = ValidationLoss {
        loss: loss / n_labels,
        nll: nll / n_labels,
        target_tokens: *n_labels as u64,
        masked: None,
        rewards: None,
    };
    let ratio = |part: &[f64]| if part[1] == 0.0 { 0.0 } else { part[0] / part[1] };
    let names = M::FIGURES.iter().map(|name| (*name).to_owned());
    Ok((loss, names.zip(parts.chunks_exact(2).map(ratio)).collect()))
}
