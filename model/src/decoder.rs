//! The decoder stack: the whole target at once in training, one position at a time in decoding.

use burn::module::Module;
use burn::tensor::{Int, Tensor};
use kiln_kernels::DropoutStream;

use crate::attention::{CrossAttention, SelfAttention};
use crate::config::NormPlacement;
use crate::feed_forward::FeedForward;
use crate::init::Init;
use crate::kv_cache::{DecoderCache, LayerCache, Memory};
use crate::norm::{LayerNorm, Residual};

/// Layers of causal self-attention, attention to the source, and feed-forward.
#[derive(Module, Debug)]
pub struct Decoder {
    /// First layer first.
    pub layers: Vec<DecoderLayer>,
    /// After the last layer; pre-norm models only.
    pub norm: Option<LayerNorm>,
}

impl Decoder {
    pub(crate) fn init(init: &Init) -> Self {
        let layers = (0..init.config.n_decoder_layers).map(|i| DecoderLayer::init(&init.at("layers").at(i))).collect();
        let norm = (init.config.norm == NormPlacement::Pre).then(|| LayerNorm::init(init));
        Self { layers, norm }
    }

    /// # Shapes
    /// - `x`: `[B * T, D]`, embedded target; result the same
    pub fn forward(&self, x: Tensor<2>, memory: &Memory, stream: Option<&DropoutStream>) -> Tensor<2> {
        let x = self.layers.iter().fold(x, |x, layer| layer.forward(x, memory, stream));
        self.normalize(x)
    }

    /// An empty target for each source.
    pub fn start(&self, memory: &Memory) -> DecoderCache {
        let project = |layer: &DecoderLayer| layer.cross_attention.project(memory.hidden.clone());
        DecoderCache {
            layers: self.layers.iter().map(|layer| LayerCache::new(project(layer), memory.batch_size)).collect(),
            source_lengths: memory.lengths.clone(),
            len: 0,
        }
    }

    /// One position more.
    ///
    /// # Shapes
    /// - `x`: `[B, D]`, embedded; result the same
    pub fn step(&self, x: Tensor<2>, cache: &mut DecoderCache) -> Tensor<2> {
        let position = cache.len;
        let lengths = cache.source_lengths.full_like((position + 1) as i64);
        let DecoderCache { layers, source_lengths, .. } = cache;
        let x = self
            .layers
            .iter()
            .zip(layers)
            .fold(x, |x, (layer, cache)| layer.step(x, cache, position, &lengths, source_lengths));
        cache.len += 1;
        self.normalize(x)
    }

    fn normalize(&self, x: Tensor<2>) -> Tensor<2> {
        match &self.norm {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }
}

/// Self-attention, attention to the source and feed-forward, each in a residual branch.
#[derive(Module, Debug)]
pub struct DecoderLayer {
    /// Norm of the self-attention branch.
    pub self_attention_norm: LayerNorm,
    /// Every position looks at itself and earlier ones.
    pub self_attention: SelfAttention,
    /// Norm of the cross-attention branch.
    pub cross_attention_norm: LayerNorm,
    /// Every position looks at the real positions of the source.
    pub cross_attention: CrossAttention,
    /// Norm of the feed-forward branch.
    pub feed_forward_norm: LayerNorm,
    /// Each position by itself.
    pub feed_forward: FeedForward,
    #[module(skip)]
    residual: Residual,
}

impl DecoderLayer {
    fn init(init: &Init) -> Self {
        let n_layers = init.config.n_decoder_layers;
        Self {
            self_attention_norm: LayerNorm::init(init),
            self_attention: SelfAttention::init(&init.at("self_attention"), n_layers),
            cross_attention_norm: LayerNorm::init(init),
            cross_attention: CrossAttention::init(&init.at("cross_attention"), n_layers),
            feed_forward_norm: LayerNorm::init(init),
            feed_forward: FeedForward::init(&init.at("feed_forward"), n_layers),
            residual: Residual::new(init.config),
        }
    }

    /// # Shapes
    /// - `x`: `[B * T, D]`; result the same
    pub fn forward(&self, x: Tensor<2>, memory: &Memory, stream: Option<&DropoutStream>) -> Tensor<2> {
        let x = self.residual.around(&self.self_attention_norm, x, stream, |x| {
            self.self_attention.forward(x, None, memory.batch_size, true)
        });
        let x = self.residual.around(&self.cross_attention_norm, x, stream, |x| {
            let key_value = self.cross_attention.project(memory.hidden.clone());
            self.cross_attention.forward(x, key_value, &memory.lengths, memory.batch_size)
        });
        self.residual.around(&self.feed_forward_norm, x, stream, |x| self.feed_forward.forward(x, stream))
    }

    /// [`Self::forward`] for one position more.
    ///
    /// # Shapes
    /// - `x`: `[B, D]`; result the same
    /// - `lengths`: `[B]`, target positions with this one
    /// - `source_lengths`: `[B]`
    fn step(
        &self,
        x: Tensor<2>,
        cache: &mut LayerCache,
        position: usize,
        lengths: &Tensor<1, Int>,
        source_lengths: &Tensor<1, Int>,
    ) -> Tensor<2> {
        let [batch_size, _] = x.dims();
        let x = self.residual.around(&self.self_attention_norm, x, None, |x| {
            self.self_attention.step(x, &mut cache.target, position, lengths)
        });
        let x = self.residual.around(&self.cross_attention_norm, x, None, |x| {
            self.cross_attention.forward(x, cache.source_rows(), source_lengths, batch_size)
        });
        self.residual.around(&self.feed_forward_norm, x, None, |x| self.feed_forward.forward(x, None))
    }
}
