//! The encoder-decoder Transformer (Vaswani et al. 2017).

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_kernels::int8::{Int8, Int8Weights};
use kiln_kernels::{DropoutStream, Projection};

use crate::batch::PairBatch;
use crate::config::{Architecture, TransformerConfig};
use crate::decoder::Decoder;
use crate::embedding::TokenEmbedding;
use crate::encoder::Encoder;
use crate::init::{Init, Role};
use crate::int8::int8_weights;
use crate::kv_cache::{DecoderCache, Memory};
use crate::linear::Linear;
use crate::loss::{EvalSums, LossSums, RowSums, TokenLoss};
use crate::norm::{Norm, normalized};
use crate::position::PositionEncoding;
use crate::rows::Rows;

/// Encodes a source and predicts a target token by token.
///
/// Methods apply dropout only if they are given a [`DropoutStream`]. Decode with the model that [`Module::valid`] returns:
/// tracked parameters record a graph that decoding does not use.
#[derive(Module, Debug)]
pub struct EncoderDecoder {
    /// Token vectors of the source; also of target and output, as far as they are tied to it.
    pub source_embedding: TokenEmbedding,
    /// Token vectors of the target, unless it shares the source's.
    pub target_embedding: Option<TokenEmbedding>,
    /// Positions of the source.
    pub source_positions: PositionEncoding,
    /// Positions of the target.
    pub target_positions: PositionEncoding,
    /// Norm of the embedded source, if the configuration has embedding norms.
    pub source_embedding_norm: Option<Norm>,
    /// Norm of the embedded target, if the configuration has embedding norms.
    pub target_embedding_norm: Option<Norm>,
    /// Layers over the source.
    pub encoder: Encoder,
    /// Layers over the target.
    pub decoder: Decoder,
    /// Output projection, D to V, unless it is tied to the target's embedding.
    pub output: Option<Linear>,
    /// A constant added to the logits, `[V]`, if the configuration has it. It is not trained.
    pub final_logits_bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    config: TransformerConfig,
}

impl TransformerConfig {
    /// Initializes an encoder-decoder. Otherwise as [`Self::init`].
    ///
    /// # Panics
    /// As [`Self::init`], and if this is another architecture.
    pub fn init_encoder_decoder(&self, seed: u64, dtype: impl Into<DType>, device: &Device) -> EncoderDecoder {
        self.new_encoder_decoder(Some(seed), dtype.into(), device)
    }

    /// As [`Self::init_encoder_decoder`], or without a seed as [`Self::init_without_weights`].
    pub(crate) fn new_encoder_decoder(&self, seed: Option<u64>, dtype: DType, device: &Device) -> EncoderDecoder {
        let init = Init::checked(self, Architecture::EncoderDecoder, seed, dtype, device);
        let tie = self.tie_embeddings;
        let norm = || self.embedding_norm.then(|| Norm::init(&init));
        EncoderDecoder {
            source_embedding: TokenEmbedding::init(&init.at("source_embedding"), self.source_vocab_size),
            target_embedding: (!tie.ties_inputs())
                .then(|| TokenEmbedding::init(&init.at("target_embedding"), self.target_vocab_size)),
            source_positions: PositionEncoding::init(&init.at("source_positions")),
            target_positions: PositionEncoding::init(&init.at("target_positions")),
            source_embedding_norm: norm(),
            target_embedding_norm: norm(),
            encoder: Encoder::init(&init.at("encoder")),
            decoder: Decoder::init(&init.at("decoder")),
            output: (!tie.ties_output()).then(|| {
                Linear::init_without_bias(&init.at("output"), [self.d_model, self.target_vocab_size], Role::Plain)
            }),
            final_logits_bias: self.final_logits_bias.then(|| init.frozen_zeros(self.target_vocab_size)),
            config: self.clone(),
        }
    }
}

impl EncoderDecoder {
    /// The configuration of the model.
    pub fn config(&self) -> &TransformerConfig {
        &self.config
    }

    /// Returns the label-smoothed cross-entropy summed over the real labels, and their number. Add both up over all
    /// micro-batches before dividing.
    pub fn loss(&self, batch: &PairBatch, label_smoothing: f64, stream: Option<&DropoutStream>) -> LossSums {
        let hidden = self.read(batch, stream);
        self.token_loss(label_smoothing).loss(self.head_input(hidden), self.projection(), batch.labels.clone())
    }

    /// [`Self::loss`], and its parts by rows.
    pub fn loss_by_row(
        &self,
        batch: &PairBatch,
        label_smoothing: f64,
        stream: Option<&DropoutStream>,
    ) -> (LossSums, RowSums) {
        let hidden = self.head_input(self.read(batch, stream));
        let loss = self.token_loss(label_smoothing);
        loss.by_row(hidden, self.projection(), batch.labels.clone(), batch.batch_size, None)
    }

    /// [`Self::loss`] without dropout, and the number of labels that got the largest logit.
    pub fn evaluate(&self, batch: &PairBatch, label_smoothing: f64) -> EvalSums {
        let hidden = self.read(batch, None);
        self.token_loss(label_smoothing).evaluate(self.head_input(hidden), self.projection(), batch.labels.clone())
    }

    /// Returns the logits of every target position, given the positions before it.
    ///
    /// # Shapes
    /// - result: `[B * T, V]`; rows of padded positions have no meaning
    pub fn logits(&self, batch: &PairBatch, stream: Option<&DropoutStream>) -> Tensor<2> {
        self.project(self.read(batch, stream))
    }

    /// Rounds the weights of all products to int8, for searches on the CPU: see [`Int8Weights::install`].
    ///
    /// # Panics
    /// If the model does not lie on the CPU.
    pub fn int8_weights(&self, kind: Int8) -> Int8Weights {
        int8_weights(self, Some(&self.projection()), kind)
    }

