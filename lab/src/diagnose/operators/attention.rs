//! Attention, forward and backward.

use anyhow::Result;
use kiln_kernels::{AttentionConfig, AttentionMask, Projected, attention};

use super::bench::Bench;
use super::calls::AttentionCalls;
use super::work::Work;

impl Bench {
    pub(super) fn attention(&mut self, call: &AttentionCalls) -> Result<()> {
        let AttentionCalls { kind, calls, batch_size: b, n_heads: h, lens: [t, s], head_dim: k, .. } = *call;
        let (width, keys_width, is_cross) = (h * k, call.n_kv_heads * k, kind.is_cross());
        let leaves = match is_cross {
            true => [self.leaf([b * t, width]), self.leaf([b * s, 2 * keys_width])],
            // The second is not used.
            false => [self.leaf([b * t, width + 2 * keys_width]), self.leaf([1, 1])],
        };

        let mask = call.lengths.clone().map_or_else(AttentionMask::default, AttentionMask::key_lengths);
        let config = AttentionConfig {
            batch_size: b,
            n_heads: h,
            n_kv_heads: call.n_kv_heads,
            causal: call.causal,
            window: None,
            scale: None,
            softcap: None,
        };
        let drop = self.dropout(call.dropout);
        let run = || {
            let [first, second] = leaves.clone();
            let projected = match is_cross {
                true => Projected::Cross { query: first, key_value: second },
                false => Projected::SelfAttention { qkv: first },
            };
            attention(projected, &mask, drop, &config)
        };
        let forward = self.watch.time(2.0 * self.bytes(b * t * width) as f64, run)?;
        let both = self.with_backward([b * t, width], run)?;

        // Two products forward, five backward; half of each square if causal.
        let pairs = (b * h * t * s * k) as f64 * if call.causal { 0.5 } else { 1.0 };
        let (queries, keys) = (self.bytes(b * t * width), self.bytes(b * s * keys_width));
        let work = |products: f64, bytes: usize| Work { flops: 2.0 * products * pairs, bytes: bytes as f64 };

        let shape = format!("{b} x {h} x {t} x {s} x {k}");
        let name = |pass: &str| format!("attention{kind} {pass}");
        self.row(&name("forward"), shape.clone(), calls, forward, work(2.0, 2 * queries + 2 * keys));
        self.row(&name("backward"), shape, calls, both.without(forward), work(5.0, 4 * queries + 4 * keys));
        Ok(())
    }
}
