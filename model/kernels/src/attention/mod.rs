//! Scaled dot-product attention over heads (Vaswani et al. 2017, section 3.2), reading queries, keys and values in the
//! layout that their projection wrote.

mod reference;
#[cfg(test)]
mod tests;

use burn::tensor::{Int, Tensor};

/// What the input projections wrote.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "made and taken apart once a call; a box would cost more")]
pub enum Projected {
    /// One product gave queries, keys and values: `[B * T, 3 * D]`, columns `q | k | v`, heads side by side in each.
    SelfAttention {
        /// `[B * T, 3 * D]`
        qkv: Tensor<2>,
    },
    /// Queries look at another sequence (an encoder's output, or the keys and values of earlier steps).
    Cross {
        /// `[B * T, D]`
        query: Tensor<2>,
        /// `[B * S, 2 * D]`, columns `k | v`
        key_value: Tensor<2>,
    },
}

/// How attention is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionConfig {
    /// B: rows are `B * T`, batch outermost.
    pub batch_size: usize,
    /// H: D is split into this many heads.
    pub n_heads: usize,
    /// Query t sees keys up to `t + S - T` only (aligned at the end, so that cached decoding sees its past).
    pub causal: bool,
}

/// `softmax(q kᵀ / sqrt(K)) v` per head, softmax in f32.
///
/// `key_lengths` says how many keys of each batch row are real (right padding); the rest is not looked at. A row needs
/// at least one key. Rows of the result that belong to padded queries are finite and mean nothing.
///
/// # Shapes
/// - `projected`: see [`Projected`]
/// - `key_lengths`: `[B]`
/// - result: `[B * T, D]`
///
/// # Panics
/// If rows are not a multiple of `batch_size` or D not of `n_heads`.
pub fn attention(projected: Projected, key_lengths: Option<Tensor<1, Int>>, config: &AttentionConfig) -> Tensor<2> {
    reference::attention(projected, key_lengths, config)
}
