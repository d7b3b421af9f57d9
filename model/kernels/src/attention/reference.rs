//! Attention in plain Burn operations. Scores of size T x S are kept in memory for backward.

use burn::tensor::{Bool, DType, Int, Tensor};

use super::{AttentionConfig, AttentionMask, Projected};
use crate::dropout::{DropoutStream, dropout};
use crate::linear::batched_product;

/// A masked score. It is finite, so that a row without keys stays finite; its exponential is 0 in f32.
const MASKED: f64 = -1e30;

/// See [`super::attention`].
pub(crate) fn attention(
    projected: Projected,
    mask: &AttentionMask,
    drop: Option<(f64, &DropoutStream)>,
    config: &AttentionConfig,
) -> Tensor<2> {
    let AttentionConfig { batch_size: b, n_heads: h, causal, window, scale, softcap, .. } = *config;
    let (query, key, value) = split_heads(projected, config);
    let [_, t, k] = query.dims();
    let [_, s, _] = key.dims();
    let dtype = query.dtype();
    let device = query.device();

    // [B * H, T, S]. The scale is applied to the small operand.
    let scale = scale.unwrap_or_else(|| (k as f64).powf(-0.5));
    let scores = batched_product(query * scale, key.swap_dims(1, 2)).cast(DType::F32);
    let mut scores = scores.reshape([b, h, t, s]);
    if let Some(cap) = softcap {
        scores = (scores / cap).tanh() * cap;
    }

    if let Some(bias) = &mask.bias {
        scores = scores + bias.clone().cast(DType::F32);
    }
    if let Some(numbers) = &mask.relative {
        scores = scores + by_distance(numbers.clone().cast(DType::F32), [t, s]);
    }

    if let Some(lengths) = &mask.key_lengths {
        let position = Tensor::<1, Int>::arange(0..s as i64, &device).reshape([1, s]);
        let masked: Tensor<2, Bool> = position.greater_equal(lengths.clone().reshape([b, 1]));
        scores = scores.mask_fill(masked.reshape([b, 1, 1, s]).expand([b, h, t, s]), MASKED);
    }
    if let Some(documents) = &mask.documents {
        let (query, key) = (documents.clone().reshape([b, t, 1]), documents.clone().reshape([b, 1, t]));
        let masked: Tensor<3, Bool> = query.expand([b, t, t]).not_equal(key.expand([b, t, t]));
        scores = scores.mask_fill(masked.reshape([b, 1, t, t]).expand([b, h, t, t]), MASKED);
    }
    if causal && t > 1 {
        let rows = Tensor::<1, Int>::arange((s - t) as i64..s as i64, &device).reshape([t, 1]);
        let columns = Tensor::<1, Int>::arange(0..s as i64, &device).reshape([1, s]);
        let masked: Tensor<2, Bool> = columns.greater(rows);
        scores = scores.mask_fill(masked.reshape([1, 1, t, s]).expand([b, h, t, s]), MASKED);
    }

    if let Some(window) = window {
        let window = window as i64;
        // The first key of a window follows from its end: the query's own position, the last key, or the row's length.
        let columns = Tensor::<1, Int>::arange(0..s as i64, &device).reshape([1, s]);
        let first = if causal {
            (s - t) as i64 + 1 - window..s as i64 + 1 - window
        } else {
            s as i64 - window..s as i64 + 1 - window
        };
        let first = Tensor::<1, Int>::arange(first, &device);
        let n_first = first.dims()[0];
        let masked: Tensor<2, Bool> = columns.clone().lower(first.reshape([n_first, 1]));
        let mut masked = masked.reshape([1, 1, n_first, s]).expand([b, h, t, s]);
        if let Some(lengths) = &mask.key_lengths {
            let before: Tensor<2, Bool> = columns.lower(lengths.clone().reshape([b, 1]) - window);
            masked = masked.bool_and(before.reshape([b, 1, 1, s]).expand([b, h, t, s]));
        }
        scores = scores.mask_fill(masked, MASKED);
    }

    let scores = scores.reshape([b * h, t, s]);
    let exp = (scores.clone() - scores.detach().max_dim(2)).exp();
    let mut probabilities = exp.clone() / exp.sum_dim(2);
    if let Some((p, stream)) = drop {
        let kept = kept(&probabilities, p, stream);
        probabilities = probabilities * kept;
    }

    batched_product(probabilities.cast(dtype), value).reshape([b, h, t, k]).swap_dims(1, 2).reshape([b * t, h * k])
}

