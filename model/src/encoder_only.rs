//! The encoder-only Transformer: BERT (Devlin et al. 2019) with its head for masked tokens.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_kernels::{Activation, DropoutStream, Projection, embedding, labelled_rows, row_argmax};

use crate::batch::TextBatch;
use crate::classifier::{Classifier, first_of_rows};
use crate::config::{Architecture, ClassHead, TransformerConfig};
use crate::embedding::TokenEmbedding;
use crate::encoder::Encoder;
use crate::init::{Init, Role};
use crate::learned_prompt::LearnedPrompt;
use crate::linear::Linear;
use crate::loss::{EvalSums, LossSums, RowSums, TokenLoss};
use crate::norm::Norm;
use crate::position::PositionEncoding;
use crate::rows::Rows;

/// Encodes a text in both directions. Its head predicts masked tokens, or classes.
///
/// Methods apply dropout only if they are given a [`DropoutStream`].
#[derive(Module, Debug)]
pub struct EncoderOnly {
    /// Token vectors; also the output projection of the head when embeddings are tied.
    pub embedding: TokenEmbedding,
    /// Vectors of token types, if the configuration has some.
    pub token_types: Option<TokenEmbedding>,
    /// Positions.
    pub positions: PositionEncoding,
    /// Norm of the embedded text, if the configuration has embedding norms.
    pub embedding_norm: Option<Norm>,
    /// The layers.
    pub encoder: Encoder,
    /// Projection of each row's first hidden state, D to D, if the configuration has it.
    pub pooler: Option<Linear>,
    /// Predicts masked tokens, if the configuration has it.
    pub head: Option<MaskedHead>,
    /// Predicts classes, if the configuration has such a head.
    pub classifier: Option<Classifier>,
    /// Vectors behind the first token of each row, if the configuration has some.
    pub learned_prompt: Option<LearnedPrompt>,
    #[module(skip)]
    config: TransformerConfig,
}

/// Tokens of a row before a learned prompt: the one that stands for the text.
const BEFORE_PROMPT: usize = 1;

/// Predicts the token at each position (Devlin et al. 2019): a dense layer with activation and norm, then the output
/// projection with a bias.
#[derive(Module, Debug)]
pub struct MaskedHead {
    /// D to D.
    pub transform: Linear,
    /// Norm after the activation.
    pub norm: Norm,
    /// Output projection, D to V, unless it is tied to the embedding.
    pub output: Option<Linear>,
    /// Bias of the logits, `[V]`.
    pub bias: Param<Tensor<1>>,
    #[module(skip)]
    activation: Activation,
}

impl MaskedHead {
    fn init(init: &Init) -> Self {
        let (d, v) = (init.config.d_model, init.config.source_vocab_size);
        Self {
            transform: Linear::init(&init.at("transform"), [d, d], Role::Plain),
            norm: Norm::init(init),
            output: (!init.config.tie_embeddings.ties_output())
                .then(|| Linear::init_without_bias(&init.at("output"), [d, v], Role::Plain)),
            bias: init.constant(v, 0.0),
            // A gated activation needs twice the columns, which the head's matrix does not have: take the activation of the gate.
            activation: init.config.activation.by(),
        }
    }
}

impl TransformerConfig {
    /// Initializes an encoder-only model. Otherwise as [`Self::init`].
    ///
    /// # Panics
    /// As [`Self::init`], and if this is another architecture.
    pub fn init_encoder_only(&self, seed: u64, dtype: impl Into<DType>, device: &Device) -> EncoderOnly {
        self.new_encoder_only(Some(seed), dtype.into(), device)
    }

    /// As [`Self::init_encoder_only`], or without a seed as [`Self::init_without_weights`].
    pub(crate) fn new_encoder_only(&self, seed: Option<u64>, dtype: DType, device: &Device) -> EncoderOnly {
        let init = Init::checked(self, Architecture::EncoderOnly, seed, dtype, device);
        let d = self.d_model;
        EncoderOnly {
            embedding: TokenEmbedding::init(&init.at("embedding"), self.source_vocab_size),
            token_types: (self.n_token_types > 0)
                .then(|| TokenEmbedding::init_plain(&init.at("token_types"), self.n_token_types)),
            positions: PositionEncoding::init(&init.at("positions")),
            embedding_norm: self.embedding_norm.then(|| Norm::init(&init)),
            encoder: Encoder::init(&init.at("encoder")),
            pooler: self.pooler.then(|| Linear::init(&init.at("pooler"), [d, d], Role::Plain)),
            head: self.mlm_head.then(|| MaskedHead::init(&init.at("head"))),
            classifier: Classifier::init(&init.at("classifier")),
            learned_prompt: LearnedPrompt::init(&init.at("learned_prompt")),
            config: self.clone(),
        }
    }
}

impl EncoderOnly {
    /// The configuration of the model.
    pub fn config(&self) -> &TransformerConfig {
        &self.config
    }

