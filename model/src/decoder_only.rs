//! The decoder-only Transformer: GPT-2 (Radford et al. 2019) and Llama (Touvron et al. 2023), as the configuration says. It continues
//! texts, or predicts their classes.

use burn::module::Module;
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_kernels::int8::{Int8, Int8Weights};
use kiln_kernels::{DropoutStream, Projection, row_argmax};

use crate::batch::TextBatch;
use crate::classifier::{Classifier, first_of_rows};
use crate::config::{Architecture, TransformerConfig};
use crate::decoder::{Decoder, DecoderLayer};
use crate::embedding::TokenEmbedding;
use crate::init::{Init, Role};
use crate::int8::int8_weights;
use crate::kv_cache::DecoderCache;
use crate::learned_prompt::LearnedPrompt;
use crate::linear::Linear;
use crate::loss::{EvalSums, LossSums, RowSums, TokenLoss};
use crate::norm::{Norm, normalized};
use crate::position::PositionEncoding;
use crate::rows::Rows;

/// Continues a text token by token, or predicts its class.
///
/// Methods apply dropout only if they are given a [`DropoutStream`]. Decode with the model that [`Module::valid`] returns:
/// tracked parameters record a graph that decoding does not use.
#[derive(Module, Debug)]
pub struct DecoderOnly {
    /// Token vectors; also the output projection when embeddings are tied.
    pub embedding: TokenEmbedding,
    /// Vectors in front of every text, if the configuration has some.
    pub learned_prompt: Option<LearnedPrompt>,
    /// Positions.
    pub positions: PositionEncoding,
    /// Norm of the embedded text, if the configuration has embedding norms.
    pub embedding_norm: Option<Norm>,
    /// Layers without cross-attention.
    pub decoder: Decoder,
    /// Output projection, D to V, unless it is tied to the embedding or the model predicts classes.
    pub output: Option<Linear>,
    /// Predicts classes, if the configuration has such a head.
    pub classifier: Option<Classifier>,
    #[module(skip)]
    config: TransformerConfig,
    /// The model that answers are compared with, without autodiff. None: this model without its adapters.
    #[module(skip)]
    pub(crate) reference: Option<Box<DecoderOnly>>,
}

impl TransformerConfig {
    /// Initializes a decoder-only model. Otherwise as [`Self::init`].
    ///
    /// # Panics
    /// As [`Self::init`], and if this is another architecture.
    pub fn init_decoder_only(&self, seed: u64, dtype: impl Into<DType>, device: &Device) -> DecoderOnly {
        self.new_decoder_only(Some(seed), dtype.into(), device)
    }

    /// As [`Self::init_decoder_only`], or without a seed as [`Self::init_without_weights`].
    pub(crate) fn new_decoder_only(&self, seed: Option<u64>, dtype: DType, device: &Device) -> DecoderOnly {
        let init = Init::checked(self, Architecture::DecoderOnly, seed, dtype, device);
        let (d, v) = (self.d_model, self.target_vocab_size);
        DecoderOnly {
            embedding: TokenEmbedding::init(&init.at("embedding"), v),
            learned_prompt: LearnedPrompt::init(&init.at("learned_prompt")),
            positions: PositionEncoding::init(&init.at("positions")),
            embedding_norm: self.embedding_norm.then(|| Norm::init(&init)),
            decoder: Decoder::init(&init.at("decoder")),
            output: (!self.tie_embeddings.ties_output() && !self.has_classes())
                .then(|| Linear::init_without_bias(&init.at("output"), [d, v], Role::Plain)),
            classifier: Classifier::init(&init.at("classifier")),
            config: self.clone(),
            reference: None,
        }
    }
}

impl DecoderOnly {
    /// The configuration of the model.
    pub fn config(&self) -> &TransformerConfig {
        &self.config
    }

