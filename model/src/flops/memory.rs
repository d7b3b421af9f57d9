//! Estimates the device memory of training.

use burn::tensor::{DType, Device};
use kiln_kernels::{attention_is_fused, attention_windows_are_fused};

use super::{Sizes, n_params, n_trained};
use crate::checkpointing::ActivationCheckpointing;
use crate::config::{Architecture, TransformerConfig};

/// Device memory of a training run, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainBytes {
    /// Weights in the compute dtype.
    pub weights: u64,
    /// Gradients of one backward pass in the compute dtype, and their f32 accumulation.
    pub gradients: u64,
    /// f32 master weights.
    pub master: u64,
    /// Both f32 moments of AdamW.
    pub moments: u64,
    /// An estimate of what one forward pass keeps for backward.
    pub activations: u64,
}

impl TrainBytes {
    /// The sum of all parts, without allocator overhead and workspaces.
    pub fn total(&self) -> u64 {
        self.weights + self.gradients + self.master + self.moments + self.activations
    }
}

/// Estimates the memory of training on `device`, on batches of at most padded shape `[B, S, T]` in `dtype`. For text, S is 0
/// and T the length of a row.
///
/// Activations are what backward reads:
///
/// - Per position of a layer: the residual sums (norms are recomputed from them), the inputs of its products (normed sum,
///   attention output, activation), queries, keys and values, and both sides of the activation. Dropout keeps a seed only.
/// - Per head of attention that has a kernel ([`attention_is_fused`]): one f32 number per query, since backward recomputes
///   probabilities. Other attention keeps two f32 matrices of queries by keys, and one in `dtype`.
/// - At the output: one chunk of logits (`logits_chunk`), which its gradient overwrites, the gradient of the hidden states,
///   and the f32 gradient of the projection.
///
/// Activation checkpointing keeps less of each layer; the layer that is computed again needs the rest.
///
/// Allocator overhead and temporary buffers of operators are not counted.
pub fn train_bytes(
    config: &TransformerConfig,
    device: &Device,
    dtype: impl Into<DType>,
    shape: [usize; 3],
    checkpointing: ActivationCheckpointing,
) -> TrainBytes {
    let (n, trained) = (n_params(config).total(), n_trained(config));
    let dtype = dtype.into();
    let element = dtype.size() as u64;
    TrainBytes {
        weights: n * element,
        gradients: trained * (element + 4),
        master: trained * 4,
        moments: trained * 8,
        activations: activation_bytes(
            config,
            dtype,
            shape,
            attention_is_fused(device, dtype, config.head_dim()) && !window_needs_reference(config, shape[2], device),
            checkpointing,
        ),
    }
}

/// Returns whether rows of `len` positions are longer than the window that the model sees, and `device` has no kernel for it.
pub fn window_needs_reference(config: &TransformerConfig, len: usize, device: &Device) -> bool {
    config.window().is_some_and(|window| window < len) && !attention_windows_are_fused(device)
}

/// The bytes that a layer keeps for backward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Kept {
    /// The residual sum at its start.
    sum: u64,
    /// Results of its products and attention.
    expensive: u64,
    /// Everything else.
    cheap: u64,
}

impl Kept {
    /// The bytes of `n` such layers.
    fn times(self, n: u64, checkpointing: ActivationCheckpointing) -> u64 {
        let Self { sum, expensive, cheap } = self;
        let (kept, again) = match checkpointing {
            ActivationCheckpointing::Off => (sum + expensive + cheap, 0),
            ActivationCheckpointing::Selective => (sum + expensive, cheap),
            ActivationCheckpointing::Layer => (sum, expensive + cheap),
        };
        n * kept + again.min(n * again)
    }

    fn plus(self, other: Self) -> Self {
        Self { sum: self.sum + other.sum, expensive: self.expensive + other.expensive, cheap: self.cheap + other.cheap }
    }
}

