//! What a configuration costs, by arithmetic alone: parameters, floating-point operations and bytes. The numbers under
//! an MFU and under a memory estimate.

use burn::tensor::DType;

use crate::config::{NormPlacement, Positions, TieEmbeddings, TransformerConfig};

/// Parameters by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamCount {
    /// Token tables that are not also the output projection.
    pub embeddings: u64,
    /// Learned positions.
    pub positions: u64,
    /// Encoder layers and final norm.
    pub encoder: u64,
    /// Decoder layers and final norm.
    pub decoder: u64,
    /// Output projection, the tied table included.
    pub output_projection: u64,
}

impl ParamCount {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.embeddings + self.positions + self.encoder + self.decoder + self.output_projection
    }
}

/// Counts parameters, each tied matrix once.
pub fn n_params(config: &TransformerConfig) -> ParamCount {
    let Sizes { d, f, source_vocab, target_vocab, n_encoder, n_decoder } = Sizes::of(config);
    let norm = 2 * d;
    let self_attention = (d * 3 * d + 3 * d) + (d * d + d);
    let cross_attention = (d * d + d) + (d * 2 * d + 2 * d) + (d * d + d);
    let feed_forward = (d * f + f) + (f * d + d);
    let final_norm = if config.norm == NormPlacement::Pre { norm } else { 0 };
    ParamCount {
        embeddings: match config.tie_embeddings {
            TieEmbeddings::ThreeWay => 0,
            TieEmbeddings::Output => source_vocab * d,
            TieEmbeddings::None => (source_vocab + target_vocab) * d,
        },
        positions: if config.positions == Positions::Learned { 2 * config.max_positions as u64 * d } else { 0 },
        encoder: n_encoder * (self_attention + feed_forward + 2 * norm) + final_norm,
        decoder: n_decoder * (self_attention + cross_attention + feed_forward + 3 * norm) + final_norm,
        output_projection: target_vocab * d,
    }
}

/// Floating-point operations of one batch, forward and backward.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainFlops {
    /// Products with weights.
    pub weights: f64,
    /// Scores and weighted sums of attention.
    pub attention: f64,
}

impl TrainFlops {
    /// Both.
    pub fn total(&self) -> f64 {
        self.weights + self.attention
    }
}

/// Operations that training on one batch of padded shape `[B, S, T]` needs.
///
/// A multiplication and an addition count 2; backward costs twice the forward; so a weight that meets `n` tokens costs
/// `6 * n` (Kaplan et al. 2020). Encoder weights and the decoder's key-value projection of the source meet `B * S`
/// tokens, the other decoder weights and the output projection `B * T`. Attention of `t` queries and `s` keys adds
/// `12 * t * s * D` per row and layer, half of it where it is causal. Not counted: embedding look-ups, biases, norms,
/// activations, softmax, the optimizer, and anything that is computed twice.
///
/// MFU = this / step time / peak of the device. The shape is the padded one: for an MFU of useful work alone, multiply
/// by the share of real tokens.
pub fn train_flops_per_batch(config: &TransformerConfig, shape: [usize; 3]) -> TrainFlops {
    let Sizes { d, f, target_vocab, n_encoder, n_decoder, .. } = Sizes::of(config);
    let [b, s, t] = shape.map(|n| n as f64);
    let per_source = n_encoder * (4 * d * d + 2 * d * f) + n_decoder * 2 * d * d;
    let per_target = n_decoder * (4 * d * d + 2 * d * d + 2 * d * f) + target_vocab * d;
    let d = d as f64;
    let pairs = n_encoder as f64 * s * s + n_decoder as f64 * (t * t / 2.0 + t * s);
    TrainFlops { weights: 6.0 * b * (per_source as f64 * s + per_target as f64 * t), attention: 12.0 * b * d * pairs }
}

/// Device memory of a training run, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainBytes {
    /// Weights in the compute dtype.
    pub weights: u64,
    /// Gradients: those of one backward in the compute dtype, and their f32 accumulation.
    pub gradients: u64,
    /// f32 master weights.
    pub master: u64,
    /// Both f32 moments of AdamW.
    pub moments: u64,
    /// What backward needs of the forward of one batch: an estimate.
    pub activations: u64,
}

impl TrainBytes {
    /// All of it; allocators and workspaces come on top.
    pub fn total(&self) -> u64 {
        self.weights + self.gradients + self.master + self.moments + self.activations
    }
}

