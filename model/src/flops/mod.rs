//! The cost of a configuration, computed from its numbers: parameters, floating-point operations and bytes. MFU and memory
//! estimates are based on them.

mod memory;
mod params;

use burn::tensor::{DType, Device};
use kiln_kernels::{attention_is_fused, relative_attention_is_fused};
pub use memory::{ActivationBytes, TrainBytes, TrainSetting, train_bytes};
use params::state_numbers;
pub use params::{ParamCount, n_params, n_trained};

use crate::config::{Architecture, Positions, TransformerConfig};
use crate::mlm::max_labels;

/// Floating-point operations of one batch, forward and backward.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainFlops {
    /// Matrix products with weights.
    pub weights: f64,
    /// Scores and weighted sums of attention.
    pub attention: f64,
}

impl TrainFlops {
    /// The sum of both.
    pub fn total(&self) -> f64 {
        self.weights + self.attention
    }
}

/// Counts the operations of training on one batch of padded shape `[B, S, T]`. For text, S is 0 and T the length of a row.
///
/// A multiplication and an addition count 2, and backward costs twice the forward pass. A weight that is applied to `n`
/// tokens therefore costs `6 * n` (Kaplan et al. 2020):
///
/// - Encoder weights and the decoder's key-value projection of the source are applied to `B * S` tokens.
/// - The other decoder weights, the output projection and all weights of a model of text are applied to `B * T` tokens.
/// - Attention of `t` queries to `s` keys adds `12 * t * s * D` per row and layer, or half of it if causal. Rows packed with
///   several documents count as one document.
///
/// The head for masked tokens is applied to [`max_labels`] positions if tokens are masked with probability `masked_share`, and to all
/// without it.
///
/// Embedding lookups, biases, norms, activations, softmax, the optimizer and recomputation do not count.
///
/// MFU = this / step time / peak of the device. The shape includes padding: for an MFU of useful work, multiply by the
/// fraction of real tokens.
pub fn train_flops_per_batch(config: &TransformerConfig, shape: [usize; 3], masked_share: Option<f64>) -> TrainFlops {
    let sizes = Sizes::of(config);
    let Sizes { d, n_encoder, n_decoder, .. } = sizes;
    let [b, s, t] = in_front(config, shape).map(|n| n as f64);
    let layer = sizes.self_attention(false) + sizes.feed_forward(false);
    let projection = if config.has_classes() { 0 } else { config.vocab_size() as u64 * d };
    let (per_source, per_target, pairs) = match config.architecture {
        Architecture::EncoderDecoder => (
            n_encoder * layer + n_decoder * d * sizes.key_value,
            n_decoder * (layer + sizes.cross_attention(false) - d * sizes.key_value) + projection,
            n_encoder as f64 * s * s + n_decoder as f64 * (t * t / 2.0 + t * s),
        ),
        Architecture::DecoderOnly => (0, n_decoder * layer + projection, n_decoder as f64 * t * t / 2.0),
        Architecture::EncoderOnly => (0, n_encoder * layer, n_encoder as f64 * t * t),
    };
    let head = if config.architecture == Architecture::EncoderOnly && config.mlm_head { d * d + projection } else { 0 };
    let predicted = masked_share.map_or(b * t, |share| max_labels((b * t) as usize, share) as f64);
    // Frozen weights get no gradients.
    let per_weight = if config.trains_additions() { 4.0 } else { 6.0 };
    TrainFlops {
        weights: per_weight * (b * (per_source as f64 * s + per_target as f64 * t) + head as f64 * predicted),
        attention: 12.0 * b * sizes.query as f64 * pairs,
    }
}

/// Returns whether attention in training has a kernel on `device`; otherwise it runs its reference operators.
pub fn attention_has_kernel(config: &TransformerConfig, device: &Device, dtype: DType) -> bool {
    match config.positions {
        Positions::Relative => relative_attention_is_fused(device, dtype, config.head_dim()),
        _ => attention_is_fused(device, dtype, config.head_dim()),
    }
}

/// Adds the positions of a learned prompt to each row.
fn in_front(config: &TransformerConfig, [b, s, t]: [usize; 3]) -> [usize; 3] {
    [b, s, t + config.prompt_tokens]
}