    /// Returns the label-smoothed cross-entropy summed over the labels that count, and their number. Add both up over all
    /// micro-batches before dividing. To train on classes, see [`Self::class_logits`] for the labels.
    pub fn loss(&self, batch: &TextBatch, label_smoothing: f64, stream: Option<&DropoutStream>) -> LossSums {
        if let Some(logits) = self.class_logits(batch, stream) {
            let labels = first_of_rows(batch.labels.clone(), batch.batch_size);
            return self.token_loss(label_smoothing).of_classes(logits, labels);
        }
        let hidden = self.read(batch, stream);
        self.token_loss(label_smoothing).loss(hidden, self.projection(), batch.labels.clone())
    }

    /// [`Self::loss`] of a model without a head for classes, and its parts by rows.
    pub fn loss_by_row(
        &self,
        batch: &TextBatch,
        label_smoothing: f64,
        stream: Option<&DropoutStream>,
    ) -> (LossSums, RowSums) {
        let hidden = self.read(batch, stream);
        let loss = self.token_loss(label_smoothing);
        loss.by_row(hidden, self.projection(), batch.labels.clone(), batch.batch_size, None)
    }

    /// [`Self::loss`] without dropout, and the number of labels that got the largest logit.
    pub fn evaluate(&self, batch: &TextBatch, label_smoothing: f64) -> EvalSums {
        if let Some(logits) = self.class_logits(batch, None) {
            let labels = first_of_rows(batch.labels.clone(), batch.batch_size);
            return self.token_loss(label_smoothing).evaluate_classes(logits, labels);
        }
        let hidden = self.read(batch, None);
        self.token_loss(label_smoothing).evaluate(hidden, self.projection(), batch.labels.clone())
    }

    /// Returns the logits of the classes of each row, or None if the model has no head for them. They are read at the last token of
    /// the row that is not padding. The label of a row stands at its first position; all other labels are
    /// [`TextBatch::NOT_COUNTED`].
    ///
    /// # Shapes
    /// - result: `[B, C]`
    ///
    /// # Panics
    /// If T is above `max_positions`, or if rows are packed with several documents.
    pub fn class_logits(&self, batch: &TextBatch, stream: Option<&DropoutStream>) -> Option<Tensor<2>> {
        let classifier = self.classifier.as_ref()?;
        assert!(batch.documents.is_none(), "a row with a class is one document");
        let hidden = self.read(batch, stream);
        // The gradient of a lookup has the same bits in every run.
        let places = batch.rows().last_places(hidden.dims()[0]);
        Some(classifier.forward(kiln_kernels::embedding(places, hidden), stream))
    }

    /// Returns the loss of the classes without dropout, and the likeliest class of each row; None if the model has no head for
    /// classes.
    ///
    /// # Shapes
    /// - classes: `[B]`
    ///
    /// # Panics
    /// As [`Self::class_logits`].
    pub fn classify(&self, batch: &TextBatch, label_smoothing: f64) -> Option<(LossSums, Tensor<1, Int>)> {
        let logits = self.class_logits(batch, None)?;
        let guesses = row_argmax(logits.clone());
        let labels = first_of_rows(batch.labels.clone(), batch.batch_size);
        Some((self.token_loss(label_smoothing).of_classes(logits, labels), guesses))
    }

    /// Returns the logits of the token after each position, given the positions up to it.
    ///
    /// # Shapes
    /// - result: `[B * T, V]`; rows of padded positions have no meaning
    ///
    /// # Panics
    /// If T is above `max_positions`, or if the model predicts classes.
    pub fn logits(&self, batch: &TextBatch, stream: Option<&DropoutStream>) -> Tensor<2> {
        self.project(self.read(batch, stream))
    }

    /// Returns the hidden states of a batch. A learned prompt stands in front of each row; its own states are left out.
    ///
    /// # Shapes
    /// - result: `[B * T, D]`; rows of padded positions have no meaning
    ///
    /// # Panics
    /// If T, with the learned prompt, is above `max_positions`, or if rows behind a prompt have several documents.
    pub fn read(&self, batch: &TextBatch, stream: Option<&DropoutStream>) -> Tensor<2> {
        if let Some(prompt) = &self.learned_prompt {
            return self.read_behind(prompt, batch, stream);
        }
        let ([n], ids) = (batch.input.dims(), batch.input.clone());
        let rows = batch.rows().with_rotary_positions(&self.config, n, &ids.device());
        let (positions, norm) = (&self.positions, &self.embedding_norm);
        let x = self.embedding.layer_input(ids, positions, norm, self.config.dropout, &rows, stream);
        self.decoder.forward(x, &rows, None, stream)
    }

