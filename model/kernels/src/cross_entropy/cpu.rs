//! Cross-entropy on the CPU: rows in parallel.

use std::borrow::Cow;

use burn::tensor::DType;
use burn_flex::{Flex, FlexTensor};
use rayon::prelude::*;

use super::ops::{CrossEntropyOps, RowLoss};
use crate::calls;
use crate::host::softcap::{bound, multiply_by_slopes, slopes};
use crate::host::vector::{exp, exponentials, log_sum_exp, max, sum, vectorized, vectorized_fn};
use crate::host::{change, ints, tensor, view};

impl CrossEntropyOps for Flex {
    fn cross_entropy_rows(logits: FlexTensor, labels: FlexTensor, of: RowLoss) -> FlexTensor {
        let _call = calls::begin(|| calls::of_passes("cross-entropy forward", &logits, 1));
        let vocabulary = logits.layout().shape()[1];
        let (logits, labels) = (view(&logits), ints(labels));
        let per_row: Vec<[f32; 3]> = logits
            .par_chunks(vocabulary)
            .zip(&labels)
            .map(|(z, &label)| {
                let z = bounded(z, of.softcap);
                let (log_sum, total) = (log_sum_exp(&z), vectorized(|| sum(&z)));
                if label == of.ignored {
                    return [0.0, 0.0, log_sum];
                }
                losses(log_sum, z[label as usize], total / vocabulary as f32, of.smoothing)
            })
            .collect();
        rows(&per_row)
    }

    fn cross_entropy_rows_backward(
        logits: FlexTensor,
        labels: FlexTensor,
        rows: FlexTensor,
        drows: FlexTensor,
        of: RowLoss,
    ) -> FlexTensor {
        let _call = calls::begin(|| calls::of_passes("cross-entropy backward", &logits, 2));
        let (labels, rows, drows) = (ints(labels), view(&rows), view(&drows));
        let (n, vocabulary) = (labels.len(), logits.layout().shape()[1]);
        let spread = of.smoothing / vocabulary as f32;

        change(logits, |logits| {
            logits.par_chunks_mut(vocabulary).enumerate().for_each(|(row, z)| {
                if labels[row] == of.ignored {
                    return z.fill(0.0);
                }
                let (log_sum, scale) = (rows[2 * n + row], drows[row]);
                bound(z, of.softcap);
                let slopes = slopes(z, of.softcap);
                gradient(z, log_sum, spread, scale);
                z[labels[row] as usize] -= (1.0 - of.smoothing) * scale;
                multiply_by_slopes(z, &slopes);
            });
        })
    }
}

/// Returns what [`CrossEntropyOps::cross_entropy_rows`] does and the gradient of the logits, if each loss has the gradient `scale`:
/// with one exponential of each logit instead of two.
pub(crate) fn rows_and_gradient(
    logits: FlexTensor,
    labels: FlexTensor,
    scale: f32,
    of: RowLoss,
) -> (FlexTensor, FlexTensor) {
    let _call = calls::begin(|| calls::of_passes("cross-entropy forward, backward", &logits, 2));
    let (labels, vocabulary) = (ints(labels), logits.layout().shape()[1]);
    let spread = scale * of.smoothing / vocabulary as f32;
    let mut per_row = Vec::new();

    let gradient = change(logits, |logits| {
        let of_row = |(z, &label): (&mut [f32], &i32)| {
            bound(z, of.softcap);
            let slopes = slopes(z, of.softcap);
            let (max, total) = vectorized(|| (max(z), sum(z)));
            let at_label = if label == of.ignored { 0.0 } else { z[label as usize] };
            let exponentials = exponentials(z, max);

            let log_sum = max + exponentials.ln();
            if label == of.ignored {
                z.fill(0.0);
                return [0.0, 0.0, log_sum];
            }
            vectorized(|| z.iter_mut().for_each(|z| *z = *z * (scale / exponentials) - spread));
            z[label as usize] -= (1.0 - of.smoothing) * scale;
            multiply_by_slopes(z, &slopes);
            losses(log_sum, at_label, total / vocabulary as f32, of.smoothing)
        };
        logits.par_chunks_mut(vocabulary).zip(&labels).map(of_row).collect_into_vec(&mut per_row);
    });
    (rows(&per_row), gradient)
}

vectorized_fn! {
    /// Replaces the logits of a row by their gradient, before the label has its part.
    fn gradient(logits: &mut [f32], log_sum: f32, spread: f32, scale: f32) {
        logits.iter_mut().for_each(|z| *z = (exp(*z - log_sum) - spread) * scale);
    }
}

/// Returns the logits of a row, bounded if there is a bound.
fn bounded(z: &[f32], cap: Option<f32>) -> Cow<'_, [f32]> {
    let mut z = Cow::Borrowed(z);
    if cap.is_some() {
        bound(z.to_mut(), cap);
    }
    z
}

/// Returns the loss with and without smoothing, and the logarithm of the sum of exponentials.
fn losses(log_sum: f32, at_label: f32, mean: f32, smoothing: f32) -> [f32; 3] {
    [log_sum - (1.0 - smoothing) * at_label - smoothing * mean, log_sum - at_label, log_sum]
}

/// Lays out what each row has as `[3, rows]`.
fn rows(per_row: &[[f32; 3]]) -> FlexTensor {
    let part = |i: usize| per_row.iter().map(move |row| row[i]);
    let values: Vec<f32> = part(0).chain(part(1)).chain(part(2)).collect();
    tensor(values, [3, per_row.len()], DType::F32)
}
