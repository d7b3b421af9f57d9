//! The model: stock Burn layers, whose weights both runs use.

use burn::module::Module;
use burn::nn::attention::{MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::Device;

use crate::text::SEQ_LEN;

pub const D_MODEL: usize = 128;
pub const N_HEADS: usize = 4;
const N_LAYERS: usize = 2;
/// Added to the variance in every [`LayerNorm`].
pub const EPS: f64 = 1e-5;

/// A decoder with normalization before each part of a layer.
#[derive(Module, Debug)]
pub struct Model {
    pub tokens: Embedding,
    pub positions: Embedding,
    pub layers: Vec<Layer>,
    pub norm: LayerNorm,
    pub head: Linear,
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
    pub fn new(vocab_size: usize, device: &Device) -> Self {
        let norm = || LayerNormConfig::new(D_MODEL).with_epsilon(EPS).init(device);
        let layer = |_| Layer {
            attention_norm: norm(),
            attention: MultiHeadAttentionConfig::new(D_MODEL, N_HEADS).with_dropout(0.0).init(device),
            feed_forward_norm: norm(),
            up: LinearConfig::new(D_MODEL, 4 * D_MODEL).init(device),
            down: LinearConfig::new(4 * D_MODEL, D_MODEL).init(device),
        };

        Self {
            tokens: EmbeddingConfig::new(vocab_size, D_MODEL).init(device),
            positions: EmbeddingConfig::new(SEQ_LEN, D_MODEL).init(device),
            layers: (0..N_LAYERS).map(layer).collect(),
            norm: norm(),
            head: LinearConfig::new(D_MODEL, vocab_size).init(device),
        }
    }
}
