//! The encoder-decoder Transformer (Vaswani et al. 2017).

use burn::module::Module;
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_kernels::{CrossEntropy, DropoutStream};

use crate::batch::Batch;
use crate::config::{TieEmbeddings, TransformerConfig};
use crate::decoder::Decoder;
use crate::embedding::TokenEmbedding;
use crate::encoder::Encoder;
use crate::init::{Init, Role};
use crate::kv_cache::{DecoderCache, Memory};
use crate::linear::Linear;
use crate::loss::token_loss;
use crate::norm::dropout;
use crate::position::PositionEncoding;

/// Reads a source, predicts a target token by token.
///
/// Dropout needs a [`DropoutStream`]; without one every method evaluates. Decoding on a model whose parameters are
/// tracked records a graph that nobody uses: decode with [`Module::valid`].
#[derive(Module, Debug)]
pub struct EncoderDecoder {
    /// Of the source; of everything when embeddings are tied three ways.
    pub source_embedding: TokenEmbedding,
    /// Of the target, unless it is the source's.
    pub target_embedding: Option<TokenEmbedding>,
    /// Of the source.
    pub source_positions: PositionEncoding,
    /// Of the target.
    pub target_positions: PositionEncoding,
    /// Reads the source.
    pub encoder: Encoder,
    /// Writes the target.
    pub decoder: Decoder,
    /// D to V, unless it is the target's embedding.
    pub output: Option<Linear>,
    #[module(skip)]
    config: TransformerConfig,
}

impl TransformerConfig {
    /// A model with fresh weights: a pure function of `self` and `seed`, whatever the device.
    ///
    /// `dtype` is the compute dtype of weights and activations. On an autodiff device all parameters are tracked.
    ///
    /// # Panics
    /// If [`Self::validate`] finds a problem or a vocabulary is still 0.
    pub fn init(&self, seed: u64, dtype: impl Into<DType>, device: &Device) -> EncoderDecoder {
        let problems = self.validate();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
        assert!(self.source_vocab_size > 0 && self.target_vocab_size > 0, "a vocabulary size is still 0");
        let init = Init::new(self, seed, dtype.into(), device);
        let tie = self.tie_embeddings;
        EncoderDecoder {
            source_embedding: TokenEmbedding::init(&init.at("source_embedding"), self.source_vocab_size),
            target_embedding: (tie != TieEmbeddings::ThreeWay)
                .then(|| TokenEmbedding::init(&init.at("target_embedding"), self.target_vocab_size)),
            source_positions: PositionEncoding::init(&init.at("source_positions")),
            target_positions: PositionEncoding::init(&init.at("target_positions")),
            encoder: Encoder::init(&init.at("encoder")),
            decoder: Decoder::init(&init.at("decoder")),
            output: (tie == TieEmbeddings::None).then(|| {
                Linear::init_without_bias(&init.at("output"), [self.d_model, self.target_vocab_size], Role::Plain)
            }),
            config: self.clone(),
        }
    }
}

impl EncoderDecoder {
    /// The configuration that the model was made from.
    pub fn config(&self) -> &TransformerConfig {
        &self.config
    }

    /// Summed label-smoothed cross-entropy over the real labels. Divide by the number of them, over all micro-batches.
    pub fn loss(&self, batch: &Batch, label_smoothing: f64, stream: Option<&DropoutStream>) -> CrossEntropy {
        token_loss(self.logits(batch, stream), batch.labels.clone(), label_smoothing, self.config.pad_id)
    }

    /// Logits of every target position, each given the positions before it.
    ///
    /// # Shapes
    /// - result: `[B * T, V]`; rows of padded positions mean nothing
    pub fn logits(&self, batch: &Batch, stream: Option<&DropoutStream>) -> Tensor<2> {
        let memory = self.encode(batch.source.clone(), batch.source_lengths.clone(), batch.batch_size, stream);
        self.decode(&memory, batch.target_input.clone(), stream)
    }

    /// Reads sources.
    ///
    /// # Shapes
    /// - `source`: `[B * S]`
    /// - `lengths`: `[B]`, tokens that are no padding
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
        let x = self.source_positions.add_to(self.source_embedding.forward(source), batch_size, 0);
        let x = dropout(x, self.config.dropout, stream);
        Memory { hidden: self.encoder.forward(x, &lengths, batch_size, stream), lengths, batch_size }
    }

    /// Logits of whole targets.
    ///
    /// # Shapes
    /// - `target_input`: `[B * T]`
    /// - result: `[B * T, V]`
    ///
    /// # Panics
    /// If `target_input` does not divide into the rows of `memory` or T is above `max_positions`.
    pub fn decode(&self, memory: &Memory, target_input: Tensor<1, Int>, stream: Option<&DropoutStream>) -> Tensor<2> {
        let ([n], b) = (target_input.dims(), memory.batch_size);
        assert!(n % b == 0, "{n} target ids do not divide into {b} rows");
        let x = self.target_positions.add_to(self.target_embedding().forward(target_input), b, 0);
        let x = dropout(x, self.config.dropout, stream);
        self.project(self.decoder.forward(x, memory, stream))
    }

    /// Begins one empty target per source; keys and values of the source are computed here, once.
    pub fn start(&self, memory: &Memory) -> DecoderCache {
        self.decoder.start(memory)
    }

    /// Appends one token to every target and returns the logits of the next.
    ///
    /// # Shapes
    /// - `ids`: `[B]`: the start token first, then what was chosen
    /// - result: `[B, V]`
    ///
    /// # Panics
    /// If `ids` does not have one id per row of `cache`, or the targets have reached `max_positions`.
    pub fn decode_step(&self, ids: Tensor<1, Int>, cache: &mut DecoderCache) -> Tensor<2> {
        let ([n], b) = (ids.dims(), cache.batch_size());
        assert_eq!(n, b, "{n} ids for {b} rows");
        let x = self.target_positions.add_to(self.target_embedding().forward(ids), b, cache.len());
        self.project(self.decoder.step(x, cache))
    }

    fn target_embedding(&self) -> &TokenEmbedding {
        self.target_embedding.as_ref().unwrap_or(&self.source_embedding)
    }

    /// `[M, D]` to `[M, V]`.
    fn project(&self, hidden: Tensor<2>) -> Tensor<2> {
        match &self.output {
            Some(output) => output.forward(hidden),
            None => self.target_embedding().logits(hidden),
        }
    }
}