/// The configuration as 64-bit numbers.
#[derive(Clone, Copy)]
struct Sizes {
    d: u64,
    f: u64,
    /// Columns of the first feed-forward product.
    inner: u64,
    /// Columns of the queries.
    query: u64,
    /// Columns of keys and values together.
    key_value: u64,
    bias: u64,
    qkv_bias: u64,
    feed_forward_bias: u64,
    /// Scales of the norms of heads, in a layer.
    head_norms: u64,
    source_vocab: u64,
    target_vocab: u64,
    n_encoder: u64,
    n_decoder: u64,
}

impl Sizes {
    fn of(config: &TransformerConfig) -> Self {
        let layers = |n: usize, architecture| if config.architecture == architecture { 0 } else { n as u64 };
        let head_dim = config.head_dim() as u64;
        Self {
            d: config.d_model as u64,
            f: config.d_ff as u64,
            inner: config.d_ff as u64 * if config.activation.is_gated() { 2 } else { 1 },
            query: config.n_heads as u64 * head_dim,
            key_value: 2 * config.kv_heads() as u64 * head_dim,
            bias: u64::from(config.bias),
            qkv_bias: u64::from(config.has_qkv_bias()),
            feed_forward_bias: u64::from(config.has_feed_forward_bias()),
            head_norms: if config.qk_norm { 2 * head_dim } else { 0 },
            source_vocab: config.source_vocab_size as u64,
            target_vocab: config.target_vocab_size as u64,
            n_encoder: layers(config.n_encoder_layers, Architecture::DecoderOnly),
            n_decoder: layers(config.n_decoder_layers, Architecture::EncoderOnly),
        }
    }

    /// Parameters of self-attention, or of its matrices only.
    fn self_attention(&self, with_biases: bool) -> u64 {
        let qkv = self.query + self.key_value;
        let small = if with_biases { self.qkv_bias * qkv + self.head_norms } else { 0 };
        self.d * qkv + small + self.product(self.query, self.d, with_biases)
    }

    fn cross_attention(&self, with_biases: bool) -> u64 {
        self.product(self.d, self.query, with_biases)
            + self.product(self.d, self.key_value, with_biases)
            + self.product(self.query, self.d, with_biases)
    }

    fn feed_forward(&self, with_biases: bool) -> u64 {
        let biases = if with_biases { self.feed_forward_bias * (self.inner + self.d) } else { 0 };
        self.d * self.inner + self.f * self.d + biases
    }

    fn product(&self, n_in: u64, n_out: u64, with_biases: bool) -> u64 {
        n_in * n_out + if with_biases { self.bias * n_out } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flops_of_a_language_model_are_six_per_weight_and_token_and_half_a_square() {
        let config = TransformerConfig::gpt2_124m().with_vocab_size(50_257);
        let flops = train_flops_per_batch(&config, [4, 0, 1024], None);
        // 124 M less positions, biases and norms.
        let matrices = 12 * 12 * 768 * 768 + 50_257 * 768;
        assert_eq!(flops.weights, 6.0 * f64::from(matrices) * 4096.0);
        assert_eq!(flops.attention, 12.0 * 4.0 * 768.0 * 12.0 * 1024.0 * 1024.0 / 2.0);

        let config = TransformerConfig::bert_small().with_vocab_size(30_522);
        let flops = train_flops_per_batch(&config, [8, 0, 128], None);
        let (layers, head) = (4 * 12 * 512 * 512, 512 * 512 + 30_522 * 512);
        assert_eq!(flops.weights, 6.0 * f64::from(layers + head) * 1024.0);
        assert_eq!(flops.attention, 12.0 * 8.0 * 512.0 * 4.0 * 128.0 * 128.0);
        let masked = train_flops_per_batch(&config, [8, 0, 128], Some(0.15));
        assert_eq!(masked.weights, 6.0 * (f64::from(layers) * 1024.0 + f64::from(head) * 384.0));
    }

    #[test]
    fn flops_are_six_per_weight_and_token_and_attention() {
        let config = TransformerConfig::base().with_vocab_size(32_000);
        let flops = train_flops_per_batch(&config, [400, 64, 64], None);
        // Matrices of 6 + 6 layers and the tied table, no biases and norms.
        let matrices = 6 * (4 * 512 * 512 + 2 * 512 * 2048) + 6 * (8 * 512 * 512 + 2 * 512 * 2048) + 32_000 * 512;
        assert_eq!(flops.weights, 6.0 * f64::from(matrices) * 25_600.0);
        // Encoder full, decoder half, cross full: 2.5 squares of 64 a layer.
        assert_eq!(flops.attention, 12.0 * 400.0 * 512.0 * 6.0 * 2.5 * 64.0 * 64.0);
    }
}
