//! Flash attention as a backend extension.

use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, backend_extension};
use burn::tensor::{DType, Shape};

use crate::maybe::MaybeInts;

/// Everything about a call that is not a tensor.
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
    /// Site of the random stream and share of probabilities that are dropped; 0 for none.
    pub(crate) site: u32,
    pub(crate) dropout: f32,
}

impl FlashSpec {
    /// `[B * T, H * K]` and `[B * H, T]`: the result, and the log of each query's sum of exponentials.
    fn output(&self, query: &TensorSpec) -> (TensorSpec, TensorSpec) {
        let rows = query.shape[0];
        let out = TensorSpec::new(Shape::new([rows, self.n_heads * self.head_dim]), query.dtype);
        let lse = TensorSpec::new(Shape::new([rows * self.n_heads]), DType::F32);
        (out, lse)
    }
}

/// Mask and random state, as far as they are given: key lengths `[B]`, documents `[B * T]`, a random stream's `[4]`.
#[backend_extension(Flex, Cube, Fusion, Autodiff)]
pub(crate) trait FlashOps: Backend {
    /// The result `[B * T, H * K]`, and for backward the binary logarithm of each query's sum of exponentials,
    /// `[B * H * T]` in f32.
    #[fusion(meta = |qkv, _lengths, _documents, _random, spec| spec.output(qkv))]
    fn flash_self(
        qkv: FloatTensor<Self>,
        #[extension_type] lengths: MaybeInts<Self>,
        #[extension_type] documents: MaybeInts<Self>,
        #[extension_type] random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradient of `qkv`.
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

    /// As [`FlashOps::flash_self`], for queries that look at another sequence.
    #[fusion(meta = |query, _key_value, _lengths, _random, spec| spec.output(query))]
    fn flash_cross(
        query: FloatTensor<Self>,
        key_value: FloatTensor<Self>,
        #[extension_type] lengths: MaybeInts<Self>,
        #[extension_type] random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradients of `query` and `key_value`.
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

/// Never called: [`super::attention`] computes in plain operations where there is no kernel.
impl FlashOps for Flex {
    fn flash_self(
        _: FloatTensor<Self>,
        _: MaybeInts<Self>,
        _: MaybeInts<Self>,
        _: MaybeInts<Self>,
        _: FlashSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("attention on the CPU is made of plain operations")
    }

    fn flash_self_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: MaybeInts<Self>,
        _: MaybeInts<Self>,
        _: MaybeInts<Self>,
        _: FlashSpec,
    ) -> FloatTensor<Self> {
        unreachable!("attention on the CPU is made of plain operations")
    }

    fn flash_cross(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: MaybeInts<Self>,
        _: MaybeInts<Self>,
        _: FlashSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("attention on the CPU is made of plain operations")
    }

    fn flash_cross_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: MaybeInts<Self>,
        _: MaybeInts<Self>,
        _: FlashSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("attention on the CPU is made of plain operations")
    }
}
