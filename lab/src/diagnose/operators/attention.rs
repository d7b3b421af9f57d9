//! Attention, forward and backward.

use anyhow::Result;
use kiln_kernels::{AttentionConfig, AttentionMask, Projected, attention};
use kiln_model::Batch;

use super::alone::Alone;
use super::bench::Pass;
use super::calls::Calls;
use super::timing::Timed;

/// Which keys a query sees, as the work of a call says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mask {
    /// All, but for padding.
    All,
    /// The ones before it.
    Causal,
    /// So many before it.
    Window(usize),
}

impl Mask {
    /// The end of a row's name.
    pub(super) fn in_words(self) -> String {
        match self {
            Self::All => String::new(),
            Self::Causal => ", causal".into(),
            Self::Window(keys) => format!(", window of {keys}"),
        }
    }
}

impl Alone<'_> {
    /// Times attention with B, H, T, S and K. Over as many keys as queries, attention to another sequence takes as long as attention to
    /// the own one.
    pub(super) fn attention(&self, calls: &Calls, sizes: [usize; 5], pass: Pass) -> Result<Timed> {
        let (bench, [b, h, t, s, k], mask) = (self.bench, sizes, self.mask_of(calls, sizes));
        // Queries, keys, values and the result are moved once; backward moves each of them and its gradient.
        let moved = if pass == Pass::Forward { 1 } else { 2 };
        let n_kv_heads = (self.passes(calls, moved * b * k).saturating_sub(2 * t * h) / (2 * s)).clamp(1, h);
        let (width, keys_width) = (h * k, n_kv_heads * k);
        let leaves = match t == s {
            // The second is not used.
            true => [bench.leaf([b * t, width + 2 * keys_width]), bench.leaf([1, 1])],
            false => [bench.leaf([b * t, width]), bench.leaf([b * s, 2 * keys_width])],
        };

        let (causal, window) = match mask {
            Mask::All => (false, None),
            Mask::Causal => (true, None),
            Mask::Window(keys) => (true, Some(keys)),
        };
        let lengths = match self.batch {
            Batch::Pairs(batch) if !causal => Some(batch.source_lengths.clone()),
            _ => None,
        };
        let hidden = lengths.map_or_else(AttentionMask::default, AttentionMask::key_lengths);
        let softcap = self.shape.score_softcap();
        let config = AttentionConfig { batch_size: b, n_heads: h, n_kv_heads, causal, window, scale: None, softcap };
        let drop = bench.dropout(self.shape.attention_dropout);

        bench.pass(pass, [b * t, width], || {
            let [first, second] = leaves.clone();
            let projected = match t == s {
                true => Projected::SelfAttention { qkv: first },
                false => Projected::Cross { query: first, key_value: second },
            };
            attention(projected, &hidden, drop, &config)
        })
    }

    /// Returns the mask of a call: its operations are a count of the pairs that see each other.
    pub(super) fn mask_of(&self, calls: &Calls, [b, h, t, s, k]: [usize; 5]) -> Mask {
        let products = if calls.operator == "attention forward" { 2.0 } else { 5.0 };
        let pairs = calls.work.flops / (2.0 * products * (b * h * k) as f64);
        match pairs / (t * s) as f64 {
            0.75.. => Mask::All,
            0.5.. => Mask::Causal,
            _ => Mask::Window((pairs / t as f64).round() as usize),
        }
    }
}
