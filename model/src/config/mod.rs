//! The shape of a Transformer: one plain structure, checked once, saved next to the weights as `config.json`.

mod activation;
mod classes;
mod layers;
mod lora;
mod presets;
mod prompt;
mod rope;
mod validate;

pub use activation::FeedForwardActivation;
pub use classes::ClassHead;
use kiln_kernels::Activation;
pub(crate) use lora::{AdapterColumns, Product};
pub use lora::{LoraConfig, LoraTarget};
pub use rope::RopeScaling;
use serde::{Deserialize, Serialize};

/// The shape of a Transformer and the distribution of its initial weights.
///
/// The default is the encoder-decoder "base" of Vaswani et al. 2017 with pre-norm. The configuration determines every
/// parameter, so a saved configuration and a file of weights are a complete model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransformerConfig {
    /// Which of the three Transformers this is.
    pub architecture: Architecture,
    /// Features of every hidden state (D). A multiple of `n_heads` unless `head_dim` is set; multiples of 64 are fast on GPUs.
    pub d_model: usize,
    /// Attention heads (H).
    pub n_heads: usize,
    /// Heads of keys and values (G), a divisor of `n_heads`. Each serves `n_heads / n_kv_heads` heads of queries (grouped
    /// queries, Ainslie et al. 2023). 0: the same as `n_heads`.
    pub n_kv_heads: usize,
    /// Dimensions of one attention head (K). 0: `d_model / n_heads`.
    pub head_dim: usize,
    /// Inner features of the feed-forward layers (F): usually `4 * d_model`, with SwiGLU `8 / 3 * d_model`.
    pub d_ff: usize,
    /// Encoder layers. Ignored for decoder-only models.
    pub n_encoder_layers: usize,
    /// Decoder layers. Ignored for encoder-only models.
    pub n_decoder_layers: usize,
    /// Tokens in the source vocabulary; for an encoder-only model, in its vocabulary. 0: filled in from the tokenizer.
    pub source_vocab_size: usize,
    /// Tokens in the target vocabulary (V); for a decoder-only model, in its vocabulary. 0: filled in from the tokenizer.
    pub target_vocab_size: usize,
    /// Length of the longest source or target in tokens, including the end or start token.
    pub max_positions: usize,
    /// Where normalization is applied.
    pub norm: NormPlacement,
    /// How features are normalized.
    pub norm_kind: NormKind,
    /// Added to the variance (in RMS norms: to the mean square) before taking its square root.
    pub norm_eps: f64,
    /// Whether the embeddings are normalized (BERT, BART).
    pub embedding_norm: bool,
    /// Whether token vectors are multiplied by `sqrt(d_model)` when they are looked up (Vaswani et al. 2017, section 3.4).
    pub scale_embedding: bool,
    /// How the model encodes positions.
    pub positions: Positions,
    /// Base of the wavelengths of rotary positions: pair i of K / 2 rotates by `rope_theta^(-2 i / K)` radians per position.
    pub rope_theta: f64,
    /// Buckets of relative positions, each with a number per head; in an encoder, half of them for keys behind the query.
    pub relative_buckets: usize,
    /// Distances from here on share a bucket of relative positions.
    pub relative_max_distance: usize,
    /// How the wavelengths of rotary positions are stretched, in models whose texts were lengthened after training (Llama 3,
    /// Gemma 3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<RopeScaling>,
    /// Decoder-only: a position sees this many positions, itself and the ones before it (Mistral's sliding window). 0: all.
    pub attention_window: usize,
    /// Decoder-only: every layer of this number, counted from 1, sees all positions in spite of `attention_window` (Gemma 2: 2,
    /// Gemma 3: 6). 0: none does.
    pub global_layer_every: usize,
    /// Decoder-only: base of the wavelengths in layers with a window, which are not stretched (Gemma 3). Left out: `rope_theta`
    /// and `rope_scaling`, as in the other layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_rope_theta: Option<f64>,
    /// What products of queries and keys are multiplied by (T5: 1). Left out: `1 / sqrt(K)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_scale: Option<f64>,
    /// A bound `c` of the scores of attention, which become `c * tanh(score / c)` (Gemma 2). 0: none.
    pub attention_softcap: f64,
    /// Decoder-only: a bound `c` of the logits, which become `c * tanh(logit / c)` (Gemma 2). 0: none.
    pub logits_softcap: f64,
    /// Decoder-only: whether each head of queries and keys is normalized by its root mean square before it is rotated
    /// (Qwen 3).
    pub qk_norm: bool,
    /// The activation between the two feed-forward projections.
    pub activation: FeedForwardActivation,
    /// Whether the projections of attention and feed-forward layers add a bias.
    pub bias: bool,
    /// Decoder-only: whether the projection of queries, keys and values adds a bias (Qwen 2). Left out: the same as `bias`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qkv_bias: Option<bool>,
    /// Decoder-only: whether the projections of the feed-forward part add a bias. Left out: as `bias` (Llama with one of `attention_bias`
    /// and `mlp_bias`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feed_forward_bias: Option<bool>,
    /// Encoder-only: number of token types (BERT's "segments"). Each has a trained vector that is added to the token's.
    /// 0: no types.
    pub n_token_types: usize,
    /// Encoder-only: whether the model has the head that predicts masked tokens (transform, norm, projection to the
    /// vocabulary). Without it, the model returns hidden states and cannot be trained on masked tokens.
    pub mlm_head: bool,
    /// Encoder-only: whether the model has BERT's "pooler", a projection of each row's first hidden state. Only the head
    /// [`ClassHead::Pooled`] uses it; otherwise it preserves the weights of checkpoints that have it.
    pub pooler: bool,
    /// The head that predicts classes. In an encoder it stands in place of the one for masked tokens, in a decoder in place of the
    /// projection to the vocabulary.
    pub class_head: ClassHead,
    /// Classes that `class_head` distinguishes (C). 0: filled in from the data.
    pub n_classes: usize,
    /// Encoder-decoder: whether a constant vector is added to the logits (`final_logits_bias` of Marian and BART). It is not
    /// trained.
    pub final_logits_bias: bool,
    /// Encoder-decoder: whether hidden states are multiplied by `d_model^-0.5` before the output projection (T5).
    pub scale_output: bool,
    /// Fraction of elements dropped after the embeddings, inside feed-forward layers (but see `activation_dropout`) and
    /// before every residual sum, in [0, 1).
    pub dropout: f64,
    /// Fraction of elements dropped between the two feed-forward projections, in [0, 1). Left out: the same as `dropout`.
    /// GPT-2, BERT and Llama have 0 here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activation_dropout: Option<f64>,
    /// Fraction of attention probabilities dropped, in [0, 1).
    pub attention_dropout: f64,
    /// Which of the token matrices (source embedding, target embedding, output projection) share their weights. A model with
    /// one embedding ties it to the output projection unless this is `none`.
    pub tie_embeddings: TieEmbeddings,
    /// Rows (tokens) per chunk of logits in training and validation. Output projection, loss and gradients are computed chunk
    /// by chunk, so that no tensor of all rows by the vocabulary takes memory. 0: all rows at once. Left out: chosen by
    /// [`Self::logits_chunk`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits_chunk_rows: Option<usize>,
    /// Distribution of the initial weights.
    pub init: InitScheme,
    /// Id of the padding token, filled in from the tokenizer. In pairs, the loss ignores labels equal to it. For text see
    /// [`TextBatch::NOT_COUNTED`](crate::TextBatch::NOT_COUNTED).
    pub pad_id: u32,
    /// Decoder-only: learned vectors in front of every text (P), which are trained instead of the other weights (prompt tuning, Lester
    /// et al. 2021). They take positions from the text. 0: none.
    pub prompt_tokens: usize,
    /// Adapters that are trained instead of the other weights.
    pub lora: LoraConfig,
}