    /// Returns the label-smoothed cross-entropy summed over the labels that count, and their number. Add both up over all
    /// micro-batches before dividing. To train on masked tokens, pass the result of
    /// [`mask_tokens`](crate::mlm::mask_tokens). To train on classes, see [`Self::class_logits`] for the labels.
    ///
    /// # Panics
    /// If the model has no head, or T is above `max_positions`.
    pub fn loss(&self, batch: &TextBatch, label_smoothing: f64, stream: Option<&DropoutStream>) -> LossSums {
        if let Some(logits) = self.class_logits(batch, stream) {
            return self.token_loss(label_smoothing).of_classes(logits, self.class_labels(batch));
        }
        let (hidden, labels, _) = labelled(self.read(batch, stream), batch);
        let (hidden, projection) = self.head(hidden);
        self.token_loss(label_smoothing).loss(hidden, projection, labels)
    }

    /// [`Self::loss`] of masked tokens, and its parts by rows.
    ///
    /// # Panics
    /// As [`Self::loss`].
    pub fn loss_by_row(
        &self,
        batch: &TextBatch,
        label_smoothing: f64,
        stream: Option<&DropoutStream>,
    ) -> (LossSums, RowSums) {
        let (hidden, labels, places) = labelled(self.read(batch, stream), batch);
        let (hidden, projection) = self.head(hidden);
        let places = places.map(|places| (places, batch.seq_len));
        self.token_loss(label_smoothing).by_row(hidden, projection, labels, batch.batch_size, places)
    }

    /// [`Self::loss`] without dropout, and the number of labels that got the largest logit.
    ///
    /// # Panics
    /// As [`Self::loss`].
    pub fn evaluate(&self, batch: &TextBatch, label_smoothing: f64) -> EvalSums {
        if let Some(logits) = self.class_logits(batch, None) {
            return self.token_loss(label_smoothing).evaluate_classes(logits, self.class_labels(batch));
        }
        let (hidden, labels, _) = labelled(self.read(batch, None), batch);
        let (hidden, projection) = self.head(hidden);
        self.token_loss(label_smoothing).evaluate(hidden, projection, labels)
    }

    /// Returns the logits of the classes, or None if the model has no head for them. A label of a class stands at the
    /// first position of its row, or at the position of its token; all other labels are [`TextBatch::NOT_COUNTED`].
    ///
    /// # Shapes
    /// - result: `[B, C]` for classes of rows, `[B * T, C]` for classes of tokens, where padding has no meaning
    ///
    /// # Panics
    /// If T is above `max_positions`.
    pub fn class_logits(&self, batch: &TextBatch, stream: Option<&DropoutStream>) -> Option<Tensor<2>> {
        let classifier = self.classifier.as_ref()?;
        let hidden = self.read(batch, stream);
        let read = match self.config.class_head {
            ClassHead::None | ClassHead::Last | ClassHead::Tokens => hidden,
            ClassHead::Dense => first_hidden(hidden, batch.batch_size),
            ClassHead::Pooled => self.pooled(hidden, batch.batch_size).expect("validated: there is a pooler"),
        };
        Some(classifier.forward(read, stream))
    }

    /// Returns the loss of the classes without dropout, and the likeliest class of each row of [`Self::class_logits`]; None
    /// if the model has no head for classes.
    ///
    /// # Shapes
    /// - classes: `[B]` or `[B * T]`
    ///
    /// # Panics
    /// As [`Self::loss`].
    pub fn classify(&self, batch: &TextBatch, label_smoothing: f64) -> Option<(LossSums, Tensor<1, Int>)> {
        let logits = self.class_logits(batch, None)?;
        let guesses = row_argmax(logits.clone());
        let losses = self.token_loss(label_smoothing).of_classes(logits, self.class_labels(batch));
        Some((losses, guesses))
    }

    /// The labels of [`Self::class_logits`].
    fn class_labels(&self, batch: &TextBatch) -> Tensor<1, Int> {
        match self.config.class_head {
            ClassHead::None | ClassHead::Last | ClassHead::Tokens => batch.labels.clone(),
            ClassHead::Dense | ClassHead::Pooled => first_of_rows(batch.labels.clone(), batch.batch_size),
        }
    }

    /// Returns the logits of the token at each position.
    ///
    /// # Shapes
    /// - result: `[B * T, V]`; rows of padded positions have no meaning
    ///
    /// # Panics
    /// As [`Self::loss`].
    pub fn logits(&self, batch: &TextBatch, stream: Option<&DropoutStream>) -> Tensor<2> {
        self.project(self.read(batch, stream))
    }