fn activation_bytes(
    config: &TransformerConfig,
    dtype: DType,
    shape: [usize; 3],
    fused_attention: bool,
    checkpointing: ActivationCheckpointing,
) -> u64 {
    let element = dtype.size() as u64;
    let Sizes { d, f, inner, query, key_value, head_norms, n_encoder, n_decoder, .. } = Sizes::of(config);
    let [b, s, t] = shape.map(|n| n as u64);
    let n_heads = config.n_heads as u64;

    // Attention without its kernel is computed again.
    let attended = |queries: u64, keys: u64| match fused_attention {
        true => Kept { expensive: queries * (element * query + n_heads * 4), ..Kept::default() },
        false => Kept { cheap: queries * (element * query + keys * n_heads * (2 * 4 + element)), ..Kept::default() },
    };

    // Two residual sums and their norms, the projections and the feed-forward.
    let layer = |len: u64| {
        let rest = Kept {
            sum: len * element * d,
            expensive: len * element * (d + query + key_value + inner),
            // Norms of heads keep their inputs, and give another matrix of queries, keys and values.
            cheap: len * element * (2 * d + f + if head_norms > 0 { 2 * query + 2 * key_value } else { 0 }),
        };
        rest.plus(attended(len, len))
    };

    let cross = || {
        let rest = Kept { sum: 0, expensive: element * (t * (d + query) + s * key_value), cheap: t * element * d };
        rest.plus(attended(t, s))
    };

    let layers = match config.architecture {
        Architecture::EncoderDecoder => {
            layer(s).times(n_encoder, checkpointing) + layer(t).plus(cross()).times(n_decoder, checkpointing)
        }
        Architecture::DecoderOnly => layer(t).times(n_decoder, checkpointing),
        Architecture::EncoderOnly => layer(t).times(n_encoder, checkpointing),
    };
    b * (layers + (s + t) * element * 2 * d) + head_bytes(config, element, b * t)
}

/// Logits of one chunk, and the gradients of all chunks.
fn head_bytes(config: &TransformerConfig, element: u64, rows: u64) -> u64 {
    let (vocabulary, d) = (config.vocab_size() as u64, config.d_model as u64);
    match config.logits_chunk(rows as usize) as u64 {
        0 => rows * vocabulary * element,
        chunk_rows => chunk_rows.min(rows) * vocabulary * element + rows * d * element + 4 * vocabulary * d,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bit_training_state_is_sixteen_bytes_per_parameter_and_its_accumulator() {
        let config = TransformerConfig::base().with_vocab_size(32_000);
        let n = n_params(&config).total();
        let bytes = train_bytes(&config, &Device::flex(), DType::BF16, [400, 64, 64], ActivationCheckpointing::Off);
        assert_eq!(bytes.total() - bytes.activations, 20 * n);
        // Of the order of what PyTorch keeps with flash attention.
        assert!((4..12).contains(&(bytes.activations >> 30)), "{} GiB", bytes.activations >> 30);
    }

    fn kept(config: &TransformerConfig, len: usize, fused: bool, checkpointing: ActivationCheckpointing) -> u64 {
        activation_bytes(config, DType::BF16, [16, 0, len], fused, checkpointing)
    }

    /// Sums by hand: of 16 D per token and layer, six are norms and activations, and the first sum is one.
    #[test]
    fn checkpointing_keeps_ten_sixteenths_or_one() {
        let gpt2 = TransformerConfig { logits_chunk_rows: Some(0), ..TransformerConfig::gpt2_124m() };
        let gpt2 = gpt2.with_vocab_size(50_304);
        let [off, selective, layer] =
            [ActivationCheckpointing::Off, ActivationCheckpointing::Selective, ActivationCheckpointing::Layer]
                .map(|checkpointing| kept(&gpt2, 1024, true, checkpointing) / (16 * 1024));
        let d = 2 * 768;
        assert_eq!(off - selective, 11 * 6 * d);
        assert_eq!(off - layer, 11 * (15 * d + 12 * 4));
    }

    /// Sums everything by hand, with and without chunks of logits.
    #[test]
    fn gpt2_keeps_24_kib_per_token_and_layer_and_no_logits() {
        let gpt2 = TransformerConfig::gpt2_124m().with_vocab_size(50_304);
        let activations = |config: &TransformerConfig| kept(config, 1024, true, ActivationCheckpointing::Off);
        let whole = activations(&TransformerConfig { logits_chunk_rows: Some(0), ..gpt2.clone() });
        let tokens = 16 * 1024;
        assert_eq!(whole, tokens * (12 * (16 * 2 * 768 + 12 * 4) + 4 * 768 + 2 * 50_304));
        let saved = tokens * 2 * 50_304 - (8192 * 2 * 50_304 + tokens * 2 * 768 + 4 * 50_304 * 768);
        assert_eq!(activations(&gpt2), whole - saved);
    }

    #[test]
    fn attention_without_its_kernel_keeps_squares() {
        let gpt2 =
            TransformerConfig { logits_chunk_rows: Some(0), ..TransformerConfig::gpt2_124m() }.with_vocab_size(1000);
        let activations = |len, fused| kept(&gpt2, len, fused, ActivationCheckpointing::Off) / 2;
        assert_eq!(activations(1024, true), 2 * activations(512, true));
        assert!(activations(1024, false) > 3 * activations(512, false));
    }
}
