//! The shape of a Transformer: one plain structure, checked once, saved beside the weights as `config.json`.

mod presets;
mod validate;

use serde::{Deserialize, Serialize};

/// Everything that decides the shape of a Transformer and the distribution of its first weights.
///
/// Defaults are the encoder-decoder of Vaswani et al. 2017, "base", with pre-norm. Parameters follow from the numbers here
/// alone, so a saved configuration and a file of weights are a whole model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransformerConfig {
    /// Which of the three Transformers this is.
    pub architecture: Architecture,
    /// Features of every hidden state (D). A multiple of `n_heads`; multiples of 64 are fast on GPUs.
    pub d_model: usize,
    /// Attention heads (H); each has `d_model / n_heads` dimensions.
    pub n_heads: usize,
    /// Heads of keys and values (G), a divisor of `n_heads`: each serves `n_heads / n_kv_heads` heads of queries (grouped
    /// queries, Ainslie et al. 2023). 0: as many as `n_heads`.
    pub n_kv_heads: usize,
    /// Inner features of the feed-forward layers (F), usually `4 * d_model`, with SwiGLU `8 / 3 * d_model`.
    pub d_ff: usize,
    /// Encoder layers; a decoder-only model has none, whatever stands here.
    pub n_encoder_layers: usize,
    /// Decoder layers; an encoder-only model has none, whatever stands here.
    pub n_decoder_layers: usize,
    /// Source tokens in the vocabulary, of an encoder-only model its vocabulary; 0: filled in from the tokenizer.
    pub source_vocab_size: usize,
    /// Target tokens in the vocabulary, of a decoder-only model its vocabulary (V); 0: filled in from the tokenizer.
    pub target_vocab_size: usize,
    /// Longest source and longest target, in tokens, with their end or start token.
    pub max_positions: usize,
    /// Where normalization stands.
    pub norm: NormPlacement,
    /// How features are normalized.
    pub norm_kind: NormKind,
    /// Added to the variance (of RMS norms: the mean square) under the root of every normalization.
    pub norm_eps: f64,
    /// One more normalization right after the embeddings (BERT, BART).
    pub embedding_norm: bool,
    /// Token vectors are multiplied by `sqrt(d_model)` when they are looked up (Vaswani et al. 2017, section 3.4).
    pub scale_embedding: bool,
    /// How positions are told to the model.
    pub positions: Positions,
    /// Base of the wavelengths of rotary positions: pair i of K / 2 turns by `rope_theta^(-2 i / K)` radians a position.
    pub rope_theta: f64,
    /// Between the two feed-forward projections.
    pub activation: Activation,
    /// Whether the projections of attention and feed-forward layers add a bias.
    pub bias: bool,
    /// Kinds of token (BERT's "segments"), each with a trained vector that is added to the tokens'; 0: none. Encoder-only
    /// models.
    pub n_token_types: usize,
    /// Encoder-only: the head that predicts masked tokens (transform, norm, projection to the vocabulary). A model without
    /// it gives hidden states only and cannot be trained on masked tokens.
    pub mlm_head: bool,
    /// Encoder-only: a projection of each row's first hidden state, BERT's "pooler". No loss of this crate uses it: it is
    /// there to keep the weights of a checkpoint that has them.
    pub pooler: bool,
    /// Encoder-decoder: a constant vector added to the logits, which is not trained (`final_logits_bias` of Marian and BART).
    pub final_logits_bias: bool,
    /// Share of elements zeroed after the embeddings, inside feed-forward layers (but see `activation_dropout`) and before
    /// every residual sum, in [0, 1).
    pub dropout: f64,
    /// Share of elements zeroed between the two feed-forward projections, in [0, 1); left out: as `dropout`. GPT-2, BERT and
    /// Llama have 0 here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activation_dropout: Option<f64>,
    /// Share of attention probabilities zeroed, in [0, 1).
    pub attention_dropout: f64,
    /// Which of the token matrices (source embedding, target embedding, output projection) are one. A model with one
    /// embedding reads `none` as an output projection of its own, and anything else as one matrix.
    pub tie_embeddings: TieEmbeddings,
    /// Rows (tokens) whose logits exist at a time in training and validation: their output projection, loss and gradients
    /// are computed chunk by chunk, so that no tensor of all rows by the vocabulary takes memory. 0: all rows at once; left
    /// out: [`Self::logits_chunk`] of the batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits_chunk_rows: Option<usize>,
    /// Distribution of the first weights.
    pub init: InitScheme,
    /// Id of the padding token. In pairs, labels equal to it do not count; in text see
    /// [`TextBatch::NOT_COUNTED`](crate::TextBatch::NOT_COUNTED). Filled in from the tokenizer.
    pub pad_id: u32,
}

/// The three Transformers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    /// Reads a source, writes a target: translation (Vaswani et al. 2017; Marian, BART).
    #[default]
    EncoderDecoder,
    /// Continues a text (GPT-2, Llama).
    DecoderOnly,
    /// Reads a text in both directions and fills in masked tokens (BERT).
    EncoderOnly,
}

/// Where layer normalization stands in a residual branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPlacement {
    /// `x + f(norm(x))`, and one norm at the end of each stack (Xiong et al. 2020). Trains without a careful warm-up.
    Pre,
    /// `norm(x + f(x))`, as in the paper of 2017. Needs warm-up.
    Post,
}

/// How features are normalized.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Mean to 0 and variance to 1, then scale and shift (Ba et al. 2016).
    #[default]
    LayerNorm,
    /// Root of the mean square to 1, then scale (Zhang and Sennrich 2019).
    RmsNorm,
}

