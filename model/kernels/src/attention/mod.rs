//! Scaled dot-product attention over heads (Vaswani et al. 2017, section 3.2). It reads queries, keys and values in the
//! layout that their projection wrote.

mod autodiff;
mod cpu;
#[cfg(feature = "cuda")]
mod gpu;
mod ops;
mod reference;
#[cfg(test)]
mod tests;
mod visible;

use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{DType, Device, Int, IntDType, Tensor};
#[cfg(all(test, feature = "cuda"))]
pub(crate) use gpu::tests::offline_kernels;

use ops::{FlashOps, FlashSpec};

use crate::dropout::DropoutStream;
use crate::kernel_set::F32Products;
use crate::maybe::{Maybe, MaybeInts};
use crate::retained;
use crate::settings::runs_plain;

/// Queries, keys and values as the input projections wrote them.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "built and destructured once per call; a box would cost more")]
pub enum Projected {
    /// One product gave queries, keys and values: `[B * T, (H + 2 * G) * K]`, columns `q | k | v`, heads side by side
    /// in each.
    SelfAttention {
        /// `[B * T, (H + 2 * G) * K]`
        qkv: Tensor<2>,
    },
    /// Queries attend to another sequence (an encoder's output, or the keys and values of earlier steps).
    Cross {
        /// `[B * T, H * K]`
        query: Tensor<2>,
        /// `[B * S, 2 * G * K]`, columns `k | v`
        key_value: Tensor<2>,
    },
}

/// The shape of attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionConfig {
    /// B: rows are `B * T`, batch outermost.
    pub batch_size: usize,
    /// H: heads of the queries.
    pub n_heads: usize,
    /// G: heads of the keys and values, a divisor of H. Each serves H / G adjacent heads of queries (grouped queries,
    /// Ainslie et al. 2023). H if every head has keys of its own.
    pub n_kv_heads: usize,
    /// Query t sees only keys up to `t + S - T`: the sequences are aligned at the end, so that cached decoding sees its
    /// past.
    pub causal: bool,
    /// A query sees at most this many of the keys that it would see otherwise: the last ones (sliding window, Beltagy et al.
    /// 2020). At least 1. `None`: all.
    pub window: Option<usize>,
    /// What products of queries and keys are multiplied by. `None`: `1 / sqrt(K)`.
    pub scale: Option<f64>,
    /// A bound `c` of the scores, which become `c * tanh(score / c)` before the softmax (Gemma 2). Above 0. `None`: none.
    pub softcap: Option<f64>,
}

/// Keys that a query does not see, in addition to causality, and keys that it favours.
#[derive(Debug, Clone, Default)]
pub struct AttentionMask {
    /// `[B]`: the number of non-padding keys of each batch row (right padding), at least one. `None`: all keys.
    pub key_lengths: Option<Tensor<1, Int>>,
    /// `[B * T]`: the document of each position, non-decreasing along a row. A query sees only its own document (packed
    /// rows). For self-attention only.
    pub documents: Option<Tensor<1, Int>>,
    /// Numbers of relative positions, which are added to the scores: `[H, T + S - 1]` in any float type, by ascending `key - query`. For
    /// self-attention only. With bounded scores, attention runs its reference.
    pub relative: Option<Tensor<2>>,
    /// Added to the scores, `[1 or B, H, T, S]` in any float type. No kernel adds them: attention runs its reference.
    pub bias: Option<Tensor<4>>,
}

impl AttentionMask {
    /// Masks right padding only.
    pub fn key_lengths(lengths: Tensor<1, Int>) -> Self {
        Self { key_lengths: Some(lengths), ..Self::default() }
    }
}

/// Returns whether [`attention`] has a kernel for this dtype and head dimension on `device`, as it has on every CPU. Otherwise
/// it runs its reference, whose products and softmax come from the backend and are autotuned on a GPU.
pub fn attention_is_fused(device: &Device, dtype: DType, head_dim: usize) -> bool {
    if runs_plain(device) {
        return false;
    }
    if device.clone().inner() == Device::flex() {
        return true;
    }
    #[cfg(feature = "cuda")]
    return gpu::serves(device, dtype, head_dim);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (dtype, head_dim);
        false
    }
}

/// Returns whether [`attention`] with relative positions has a kernel.
pub fn relative_attention_is_fused(device: &Device, dtype: DType, head_dim: usize) -> bool {
    if !attention_is_fused(device, dtype, head_dim) || device.clone().inner() == Device::flex() {
        return attention_is_fused(device, dtype, head_dim);
    }
    #[cfg(feature = "cuda")]
    return gpu::serves_relative(device, dtype, head_dim);
    #[cfg(not(feature = "cuda"))]
    false
}

