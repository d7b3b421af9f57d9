//! Matrix products with a bias.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use kiln_kernels::{Activation, Branch, DropoutStream, Projection};

use crate::init::{Init, Role};

/// `x · weight + bias`.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[n_in, n_out]`
    pub weight: Param<Tensor<2>>,
    /// `[n_out]`
    pub bias: Option<Param<Tensor<1>>>,
}

impl Linear {
    /// Initializes a projection of a layer. If the configuration has biases, it has one, which starts at 0.
    pub(crate) fn init(init: &Init, shape: [usize; 2], role: Role) -> Self {
        if init.config.bias {
            Self::init_with_bias(init, shape, role)
        } else {
            Self::init_without_bias(init, shape, role)
        }
    }

    pub(crate) fn init_with_bias(init: &Init, [n_in, n_out]: [usize; 2], role: Role) -> Self {
        let bias = Some(init.constant(n_out, 0.0));
        Self { bias, ..Self::init_without_bias(init, [n_in, n_out], role) }
    }

    pub(crate) fn init_without_bias(init: &Init, shape: [usize; 2], role: Role) -> Self {
        Self { weight: init.linear_weight("weight", shape, role), bias: None }
    }

    /// Computes `x · weight + bias`.
    ///
    /// # Shapes
    /// - `x`: `[M, n_in]`
    /// - result: `[M, n_out]`
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        kiln_kernels::linear(x, self.weight.val(), self.bias.as_ref().map(Param::val))
    }

    /// [`Self::forward`] as the end of a residual branch: the residual sum computes the product.
    ///
    /// # Shapes
    /// - `x`: `[M, n_in]`. The returned branch evaluates to `[M, n_out]`.
    pub(crate) fn branch(&self, x: Tensor<2>) -> Branch {
        Branch { x, weight: Some(self.weight.val()), bias: self.bias.as_ref().map(Param::val) }
    }

    /// The layer as the output projection, from hidden states to logits.
    pub(crate) fn projection(&self) -> Projection {
        Projection { weight: self.weight.val(), transposed: false, bias: self.bias.as_ref().map(Param::val) }
    }

    /// Computes [`Self::forward`], then the activation, then dropout.
    pub(crate) fn forward_activated(
        &self,
        x: Tensor<2>,
        activation: Activation,
        dropout: Option<(f64, &DropoutStream)>,
    ) -> Tensor<2> {
        kiln_kernels::linear_activated(x, self.weight.val(), self.bias.as_ref().map(Param::val), activation, dropout)
    }
}
