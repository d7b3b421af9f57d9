//! Attention of a step as a backend extension.

#[cfg(feature = "cuda")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
#[cfg(feature = "cuda")]
use burn::tensor::Shape;

/// The arguments that are not tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepSpec {
    /// H
    pub(crate) n_heads: usize,
    /// G
    pub(crate) n_kv_heads: usize,
    /// K
    pub(crate) head_dim: usize,
    /// S
    pub(crate) capacity: usize,
    /// Whether each position has a place of its own.
    pub(crate) per_position: bool,
    /// Whether several warps share the positions of a head.
    pub(crate) divided: bool,
    /// Factor of the scores.
    pub(crate) scale: f32,
}

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait StepAttentionOps: Backend {
    /// Returns `[R, H * K]`, see [`super::step_attention`]. Places and lengths are i32.
    #[fusion(dtype = query, shape = Shape::new([query[0], spec.n_heads * spec.head_dim]))]
    fn step_attention(
        query: FloatTensor<Self>,
        key_value: FloatTensor<Self>,
        places: IntTensor<Self>,
        lengths: IntTensor<Self>,
        spec: StepSpec,
    ) -> FloatTensor<Self>;

    /// Returns `[R, H * K]` and `key_value`, see [`super::append_and_attend`]; in the buffer of `key_value` where the backend can.
    /// Lengths are i32.
    #[fusion(meta = |qkv, key_value, _lengths, spec| {
        (TensorSpec::new(Shape::new([qkv.shape[0], spec.n_heads * spec.head_dim]), qkv.dtype), key_value.clone())
    })]
    fn append_and_attend(
        qkv: FloatTensor<Self>,
        key_value: FloatTensor<Self>,
        lengths: IntTensor<Self>,
        spec: StepSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}