    /// Returns the hidden states of a batch. A learned prompt stands behind the first token of each row, whose state heads for classes
    /// read. The prompt has no token type, and its own states are left out.
    ///
    /// # Shapes
    /// - result: `[B * T, D]`; rows of padded positions have no meaning
    ///
    /// # Panics
    /// If T, with the learned prompt, is above `max_positions`, or if rows with a prompt have several documents.
    pub fn read(&self, batch: &TextBatch, stream: Option<&DropoutStream>) -> Tensor<2> {
        let x = self.embed(batch.input.clone(), batch.token_types.clone());
        let Some(prompt) = &self.learned_prompt else { return self.hidden(x, &batch.rows(), stream) };
        assert!(batch.documents.is_none(), "a learned prompt stands in a row once, so a row has one document");
        let rows = Rows::of_lengths(prompt.lengths(batch.lengths.clone()));
        let x = prompt.behind(BEFORE_PROMPT, x, batch.batch_size);
        prompt.without(BEFORE_PROMPT, self.hidden(x, &rows, stream), batch.batch_size)
    }

    /// Returns the vectors of tokens and their types (None: type 0), without positions.
    ///
    /// # Shapes
    /// - `ids`, `token_types`: `[M]`
    /// - result: `[M, D]`
    pub fn embed(&self, ids: Tensor<1, Int>, token_types: Option<Tensor<1, Int>>) -> Tensor<2> {
        let x = self.embedding.forward(ids);
        match (&self.token_types, token_types) {
            (Some(table), Some(types)) => x + table.forward(types),
            (Some(table), None) => x + table.table.val().narrow(0, 0, 1),
            (None, _) => x,
        }
    }

    /// Returns the hidden states of token vectors from [`Self::embed`]. Some may come from elsewhere: a
    /// [`LearnedPrompt`](crate::LearnedPrompt), or another model.
    ///
    /// # Shapes
    /// - `x`: `[B * T, D]`; result the same
    ///
    /// # Panics
    /// If T is above `max_positions`.
    pub fn hidden(&self, x: Tensor<2>, rows: &Rows, stream: Option<&DropoutStream>) -> Tensor<2> {
        let rows = rows.clone().with_rotary_positions(&self.config, x.dims()[0], &x.device());
        let x = self.positions.layer_input(x, &self.embedding_norm, self.config.dropout, &rows, stream);
        self.encoder.forward(x, &rows, stream)
    }

    /// Applies the head.
    ///
    /// # Shapes
    /// - `hidden`: `[M, D]`
    /// - result: `[M, V]`
    ///
    /// # Panics
    /// If the model has no head (see [`TransformerConfig::mlm_head`]).
    pub fn project(&self, hidden: Tensor<2>) -> Tensor<2> {
        let (hidden, projection) = self.head(hidden);
        projection.logits(hidden)
    }

    /// Applies the head up to the output projection. Returns the hidden states and the projection.
    fn head(&self, hidden: Tensor<2>) -> (Tensor<2>, Projection) {
        let head = self.head.as_ref().expect("this model has no head for masked tokens (model.mlm_head = false)");
        let x = head.norm.forward(head.transform.forward_activated(hidden, head.activation, None, None));
        let projection = head.output.as_ref().map_or_else(|| self.embedding.projection(), Linear::projection);
        (x, Projection { bias: Some(head.bias.val()), ..projection })
    }

    fn token_loss(&self, label_smoothing: f64) -> TokenLoss<'_> {
        let ignored = TextBatch::NOT_COUNTED.into();
        TokenLoss { config: &self.config, label_smoothing, ignored }
    }

    /// Returns `tanh(pooler(first hidden state))` of each row, or None if the model has no pooler.
    ///
    /// # Shapes
    /// - `hidden`: `[B * T, D]`
    /// - result: `[B, D]`
    pub fn pooled(&self, hidden: Tensor<2>, batch_size: usize) -> Option<Tensor<2>> {
        let pooler = self.pooler.as_ref()?;
        Some(pooler.forward(first_hidden(hidden, batch_size), None).tanh())
    }
}

/// Selects the hidden state at the first position of each row.
///
/// # Shapes
/// - `hidden`: `[B * T, D]`
/// - result: `[B, D]`
fn first_hidden(hidden: Tensor<2>, batch_size: usize) -> Tensor<2> {
    let [n, d] = hidden.dims();
    hidden.reshape([batch_size, n / batch_size, d]).narrow(1, 0, 1).reshape([batch_size, d])
}

/// Selects the hidden states and labels that the head reads: as many as labels can count at most, or all if that is not known.
///
/// # Shapes
/// - `hidden`: `[B * T, D]`
/// - result: `[m, D]`, `[m]`, and the places `[m]` unless they are all
fn labelled(hidden: Tensor<2>, batch: &TextBatch) -> (Tensor<2>, Tensor<1, Int>, Option<Tensor<1, Int>>) {
    let [n, _] = hidden.dims();
    match batch.max_labels.filter(|&most| most < n) {
        None => (hidden, batch.labels.clone(), None),
        Some(most) => {
            let rows = labelled_rows(batch.labels.clone(), TextBatch::NOT_COUNTED, most.max(1));
            (embedding(rows.clone(), hidden), batch.labels.clone().select(0, rows.clone()), Some(rows))
        }
    }
}
