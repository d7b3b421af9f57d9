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
    /// D to F.
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
        Self {
            input: Linear::init(&init.at("input"), [d, f], Role::Plain),
            output: Linear::init(&init.at("output"), [f, d], Role::EndOfBranch { n_layers }),
            activation: init.config.activation,
            dropout: init.config.dropout,
        }
    }

    /// # Shapes
    /// - `x`: `[M, D]`; result the same
    pub fn forward(&self, x: Tensor<2>, stream: Option<&DropoutStream>) -> Tensor<2> {
        let inner = self.input.forward(x);
        let inner = match self.activation {
            Activation::Relu => activation::relu(inner),
            Activation::Gelu => activation::gelu(inner),
            Activation::GeluTanh => activation::gelu_approximate(inner),
        };
        self.output.forward(dropout(inner, self.dropout, stream))
    }
}
