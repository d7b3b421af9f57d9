//! Normalization on the CPU: rows in parallel, parameter gradients summed block by block in a fixed order.

use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape};
use burn_flex::{Flex, FlexTensor};
use rayon::prelude::*;

use super::ops::{Addend, Kind, NormOps, Remainder, record_backward, record_forward};
use crate::dropout::Mask;
use crate::host::vector::{add, dot, sum, sum_of_squares, vectorized, vectorized_fn};
use crate::host::{floats, owned, tensor, view, written};
use crate::linear::LinearOps;
use crate::maybe::Maybe;

/// Rows whose parameter gradients one thread sums. It is fixed, so that sums do not depend on the number of threads.
const BLOCK_ROWS: usize = 64;
/// Rows that one thread normalizes at a time.
const ROWS: usize = 16;

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
        let Remainder { mut sum, branch, bias } = branch.multiplied(x, bias, &drop, kind.product);
        let _call = record_forward(&sum, branch.is_some());
        if let Some(branch) = branch {
            let branch = match bias {
                Some(bias) => Self::float_add(branch, Self::float_reshape(bias, Shape::new([1, shape[1]]))),
                None => branch,
            };
            sum = Self::float_add(sum, drop.apply(branch));
        }

        let (values, gamma) = (view(&sum), floats(gamma));
        let d = gamma.len();
        let beta = if let Maybe::Some(beta) = beta { floats(beta) } else { vec![0.0; d] };

        let statistics = |x| statistics(x, kind);
        let rows: Vec<[f32; 2]> = values.par_chunks(d).with_min_len(ROWS).map(statistics).collect();
        let y = written(values.len(), ROWS * d, |i, y| {
            let x = &values[i * ROWS * d..];
            vectorized(|| {
                for ((y, x), &[mean, inverse]) in y.chunks_mut(d).zip(x.chunks(d)).zip(&rows[i * ROWS..]) {
                    let parameters = gamma.iter().zip(&beta);
                    for ((y, x), (gamma, beta)) in y.iter_mut().zip(x).zip(parameters) {
                        *y = (x - mean) * inverse * gamma + beta;
                    }
                }
            });
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
        let _call = record_backward(&sum, matches!(dsum, Maybe::Some(_)), matches!(drop, Mask::Some { .. }));
        let (shape, dtype) = (sum.layout().shape().to_vec(), sum.dtype());
        let (x, statistics, gamma, dy) = (view(&sum), view(&statistics), view(&gamma), view(&dy));
        let d = gamma.len();
        let block = BLOCK_ROWS * d;

        let zeros = || tensor(written(x.len(), block, |_, _| ()), shape.clone(), DType::F32);
        let mut dx = if let Maybe::Some(dsum) = dsum { owned(dsum) } else { zeros() };
        let partial: Vec<(Vec<f32>, Vec<f32>)> = dx
            .storage_mut::<f32>()
            .par_chunks_mut(block)
            .zip(x.par_chunks(block).zip(dy.par_chunks(block)))
            .zip(statistics.par_chunks(2 * BLOCK_ROWS))
            .map(|((dx, (x, dy)), rows)| {
                let mut sums = (vec![0f32; d], vec![0f32; d]);
                let mut scratch = [vec![0f32; d], vec![0f32; d]];
                let rows = rows.chunks(2).map(|row| [row[0], row[1]]);
                for (((dx, x), dy), row) in dx.chunks_mut(d).zip(x.chunks(d)).zip(dy.chunks(d)).zip(rows) {
                    let sums = [&mut sums.0, &mut sums.1].map(Vec::as_mut_slice);
                    backward_row(dx, [x, dy, &gamma], row, &mut scratch, sums, kind);
                }
                sums
            })
            .collect();

        let (mut dgamma, mut dbeta) = (vec![0f32; d], vec![0f32; d]);
        for (block_dgamma, block_dbeta) in partial {
            add(&mut dgamma, &block_dgamma);
            add(&mut dbeta, &block_dbeta);
        }

        let dbranch = drop.apply(dx.clone());
        let [dgamma, dbeta] = [dgamma, dbeta].map(|sums| tensor(sums, [d], DType::F32));
        let dbias = if kind.bias { Self::column_sum(dbranch.clone()) } else { dbeta.clone() };
        let rounded = |x| Self::float_cast(x, dtype.into());
        (rounded(dx), rounded(dbranch), rounded(dgamma), rounded(dbeta), rounded(dbias))
    }
}

vectorized_fn! {
    /// Adds a row's gradient to `dx`: `inverse * (g - mean(g) - n * mean(g * n))`, without the middle term if the mean is not
    /// subtracted, where `n = (x - mean) * inverse` and `g = dy * gamma`. Adds its part of the parameters' gradients to the sums.
    /// `inputs` are `x`, `dy` and `gamma`.
    fn backward_row(
        dx: &mut [f32],
        inputs: [&[f32]; 3],
        statistics: [f32; 2],
        scratch: &mut [Vec<f32>; 2],
        sums: [&mut [f32]; 2],
        kind: Kind,
    ) {
        let ([x, dy, gamma], [mean, inverse], [n, g], [dgamma, dbeta]) = (inputs, statistics, scratch, sums);
        n.iter_mut().zip(x).for_each(|(n, x)| *n = (x - mean) * inverse);
        g.iter_mut().zip(dy.iter().zip(gamma)).for_each(|(g, (dy, gamma))| *g = dy * gamma);
        let d = dy.len() as f32;
        let mean_g = if kind.centered { sum(g) / d } else { 0.0 };
        let mean_product = dot(g, n) / d;

        let of_row = n.iter().zip(dy);
        for ((dgamma, dbeta), (n, dy)) in dgamma.iter_mut().zip(dbeta).zip(of_row) {
            *dgamma += dy * n;
            *dbeta += dy;
        }
        for (dx, (n, g)) in dx.iter_mut().zip(n.iter().zip(g.iter())) {
            *dx += inverse * (g - mean_g - n * mean_product);
        }
    }

    /// Returns the mean (0 without centering), and the inverse root of the remaining mean square plus `eps`.
    fn statistics(x: &[f32], kind: Kind) -> [f32; 2] {
        let n = x.len() as f32;
        let mean = if kind.centered { sum(x) / n } else { 0.0 };
        let square = sum_of_squares(x, mean) / n;
        [mean, (square + kind.eps).sqrt().recip()]
    }
}