    fn read(&self, batch: &PairBatch, stream: Option<&DropoutStream>) -> Tensor<2> {
        let memory = self.encode(batch.source.clone(), batch.source_lengths.clone(), batch.batch_size, stream);
        self.decode_hidden(&memory, batch.target_input.clone(), stream)
    }

    fn token_loss(&self, label_smoothing: f64) -> TokenLoss<'_> {
        TokenLoss { config: &self.config, label_smoothing, ignored: self.config.pad_id.into() }
    }

    /// Encodes sources.
    ///
    /// # Shapes
    /// - `source`: `[B * S]`
    /// - `lengths`: `[B]`, non-padding tokens
    ///
    /// # Panics
    /// If `source` does not divide into `batch_size` rows or S is above `max_positions`.
    pub fn encode(
        &self,
        source: Tensor<1, Int>,
        lengths: Tensor<1, Int>,
        batch_size: usize,
        stream: Option<&DropoutStream>,
    ) -> Memory {
        let ([n], [n_lengths]) = (source.dims(), lengths.dims());
        assert!(n % batch_size == 0 && n_lengths == batch_size, "{n} ids, {n_lengths} lengths, {batch_size} rows");
        let rows = Rows::of_lengths(lengths.clone()).with_rotary_positions(&self.config, n, &source.device());
        let (positions, norm) = (&self.source_positions, &self.source_embedding_norm);
        let x = self.source_embedding.layer_input(source, positions, norm, self.config.dropout, &rows, stream);
        Memory { hidden: self.encoder.forward(x, &rows, stream), lengths, batch_size }
    }

    /// Returns the logits of whole targets.
    ///
    /// # Shapes
    /// - `target_input`: `[B * T]`
    /// - result: `[B * T, V]`
    ///
    /// # Panics
    /// If `target_input` does not divide into the rows of `memory` or T is above `max_positions`.
    pub fn decode(&self, memory: &Memory, target_input: Tensor<1, Int>, stream: Option<&DropoutStream>) -> Tensor<2> {
        self.project(self.decode_hidden(memory, target_input, stream))
    }

    fn decode_hidden(
        &self,
        memory: &Memory,
        target_input: Tensor<1, Int>,
        stream: Option<&DropoutStream>,
    ) -> Tensor<2> {
        let rows = Rows::new(memory.batch_size);
        let (x, rows) = self.embed_target(target_input, rows, stream);
        self.decoder.forward(x, &rows, Some(memory), stream)
    }

    /// Starts one empty target per source, and computes keys and values of the source for all steps.
    pub fn start(&self, memory: &Memory) -> DecoderCache {
        self.decoder.start(memory)
    }

    /// Feeds the first tokens of each target (start token included), and returns the logits of the token after the last one.
    ///
    /// # Shapes
    /// - `ids`: `[B * T]`, right-padded
    /// - `lengths`: `[B]`, non-padding ids of each row, at least 1 each
    /// - result: `[B, V]`
    ///
    /// # Panics
    /// If the number of rows differs from `cache`, `cache` is not fresh, or T is above `max_positions`.
    pub fn prefill(&self, ids: Tensor<1, Int>, lengths: Tensor<1, Int>, cache: &mut DecoderCache) -> Tensor<2> {
        assert_eq!(lengths.dims(), [cache.batch_size()], "one length for each row of the cache");
        let (x, rows) = self.embed_target(ids, Rows::of_lengths(lengths.clone()), None);
        let hidden = self.decoder.prefill(x, lengths, &rows, cache);
        self.project(rows.last(hidden))
    }

    /// Appends one token to every target and returns the logits of the next one.
    ///
    /// # Shapes
    /// - `ids`: `[B]`: in the first step the start token, then the tokens that were chosen
    /// - result: `[B, V]`
    ///
    /// # Panics
    /// If the number of ids differs from the rows of `cache`, or the targets have reached `max_positions`.
    pub fn decode_step(&self, ids: Tensor<1, Int>, cache: &mut DecoderCache) -> Tensor<2> {
        let ([n], b) = (ids.dims(), cache.batch_size());
        assert_eq!(n, b, "{n} ids for {b} rows");
        let x = self.target_embedding().forward(ids);
        let x = self.target_positions.add_step(x, cache);
        self.project(self.decoder.step(normalized(&self.target_embedding_norm, x), cache))
    }

    fn embed_target(&self, ids: Tensor<1, Int>, rows: Rows, stream: Option<&DropoutStream>) -> (Tensor<2>, Rows) {
        let [n] = ids.dims();
        let rows = rows.with_rotary_positions(&self.config, n, &ids.device());
        let (positions, norm) = (&self.target_positions, &self.target_embedding_norm);
        let x = self.target_embedding().layer_input(ids, positions, norm, self.config.dropout, &rows, stream);
        (x, rows)
    }

    fn target_embedding(&self) -> &TokenEmbedding {
        self.target_embedding.as_ref().unwrap_or(&self.source_embedding)
    }

    /// Scales hidden states for the output projection, if the model does; `[M, D]`.
    fn head_input(&self, hidden: Tensor<2>) -> Tensor<2> {
        if self.config.scale_output { hidden * (self.config.d_model as f64).powf(-0.5) } else { hidden }
    }

    /// The output projection, `[M, D]` to `[M, V]`.
    fn project(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.projection().logits(self.head_input(hidden))
    }

    fn projection(&self) -> Projection {
        let projection = self.output.as_ref().map_or_else(|| self.target_embedding().projection(), Linear::projection);
        match &self.final_logits_bias {
            Some(bias) => Projection { bias: Some(bias.val()), ..projection },
            None => projection,
        }
    }
}
