//! Counts the parameters of a configuration.

use super::Sizes;
use crate::config::{
    Architecture, ClassHead, NormKind, NormPlacement, Positions, Product, TieEmbeddings, TransformerConfig,
};

/// Number of parameters by part of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamCount {
    /// Token tables that are not tied to the output projection, token types, and norms of embeddings.
    pub embeddings: u64,
    /// Learned and relative positions.
    pub positions: u64,
    /// Encoder layers and final norm.
    pub encoder: u64,
    /// Decoder layers and final norm.
    pub decoder: u64,
    /// The head for masked tokens with its bias or the one for classes, the pooler, and the constant bias of the logits.
    pub head: u64,
    /// The output projection, also if it is tied to a table.
    pub output_projection: u64,
    /// Adapters of all layers, or the learned prompt.
    pub adapters: u64,
}

impl ParamCount {
    /// The sum of all parts.
    pub fn total(&self) -> u64 {
        self.embeddings
            + self.positions
            + self.encoder
            + self.decoder
            + self.head
            + self.output_projection
            + self.adapters
    }
}

/// Counts parameters, each tied matrix once.
pub fn n_params(config: &TransformerConfig) -> ParamCount {
    let sizes = Sizes::of(config);
    let Sizes { d, source_vocab, target_vocab, n_encoder, n_decoder, .. } = sizes;
    let norm = if config.norm_kind == NormKind::LayerNorm { 2 * d } else { d };
    let final_norm = if config.norm == NormPlacement::Post { 0 } else { norm };
    let branch_norms = if config.norm == NormPlacement::Sandwich { 2 * norm } else { norm };
    let encoder_layer = sizes.self_attention(true) + sizes.feed_forward(true) + 2 * branch_norms;
    let cross = if config.architecture == Architecture::EncoderDecoder {
        sizes.cross_attention(true) + branch_norms
    } else {
        0
    };
    let decoder_layer = encoder_layer + cross;

    let (n_sides, n_tables) = match config.architecture {
        Architecture::EncoderDecoder => (2, source_vocab + target_vocab),
        Architecture::DecoderOnly => (1, target_vocab),
        Architecture::EncoderOnly => (1, source_vocab),
    };

    let masked_head = config.architecture == Architecture::EncoderOnly && config.mlm_head;
    let projects = masked_head || (config.architecture != Architecture::EncoderOnly && !config.has_classes());
    let vocab = config.vocab_size() as u64;
    let output_projection = if projects { vocab * d } else { 0 };
    // All tables, less the one tied to the output projection, less the one tied to the other side's.
    let tables = match config.tie_embeddings {
        _ if !projects => n_tables * d,
        TieEmbeddings::ThreeWay => 0,
        TieEmbeddings::Inputs => source_vocab * d,
        TieEmbeddings::Output => n_tables * d - output_projection,
        TieEmbeddings::None => n_tables * d,
    };

    let bias = u64::from(config.bias);
    let dense = d * d + bias * d;
    ParamCount {
        embeddings: tables + config.n_token_types as u64 * d + if config.embedding_norm { n_sides * norm } else { 0 },
        positions: n_sides
            * match config.positions {
                Positions::Learned => config.max_positions as u64 * d,
                Positions::Relative => (config.relative_buckets * config.n_heads) as u64,
                Positions::Rotary => 0,
                Positions::Sinusoidal | Positions::SinusoidalHalves | Positions::SinusoidalFairseq => 0,
            },
        encoder: if n_encoder > 0 { n_encoder * encoder_layer + final_norm } else { 0 },
        decoder: if n_decoder > 0 { n_decoder * decoder_layer + final_norm } else { 0 },
        head: if masked_head { dense + norm + vocab } else { 0 }
            + if config.pooler { dense } else { 0 }
            + if config.final_logits_bias { vocab } else { 0 }
            + classifier(config),
        output_projection,
        adapters: config.prompt_tokens as u64 * d
            + n_encoder * adapters(config, false)
            + n_decoder * adapters(config, config.architecture == Architecture::EncoderDecoder),
    }
}

/// Counts the parameters of the head for classes.
fn classifier(config: &TransformerConfig) -> u64 {
    let (d, c) = (config.d_model as u64, config.n_classes as u64);
    match config.class_head {
        ClassHead::None => 0,
        ClassHead::Dense => d * d + d + d * c + c,
        ClassHead::Pooled | ClassHead::Tokens => d * c + c,
        ClassHead::Last => d * c,
    }
}

