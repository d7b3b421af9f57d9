//! Normalization on the CPU: rows in parallel, parameter gradients summed block by block in a fixed order.

use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape};
use burn_flex::{Flex, FlexTensor};
use rayon::prelude::*;

use super::ops::{Addend, Kind, NormOps, Remainder};
use crate::dropout::Mask;
use crate::host::{floats, tensor};
use crate::linear::LinearOps;
use crate::maybe::Maybe;

/// Rows whose parameter gradients one thread sums. It is fixed, so that sums do not depend on the number of threads.
const BLOCK_ROWS: usize = 64;

impl NormOps for Flex {
    fn add_norm_with_statistics(
        x: FlexTensor,
        branch: Addend<Self>,
        bias: Maybe<Self>,
        drop: Mask<Self>,
        gamma: FlexTensor,
        beta: Maybe<Self>,
        kind: Kind,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let (shape, dtype) = (x.layout().shape().to_vec(), x.dtype());
        let Remainder { mut sum, branch, bias } = branch.multiplied(x, bias, &drop);
        if let Some(branch) = branch {
            let branch = match bias {
                Some(bias) => Self::float_add(branch, Self::float_reshape(bias, Shape::new([1, shape[1]]))),
                None => branch,
            };
            sum = Self::float_add(sum, drop.apply(branch));
        }

        let (values, gamma) = (floats(sum.clone()), floats(gamma));
        let d = gamma.len();
        let beta = if let Maybe::Some(beta) = beta { floats(beta) } else { vec![0.0; d] };

        let mut y = vec![0f32; values.len()];
        let rows: Vec<[f32; 2]> = values.par_chunks(d).with_min_len(BLOCK_ROWS).map(|x| statistics(x, kind)).collect();
        let blocks = y.par_chunks_mut(BLOCK_ROWS * d).zip(values.par_chunks(BLOCK_ROWS * d));
        blocks.zip(rows.par_chunks(BLOCK_ROWS)).for_each(|((y, x), rows)| {
            for ((y, x), &[mean, inverse]) in y.chunks_mut(d).zip(x.chunks(d)).zip(rows) {
                for j in 0..d {
                    y[j] = (x[j] - mean) * inverse * gamma[j] + beta[j];
                }
            }
        });

        let statistics = tensor(rows.concat(), [rows.len(), 2], DType::F32);
        (sum, tensor(y, shape, dtype), statistics)
    }

    fn add_norm_backward(
        sum: FlexTensor,
        statistics: FlexTensor,
        gamma: FlexTensor,
        dy: FlexTensor,
        dsum: Maybe<Self>,
        drop: Mask<Self>,
        kind: Kind,
    ) -> (FlexTensor, FlexTensor, FlexTensor, FlexTensor, FlexTensor) {
        let (shape, dtype) = (sum.layout().shape().to_vec(), sum.dtype());
        let (x, statistics, gamma, dy) = (floats(sum), floats(statistics), floats(gamma), floats(dy));
        let d = gamma.len();
        let block = BLOCK_ROWS * d;

        let mut dx = if let Maybe::Some(dsum) = dsum { floats(dsum) } else { vec![0f32; x.len()] };
        let partial: Vec<(Vec<f32>, Vec<f32>)> = dx
            .par_chunks_mut(block)
            .zip(x.par_chunks(block).zip(dy.par_chunks(block)))
            .zip(statistics.par_chunks(2 * BLOCK_ROWS))
            .map(|((dx, (x, dy)), rows)| {
                let (mut dgamma, mut dbeta) = (vec![0f32; d], vec![0f32; d]);
                let rows = rows.chunks(2).map(|row| [row[0], row[1]]);
                for (((dx, x), dy), row) in dx.chunks_mut(d).zip(x.chunks(d)).zip(dy.chunks(d)).zip(rows) {
                    backward_row(dx, x, row, dy, &gamma, [&mut dgamma, &mut dbeta], kind);
                }
                (dgamma, dbeta)
            })
            .collect();

        let (mut dgamma, mut dbeta) = (vec![0f32; d], vec![0f32; d]);
        for (block_dgamma, block_dbeta) in partial {
            for j in 0..d {
                dgamma[j] += block_dgamma[j];
                dbeta[j] += block_dbeta[j];
            }
        }

        let dx = tensor(dx, shape, DType::F32);
        let dbranch = drop.apply(dx.clone());
        let [dgamma, dbeta] = [dgamma, dbeta].map(|sums| tensor(sums, [d], DType::F32));
        let dbias = if kind.bias { Self::column_sum(dbranch.clone()) } else { dbeta.clone() };
        let rounded = |x| Self::float_cast(x, dtype.into());
        (rounded(dx), rounded(dbranch), rounded(dgamma), rounded(dbeta), rounded(dbias))
    }
}

/// Adds a row's gradient to `dx`: with `n = (x - mean) * inverse` and `g = dy * gamma`, it is
/// `inverse * (g - mean(g) - n * mean(g * n))`, without the middle term if the mean is not subtracted.
fn backward_row(
    dx: &mut [f32],
    x: &[f32],
    [mean, inverse]: [f32; 2],
    dy: &[f32],
    gamma: &[f32],
    [dgamma, dbeta]: [&mut [f32]; 2],
    kind: Kind,
) {
    let d = x.len();
    let (mut sum, mut sum_product) = (0f64, 0f64);
    for j in 0..d {
        let normalized = (x[j] - mean) * inverse;
        let g = dy[j] * gamma[j];
        sum += f64::from(g);
        sum_product += f64::from(g * normalized);
        dgamma[j] += dy[j] * normalized;
        dbeta[j] += dy[j];
    }

    let mean_g = if kind.centered { (sum / d as f64) as f32 } else { 0.0 };
    let mean_product = (sum_product / d as f64) as f32;
    for j in 0..d {
        let normalized = (x[j] - mean) * inverse;
        dx[j] += inverse * (dy[j] * gamma[j] - mean_g - normalized * mean_product);
    }
}

/// Returns the mean (0 without centering), and the inverse root of the remaining mean square plus `eps`. Sums are f64:
/// a sequential sum of thousands of f32 would lose digits.
fn statistics(x: &[f32], kind: Kind) -> [f32; 2] {
    let n = x.len() as f64;
    let in_f64 = || x.iter().map(|&x| f64::from(x));
    let mean = if kind.centered { in_f64().sum::<f64>() / n } else { 0.0 };
    let square = in_f64().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
    [mean as f32, (square + f64::from(kind.eps)).sqrt().recip() as f32]
}
