//! Flash attention as a backend extension.
#![expect(clippy::too_many_arguments, reason = "a tensor of an extension is an argument of its own")]

#[cfg(feature = "cuda")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
#[cfg(feature = "cuda")]
use burn::tensor::{DType, Shape};

use crate::maybe::MaybeInts;

/// The arguments of a call that are not tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FlashSpec {
    /// B
    pub(crate) batch_size: usize,
    /// H
    pub(crate) n_heads: usize,
    /// G
    pub(crate) n_kv_heads: usize,
    /// K
    pub(crate) head_dim: usize,
    pub(crate) causal: bool,
    /// Keys that a query sees at most.
    pub(crate) window: Option<usize>,
    /// Factor of the scores.
    pub(crate) scale: f32,
    /// Bound of the scores.
    pub(crate) softcap: Option<f32>,
    /// Site of the random stream.
    pub(crate) site: u32,
    /// Probability of dropping a weight of the softmax; 0 for none.
    pub(crate) dropout: f32,
}

#[cfg(feature = "cuda")]
impl FlashSpec {
    /// Returns the factor of the scores in most models.
    pub(crate) fn usual_scale(&self) -> f32 {
        (self.head_dim as f32).sqrt().recip()
    }

    /// Describes the result, `[B * T, H * K]`, and the log of each query's sum of exponentials, `[B * H * T]`.
    fn output(&self, query: &TensorSpec) -> (TensorSpec, TensorSpec) {
        let rows = query.shape[0];
        let out = TensorSpec::new(Shape::new([rows, self.n_heads * self.head_dim]), query.dtype);
        let lse = TensorSpec::new(Shape::new([rows * self.n_heads]), DType::F32);
        (out, lse)
    }
}

/// Optional tensors: key lengths `[B]`, documents `[B * T]`, the state of a random stream `[4]`.
#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait FlashOps: Backend {
    /// Returns the result `[B * T, H * K]`, and for backward the logarithm of each query's sum of exponentials, `[B * H * T]`
    /// in f32: binary on a GPU, natural on a CPU.
    #[fusion(meta = |qkv, _lengths, _documents, _random, spec| spec.output(qkv))]
    fn flash_self(
        qkv: FloatTensor<Self>,
        #[extension_type] lengths: MaybeInts<Self>,
        #[extension_type] documents: MaybeInts<Self>,
        #[extension_type] random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Returns the result of [`FlashOps::flash_self`], which is known with all that backward needs.
    #[fusion(default)]
    fn known_self(
        _qkv: FloatTensor<Self>,
        out: FloatTensor<Self>,
        _lse: FloatTensor<Self>,
        #[extension_type] _lengths: MaybeInts<Self>,
        #[extension_type] _documents: MaybeInts<Self>,
        #[extension_type] _random: MaybeInts<Self>,
        _spec: FlashSpec,
    ) -> FloatTensor<Self> {
        out
    }

    /// Returns the gradient of `qkv`.
    #[fusion(dtype = qkv, shape = qkv)]
    fn flash_self_backward(
        qkv: FloatTensor<Self>,
        out: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        d_out: FloatTensor<Self>,
        #[extension_type] lengths: MaybeInts<Self>,
        #[extension_type] documents: MaybeInts<Self>,
        #[extension_type] random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> FloatTensor<Self>;

    /// Computes [`FlashOps::flash_self`] for queries that attend to another sequence.
    #[fusion(meta = |query, _key_value, _lengths, _random, spec| spec.output(query))]
    fn flash_cross(
        query: FloatTensor<Self>,
        key_value: FloatTensor<Self>,
        #[extension_type] lengths: MaybeInts<Self>,
        #[extension_type] random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Returns the result of [`FlashOps::flash_cross`], which is known with all that backward needs.
    #[fusion(default)]
    fn known_cross(
        _query: FloatTensor<Self>,
        _key_value: FloatTensor<Self>,
        out: FloatTensor<Self>,
        _lse: FloatTensor<Self>,
        #[extension_type] _lengths: MaybeInts<Self>,
        #[extension_type] _random: MaybeInts<Self>,
        _spec: FlashSpec,
    ) -> FloatTensor<Self> {
        out
    }

    /// Returns the gradients of `query` and `key_value`.
    #[fusion(meta = |query, key_value, _out, _lse, _d_out, _lengths, _random, _spec| (query.clone(), key_value.clone()))]
    fn flash_cross_backward(
        query: FloatTensor<Self>,
        key_value: FloatTensor<Self>,
        out: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        d_out: FloatTensor<Self>,
        #[extension_type] lengths: MaybeInts<Self>,
        #[extension_type] random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}
