//! Layer normalization on the CPU: rows in parallel, parameter gradients summed block by block in a fixed order.

use burn::tensor::{DType, TensorData};
use burn_flex::{Flex, FlexTensor};
use rayon::prelude::*;

use super::ops::NormOps;
use crate::host::floats;

/// Rows whose parameter gradients are summed by one thread; fixed, so that sums do not depend on the number of threads.
const BLOCK_ROWS: usize = 64;

impl NormOps for Flex {
    fn fused_layer_norm(x: FlexTensor, gamma: FlexTensor, beta: FlexTensor, eps: f32) -> FlexTensor {
        let (shape, dtype) = (x.layout().shape().clone(), x.dtype());
        let (x, gamma, beta) = (floats(x), floats(gamma), floats(beta));
        let mut y = vec![0f32; x.len()];
        let d = gamma.len();
        y.par_chunks_mut(BLOCK_ROWS * d).zip(x.par_chunks(BLOCK_ROWS * d)).for_each(|(y, x)| {
            for (y, x) in y.chunks_mut(d).zip(x.chunks(d)) {
                let (mean, inverse) = statistics(x, eps);
                for j in 0..d {
                    y[j] = (x[j] - mean) * inverse * gamma[j] + beta[j];
                }
            }
        });
        tensor(y, shape.to_vec(), dtype)
    }

    fn fused_layer_norm_backward(
        x: FlexTensor,
        gamma: FlexTensor,
        dy: FlexTensor,
        eps: f32,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let (shape, dtype) = (x.layout().shape().clone(), x.dtype());
        let (x, gamma, dy) = (floats(x), floats(gamma), floats(dy));
        let d = gamma.len();
        let block = BLOCK_ROWS * d;
        let mut dx = vec![0f32; x.len()];
        let partial: Vec<(Vec<f32>, Vec<f32>)> = dx
            .par_chunks_mut(block)
            .zip(x.par_chunks(block).zip(dy.par_chunks(block)))
            .map(|(dx, (x, dy))| {
                let (mut dgamma, mut dbeta) = (vec![0f32; d], vec![0f32; d]);
                for ((dx, x), dy) in dx.chunks_mut(d).zip(x.chunks(d)).zip(dy.chunks(d)) {
                    backward_row(dx, x, dy, &gamma, &mut dgamma, &mut dbeta, eps);
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
        (tensor(dx, shape.to_vec(), dtype), tensor(dgamma, vec![d], dtype), tensor(dbeta, vec![d], dtype))
    }
}

/// With `n = (x - mean) * inverse` and `g = dy * gamma`: `dx = inverse * (g - mean(g) - n * mean(g * n))`.
fn backward_row(dx: &mut [f32], x: &[f32], dy: &[f32], gamma: &[f32], dgamma: &mut [f32], dbeta: &mut [f32], eps: f32) {
    let d = x.len();
    let (mean, inverse) = statistics(x, eps);
    let (mut sum, mut sum_product) = (0f32, 0f32);
    for j in 0..d {
        let normalized = (x[j] - mean) * inverse;
        let g = dy[j] * gamma[j];
        sum += g;
        sum_product += g * normalized;
        dgamma[j] += dy[j] * normalized;
        dbeta[j] += dy[j];
    }
    let (mean_g, mean_product) = (sum / d as f32, sum_product / d as f32);
    for j in 0..d {
        let normalized = (x[j] - mean) * inverse;
        dx[j] = inverse * (dy[j] * gamma[j] - mean_g - normalized * mean_product);
    }
}

/// Mean, and one over the root of the variance plus `eps`.
fn statistics(x: &[f32], eps: f32) -> (f32, f32) {
    let n = x.len() as f32;
    let mean = x.iter().sum::<f32>() / n;
    let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n;
    (mean, (variance + eps).sqrt().recip())
}

fn tensor(values: Vec<f32>, shape: Vec<usize>, dtype: DType) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape).convert_dtype(dtype))
}
