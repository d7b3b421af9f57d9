//! The encoder stack.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use kiln_kernels::DropoutStream;

use crate::attention::SelfAttention;
use crate::feed_forward::FeedForward;
use crate::init::Init;
use crate::norm::{BranchNorms, Entered, Norm, Residual, ResidualStream};
use crate::relative::RelativePositions;
use crate::rows::Rows;
use crate::stack::{self, Layer, LayerInput, Training};

/// Layers of self-attention and feed-forward.
#[derive(Module, Debug)]
pub struct Encoder {
    /// First layer first.
    pub layers: Vec<EncoderLayer>,
    /// After the last layer; not in post-norm models.
    pub norm: Option<Norm>,
    /// What all layers add to their scores; models with relative positions only.
    pub relative_positions: Option<RelativePositions>,
    #[module(skip)]
    pub(crate) training: Training,
}

impl Encoder {
    pub(crate) fn init(init: &Init) -> Self {
        let layers =
            (0..init.config.n_encoder_layers).map(|i| EncoderLayer::init(&init.at("layers").at(i), i)).collect();
        let relative_positions = RelativePositions::init(&init.at("relative_positions"), true);
        Self { layers, norm: Residual::final_norm(init), relative_positions, training: Training::default() }
    }

    /// Computes the hidden states of the source.
    ///
    /// # Shapes
    /// - `x`: `[B * S, D]`, embedded source; result the same
    pub fn forward(&self, x: Tensor<2>, rows: &Rows, stream: Option<&DropoutStream>) -> Tensor<2> {
        let rows = RelativePositions::fill(&self.relative_positions, rows.clone(), x.dims()[0]);
        let input = LayerInput { rows, memory: None };
        stack::run(&self.layers, &self.norm, x, &input, stream, self.training)
    }
}

/// Self-attention and feed-forward, each in a residual branch.
#[derive(Module, Debug)]
pub struct EncoderLayer {
    /// Norm of the attention branch.
    pub self_attention_norm: Norm,
    /// Norm of what self-attention returns; sandwich norms only.
    pub self_attention_result_norm: Option<Norm>,
    /// Each position attends to all real ones.
    pub self_attention: SelfAttention,
    /// Norm of the feed-forward branch.
    pub feed_forward_norm: Norm,
    /// Norm of what the feed-forward layer returns; sandwich norms only.
    pub feed_forward_result_norm: Option<Norm>,
    /// Transforms each position by itself.
    pub feed_forward: FeedForward,
    #[module(skip)]
    residual: Residual,
}

impl EncoderLayer {
    fn init(init: &Init, layer: usize) -> Self {
        let n_layers = init.config.n_encoder_layers;
        Self {
            self_attention_norm: Norm::init(init),
            self_attention_result_norm: Residual::result_norm(init),
            self_attention: SelfAttention::init(&init.at("self_attention"), layer, n_layers),
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
}

impl Layer for EncoderLayer {
    fn enter(&self, x: ResidualStream, stream: Option<&DropoutStream>) -> Entered {
        self.residual.enter(self.self_attention_norms(), x, stream)
    }

    /// Pre-norm, as [`Residual`] has it:
    ///
    /// ```text
    /// x <- x + Dropout(SelfAttention(Norm(x)))
    /// x <- x + Dropout(FFN(Norm(x)))
    /// ```
    fn pass(&self, x: Entered, LayerInput { rows, .. }: &LayerInput, stream: Option<&DropoutStream>) -> ResidualStream {
        let attend = |x| self.self_attention.branch(x, rows, false, stream);
        let x = self.residual.leave(self.self_attention_norms(), x, stream, attend);
        self.residual.around(self.feed_forward_norms(), x, stream, |x| self.feed_forward.branch(x, stream))
    }

    fn end(&self) -> (Option<&Param<Tensor<1>>>, Residual) {
        // A norm of the result has added the bias already.
        let bias = self.feed_forward.output.bias.as_ref().filter(|_| self.feed_forward_result_norm.is_none());
        (bias, self.residual)
    }
}
