//! The encoder-only Transformer: BERT (Devlin et al. 2019) with its head for masked tokens.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_kernels::{DropoutStream, Projection};

use crate::batch::TextBatch;
use crate::config::{Activation, Architecture, TieEmbeddings, TransformerConfig};
use crate::embedding::TokenEmbedding;
use crate::encoder::Encoder;
use crate::init::{Init, Role};
use crate::linear::Linear;
use crate::loss::{EvalSums, LossSums, TokenLoss};
use crate::norm::Norm;
use crate::position::PositionEncoding;
use crate::rows::Rows;

/// Reads a text in both directions; its head says which token stands behind a mask.
///
/// Dropout needs a [`DropoutStream`]; without one every method evaluates.
#[derive(Module, Debug)]
pub struct EncoderOnly {
    /// Of the tokens; also the output projection of the head when embeddings are tied.
    pub embedding: TokenEmbedding,
    /// Of the kinds of token, if the configuration has some.
    pub token_types: Option<TokenEmbedding>,
    /// Of the positions.
    pub positions: PositionEncoding,
    /// Of the embedded text, if the configuration has embedding norms.
    pub embedding_norm: Option<Norm>,
    /// The layers.
    pub encoder: Encoder,
    /// D to D, of each row's first hidden state, if the configuration keeps one.
    pub pooler: Option<Linear>,
    /// Predicts masked tokens, if the configuration has it.
    pub head: Option<MaskedHead>,
    #[module(skip)]
    config: TransformerConfig,
}

/// Hidden states to logits of the token that stands there (Devlin et al. 2019): a dense layer with activation and norm, then
/// the output projection with a bias.
#[derive(Module, Debug)]
pub struct MaskedHead {
    /// D to D.
    pub transform: Linear,
    /// After the activation.
    pub norm: Norm,
    /// D to V, unless it is the embedding.
    pub output: Option<Linear>,
    /// `[V]`
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
            output: (init.config.tie_embeddings == TieEmbeddings::None)
                .then(|| Linear::init_without_bias(&init.at("output"), [d, v], Role::Plain)),
            bias: init.constant(v, 0.0),
            // A gated activation halves its input, which the head's one matrix does not foresee: its ungated part.
            activation: match init.config.activation {
                Activation::Swiglu => Activation::Silu,
                activation => activation,
            },
        }
    }
}

impl TransformerConfig {
    /// An encoder-only model with fresh weights; otherwise as [`Self::init`].
    ///
    /// # Panics
    /// As [`Self::init`], and if this is another architecture.
    pub fn init_encoder_only(&self, seed: u64, dtype: impl Into<DType>, device: &Device) -> EncoderOnly {
        let init = Init::checked(self, Architecture::EncoderOnly, seed, dtype.into(), device);
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
            config: self.clone(),
        }
    }
}

impl EncoderOnly {
    /// The configuration that the model was made from.
    pub fn config(&self) -> &TransformerConfig {
        &self.config
    }

    /// Summed label-smoothed cross-entropy over the labels that count, and the number of them. Divide, over all
    /// micro-batches. For masked tokens, hand over what [`mask_tokens`](crate::mlm::mask_tokens) made of the batch.
    ///
    /// # Panics
    /// If the model has no head, or T is above `max_positions`.
    pub fn loss(&self, batch: &TextBatch, label_smoothing: f64, stream: Option<&DropoutStream>) -> LossSums {
        let (hidden, projection) = self.head(self.read(batch, stream));
        self.token_loss(label_smoothing).loss(hidden, projection, batch.labels.clone())
    }

    /// [`Self::loss`] without dropout, and how often the likeliest token is the label.
    ///
    /// # Panics
    /// As [`Self::loss`].
    pub fn evaluate(&self, batch: &TextBatch, label_smoothing: f64) -> EvalSums {
        let (hidden, projection) = self.head(self.read(batch, None));
        self.token_loss(label_smoothing).evaluate(hidden, projection, batch.labels.clone())
    }

    /// Logits of the token that stands at each position.
    ///
    /// # Shapes
    /// - result: `[B * T, V]`; rows of padded positions mean nothing
    ///
    /// # Panics
    /// As [`Self::loss`].
    pub fn logits(&self, batch: &TextBatch, stream: Option<&DropoutStream>) -> Tensor<2> {
        self.project(self.read(batch, stream))
    }

    /// Hidden states of a batch.
    ///
    /// # Shapes
    /// - result: `[B * T, D]`; rows of padded positions mean nothing
    ///
    /// # Panics
    /// If T is above `max_positions`.
    pub fn read(&self, batch: &TextBatch, stream: Option<&DropoutStream>) -> Tensor<2> {
        let x = self.embed(batch.input.clone(), batch.token_types.clone());
        self.hidden(x, &batch.rows(), stream)
    }

    /// Vectors of tokens and their kinds (None: kind 0), without positions.
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

    /// Hidden states of token vectors that come from [`Self::embed`], or from there and elsewhere: a
    /// [`LearnedPrompt`](crate::LearnedPrompt), another model.
    ///
    /// # Shapes
    /// - `x`: `[B * T, D]`; result the same
    ///
    /// # Panics
    /// If T is above `max_positions`.
    pub fn hidden(&self, x: Tensor<2>, rows: &Rows, stream: Option<&DropoutStream>) -> Tensor<2> {
        let rows = rows.clone().placed(&self.config, x.dims()[0], &x.device());
        let x = self.positions.place(x, &self.embedding_norm, self.config.dropout, &rows, stream);
        self.encoder.forward(x, &rows, stream)
    }

    /// The head.
    ///
    /// # Shapes
    /// - `hidden`: `[M, D]`
    /// - result: `[M, V]`
    ///
    /// # Panics
    /// If the model has none (see [`TransformerConfig::mlm_head`]).
    pub fn project(&self, hidden: Tensor<2>) -> Tensor<2> {
        let (hidden, projection) = self.head(hidden);
        projection.logits(hidden)
    }

    /// The head as far as the output projection, and that.
    fn head(&self, hidden: Tensor<2>) -> (Tensor<2>, Projection) {
        let head = self.head.as_ref().expect("this model has no head for masked tokens (model.mlm_head = false)");
        let x = head.norm.forward(head.activation.after(&head.transform, hidden, None));
        let projection = head.output.as_ref().map_or_else(|| self.embedding.projection(), Linear::projection);
        (x, Projection { bias: Some(head.bias.val()), ..projection })
    }

    fn token_loss(&self, label_smoothing: f64) -> TokenLoss<'_> {
        let ignored = TextBatch::NOT_COUNTED.into();
        TokenLoss { config: &self.config, label_smoothing, ignored }
    }

    /// `tanh(pooler(first hidden state))` of each row; None if the model has no pooler.
    ///
    /// # Shapes
    /// - `hidden`: `[B * T, D]`
    /// - result: `[B, D]`
    pub fn pooled(&self, hidden: Tensor<2>, batch_size: usize) -> Option<Tensor<2>> {
        let pooler = self.pooler.as_ref()?;
        let [n, d] = hidden.dims();
        let first = hidden.reshape([batch_size, n / batch_size, d]).narrow(1, 0, 1).reshape([batch_size, d]);
        Some(pooler.forward(first).tanh())
    }
}
