//! The position-wise feed-forward layer (Vaswani et al. 2017, section 3.3).

use burn::module::Module;
use burn::tensor::Tensor;
use kiln_kernels::{Branch, DropoutStream};

use crate::config::Activation;
use crate::init::{Init, Role};
use crate::linear::Linear;

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
    /// - `x`: `[M, D]`; what the result adds, the same
    pub fn forward(&self, x: Tensor<2>, stream: Option<&DropoutStream>) -> Branch {
        let dropout = stream.filter(|_| self.dropout > 0.0).map(|stream| (self.dropout, stream));
        self.output.to_branch(self.activation.after(&self.input, x, dropout))
    }
}

impl Activation {
    /// The activation of `linear`'s result, with dropout.
    ///
    /// # Shapes
    /// - `x`: `[M, n_in]`
    /// - result: `[M, n_out]`, for SwiGLU `[M, n_out / 2]`
    pub(crate) fn after(self, linear: &Linear, x: Tensor<2>, dropout: Option<(f64, &DropoutStream)>) -> Tensor<2> {
        let activation = match self {
            Activation::Relu => kiln_kernels::Activation::Relu,
            Activation::Gelu => kiln_kernels::Activation::Gelu,
            Activation::GeluTanh => kiln_kernels::Activation::GeluTanh,
            Activation::Silu => kiln_kernels::Activation::Silu,
            Activation::Swiglu => {
                let y = kiln_kernels::swiglu(linear.forward(x));
                return match dropout {
                    Some((p, stream)) => kiln_kernels::dropout(y, p, stream),
                    None => y,
                };
            }
        };
        linear.forward_activated(x, activation, dropout)
    }
}
