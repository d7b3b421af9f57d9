//! The decoder stack. Training computes the whole target at once, decoding one position per step. With cross-attention it
//! is the second half of an encoder-decoder, without it a decoder-only model.

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor};
use kiln_kernels::{AttentionMask, DropoutStream};

use crate::attention::{CrossAttention, SelfAttention};
use crate::config::Architecture;
use crate::feed_forward::FeedForward;
use crate::init::Init;
use crate::kv_cache::{DecoderCache, LayerCache, Memory};
use crate::norm::{BranchNorms, Entered, Norm, Residual, ResidualStream};
use crate::places::Step;
use crate::relative::RelativePositions;
use crate::rows::{Rows, bias_of_scores};
use crate::stack::{self, Layer, LayerInput, Training};

/// Layers of causal self-attention, cross-attention if there is a source, and feed-forward.
#[derive(Module, Debug)]
pub struct Decoder {
    /// First layer first.
    pub layers: Vec<DecoderLayer>,
    /// After the last layer; not in post-norm models.
    pub norm: Option<Norm>,
    /// What all layers add to the scores of self-attention; models with relative positions only.
    pub relative_positions: Option<RelativePositions>,
    #[module(skip)]
    pub(crate) training: Training,
}

impl Decoder {
    pub(crate) fn init(init: &Init) -> Self {
        let layers =
            (0..init.config.n_decoder_layers).map(|i| DecoderLayer::init(&init.at("layers").at(i), i)).collect();
        let relative_positions = RelativePositions::init(&init.at("relative_positions"), false);
        Self { layers, norm: Residual::final_norm(init), relative_positions, training: Training::default() }
    }

    /// Computes the hidden states of a whole target.
    ///
    /// # Shapes
    /// - `x`: `[B * T, D]`, embedded target; result the same
    pub fn forward(
        &self,
        x: Tensor<2>,
        rows: &Rows,
        memory: Option<&Memory>,
        stream: Option<&DropoutStream>,
    ) -> Tensor<2> {
        let rows = RelativePositions::fill(&self.relative_positions, rows.clone(), x.dims()[0]);
        let input = LayerInput { rows, memory: memory.cloned() };
        stack::run(&self.layers, &self.norm, x, &input, stream, self.training)
    }

    /// Starts an empty target for each source.
    pub(crate) fn start(&self, memory: &Memory) -> DecoderCache {
        let layer = |layer: &DecoderLayer| {
            let cross = layer.cross_attention.as_ref().expect("a decoder of an encoder-decoder has cross-attention");
            LayerCache::with_source(cross.project(memory.hidden.clone(), None), memory.batch_size)
        };
        let layers = self.layers.iter().map(layer).collect();
        let cache = DecoderCache::new(layers, memory.batch_size, Some(memory.lengths.clone()));
        let device = memory.hidden.device();
        if self.takes_places(&device) { cache.with_places(&device) } else { cache }
    }

    /// Whether rows can share keys and values in [`Self::step`].
    fn takes_places(&self, device: &Device) -> bool {
        let takes_places = |layer: &DecoderLayer| {
            let cross = layer.cross_attention.as_ref();
            layer.self_attention.takes_places(device) && cross.is_none_or(|cross| cross.takes_places(device))
        };
        self.relative_positions.is_none() && self.layers.iter().all(takes_places)
    }

    /// Starts an empty text in each row.
    pub(crate) fn start_without_source(&self, batch_size: usize) -> DecoderCache {
        DecoderCache::new(self.layers.iter().map(|_| LayerCache::default()).collect(), batch_size, None)
    }

    /// Computes the first positions of each row at once and stores their keys and values in a fresh `cache`.
    ///
    /// # Shapes
    /// - `x`: `[B * T, D]`, embedded; result the same
    /// - `lengths`: `[B]`, non-padding positions of each row
    pub(crate) fn prefill(
        &self,
        x: Tensor<2>,
        lengths: Tensor<1, Int>,
        rows: &Rows,
        cache: &mut DecoderCache,
    ) -> Tensor<2> {
        assert!(cache.is_empty(), "only a fresh cache can be prefilled; this one holds {} positions", cache.len());

        cache.without_places();
        let [n, _] = x.dims();
        let rows = &RelativePositions::fill(&self.relative_positions, rows.clone(), n);
        let DecoderCache { layers, source_lengths, .. } = cache;
        let x =
            self.layers.iter().zip(layers).fold(ResidualStream::new(x), |x, (layer, cache)| {
                layer.prefill(x, rows, cache, source_lengths.as_ref())
            });
        let looks_up = self.takes_places(&lengths.device());
        cache.filled(lengths, rows.len(n), looks_up);
        x.end(&self.norm, None)
    }

