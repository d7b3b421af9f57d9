//! Layer normalization as a backend extension.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait NormOps: Backend {
    #[fusion(dtype = x, shape = x)]
    fn fused_layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        eps: f32,
    ) -> FloatTensor<Self>;

    /// `(dx, dgamma, dbeta)`.
    #[fusion(meta = |x, gamma, _dy, _eps| (x.clone(), gamma.clone(), gamma.clone()))]
    fn fused_layer_norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        eps: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}