    /// Returns the hidden states of a batch behind `prompt`, `[B * T, D]`.
    fn read_behind(&self, prompt: &LearnedPrompt, batch: &TextBatch, stream: Option<&DropoutStream>) -> Tensor<2> {
        assert!(batch.documents.is_none(), "a learned prompt stands in front of a row, so a row has one document");
        let rows = Rows::of_lengths(prompt.lengths(batch.lengths.clone()));
        let x = prompt.behind(0, self.embedding.forward(batch.input.clone()), batch.batch_size);
        prompt.without(0, self.hidden(x, &rows, stream), batch.batch_size)
    }

    /// Returns the negative log-likelihood of the label of each position, `[B * T]`, f32; 0 where there is none.
    pub(crate) fn losses_of_tokens(&self, batch: &TextBatch, stream: Option<&DropoutStream>) -> Tensor<1> {
        let hidden = self.read(batch, stream);
        self.token_loss(0.0).of_rows(hidden, self.projection(), batch.labels.clone())
    }

    /// Returns the model without adapters and without a learned prompt.
    pub(crate) fn without_adapters(mut self) -> Self {
        self.learned_prompt = None;
        for layer in &mut self.decoder.layers {
            let DecoderLayer { self_attention, feed_forward, .. } = layer;
            for linear in
                [&mut self_attention.qkv, &mut self_attention.output, &mut feed_forward.input, &mut feed_forward.output]
            {
                linear.lora.clear();
            }
        }
        self
    }