/// Counts the parameters that are trained: all, or the additions to a frozen model: adapters, a learned
/// prompt, a head for classes.
pub fn n_trained(config: &TransformerConfig) -> u64 {
    let n = n_params(config);
    if config.trains_additions() { n.adapters + classifier(config) } else { n.total() }
}

/// Counts the numbers of an optimizer's state for `kept` of the trained parameters: a slice has as large a share of each kind. The pair
/// has the numbers for a weight of a matrix of a layer, and for another parameter.
pub(super) fn state_numbers(config: &TransformerConfig, kept: u64, [of_matrix, of_other]: [u64; 2]) -> u64 {
    let sizes = Sizes::of(config);
    let layer = sizes.self_attention(false) + sizes.feed_forward(false);
    let is_pair = config.architecture == Architecture::EncoderDecoder;
    let cross = if is_pair { sizes.cross_attention(false) } else { 0 };
    let all = sizes.n_encoder * layer + sizes.n_decoder * (layer + cross);
    let matrices = if config.trains_additions() { 0 } else { all };
    let share = (u128::from(matrices) * u128::from(kept)).div_ceil(u128::from(n_trained(config).max(1))) as u64;
    of_matrix * share + of_other * (kept - share)
}

/// Counts the parameters of a layer's adapters.
fn adapters(config: &TransformerConfig, has_cross: bool) -> u64 {
    let (d, q) = (config.d_model, config.n_heads * config.head_dim());
    let cross = [(Product::CrossQuery, d), (Product::CrossKeyValue, d), (Product::AttentionOutput, q)];
    let own = [
        (Product::SelfProjections, d),
        (Product::AttentionOutput, q),
        (Product::FeedForwardInput, d),
        (Product::FeedForwardOutput, config.d_ff),
    ];
    let products = own.into_iter().chain(cross.into_iter().filter(|_| has_cross));
    let widths = products.flat_map(|(product, n_in)| {
        config.adapters_of(product).into_iter().map(move |columns| (n_in + columns.width) as u64)
    });
    config.lora.rank as u64 * widths.sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `torch.nn.Transformer()`, which is base without tokens, has 44,140,544 parameters, with d_model 1024, 16 heads
    /// and dim_feedforward 4096 it has 176,361,472.
    #[test]
    fn base_and_big_have_the_published_sizes() {
        let base = n_params(&TransformerConfig::base().with_vocab_size(37_000));
        assert_eq!(base.encoder + base.decoder, 44_140_544);
        assert_eq!(base.total(), 44_140_544 + 37_000 * 512);
        let big = n_params(&TransformerConfig::big().with_vocab_size(37_000));
        assert_eq!(big.encoder + big.decoder, 176_361_472);
        assert_eq!(big.total(), 176_361_472 + 37_000 * 1024);
    }

    /// The sizes that `sum(p.numel() for p in model.parameters())` gives for the published configurations: `gpt2` and
    /// `gpt2-medium`, MobileLLM-125M's shape as a Llama with tied embeddings, `google/bert_uncased_L-4_H-512_A-8`.
    #[test]
    fn presets_have_the_published_sizes() {
        let total = |config: TransformerConfig, vocab_size| n_params(&config.with_vocab_size(vocab_size)).total();
        assert_eq!(total(TransformerConfig::gpt2_124m(), 50_257), 124_439_808);
        assert_eq!(total(TransformerConfig::gpt2_350m(), 50_257), 354_823_168);
        assert_eq!(total(TransformerConfig::modern_124m(), 50_257), 162_152_448);
        assert_eq!(total(TransformerConfig::llama_125m(), 32_000), 124_635_456);
        assert_eq!(total(TransformerConfig::llama_1b(), 32_000), 1_100_048_384);
        let published = TransformerConfig { pooler: true, mlm_head: false, ..TransformerConfig::bert_small() };
        assert_eq!(total(published, 30_522), 28_763_648);
        assert_eq!(total(TransformerConfig::bert_small(), 30_522), 28_795_194);
        assert_eq!(total(TransformerConfig::bert_base(), 30_522), 109_514_298);
        assert_eq!(total(TransformerConfig::transformer_base(), 37_000), 63_082_496);
        assert_eq!(total(TransformerConfig::transformer_big(), 37_000), 214_245_376);
    }
}
