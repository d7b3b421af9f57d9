//! The model: stock Burn layers, whose weights both runs use.

use burn::module::Module;
use burn::nn::attention::{MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::{Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::Device;

/// Added to the variance in every [`LayerNorm`].
pub const EPS: f64 = 1e-5;

/// Sizes of the model and of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub d_model: usize,
    pub n_heads: usize,
    pub n_layers: usize,
    /// Tokens of the embedding, of which the text may use fewer.
    pub vocab_size: usize,
    pub batch_size: usize,
    pub seq_len: usize,
    pub learning_rate: f64,
}

impl Shape {
    /// The shape called `name`.
    pub fn named(name: &str) -> Result<Self, String> {
        match name {
            "small" => Ok(Self {
                d_model: 128,
                n_heads: 4,
                n_layers: 2,
                vocab_size: 512,
                batch_size: 4,
                seq_len: 64,
                learning_rate: 2e-3,
            }),
            // GPT-2 124M: its output layer is its embedding.
            "gpt2" => Ok(Self {
                d_model: 768,
                n_heads: 12,
                n_layers: 12,
                vocab_size: 50_257,
                batch_size: 4,
                seq_len: 1024,
                learning_rate: 3e-4,
            }),
            other => Err(format!("no shape {other:?}: take `small` or `gpt2`")),
        }
    }

    /// Places of a batch.
    pub fn tokens(&self) -> usize {
        self.batch_size * self.seq_len
    }
}

/// A decoder with normalization before each part of a layer. The embedding is also the output layer.
#[derive(Module, Debug)]
pub struct Model {
    pub tokens: Embedding,
    pub positions: Embedding,
    pub layers: Vec<Layer>,
    pub norm: LayerNorm,
    #[module(skip)]
    pub shape: Shape,
}

#[derive(Module, Debug)]
pub struct Layer {
    pub attention_norm: LayerNorm,
    pub attention: MultiHeadAttention,
    pub feed_forward_norm: LayerNorm,
    pub up: Linear,
    pub down: Linear,
}

impl Model {
    pub fn new(shape: Shape, device: &Device) -> Self {
        let Shape { d_model, n_heads, n_layers, vocab_size, seq_len, .. } = shape;
        let small = Initializer::Normal { mean: 0.0, std: 0.02 };
        let norm = || LayerNormConfig::new(d_model).with_epsilon(EPS).init(device);
        let layer = |_| Layer {
            attention_norm: norm(),
            attention: MultiHeadAttentionConfig::new(d_model, n_heads).with_dropout(0.0).init(device),
            feed_forward_norm: norm(),
            up: LinearConfig::new(d_model, 4 * d_model).init(device),
            down: LinearConfig::new(4 * d_model, d_model).init(device),
        };

        Self {
            tokens: EmbeddingConfig::new(vocab_size, d_model).with_initializer(small.clone()).init(device),
            positions: EmbeddingConfig::new(seq_len, d_model).with_initializer(small).init(device),
            layers: (0..n_layers).map(layer).collect(),
            norm: norm(),
            shape,
        }
    }
}
