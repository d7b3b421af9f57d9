//! Cross-entropy on the CPU: rows in parallel.

use burn::tensor::DType;
use burn_flex::{Flex, FlexTensor};
use rayon::prelude::*;

use super::ops::CrossEntropyOps;
use crate::host::vector::{exp, log_sum_exp, sum, vectorized};
use crate::host::{change, ints, tensor, view};

impl CrossEntropyOps for Flex {
    fn cross_entropy_rows(logits: FlexTensor, labels: FlexTensor, smoothing: f32, ignored: i32) -> FlexTensor {
        let vocabulary = logits.layout().shape()[1];
        let (logits, labels) = (view(&logits), ints(labels));
        let per_row: Vec<[f32; 3]> = logits
            .par_chunks(vocabulary)
            .zip(&labels)
            .map(|(z, &label)| {
                let (log_sum, total) = vectorized(|| (log_sum_exp(z), sum(z)));
                if label == ignored {
                    return [0.0, 0.0, log_sum];
                }
                let mean = total / vocabulary as f32;
                let at_label = z[label as usize];
                [log_sum - (1.0 - smoothing) * at_label - smoothing * mean, log_sum - at_label, log_sum]
            })
            .collect();

        let part = |i: usize| per_row.iter().map(move |row| row[i]);
        let values: Vec<f32> = part(0).chain(part(1)).chain(part(2)).collect();
        tensor(values, [3, labels.len()], DType::F32)
    }

    fn cross_entropy_rows_backward(
        logits: FlexTensor,
        labels: FlexTensor,
        rows: FlexTensor,
        drows: FlexTensor,
        smoothing: f32,
        ignored: i32,
    ) -> FlexTensor {
        let (labels, rows, drows) = (ints(labels), view(&rows), view(&drows));
        let (n, vocabulary) = (labels.len(), logits.layout().shape()[1]);
        let spread = smoothing / vocabulary as f32;

        change(logits, |logits| {
            logits.par_chunks_mut(vocabulary).enumerate().for_each(|(row, z)| {
                if labels[row] == ignored {
                    return z.fill(0.0);
                }
                let (log_sum, scale) = (rows[2 * n + row], drows[row]);
                vectorized(|| z.iter_mut().for_each(|z| *z = (exp(*z - log_sum) - spread) * scale));
                z[labels[row] as usize] -= (1.0 - smoothing) * scale;
            });
        })
    }
}