    /// Computes further positions of a single text at once, after the first `keep` of `cache`. For decoders without a source.
    ///
    /// # Shapes
    /// - `x`: `[T, D]`, embedded; result the same
    pub(crate) fn extend(&self, x: Tensor<2>, rows: &Rows, keep: usize, cache: &mut DecoderCache) -> Tensor<2> {
        let ([n, _], device) = (x.dims(), x.device());
        let mut mask = AttentionMask::default();
        if let Some(relative) = &self.relative_positions {
            let bias = relative.of_queries(rows.position_ids(n, &device), keep + n);
            let [_, heads] = bias.dims();
            mask.bias = Some(bias_of_scores(bias, [1, n], heads));
        }

        cache.truncate(keep);
        let layers = self.layers.iter().zip(&mut cache.layers);
        let x = layers.fold(ResidualStream::new(x), |x, (layer, cache)| layer.extend(x, rows, &mask, cache));
        cache.extended(n, &device);
        x.end(&self.norm, None)
    }

    /// Computes the next position of each row.
    ///
    /// # Shapes
    /// - `x`: `[B, D]`, embedded; result the same
    pub(crate) fn step(&self, x: Tensor<2>, cache: &mut DecoderCache) -> Tensor<2> {
        let mut step = cache.next_step(&x.device());
        if let Some(relative) = &self.relative_positions {
            let bias = relative.of_queries(step.positions.clone(), cache.next_capacity());
            let ([b, _], [_, heads]) = (x.dims(), bias.dims());
            step.bias = Some(bias_of_scores(bias, [b, 1], heads));
        }
        let DecoderCache { layers, source_lengths, .. } = cache;
        let x = self
            .layers
            .iter()
            .zip(layers)
            .fold(ResidualStream::new(x), |x, (layer, cache)| layer.step(x, cache, &step, source_lengths.as_ref()));
        cache.advance(step);
        x.end(&self.norm, None)
    }
}

/// Self-attention, cross-attention if there is a source, and feed-forward, each in a residual branch.
#[derive(Module, Debug)]
pub struct DecoderLayer {
    /// Norm of the self-attention branch.
    pub self_attention_norm: Norm,
    /// Norm of what self-attention returns; sandwich norms only.
    pub self_attention_result_norm: Option<Norm>,
    /// Each position attends to itself and earlier ones.
    pub self_attention: SelfAttention,
    /// Norm of the cross-attention branch; encoder-decoders only.
    pub cross_attention_norm: Option<Norm>,
    /// Norm of what cross-attention returns; encoder-decoders with sandwich norms only.
    pub cross_attention_result_norm: Option<Norm>,
    /// Each position attends to the real positions of the source; encoder-decoders only.
    pub cross_attention: Option<CrossAttention>,
    /// Norm of the feed-forward branch.
    pub feed_forward_norm: Norm,
    /// Norm of what the feed-forward layer returns; sandwich norms only.
    pub feed_forward_result_norm: Option<Norm>,
    /// Transforms each position by itself.
    pub feed_forward: FeedForward,
    #[module(skip)]
    residual: Residual,
}

impl DecoderLayer {
    fn init(init: &Init, layer: usize) -> Self {
        let n_layers = init.config.n_decoder_layers;
        let cross = init.config.architecture == Architecture::EncoderDecoder;
        Self {
            self_attention_norm: Norm::init(init),
            self_attention_result_norm: Residual::result_norm(init),
            self_attention: SelfAttention::init(&init.at("self_attention"), layer, n_layers),
            cross_attention_norm: cross.then(|| Norm::init(init)),
            cross_attention_result_norm: Residual::result_norm(init).filter(|_| cross),
            cross_attention: cross.then(|| CrossAttention::init(&init.at("cross_attention"), n_layers)),
            feed_forward_norm: Norm::init(init),
            feed_forward_result_norm: Residual::result_norm(init),
            feed_forward: FeedForward::init(&init.at("feed_forward"), n_layers),
            residual: Residual::new(init.config),
        }
    }

