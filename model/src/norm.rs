//! Layer normalization, and the residual branch that it belongs to.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use kiln_kernels::DropoutStream;

use crate::config::{NormPlacement, TransformerConfig};
use crate::init::Init;

/// Layer normalization over features (Ba et al. 2016).
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// Scale, `[D]`.
    pub gamma: Param<Tensor<1>>,
    /// Shift, `[D]`.
    pub beta: Param<Tensor<1>>,
    eps: f64,
}

impl LayerNorm {
    pub(crate) fn init(init: &Init) -> Self {
        let d = init.config.d_model;
        Self { gamma: init.constant(d, 1.0), beta: init.constant(d, 0.0), eps: init.config.norm_eps }
    }

    /// # Shapes
    /// - `x`: `[M, D]`; result the same
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        kiln_kernels::layer_norm(x, self.gamma.val(), self.beta.val(), self.eps)
    }
}

/// How a layer's parts are added to the residual stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Residual {
    placement: NormPlacement,
    dropout: f64,
}

impl Residual {
    pub(crate) fn new(config: &TransformerConfig) -> Self {
        Self { placement: config.norm, dropout: config.dropout }
    }

    /// Pre-norm: `x + dropout(part(norm(x)))`. Post-norm: `norm(x + dropout(part(x)))`.
    ///
    /// # Shapes
    /// - `x`: `[M, D]`; result the same
    pub(crate) fn around(
        &self,
        norm: &LayerNorm,
        x: Tensor<2>,
        stream: Option<&DropoutStream>,
        part: impl FnOnce(Tensor<2>) -> Tensor<2>,
    ) -> Tensor<2> {
        match self.placement {
            NormPlacement::Pre => x.clone() + dropout(part(norm.forward(x)), self.dropout, stream),
            NormPlacement::Post => norm.forward(x.clone() + dropout(part(x), self.dropout, stream)),
        }
    }
}

/// Dropout while there is a stream (training), nothing without (evaluation).
///
/// # Shapes
/// - `x`: `[M, N]`; result the same
pub(crate) fn dropout(x: Tensor<2>, p: f64, stream: Option<&DropoutStream>) -> Tensor<2> {
    match stream {
        Some(stream) if p > 0.0 => kiln_kernels::dropout(x, p, stream),
        _ => x,
    }
}