    fn token_loss(&self, label_smoothing: f64) -> TokenLoss<'_> {
        let ignored = TextBatch::NOT_COUNTED.into();
        TokenLoss { config: &self.config, label_smoothing, ignored }
    }

    /// Returns the hidden states of token vectors from [`Self::embedding`]. Some may come from elsewhere: a
    /// [`LearnedPrompt`](crate::LearnedPrompt), or another model.
    ///
    /// # Shapes
    /// - `x`: `[B * T, D]`; result the same
    ///
    /// # Panics
    /// If T is above `max_positions`.
    pub fn hidden(&self, x: Tensor<2>, rows: &Rows, stream: Option<&DropoutStream>) -> Tensor<2> {
        let (x, rows) = self.layer_input(x, rows.clone(), stream);
        self.decoder.forward(x, &rows, None, stream)
    }

    /// Applies the output projection.
    ///
    /// # Shapes
    /// - `hidden`: `[M, D]`
    /// - result: `[M, V]`
    pub fn project(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.projection().logits(hidden)
    }

    /// Rounds the weights of all products to int8, for searches on the CPU: see [`Int8Weights::install`].
    ///
    /// # Panics
    /// If the model does not lie on the CPU.
    pub fn int8_weights(&self, kind: Int8) -> Int8Weights {
        let projection = self.classifier.is_none().then(|| self.projection());
        int8_weights(self, projection.as_ref(), kind)
    }

    fn projection(&self) -> Projection {
        assert!(self.classifier.is_none(), "this model predicts classes and no tokens (model.class_head = \"last\")");
        let projection = self.output.as_ref().map_or_else(|| self.embedding.projection(), Linear::projection);
        Projection { softcap: self.config.logit_softcap(), ..projection }
    }

    /// Starts `batch_size` empty texts.
    pub fn start(&self, batch_size: usize) -> DecoderCache {
        self.decoder.start_without_source(batch_size)
    }

    /// Starts a text with each prompt, and returns the logits of the token after the prompt. Prompts may differ in length. A learned
    /// prompt stands in front of each, and the cache holds it too.
    ///
    /// # Shapes
    /// - `ids`: `[B * T]`, right-padded with any id
    /// - `lengths`: `[B]`, non-padding ids of each row, at least 1 each
    /// - logits: `[B, V]`
    ///
    /// # Panics
    /// If `ids` does not divide into the rows or T is above `max_positions`. [`Prompts`](crate::Prompts) makes both tensors
    /// and checks them first.
    pub fn prefill(&self, ids: Tensor<1, Int>, lengths: Tensor<1, Int>) -> (Tensor<2>, DecoderCache) {
        let x = self.embedding.forward(ids);
        match &self.learned_prompt {
            Some(prompt) => {
                let [batch_size] = lengths.dims();
                self.prefill_vectors(prompt.behind(0, x, batch_size), prompt.lengths(lengths))
            }
            None => self.prefill_vectors(x, lengths),
        }
    }

    /// [`Self::prefill`] with token vectors from [`Self::embedding`]. Some may come from elsewhere: a
    /// [`LearnedPrompt`](crate::LearnedPrompt) in front of the user's text. The model's own is not added.
    ///
    /// # Shapes
    /// - `x`: `[B * T, D]`
    /// - `lengths`: `[B]`
    /// - logits: `[B, V]`
    ///
    /// # Panics
    /// As [`Self::prefill`].
    pub fn prefill_vectors(&self, x: Tensor<2>, lengths: Tensor<1, Int>) -> (Tensor<2>, DecoderCache) {
        let rows = Rows::of_lengths(lengths.clone());
        let mut cache = self.start(rows.batch_size);
        let (x, rows) = self.layer_input(x, rows, None);
        let hidden = self.decoder.prefill(x, lengths, &rows, &mut cache);
        (self.project(rows.last(hidden)), cache)
    }

    /// Gives the text of `cache` another end: forgets its positions after the first `keep`, appends `ids`, and returns the logits
    /// of the next token. Computes only the positions of `ids`. A learned prompt counts as the first positions.
    ///
    /// # Shapes
    /// - `ids`: `[T]`, T at least 1
    /// - logits: `[1, V]`
    ///
    /// # Panics
    /// If `cache` has several rows, `keep` is 0 or above [`DecoderCache::len`], or `keep + T` is above `max_positions`.
    pub fn extend(&self, ids: Tensor<1, Int>, keep: usize, cache: &mut DecoderCache) -> Tensor<2> {
        let ([n], device) = (ids.dims(), ids.device());
        self.positions.check(keep + n);
        let positions = Tensor::arange(keep as i64..(keep + n) as i64, (&device.inner(), DType::I32));
        let rows = Rows { positions: Some(positions), ..Rows::new(1) };
        let (x, rows) = self.layer_input(self.embedding.forward(ids), rows, None);
        let hidden = self.decoder.extend(x, &rows, keep, cache);
        self.project(hidden.narrow(0, n - 1, 1))
    }

    /// Appends one token to every text and returns the logits of the next one.
    ///
    /// # Shapes
    /// - `ids`: `[B]`
    /// - result: `[B, V]`
    ///
    /// # Panics
    /// If the number of ids differs from the rows of `cache`, or the longest text has reached `max_positions`.
    pub fn decode_step(&self, ids: Tensor<1, Int>, cache: &mut DecoderCache) -> Tensor<2> {
        let ([n], b) = (ids.dims(), cache.batch_size());
        assert_eq!(n, b, "{n} ids for {b} rows");
        let x = self.positions.add_step(self.embedding.forward(ids), cache);
        self.project(self.decoder.step(normalized(&self.embedding_norm, x), cache))
    }

    /// Computes the input of the layers from token vectors.
    fn layer_input(&self, x: Tensor<2>, rows: Rows, stream: Option<&DropoutStream>) -> (Tensor<2>, Rows) {
        let rows = rows.with_rotary_positions(&self.config, x.dims()[0], &x.device());
        let x = self.positions.layer_input(x, &self.embedding_norm, self.config.dropout, &rows, stream);
        (x, rows)
    }
}