/// Estimates the memory of training on batches of at most padded shape `[B, S, T]` in `dtype`.
///
/// Activations count what the plain operators keep: per position of a layer the inputs of its products (norm, q, k, v,
/// attention output, both sides of the activation, residual sums), two f32 copies inside each norm, two f32 matrices of
/// queries x keys and one in `dtype` per head, dropout kept as a seed, and at the end the logits once in `dtype` and
/// three times in f32. Fused operators keep less: this is an upper estimate.
pub fn train_bytes(config: &TransformerConfig, dtype: impl Into<DType>, shape: [usize; 3]) -> TrainBytes {
    let n = n_params(config).total();
    let element = dtype.into().size() as u64;
    TrainBytes {
        weights: n * element,
        gradients: n * (element + 4),
        master: n * 4,
        moments: n * 8,
        activations: activation_bytes(config, element, shape),
    }
}

fn activation_bytes(config: &TransformerConfig, element: u64, shape: [usize; 3]) -> u64 {
    let Sizes { d, f, target_vocab, n_encoder, n_decoder, .. } = Sizes::of(config);
    let [b, s, t] = shape.map(|n| n as u64);
    let norm = 2 * 4 * d + element * d;
    let attention = norm + element * (3 * d + d + d);
    let feed_forward = norm + element * (2 * f + d);
    let probabilities = config.n_heads as u64 * (2 * 4 + element);
    let encoder_layer = s * (attention + feed_forward) + s * s * probabilities;
    let cross = t * (norm + element * (d + d + d)) + s * element * 2 * d + t * s * probabilities;
    let decoder_layer = t * (attention + feed_forward) + t * t * probabilities + cross;
    let ends = (s + t) * element * 2 * d + t * target_vocab * (element + 3 * 4);
    b * (n_encoder * encoder_layer + n_decoder * decoder_layer + ends)
}

/// The configuration as 64-bit numbers.
struct Sizes {
    d: u64,
    f: u64,
    source_vocab: u64,
    target_vocab: u64,
    n_encoder: u64,
    n_decoder: u64,
}

impl Sizes {
    fn of(config: &TransformerConfig) -> Self {
        Self {
            d: config.d_model as u64,
            f: config.d_ff as u64,
            source_vocab: config.source_vocab_size as u64,
            target_vocab: config.target_vocab_size as u64,
            n_encoder: config.n_encoder_layers as u64,
            n_decoder: config.n_decoder_layers as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_vocab(config: TransformerConfig, size: usize) -> TransformerConfig {
        TransformerConfig { source_vocab_size: size, target_vocab_size: size, ..config }
    }

    /// `torch.nn.Transformer()`, which is base without tokens, has 44,140,544 parameters, with d_model 1024, 16 heads
    /// and dim_feedforward 4096 it has 176,361,472.
    #[test]
    fn base_and_big_have_the_published_sizes() {
        let base = n_params(&with_vocab(TransformerConfig::base(), 37_000));
        assert_eq!(base.encoder + base.decoder, 44_140_544);
        assert_eq!(base.total(), 44_140_544 + 37_000 * 512);
        let big = n_params(&with_vocab(TransformerConfig::big(), 37_000));
        assert_eq!(big.encoder + big.decoder, 176_361_472);
        assert_eq!(big.total(), 176_361_472 + 37_000 * 1024);
    }

    #[test]
    fn flops_are_six_per_weight_and_token_and_attention() {
        let config = with_vocab(TransformerConfig::base(), 32_000);
        let flops = train_flops_per_batch(&config, [400, 64, 64]);
        // Matrices of 6 + 6 layers and the tied table, no biases and norms.
        let matrices = 6 * (4 * 512 * 512 + 2 * 512 * 2048) + 6 * (8 * 512 * 512 + 2 * 512 * 2048) + 32_000 * 512;
        assert_eq!(flops.weights, 6.0 * f64::from(matrices) * 25_600.0);
        // Encoder full, decoder half, cross full: 2.5 squares of 64 a layer.
        assert_eq!(flops.attention, 12.0 * 400.0 * 512.0 * 6.0 * 2.5 * 64.0 * 64.0);
    }

    #[test]
    fn sixteen_bit_training_state_is_sixteen_bytes_a_parameter_and_its_accumulator() {
        let config = with_vocab(TransformerConfig::base(), 32_000);
        let n = n_params(&config).total();
        let bytes = train_bytes(&config, DType::BF16, [400, 64, 64]);
        assert_eq!(bytes.total() - bytes.activations, 20 * n);
        // Between what PyTorch's eager mode keeps and a card's memory.
        assert!((8..40).contains(&(bytes.activations >> 30)), "{} GiB", bytes.activations >> 30);
    }
}
