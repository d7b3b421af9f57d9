//! Norms of heads on the CPU: rows in parallel, gradients of the scales summed block by block in a fixed order.

use burn_flex::{Flex, FlexTensor};
use rayon::prelude::*;

use super::ops::{HeadNormOps, HeadNorms};
use crate::calls;
use crate::host::vector::{add, dot, sum_of_squares, vectorized_fn};
use crate::host::{floats, tensor, view};

/// Rows whose gradients of the scales one thread sums. It is fixed, so that sums do not depend on the number of threads.
const BLOCK_ROWS: usize = 64;

impl HeadNormOps for Flex {
    fn norm_heads(qkv: FlexTensor, query_gamma: FlexTensor, key_gamma: FlexTensor, spec: HeadNorms) -> FlexTensor {
        let _call = calls::begin(|| calls::of_passes("norm of heads forward", &qkv, 2));
        let (shape, dtype) = (qkv.layout().shape().clone(), qkv.dtype());
        let (mut x, gammas) = (floats(qkv), [floats(query_gamma), floats(key_gamma)]);
        x.par_chunks_mut(shape[1].max(1)).for_each(|row| {
            for (head, values) in row.chunks_mut(spec.head_dim).enumerate() {
                if let Some(of) = spec.scale_of(head) {
                    norm(values, &gammas[of], spec.eps);
                }
            }
        });
        tensor(x, shape, dtype)
    }

    fn norm_heads_backward(
        qkv: FlexTensor,
        query_gamma: FlexTensor,
        key_gamma: FlexTensor,
        dy: FlexTensor,
        spec: HeadNorms,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let _call = calls::begin(|| calls::of_passes("norm of heads backward", &qkv, 3));
        let (shape, dtype, k) = (qkv.layout().shape().clone(), qkv.dtype(), spec.head_dim);
        let (x, gammas, mut dx) = (view(&qkv), [floats(query_gamma), floats(key_gamma)], floats(dy));
        let block = (BLOCK_ROWS * shape[1]).max(1);
        let partial: Vec<[Vec<f32>; 2]> = dx
            .par_chunks_mut(block)
            .zip(x.par_chunks(block))
            .map(|(dx, x)| {
                let mut sums = [vec![0f32; k], vec![0f32; k]];
                for (at, (dx, x)) in dx.chunks_mut(k).zip(x.chunks(k)).enumerate() {
                    if let Some(of) = spec.scale_of(at % (shape[1] / k)) {
                        norm_backward(dx, [x, &gammas[of]], &mut sums[of], spec.eps);
                    }
                }
                sums
            })
            .collect();

        let mut total = [vec![0f32; k], vec![0f32; k]];
        for sums in partial {
            total.iter_mut().zip(&sums).for_each(|(total, sums)| add(total, sums));
        }
        let rounded = |x: Vec<f32>| tensor(x, [k], dtype);
        let [d_query, d_key] = total.map(rounded);
        (tensor(dx, shape, dtype), d_query, d_key)
    }
}

impl HeadNorms {
    /// Returns which scale a head of a row has: 0 for queries, 1 for keys.
    fn scale_of(&self, head: usize) -> Option<usize> {
        match head {
            _ if head < self.n_query_heads => Some(0),
            _ if head < self.n_query_heads + self.n_key_heads => Some(1),
            _ => None,
        }
    }
}

vectorized_fn! {
    fn norm(x: &mut [f32], gamma: &[f32], eps: f32) {
        let inverse = (sum_of_squares(x, 0.0) / x.len() as f32 + eps).sqrt().recip();
        x.iter_mut().zip(gamma).for_each(|(x, gamma)| *x *= inverse * gamma);
    }

    /// Replaces a head's gradient `dy` by its input's, `r * (g - n * mean(g * n))` with `n = x * r` and `g = dy * gamma`, and adds
    /// its part of the scale's gradient to `sums`. `inputs` are `x` and `gamma`.
    fn norm_backward(dy: &mut [f32], inputs: [&[f32]; 2], sums: &mut [f32], eps: f32) {
        let [x, gamma] = inputs;
        let n = x.len() as f32;
        let inverse = (sum_of_squares(x, 0.0) / n + eps).sqrt().recip();
        sums.iter_mut().zip(dy.iter().zip(x)).for_each(|(sum, (dy, x))| *sum += dy * x * inverse);
        dy.iter_mut().zip(gamma).for_each(|(dy, gamma)| *dy *= gamma);
        let shared = dot(dy, x) * inverse * inverse / n;
        dy.iter_mut().zip(x).for_each(|(g, x)| *g = inverse * (*g - x * shared));
    }
}
