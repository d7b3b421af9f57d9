//! The position-wise feed-forward layer (Vaswani et al. 2017, section 3.3).

use burn::module::Module;
use burn::tensor::{Tensor, activation};
use kiln_kernels::DropoutStream;

use crate::config::Activation;
use crate::init::{Init, Role};
use crate::linear::Linear;
use crate::norm::dropout;

/// `activation(x · input) · output`, with dropout between.
#[derive(Module, Debug)]
pub struct FeedForward {
    /// D to F; with SwiGLU to 2 F, columns `gate | up`.
    pub input: Linear,
    /// F to D.
    pub output: Linear,
    #[module(skip)]
    activation: Activation,
    dropout: f64,
}

impl FeedForward {
    pub(crate) fn init(init: &Init, n_layers: usize) -> Self {
        let (d, f) = (init.config.d_model, init.config.d_ff);
        let inner = if init.config.activation == Activation::Swiglu { 2 * f } else { f };
        Self {
            input: Linear::init(&init.at("input"), [d, inner], Role::Plain),
            output: Linear::init(&init.at("output"), [f, d], Role::EndOfBranch { n_layers }),
            activation: init.config.activation,
            dropout: init.config.activation_dropout.unwrap_or(init.config.dropout),
        }
    }

    /// # Shapes
    /// - `x`: `[M, D]`; result the same
    pub fn forward(&self, x: Tensor<2>, stream: Option<&DropoutStream>) -> Tensor<2> {
        let inner = self.activation.apply(self.input.forward(x));
        self.output.forward(dropout(inner, self.dropout, stream))
    }
}

impl Activation {
    /// # Shapes
    /// - `x`: `[M, F]`, for SwiGLU `[M, 2 * F]`
    /// - result: `[M, F]`
    pub(crate) fn apply(self, x: Tensor<2>) -> Tensor<2> {
        match self {
            Activation::Relu => activation::relu(x),
            Activation::Gelu => activation::gelu(x),
            Activation::GeluTanh => activation::gelu_approximate(x),
            Activation::Silu => activation::silu(x),
            Activation::Swiglu => kiln_kernels::swiglu(x),
        }
    }
}