/// Returns the number of each query and key, `[1, H, T, S]`, given a number for each distance, `[H, T + S - 1]`.
///
/// A query's numbers are a window of its head's, which begins one place earlier than the window of the query before. With rows of
/// `T + S - 2` places instead of `T + S - 1`, the windows are a column (Huang et al. 2019, Music Transformer).
fn by_distance(numbers: Tensor<2>, [t, s]: [usize; 2]) -> Tensor<4> {
    let [h, n] = numbers.dims();
    if t == 1 {
        return numbers.reshape([1, h, 1, s]);
    }
    let rows = numbers.reshape([h, 1, n]).expand([h, t, n]).reshape([h, t * n]);
    rows.narrow(1, t - 1, t * (n - 1)).reshape([h, t, n - 1]).narrow(2, 0, s).reshape([1, h, t, s])
}

/// Returns 0 or `1 / (1 - p)` for each probability. The random numbers of a row are distributed to its keys in tiles of
/// 64, in the register layout of a matrix product: one Philox block serves keys `c` and `c + 1` of every eight keys.
fn kept(probabilities: &Tensor<3>, p: f64, stream: &DropoutStream) -> Tensor<3> {
    let [heads, t, s] = probabilities.dims();
    let (rows, padded) = (heads * t, s.next_multiple_of(64));
    let ones = Tensor::<2>::ones([rows, padded], (&probabilities.device().inner(), DType::F32));
    // [row and half of a tile, pair of keys, every eight keys, key of the pair]
    let distributed = dropout(ones, p, stream).reshape([rows * padded / 32, 4, 4, 2]).swap_dims(1, 2);
    let kept = distributed.reshape([rows, padded]).narrow(1, 0, s).reshape([heads, t, s]);
    if probabilities.is_autodiff() { Tensor::from_inner(kept) } else { kept }
}

/// Splits into queries, keys and values, each `[B * H, length, K]`. Keys and values are repeated for the queries that
/// share them.
fn split_heads(projected: Projected, config: &AttentionConfig) -> (Tensor<3>, Tensor<3>, Tensor<3>) {
    let AttentionConfig { batch_size: b, n_heads: h, n_kv_heads: g, .. } = *config;
    let heads = |x: Tensor<2>, n: usize| {
        let [rows, columns] = x.dims();
        assert!(
            rows % b == 0 && columns % n == 0,
            "[{rows}, {columns}] does not split into {b} batch rows and {n} heads"
        );
        let (length, k) = (rows / b, columns / n);
        let x = x.reshape([b, length, n, k]).swap_dims(1, 2);
        if n == h {
            return x.reshape([b * h, length, k]);
        }
        x.reshape([b, n, 1, length, k]).expand([b, n, h / n, length, k]).reshape([b * h, length, k])
    };
    match projected {
        Projected::SelfAttention { qkv } => {
            let [_, columns] = qkv.dims();
            assert!(columns.is_multiple_of(h + 2 * g), "{columns} columns are not {h} + 2 * {g} heads");
            let k = columns / (h + 2 * g);
            let part = |first: usize, n: usize| heads(qkv.clone().narrow(1, first * k, n * k), n);
            (part(0, h), part(h, g), part(h + g, g))
        }
        Projected::Cross { query, key_value } => {
            let d = key_value.dims()[1] / 2;
            let part = |i: usize| heads(key_value.clone().narrow(1, i * d, d), g);
            (heads(query, h), part(0), part(1))
        }
    }
}