/// How positions are told to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Positions {
    /// Sines and cosines of geometrically spaced wavelengths in turn; no parameters (Vaswani et al. 2017, section 3.5).
    Sinusoidal,
    /// The same numbers in another order: all sines, then all cosines (Marian).
    SinusoidalHalves,
    /// Queries and keys of self-attention are turned by an angle that grows with the position, feature i with feature
    /// i + K / 2 of each head (Su et al. 2021, in Llama's order); no parameters.
    Rotary,
    /// One trained vector per position, one table for the encoder and one for the decoder.
    Learned,
}

/// The non-linearity of the feed-forward layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// `x * Phi(x)` with the exact normal distribution function (erf), PyTorch's default GELU.
    Gelu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`, the GELU of GPT-2.
    GeluTanh,
    /// `x * sigmoid(x)`, also called swish.
    Silu,
    /// `silu(gate) * up`, where one product gives gate and up (Shazeer 2020): `2 * d_ff` inner features become `d_ff`.
    Swiglu,
}

/// Which token matrices are one (Press and Wolf 2017).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TieEmbeddings {
    /// Source embedding = target embedding = output projection; needs one joint vocabulary.
    ThreeWay,
    /// Target embedding = output projection.
    Output,
    /// Three matrices.
    None,
}

/// Distribution of the first weights. Biases start at 0 and norms at 1 and 0; tables of tokens and positions at a normal of
/// standard deviation `d_model^-0.5`, except in [`InitScheme::SmallNormal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InitScheme {
    /// Uniform within `sqrt(6 / (fan_in + fan_out))` (Glorot and Bengio 2010). The query, key and value projections
    /// count as one matrix of fan-out `3 * d_model`, as in PyTorch.
    Xavier,
    /// Normal of standard deviation `sqrt(2 / (5 * d_model))` (Nguyen and Salazar 2019; 0.02 at a d_model of 1000). The
    /// projections that end a residual branch are divided by `sqrt(2 * layers)`, so that the residual stream does not
    /// grow with depth (Radford et al. 2019).
    Scaled,
    /// Normal of standard deviation 0.02 for matrices and tables alike. With pre-norm, the projections that end a residual
    /// branch are divided by `sqrt(2 * layers)` (GPT-2), with post-norm they are not (BERT).
    SmallNormal,
}

impl Default for TransformerConfig {
    fn default() -> Self {
        Self {
            architecture: Architecture::EncoderDecoder,
            d_model: 512,
            n_heads: 8,
            n_kv_heads: 0,
            d_ff: 2048,
            n_encoder_layers: 6,
            n_decoder_layers: 6,
            source_vocab_size: 0,
            target_vocab_size: 0,
            max_positions: 512,
            norm: NormPlacement::Pre,
            norm_kind: NormKind::LayerNorm,
            norm_eps: 1e-5,
            embedding_norm: false,
            scale_embedding: true,
            positions: Positions::Sinusoidal,
            rope_theta: 10_000.0,
            activation: Activation::Relu,
            bias: true,
            n_token_types: 0,
            mlm_head: true,
            pooler: false,
            final_logits_bias: false,
            dropout: 0.1,
            activation_dropout: None,
            attention_dropout: 0.0,
            tie_embeddings: TieEmbeddings::ThreeWay,
            logits_chunk_rows: None,
            init: InitScheme::Xavier,
            pad_id: 0,
        }
    }
}

impl TransformerConfig {
    /// Dimensions of one attention head (K).
    pub fn head_dim(&self) -> usize {
        self.d_model / self.n_heads
    }

    /// Heads of keys and values (G), with the 0 of [`Self::n_kv_heads`] resolved.
    pub fn kv_heads(&self) -> usize {
        if self.n_kv_heads == 0 { self.n_heads } else { self.n_kv_heads }
    }

    /// Rows of a chunk of logits, of `rows` in all (0: no chunks): what was chosen, or else those of up to four chunks of one size, of
    /// about 8192 rows or more. More chunks save little beside the activations of so large a batch, and each, a small one
    /// for the rest too, costs a pass over the gradient of the projection.
    pub fn logits_chunk(&self, rows: usize) -> usize {
        const ABOUT: usize = 8192;
        // Whole tiles of a product.
        const TILE: usize = 128;
        let chunks = ((rows + ABOUT / 2) / ABOUT).clamp(1, 4);
        self.logits_chunk_rows.unwrap_or_else(|| rows.div_ceil(chunks).next_multiple_of(TILE))
    }

    /// Tokens that the model predicts (V); 0 while it is still to be filled in.
    pub fn vocab_size(&self) -> usize {
        match self.architecture {
            Architecture::EncoderOnly => self.source_vocab_size,
            Architecture::EncoderDecoder | Architecture::DecoderOnly => self.target_vocab_size,
        }
    }

    /// Sets the vocabulary of a model that reads and writes one: both sizes, of which each architecture uses its own.
    pub fn with_vocab_size(self, size: usize) -> Self {
        Self { source_vocab_size: size, target_vocab_size: size, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_logits_are_of_one_size() {
        let config = TransformerConfig::default();
        for (rows, chunks) in
            [(1, 1), (8192, 1), (12_287, 1), (12_289, 2), (16_384, 2), (25_600, 3), (65_536, 4), (1 << 20, 4)]
        {
            let size = config.logits_chunk(rows);
            assert!(rows.div_ceil(size) == chunks && size % 128 == 0, "{rows} rows by {size}");
            let last = rows - (chunks - 1) * size;
            assert!(chunks == 1 || last + chunks * 128 > size, "{rows} rows by {size} leave {last}");
        }
        assert_eq!(TransformerConfig { logits_chunk_rows: Some(100), ..config }.logits_chunk(25_600), 100);
    }
}
