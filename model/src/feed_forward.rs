//! The position-wise feed-forward layer (Vaswani et al. 2017, section 3.3).

use burn::module::Module;
use burn::tensor::Tensor;
use kiln_kernels::{Branch, DropoutStream};

use crate::config::{FeedForwardActivation, Product};
use crate::init::{Init, Role};
use crate::linear::Linear;

/// `activation(x · input) · output`, with dropout after the activation.
#[derive(Module, Debug)]
pub struct FeedForward {
    /// D to F; gated to 2 F, columns `gate | up`.
    pub input: Linear,
    /// F to D.
    pub output: Linear,
    #[module(skip)]
    activation: FeedForwardActivation,
    dropout: f64,
}

impl FeedForward {
    pub(crate) fn init(init: &Init, n_layers: usize) -> Self {
        let (d, f) = (init.config.d_model, init.config.d_ff);
        let inner = if init.config.activation.is_gated() { 2 * f } else { f };
        let has_bias = init.config.has_feed_forward_bias();
        let linear = if has_bias { Linear::init_with_bias } else { Linear::init_without_bias };
        Self {
            input: linear(&init.at("input"), [d, inner], Role::Plain)
                .adapted(&init.at("input"), Product::FeedForwardInput),
            output: linear(&init.at("output"), [f, d], Role::EndOfBranch { n_layers })
                .adapted(&init.at("output"), Product::FeedForwardOutput),
            activation: init.config.activation,
            dropout: init.config.activation_dropout.unwrap_or(init.config.dropout),
        }
    }

    /// Computes each position by itself, with dropout if there is a `stream`.
    ///
    /// # Shapes
    /// - `x`: `[M, D]`; result the same
    pub fn forward(&self, x: Tensor<2>, stream: Option<&DropoutStream>) -> Tensor<2> {
        self.output.forward(self.inner(x, stream), stream)
    }

    /// [`Self::forward`] without the last product, which the residual sum computes.
    ///
    /// # Shapes
    /// - `x`: `[M, D]`. The returned branch evaluates to `[M, D]`.
    pub(crate) fn branch(&self, x: Tensor<2>, stream: Option<&DropoutStream>) -> Branch {
        self.output.branch(self.inner(x, stream), stream)
    }

    /// The activated inner features, `[M, F]`: `Dropout(act(x W1 + b1))`, gated `Dropout(act(x Wg) * (x Wu))`.
    fn inner(&self, x: Tensor<2>, stream: Option<&DropoutStream>) -> Tensor<2> {
        let dropout = stream.filter(|_| self.dropout > 0.0).map(|stream| (self.dropout, stream));
        self.activation.after(&self.input, x, dropout, stream)
    }
}

impl FeedForwardActivation {
    /// Computes `linear`, then this activation, then dropout. Adapters of `linear` have their own dropout, if there is a `stream`.
    ///
    /// # Shapes
    /// - `x`: `[M, n_in]`
    /// - result: `[M, n_out]`, gated `[M, n_out / 2]`
    pub(crate) fn after(
        self,
        linear: &Linear,
        x: Tensor<2>,
        dropout: Option<(f64, &DropoutStream)>,
        stream: Option<&DropoutStream>,
    ) -> Tensor<2> {
        let Some(gated) = self.gated_operator() else {
            return linear.forward_activated(x, self.by(), dropout, stream);
        };
        let y = gated(linear.forward(x, stream));
        match dropout {
            Some((p, stream)) => kiln_kernels::dropout(y, p, stream),
            None => y,
        }
    }
}
