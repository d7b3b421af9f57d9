//! What a configuration costs, by arithmetic alone: parameters, floating-point operations and bytes. The numbers under
//! an MFU and under a memory estimate.

use burn::tensor::DType;

use crate::config::{Activation, Architecture, NormKind, NormPlacement, Positions, TieEmbeddings, TransformerConfig};

/// Parameters by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamCount {
    /// Token tables that are not also the output projection, kinds of token, and norms of embeddings.
    pub embeddings: u64,
    /// Learned positions.
    pub positions: u64,
    /// Encoder layers and final norm.
    pub encoder: u64,
    /// Decoder layers and final norm.
    pub decoder: u64,
    /// What stands between the layers and the output projection, and the projection's bias: the head for masked tokens, a
    /// pooler, a constant bias of the logits.
    pub head: u64,
    /// Output projection, the tied table included.
    pub output_projection: u64,
}

impl ParamCount {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.embeddings + self.positions + self.encoder + self.decoder + self.head + self.output_projection
    }
}

/// Counts parameters, each tied matrix once.
pub fn n_params(config: &TransformerConfig) -> ParamCount {
    let sizes = Sizes::of(config);
    let Sizes { d, source_vocab, target_vocab, n_encoder, n_decoder, .. } = sizes;
    let norm = if config.norm_kind == NormKind::LayerNorm { 2 * d } else { d };
    let final_norm = if config.norm == NormPlacement::Pre { norm } else { 0 };
    let encoder_layer = sizes.self_attention(true) + sizes.feed_forward(true) + 2 * norm;
    let cross =
        if config.architecture == Architecture::EncoderDecoder { sizes.cross_attention(true) + norm } else { 0 };
    let decoder_layer = encoder_layer + cross;
    let (n_sides, n_tables) = match config.architecture {
        Architecture::EncoderDecoder => (2, source_vocab + target_vocab),
        Architecture::DecoderOnly => (1, target_vocab),
        Architecture::EncoderOnly => (1, source_vocab),
    };
    let masked_head = config.architecture == Architecture::EncoderOnly && config.mlm_head;
    let projects = config.architecture != Architecture::EncoderOnly || masked_head;
    let vocab = config.vocab_size() as u64;
    let output_projection = if projects { vocab * d } else { 0 };
    // Tables in all, less the one that is the output projection, less the one that is also the other side's.
    let tables = match config.tie_embeddings {
        _ if !projects => n_tables * d,
        TieEmbeddings::ThreeWay => 0,
        TieEmbeddings::Output => n_tables * d - output_projection,
        TieEmbeddings::None => n_tables * d,
    };
    let bias = u64::from(config.bias);
    let dense = d * d + bias * d;
    ParamCount {
        embeddings: tables + config.n_token_types as u64 * d + if config.embedding_norm { n_sides * norm } else { 0 },
        positions: if config.positions == Positions::Learned { n_sides * config.max_positions as u64 * d } else { 0 },
        encoder: if n_encoder > 0 { n_encoder * encoder_layer + final_norm } else { 0 },
        decoder: if n_decoder > 0 { n_decoder * decoder_layer + final_norm } else { 0 },
        head: if masked_head { dense + norm + vocab } else { 0 }
            + if config.pooler { dense } else { 0 }
            + if config.final_logits_bias { vocab } else { 0 },
        output_projection,
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

/// Operations that training on one batch of padded shape `[B, S, T]` needs; for text S is 0 and T the length of a row.
///
/// A multiplication and an addition count 2; backward costs twice the forward; so a weight that meets `n` tokens costs
/// `6 * n` (Kaplan et al. 2020). Encoder weights and the decoder's key-value projection of the source meet `B * S`
/// tokens, the other decoder weights and the output projection `B * T`; the weights of a model that reads text all meet
/// `B * T`. Attention of `t` queries and `s` keys adds `12 * t * s * D` per row and layer, half of it where it is causal;
/// rows packed with several documents are counted as if they were one. Not counted: embedding look-ups, biases, norms,
/// activations, softmax, the optimizer, and anything that is computed twice.
///
/// MFU = this / step time / peak of the device. The shape is the padded one: for an MFU of useful work alone, multiply
/// by the share of real tokens.
pub fn train_flops_per_batch(config: &TransformerConfig, shape: [usize; 3]) -> TrainFlops {
    let sizes = Sizes::of(config);
    let Sizes { d, n_encoder, n_decoder, .. } = sizes;
    let [b, s, t] = shape.map(|n| n as f64);
    let layer = sizes.self_attention(false) + sizes.feed_forward(false);
    let projection = config.vocab_size() as u64 * d;
    let (per_source, per_target, pairs) = match config.architecture {
        Architecture::EncoderDecoder => (
            n_encoder * layer + n_decoder * d * sizes.key_value,
            n_decoder * (layer + sizes.cross_attention(false) - d * sizes.key_value) + projection,
            n_encoder as f64 * s * s + n_decoder as f64 * (t * t / 2.0 + t * s),
        ),
        Architecture::DecoderOnly => (0, n_decoder * layer + projection, n_decoder as f64 * t * t / 2.0),
        Architecture::EncoderOnly => {
            let head = if config.mlm_head { d * d + projection } else { 0 };
            (0, n_encoder * layer + head, n_encoder as f64 * t * t)
        }
    };
    TrainFlops {
        weights: 6.0 * b * (per_source as f64 * s + per_target as f64 * t),
        attention: 12.0 * b * sizes.query as f64 * pairs,
    }
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

/// Estimates the memory of training on batches of at most padded shape `[B, S, T]` in `dtype`; for text S is 0 and T the
/// length of a row.
///
/// Activations count what backward reads: per position of a layer the residual sums (from which norms are computed
/// again), the inputs of its products (normed sum, attention output, activation), queries, keys and values, and both sides
/// of the activation; dropout is kept as a seed. Attention in bf16 over heads of 64 or 128 dimensions keeps one f32 number
/// per query and head (its kernel on the GPU computes probabilities again); other attention two f32 matrices of queries x
/// keys and one in `dtype` per head. At the end the logits, over which the GPU writes their gradient. Allocators round up and keep blocks for
/// later, and the passing buffers of the operators come on top.
pub fn train_bytes(config: &TransformerConfig, dtype: impl Into<DType>, shape: [usize; 3]) -> TrainBytes {
    let n = n_params(config).total();
    let dtype = dtype.into();
    let element = dtype.size() as u64;
    TrainBytes {
        weights: n * element,
        gradients: n * (element + 4),
        master: n * 4,
        moments: n * 8,
        activations: activation_bytes(config, dtype, shape),
    }
}

fn activation_bytes(config: &TransformerConfig, dtype: DType, shape: [usize; 3]) -> u64 {
    let element = dtype.size() as u64;
    let Sizes { d, f, inner, query, key_value, n_encoder, n_decoder, .. } = Sizes::of(config);
    let [b, s, t] = shape.map(|n| n as u64);
    // Residual sum and what the norm makes of it.
    let norm = element * 2 * d;
    let attention = norm + element * (query + key_value + query);
    let feed_forward = norm + element * (inner + f);
    let n_heads = config.n_heads as u64;
    let flash = dtype == DType::BF16 && matches!(config.head_dim(), 64 | 128);
    let scores = |queries: u64, keys: u64| match flash {
        true => queries * n_heads * 4,
        false => queries * keys * n_heads * (2 * 4 + element),
    };
    let layer = |len: u64| len * (attention + feed_forward) + scores(len, len);
    let cross = t * (norm + element * (query + query)) + s * element * key_value + scores(t, s);
    let layers = match config.architecture {
        Architecture::EncoderDecoder => n_encoder * layer(s) + n_decoder * (layer(t) + cross),
        Architecture::DecoderOnly => n_decoder * layer(t),
        Architecture::EncoderOnly => n_encoder * layer(t),
    };
    let ends = (s + t) * element * 2 * d + t * config.vocab_size() as u64 * element;
    b * (layers + ends)
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
            inner: config.d_ff as u64 * if config.activation == Activation::Swiglu { 2 } else { 1 },
            query: config.n_heads as u64 * head_dim,
            key_value: 2 * config.kv_heads() as u64 * head_dim,
            bias: u64::from(config.bias),
            source_vocab: config.source_vocab_size as u64,
            target_vocab: config.target_vocab_size as u64,
            n_encoder: layers(config.n_encoder_layers, Architecture::DecoderOnly),
            n_decoder: layers(config.n_decoder_layers, Architecture::EncoderOnly),
        }
    }

    /// Parameters of self-attention, or its matrices alone.
    fn self_attention(&self, with_biases: bool) -> u64 {
        self.product(self.d, self.query + self.key_value, with_biases) + self.product(self.query, self.d, with_biases)
    }

    fn cross_attention(&self, with_biases: bool) -> u64 {
        self.product(self.d, self.query, with_biases)
            + self.product(self.d, self.key_value, with_biases)
            + self.product(self.query, self.d, with_biases)
    }

    fn feed_forward(&self, with_biases: bool) -> u64 {
        self.product(self.d, self.inner, with_biases) + self.product(self.f, self.d, with_biases)
    }

    fn product(&self, n_in: u64, n_out: u64, with_biases: bool) -> u64 {
        n_in * n_out + if with_biases { self.bias * n_out } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_vocab(config: TransformerConfig, size: usize) -> TransformerConfig {
        config.with_vocab_size(size)
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

    /// The sizes that `sum(p.numel() for p in model.parameters())` gives for the published configurations: `gpt2` and
    /// `gpt2-medium`, MobileLLM-125M's shape as a Llama with tied embeddings, `google/bert_uncased_L-4_H-512_A-8`.
    #[test]
    fn presets_have_the_published_sizes() {
        let total = |config: TransformerConfig, vocab_size| n_params(&with_vocab(config, vocab_size)).total();
        assert_eq!(total(TransformerConfig::gpt2_124m(), 50_257), 124_439_808);
        assert_eq!(total(TransformerConfig::gpt2_350m(), 50_257), 354_823_168);
        assert_eq!(total(TransformerConfig::llama_125m(), 32_000), 124_635_456);
        let published = TransformerConfig { pooler: true, mlm_head: false, ..TransformerConfig::bert_small() };
        assert_eq!(total(published, 30_522), 28_763_648);
        assert_eq!(total(TransformerConfig::bert_small(), 30_522), 28_795_194);
        assert_eq!(total(TransformerConfig::transformer_base(), 37_000), 63_082_496);
        assert_eq!(total(TransformerConfig::transformer_big(), 37_000), 214_245_376);
    }

    #[test]
    fn flops_of_a_language_model_are_six_per_weight_and_token_and_half_a_square() {
        let config = with_vocab(TransformerConfig::gpt2_124m(), 50_257);
        let flops = train_flops_per_batch(&config, [4, 0, 1024]);
        // 124 M less positions, biases and norms.
        let matrices = 12 * 12 * 768 * 768 + 50_257 * 768;
        assert_eq!(flops.weights, 6.0 * f64::from(matrices) * 4096.0);
        assert_eq!(flops.attention, 12.0 * 4.0 * 768.0 * 12.0 * 1024.0 * 1024.0 / 2.0);

        let config = with_vocab(TransformerConfig::bert_small(), 30_522);
        let flops = train_flops_per_batch(&config, [8, 0, 128]);
        let matrices = 4 * 12 * 512 * 512 + 512 * 512 + 30_522 * 512;
        assert_eq!(flops.weights, 6.0 * f64::from(matrices) * 1024.0);
        assert_eq!(flops.attention, 12.0 * 8.0 * 512.0 * 4.0 * 128.0 * 128.0);
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
        // Of the order of what PyTorch keeps with flash attention.
        assert!((4..12).contains(&(bytes.activations >> 30)), "{} GiB", bytes.activations >> 30);
    }

    #[test]
    fn attention_without_its_kernel_keeps_squares() {
        let activations = |config: &TransformerConfig, dtype, len| {
            let config = with_vocab(config.clone(), 1000);
            train_bytes(&config, dtype, [8, 0, len]).activations
        };
        let gpt2 = TransformerConfig::gpt2_124m();
        assert_eq!(activations(&gpt2, DType::BF16, 1024), 2 * activations(&gpt2, DType::BF16, 512));
        assert!(activations(&gpt2, DType::F32, 1024) > 3 * activations(&gpt2, DType::F32, 512));
        let narrow_heads = TransformerConfig { n_heads: 24, ..gpt2 };
        assert!(activations(&narrow_heads, DType::BF16, 1024) > 3 * activations(&narrow_heads, DType::BF16, 512));
    }
}
