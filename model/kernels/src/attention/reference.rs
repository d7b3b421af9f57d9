//! Attention in plain Burn operations. Scores of size T x S are in memory and saved for backward.

use burn::tensor::{Bool, DType, Int, Tensor};

use super::{AttentionConfig, Projected};
use crate::linear::batched_product;

/// Finite, so that a row without keys stays a number; its exponential is zero in f32.
const MASKED: f64 = -1e30;

pub(crate) fn attention(
    projected: Projected,
    key_lengths: Option<Tensor<1, Int>>,
    config: &AttentionConfig,
) -> Tensor<2> {
    let AttentionConfig { batch_size: b, n_heads: h, causal } = *config;
    let (query, key, value) = split_heads(projected, b, h);
    let [_, t, k] = query.dims();
    let [_, s, _] = key.dims();
    let dtype = query.dtype();
    let device = query.device();

    // [B * H, T, S]; the scale goes into the small operand.
    let scores = batched_product(query * (k as f64).powf(-0.5), key.swap_dims(1, 2)).cast(DType::F32);
    let mut scores = scores.reshape([b, h, t, s]);
    if let Some(lengths) = key_lengths {
        let position = Tensor::<1, Int>::arange(0..s as i64, &device).reshape([1, s]);
        let masked: Tensor<2, Bool> = position.greater_equal(lengths.reshape([b, 1]));
        scores = scores.mask_fill(masked.reshape([b, 1, 1, s]).expand([b, h, t, s]), MASKED);
    }
    if causal && t > 1 {
        let rows = Tensor::<1, Int>::arange((s - t) as i64..s as i64, &device).reshape([t, 1]);
        let columns = Tensor::<1, Int>::arange(0..s as i64, &device).reshape([1, s]);
        let masked: Tensor<2, Bool> = columns.greater(rows);
        scores = scores.mask_fill(masked.reshape([1, 1, t, s]).expand([b, h, t, s]), MASKED);
    }
    let scores = scores.reshape([b * h, t, s]);
    let exp = (scores.clone() - scores.detach().max_dim(2)).exp();
    let probabilities = exp.clone() / exp.sum_dim(2);
    batched_product(probabilities.cast(dtype), value).reshape([b, h, t, k]).swap_dims(1, 2).reshape([b * t, h * k])
}

/// Queries, keys and values, each `[B * H, length, K]`.
fn split_heads(projected: Projected, b: usize, h: usize) -> (Tensor<3>, Tensor<3>, Tensor<3>) {
    let heads = |x: Tensor<2>| {
        let [rows, d] = x.dims();
        assert!(rows % b == 0 && d % h == 0, "[{rows}, {d}] does not split into {b} batch rows and {h} heads");
        x.reshape([b, rows / b, h, d / h]).swap_dims(1, 2).reshape([b * h, rows / b, d / h])
    };
    match projected {
        Projected::SelfAttention { qkv } => {
            let d = qkv.dims()[1] / 3;
            let part = |i: usize| heads(qkv.clone().narrow(1, i * d, d));
            (part(0), part(1), part(2))
        }
        Projected::Cross { query, key_value } => {
            let d = key_value.dims()[1] / 2;
            let part = |i: usize| heads(key_value.clone().narrow(1, i * d, d));
            (heads(query), part(0), part(1))
        }
    }
}