/// Computes `dropout(softmax(q kᵀ / sqrt(K))) v` per head, with the softmax in f32.
///
/// `dropout` is the probability of dropping a weight of the softmax, and the source of the random numbers. Rows of the
/// result that belong to padded queries are finite but undefined.
///
/// # Shapes
/// - `projected`: see [`Projected`]
/// - result: `[B * T, H * K]`
///
/// # Panics
/// If the window is 0, or packed rows have one without `causal`, if the bound of the scores is not above 0, if the rows are not a multiple of `batch_size`, the columns do not match the heads, `n_heads` is not a multiple of
/// `n_kv_heads`, or documents or relative positions are given for attention to another sequence.
pub fn attention(
    projected: Projected,
    mask: &AttentionMask,
    dropout: Option<(f64, &DropoutStream)>,
    config: &AttentionConfig,
) -> Tensor<2> {
    let AttentionConfig { batch_size, n_heads, n_kv_heads, .. } = *config;
    assert!(n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads), "{n_heads} heads in {n_kv_heads} groups");
    if let Some(lengths) = &mask.key_lengths {
        assert_eq!(lengths.dims(), [batch_size], "one key length per batch row");
    }
    if let Some(documents) = &mask.documents {
        let Projected::SelfAttention { qkv } = &projected else {
            panic!("documents need self-attention");
        };
        assert_eq!(documents.dims(), [qkv.dims()[0]], "one document number per position");
    }

    if let Some(relative) = &mask.relative {
        let Projected::SelfAttention { qkv } = &projected else {
            panic!("relative positions need self-attention");
        };
        let t = qkv.dims()[0] / batch_size;
        assert_eq!(relative.dims(), [n_heads, 2 * t - 1], "a number per head and distance");
    }

    assert!(config.window != Some(0), "a window of 0 keys hides all of them");
    let cut = config.window.is_some() && !config.causal && mask.documents.is_some();
    assert!(!cut, "a window in packed rows needs causal attention");
    assert!(config.softcap.is_none_or(|cap| cap > 0.0), "scores are bounded by a number above 0");

    let (x, heads, n_keys) = match &projected {
        Projected::SelfAttention { qkv } => (qkv, n_heads + 2 * n_kv_heads, qkv.dims()[0] / batch_size),
        Projected::Cross { query, key_value } => (query, n_heads, key_value.dims()[0] / batch_size),
    };
    // A window as long as the keys hides none.
    let config = AttentionConfig { window: config.window.filter(|window| *window < n_keys), ..*config };
    let (device, dtype, head_dim) = (x.device(), x.dtype(), x.dims()[1] / heads);
    let is_fused = match &mask.relative {
        Some(_) => config.softcap.is_none() && relative_attention_is_fused(&device, dtype, head_dim),
        None => attention_is_fused(&device, dtype, head_dim),
    };
    if is_fused && mask.bias.is_none() {
        return flash(projected, mask, dropout, &config);
    }
    reference::attention(projected, mask, dropout, &config)
}

fn flash(
    projected: Projected,
    mask: &AttentionMask,
    dropout: Option<(f64, &DropoutStream)>,
    config: &AttentionConfig,
) -> Tensor<2> {
    let given = |tensor: Option<&Tensor<1, Int>>| {
        MaybeInts::from(tensor.map(|tensor| tensor.clone().cast(IntDType::I32).into_dispatch()))
    };
    let AttentionConfig { batch_size, n_heads, n_kv_heads, causal, window, .. } = *config;
    let (site, random) = match dropout {
        Some((_, stream)) => {
            let (site, state) = stream.take();
            (site, Some(state))
        }
        None => (0, None),
    };
    let p = dropout.map_or(0.0, |(p, _)| p as f32);

    let spec = |head_dim| FlashSpec {
        batch_size,
        n_heads,
        n_kv_heads,
        head_dim,
        causal,
        window,
        scale: config.scale.map_or_else(|| (head_dim as f32).sqrt().recip(), |scale| scale as f32),
        softcap: config.softcap.map(|cap| cap as f32),
        site,
        dropout: p,
        f32_products: F32Products::current(),
    };
    let lengths = given(mask.key_lengths.as_ref());

    let (random, known) = (given(random), retained::reused());
    let out = match projected {
        Projected::SelfAttention { qkv } => {
            let spec = spec(qkv.dims()[1] / (n_heads + 2 * n_kv_heads));
            let (qkv, documents) = (qkv.into_dispatch(), given(mask.documents.as_ref()));
            let relative = mask.relative.clone().map(|numbers| numbers.cast(DType::F32).into_dispatch());
            let relative = Maybe::from(relative);
            match known {
                Some([out, lse]) => Dispatch::known_self(qkv, out, lse, relative, lengths, documents, random, spec),
                None => kept(Dispatch::flash_self(qkv, relative, lengths, documents, random, spec)),
            }
        }
        Projected::Cross { query, key_value } => {
            let spec = spec(query.dims()[1] / n_heads);
            let (query, key_value) = (query.into_dispatch(), key_value.into_dispatch());
            match known {
                Some([out, lse]) => Dispatch::known_cross(query, key_value, out, lse, lengths, random, spec),
                None => kept(Dispatch::flash_cross(query, key_value, lengths, random, spec)),
            }
        }
    };
    Tensor::from_dispatch(out)
}

fn kept((out, lse): (DispatchTensor, DispatchTensor)) -> DispatchTensor {
    retained::keep([&out, &lse]);
    out
}