    fn self_attention_norms(&self) -> BranchNorms<'_> {
        BranchNorms { norm: &self.self_attention_norm, result: &self.self_attention_result_norm }
    }

    fn feed_forward_norms(&self) -> BranchNorms<'_> {
        BranchNorms { norm: &self.feed_forward_norm, result: &self.feed_forward_result_norm }
    }

    /// [`Layer::pass`] without dropout, which stores keys and values in `cache`:
    ///
    /// ```text
    /// K, V  = cache <- Project(Norm(x))
    /// x <- x + SelfAttention(Norm(x));  x <- x + CrossAttention(Norm(x), cache);  x <- x + FFN(Norm(x))
    /// ```
    fn prefill(
        &self,
        x: ResidualStream,
        rows: &Rows,
        cache: &mut LayerCache,
        source_lengths: Option<&Tensor<1, Int>>,
    ) -> ResidualStream {
        let x = self
            .residual
            .around(self.self_attention_norms(), x, None, |x| self.self_attention.prefill(x, rows, &mut cache.target));
        let x = self.attend_to_source(x, rows.batch_size, |_| cache.source_rows(), source_lengths, None);
        self.residual.around(self.feed_forward_norms(), x, None, |x| self.feed_forward.branch(x, None))
    }

    /// [`Layer::pass`] without dropout and source for further positions of a single text: `x <- x + SelfAttention(Norm(x), cache)`,
    /// `x <- x + FFN(Norm(x))`.
    fn extend(&self, x: ResidualStream, rows: &Rows, mask: &AttentionMask, cache: &mut LayerCache) -> ResidualStream {
        let attend = |x| self.self_attention.extend(x, rows, mask, &mut cache.target);
        let x = self.residual.around(self.self_attention_norms(), x, None, attend);
        self.residual.around(self.feed_forward_norms(), x, None, |x| self.feed_forward.branch(x, None))
    }

    /// [`Layer::pass`] without dropout for the next position of each row, whose keys and values are appended to `cache`:
    ///
    /// ```text
    /// x <- x + SelfAttention(Norm(x), cache);  x <- x + CrossAttention(Norm(x), cache);  x <- x + FFN(Norm(x))
    /// ```
    fn step(
        &self,
        x: ResidualStream,
        cache: &mut LayerCache,
        step: &Step,
        source_lengths: Option<&Tensor<1, Int>>,
    ) -> ResidualStream {
        let batch_size = x.n_rows();
        let x = self
            .residual
            .around(self.self_attention_norms(), x, None, |x| self.self_attention.step(x, &mut cache.target, step));
        let x = match (&step.places, &self.cross_attention_norm, &self.cross_attention) {
            (Some(places), Some(norm), Some(cross)) => {
                let norms = BranchNorms { norm, result: &self.cross_attention_result_norm };
                let lengths = source_lengths.expect("cross-attention needs a source");
                let attend = |x| cross.step(x, cache.sources(), places.sources(), lengths);
                self.residual.around(norms, x, None, attend)
            }
            _ => self.attend_to_source(x, batch_size, |_| cache.source_rows(), source_lengths, None),
        };
        self.residual.around(self.feed_forward_norms(), x, None, |x| self.feed_forward.branch(x, None))
    }

    /// Adds the cross-attention branch; returns `x` if the layer has none.
    fn attend_to_source(
        &self,
        x: ResidualStream,
        batch_size: usize,
        key_value: impl FnOnce(&CrossAttention) -> Tensor<2>,
        lengths: Option<&Tensor<1, Int>>,
        stream: Option<&DropoutStream>,
    ) -> ResidualStream {
        let (Some(norm), Some(cross)) = (&self.cross_attention_norm, &self.cross_attention) else { return x };
        let lengths = lengths.expect("cross-attention needs a source");
        let norms = BranchNorms { norm, result: &self.cross_attention_result_norm };
        self.residual.around(norms, x, stream, |x| cross.branch(x, key_value(cross), lengths, batch_size, stream))
    }
}

impl Layer for DecoderLayer {
    fn enter(&self, x: ResidualStream, stream: Option<&DropoutStream>) -> Entered {
        self.residual.enter(self.self_attention_norms(), x, stream)
    }

    /// Pre-norm, as [`Residual`] has it:
    ///
    /// ```text
    /// x <- x + Dropout(SelfAttention(Norm(x)))
    /// x <- x + Dropout(CrossAttention(Norm(x), memory))     if there is a source
    /// x <- x + Dropout(FFN(Norm(x)))
    /// ```
    ///
    /// Each norm computes the sum in front of it. So [`Layer::enter`] has made the first norm, and the last sum is made behind the layer.
    fn pass(&self, x: Entered, input: &LayerInput, stream: Option<&DropoutStream>) -> ResidualStream {
        let LayerInput { rows, memory } = input;
        let attend = |x| self.self_attention.branch(x, rows, true, stream);
        let x = self.residual.leave(self.self_attention_norms(), x, stream, attend);

        let source = memory.as_ref().map(|memory| &memory.lengths);
        let hidden = || memory.as_ref().expect("cross-attention needs a source").hidden.clone();
        let x = self.attend_to_source(x, rows.batch_size, |cross| cross.project(hidden(), stream), source, stream);
        self.residual.around(self.feed_forward_norms(), x, stream, |x| self.feed_forward.branch(x, stream))
    }

    fn end(&self) -> (Option<&Param<Tensor<1>>>, Residual) {
        // A norm of the result has added the bias already.
        let bias = self.feed_forward.output.bias.as_ref().filter(|_| self.feed_forward_result_norm.is_none());
        (bias, self.residual)
    }
}