/// The three architectures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    /// Translates a source into a target (Vaswani et al. 2017; Marian, BART).
    #[default]
    EncoderDecoder,
    /// Continues a text (GPT-2, Llama).
    DecoderOnly,
    /// Encodes a text in both directions and predicts masked tokens (BERT).
    EncoderOnly,
}

/// Where a residual branch is normalized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPlacement {
    /// `x + f(norm(x))`, and one norm at the end of each stack (Xiong et al. 2020). Trains without a careful warm-up.
    Pre,
    /// `norm(x + f(x))`, as in Vaswani et al. 2017. Needs warm-up.
    Post,
    /// `x + norm(f(norm(x)))`, and one norm at the end of each stack (Ding et al. 2021; Gemma 2).
    Sandwich,
}

/// How features are normalized.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Brings the mean to 0 and the variance to 1, then scales and shifts (Ba et al. 2016).
    #[default]
    LayerNorm,
    /// Brings the root mean square to 1, then scales (Zhang and Sennrich 2019).
    RmsNorm,
}

/// How the model encodes positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Positions {
    /// Alternating sines and cosines of geometrically spaced wavelengths (Vaswani et al. 2017, section 3.5). No parameters.
    Sinusoidal,
    /// The same numbers, but all sines before all cosines (Marian).
    SinusoidalHalves,
    /// As fairseq computes them: all sines before all cosines, the longest wavelength 10,000 times the shortest, and the first
    /// position one more than the padding's id (M2M-100, NLLB).
    SinusoidalFairseq,
    /// Rotates queries and keys of self-attention by an angle that grows with the position (Su et al. 2021). Feature i of
    /// each head is paired with feature i + K / 2, as in Llama. No parameters.
    Rotary,
    /// One trained vector per position, in one table for the encoder and one for the decoder.
    Learned,
    /// Adds a trained number per head and distance to the scores of self-attention (Raffel et al. 2020, T5). The layers of a stack
    /// share them, and so do far distances, in buckets.
    Relative,
}

impl Positions {
    /// Whether positions are sines and cosines that are added to the token vectors.
    pub fn are_sines(self) -> bool {
        matches!(self, Self::Sinusoidal | Self::SinusoidalHalves | Self::SinusoidalFairseq)
    }
}

