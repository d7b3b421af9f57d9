//! Normalization of features, and the residual branch that it belongs to.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use kiln_kernels::DropoutStream;

use crate::config::{NormKind, NormPlacement, TransformerConfig};
use crate::init::Init;

/// Layer normalization (Ba et al. 2016), or, without `beta`, root mean square normalization (Zhang and Sennrich 2019).
#[derive(Module, Debug)]
pub struct Norm {
    /// Scale, `[D]`.
    pub gamma: Param<Tensor<1>>,
    /// Shift, `[D]`; layer normalization only.
    pub beta: Option<Param<Tensor<1>>>,
    eps: f64,
}

impl Norm {
    pub(crate) fn init(init: &Init) -> Self {
        let d = init.config.d_model;
        let beta = (init.config.norm_kind == NormKind::LayerNorm).then(|| init.constant(d, 0.0));
        Self { gamma: init.constant(d, 1.0), beta, eps: init.config.norm_eps }
    }

    /// # Shapes
    /// - `x`: `[M, D]`; result the same
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        match &self.beta {
            Some(beta) => kiln_kernels::layer_norm(x, self.gamma.val(), beta.val(), self.eps),
            None => kiln_kernels::rms_norm(x, self.gamma.val(), self.eps),
        }
    }
}

/// `x` through a norm that may be missing.
///
/// # Shapes
/// - `x`: `[M, D]`; result the same
pub(crate) fn normalized(norm: &Option<Norm>, x: Tensor<2>) -> Tensor<2> {
    match norm {
        Some(norm) => norm.forward(x),
        None => x,
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
        norm: &Norm,
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
