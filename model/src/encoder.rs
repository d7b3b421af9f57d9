//! The encoder stack.

use burn::module::Module;
use burn::tensor::Tensor;
use kiln_kernels::DropoutStream;

use crate::attention::SelfAttention;
use crate::config::NormPlacement;
use crate::feed_forward::FeedForward;
use crate::init::Init;
use crate::norm::{Norm, Residual, ResidualStream};
use crate::rows::Rows;

/// Layers of self-attention and feed-forward.
#[derive(Module, Debug)]
pub struct Encoder {
    /// First layer first.
    pub layers: Vec<EncoderLayer>,
    /// After the last layer; pre-norm models only.
    pub norm: Option<Norm>,
}

impl Encoder {
    pub(crate) fn init(init: &Init) -> Self {
        let layers = (0..init.config.n_encoder_layers).map(|i| EncoderLayer::init(&init.at("layers").at(i))).collect();
        let norm = (init.config.norm == NormPlacement::Pre).then(|| Norm::init(init));
        Self { layers, norm }
    }

    /// Computes the hidden states of the source.
    ///
    /// # Shapes
    /// - `x`: `[B * S, D]`, embedded source; result the same
    pub fn forward(&self, x: Tensor<2>, rows: &Rows, stream: Option<&DropoutStream>) -> Tensor<2> {
        let x = ResidualStream::new(x);
        self.layers.iter().fold(x, |x, layer| layer.forward(x, rows, stream)).end(&self.norm, stream)
    }
}

/// Self-attention and feed-forward, each in a residual branch.
#[derive(Module, Debug)]
pub struct EncoderLayer {
    /// Norm of the attention branch.
    pub self_attention_norm: Norm,
    /// Each position attends to all real ones.
    pub self_attention: SelfAttention,
    /// Norm of the feed-forward branch.
    pub feed_forward_norm: Norm,
    /// Transforms each position by itself.
    pub feed_forward: FeedForward,
    #[module(skip)]
    residual: Residual,
}

impl EncoderLayer {
    fn init(init: &Init) -> Self {
        let n_layers = init.config.n_encoder_layers;
        Self {
            self_attention_norm: Norm::init(init),
            self_attention: SelfAttention::init(&init.at("self_attention"), n_layers),
            feed_forward_norm: Norm::init(init),
            feed_forward: FeedForward::init(&init.at("feed_forward"), n_layers),
            residual: Residual::new(init.config),
        }
    }

    fn forward(&self, x: ResidualStream, rows: &Rows, stream: Option<&DropoutStream>) -> ResidualStream {
        let x = self
            .residual
            .around(&self.self_attention_norm, x, stream, |x| self.self_attention.branch(x, rows, false, stream));
        self.residual.around(&self.feed_forward_norm, x, stream, |x| self.feed_forward.branch(x, stream))
    }
}
