//! Norms of heads as a backend extension.

#[cfg(feature = "cuda")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};

/// The normalized heads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct HeadNorms {
    pub(crate) n_query_heads: usize,
    pub(crate) n_key_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) eps: f32,
}

#[cfg(feature = "cuda")]
fn gradients(
    qkv: &TensorSpec,
    query_gamma: &TensorSpec,
    key_gamma: &TensorSpec,
    _dy: &TensorSpec,
    _spec: &HeadNorms,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    (qkv.clone(), query_gamma.clone(), key_gamma.clone())
}

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait HeadNormOps: Backend {
    /// Returns `qkv` with normalized heads of queries and keys.
    #[fusion(dtype = qkv, shape = qkv)]
    fn norm_heads(
        qkv: FloatTensor<Self>,
        query_gamma: FloatTensor<Self>,
        key_gamma: FloatTensor<Self>,
        spec: HeadNorms,
    ) -> FloatTensor<Self>;

    /// Returns the gradients of `qkv` and of the scales, given the gradient of the result.
    #[fusion(meta = gradients)]
    fn norm_heads_backward(
        qkv: FloatTensor<Self>,
        query_gamma: FloatTensor<Self>,
        key_gamma: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        spec: HeadNorms,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}