/// Which token matrices share their weights (Press and Wolf 2017).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TieEmbeddings {
    /// Source embedding, target embedding and output projection. Needs a joint vocabulary.
    ThreeWay,
    /// Target embedding and output projection.
    Output,
    /// Encoder-decoder: source and target embedding (T5 1.1). Needs a joint vocabulary.
    Inputs,
    /// No two of them.
    None,
}

impl TieEmbeddings {
    /// Whether source and target embedding are one matrix.
    pub fn ties_inputs(self) -> bool {
        matches!(self, Self::ThreeWay | Self::Inputs)
    }

    /// Whether the output projection is an embedding.
    pub fn ties_output(self) -> bool {
        matches!(self, Self::ThreeWay | Self::Output)
    }
}

/// Distribution of the initial weights. Biases and shifts start at 0, scales of norms at 1. Tables of tokens and positions
/// are normal with standard deviation `d_model^-0.5`, except in [`InitScheme::SmallNormal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InitScheme {
    /// Uniform within `sqrt(6 / (fan_in + fan_out))` (Glorot and Bengio 2010). The query, key and value projections
    /// count as one matrix of fan-out `3 * d_model`, as in PyTorch.
    Xavier,
    /// Normal with standard deviation `sqrt(2 / (5 * d_model))` (Nguyen and Salazar 2019; 0.02 at a d_model of 1000). The
    /// last projection of each residual branch is divided by `sqrt(2 * layers)`, so that the residual stream does not grow
    /// with depth (Radford et al. 2019).
    Scaled,
    /// Normal with standard deviation 0.02 for matrices and tables alike. With pre-norm, the last projection of each residual
    /// branch is divided by `sqrt(2 * layers)` (GPT-2); with post-norm it is not (BERT).
    SmallNormal,
}

impl Default for TransformerConfig {
    fn default() -> Self {
        Self {
            architecture: Architecture::EncoderDecoder,
            d_model: 512,
            n_heads: 8,
            n_kv_heads: 0,
            head_dim: 0,
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
            relative_buckets: 32,
            relative_max_distance: 128,
            rope_scaling: None,
            attention_window: 0,
            global_layer_every: 0,
            local_rope_theta: None,
            attention_scale: None,
            attention_softcap: 0.0,
            logits_softcap: 0.0,
            qk_norm: false,
            activation: Activation::Relu.into(),
            bias: true,
            qkv_bias: None,
            feed_forward_bias: None,

            n_token_types: 0,
            mlm_head: true,
            pooler: false,
            class_head: ClassHead::None,
            n_classes: 0,
            final_logits_bias: false,
            scale_output: false,
            dropout: 0.1,
            activation_dropout: None,
            attention_dropout: 0.0,
            tie_embeddings: TieEmbeddings::ThreeWay,
            logits_chunk_rows: None,
            init: InitScheme::Xavier,
            pad_id: 0,
            prompt_tokens: 0,
            lora: LoraConfig::default(),
        }
    }
}

impl TransformerConfig {
    /// Dimensions of one attention head (K).
    pub fn head_dim(&self) -> usize {
        if self.head_dim == 0 { self.d_model / self.n_heads } else { self.head_dim }
    }

    /// Whether the projection of queries, keys and values adds a bias: [`Self::qkv_bias`], or `bias` if that is left out.
    pub fn has_qkv_bias(&self) -> bool {
        self.qkv_bias.unwrap_or(self.bias)
    }

    /// Whether the two projections of the feed-forward part add a bias: [`Self::feed_forward_bias`], or `bias` if that is left out.
    pub fn has_feed_forward_bias(&self) -> bool {
        self.feed_forward_bias.unwrap_or(self.bias)
    }

    /// Heads of keys and values (G): [`Self::n_kv_heads`], or `n_heads` if that is 0.
    pub fn kv_heads(&self) -> usize {
        if self.n_kv_heads == 0 { self.n_heads } else { self.n_kv_heads }
    }

    /// Rows per chunk of the logits of `rows` rows (0: no chunks).
    ///
    /// Unless [`Self::logits_chunk_rows`] is set, there are one to four chunks of equal size, of about 8192 rows or more. More
    /// chunks would save little memory compared with the activations of so large a batch. Each chunk costs a pass over the
    /// gradient of the projection.
    pub fn logits_chunk(&self, rows: usize) -> usize {
        const ABOUT: usize = 8192;
        // Rows of a GEMM tile.
        const TILE: usize = 128;
        let chunks = ((rows + ABOUT / 2) / ABOUT).clamp(1, 4);
        self.logits_chunk_rows.unwrap_or_else(|| rows.div_ceil(chunks).next_multiple_of(TILE))
    }

    /// Size of the vocabulary that the model predicts (V); 0 until it is filled in.
    pub fn vocab_size(&self) -> usize {
        match self.architecture {
            Architecture::EncoderOnly => self.source_vocab_size,
            Architecture::EncoderDecoder | Architecture::DecoderOnly => self.target_vocab_size,
        }
    }

    /// Sets both vocabulary sizes. Each architecture uses those it needs.
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
