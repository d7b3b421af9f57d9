//! Flash attention as a backend extension.
#![expect(clippy::too_many_arguments, reason = "a tensor of an extension is an argument of its own")]

#[cfg(feature = "cuda")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, backend_extension};
#[cfg(feature = "cuda")]
use burn::tensor::{DType, Shape};

use crate::calls::{self, Running, Work};
use crate::kernel_set::F32Products;
#[cfg(feature = "cuda")]
use crate::maybe::MaybeMetadata;
use crate::maybe::{Maybe, MaybeInts};

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
    /// How a GPU multiplies f32.
    pub(crate) f32_products: F32Products,
}

impl FlashSpec {
    /// Records forward over `query`, which holds keys and values, too, unless `key_value` does.
    pub(crate) fn record_forward<T: TensorMetadata>(&self, query: &T, key_value: Option<&T>) -> Option<Running> {
        calls::begin(|| {
            let out = (query.shape()[0] * self.n_heads * self.head_dim * query.dtype().size()) as f64;
            let operands = calls::bytes(query) + key_value.map_or(0.0, calls::bytes);
            // Two products.
            let (sizes, product) = self.product(query, key_value);
            ("attention forward", sizes, Work { flops: 2.0 * product, bytes: operands + out })
        })
    }

    /// Records backward, which reads the result and its gradient as well, and writes a gradient for each operand.
    pub(crate) fn record_backward<T: TensorMetadata>(&self, query: &T, key_value: Option<&T>) -> Option<Running> {
        calls::begin(|| {
            let out = (query.shape()[0] * self.n_heads * self.head_dim * query.dtype().size()) as f64;
            let operands = calls::bytes(query) + key_value.map_or(0.0, calls::bytes);
            // Five products.
            let (sizes, product) = self.product(query, key_value);
            ("attention backward", sizes, Work { flops: 5.0 * product, bytes: 2.0 * operands + 2.0 * out })
        })
    }

    /// Returns B, H, T, S and K, and the operations of one product over the pairs of a query and a key that see each other.
    fn product<T: TensorMetadata>(&self, query: &T, key_value: Option<&T>) -> (Vec<usize>, f64) {
        let [t, s] = [query, key_value.unwrap_or(query)].map(|rows| rows.shape()[0] / self.batch_size.max(1));
        let all = (t * s) as f64 * if self.causal { 0.5 } else { 1.0 };
        let pairs = self.window.map_or(all, |window| all.min((t * window) as f64));
        let heads = (self.batch_size * self.n_heads * self.head_dim) as f64;
        (vec![self.batch_size, self.n_heads, t, s, self.head_dim], 2.0 * heads * pairs)
    }
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

/// Describes the gradients of `qkv`, and of what is added to the scores: one number if nothing is.
#[cfg(feature = "cuda")]
fn gradients(qkv: &TensorSpec, relative: &MaybeMetadata, spec: &FlashSpec) -> (TensorSpec, TensorSpec) {
    let t = qkv.shape[0] / spec.batch_size;
    let shape = match relative {
        MaybeMetadata::Some(_) => Shape::new([spec.n_heads, 2 * t - 1]),
        MaybeMetadata::None => Shape::new([1]),
    };
    (qkv.clone(), TensorSpec::new(shape, DType::F32))
}

/// Optional tensors: what relative positions add to scores, `[H, 2 * T - 1]` in f32, key lengths `[B]`, documents `[B * T]`, the state of
/// a random stream `[4]`.
#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait FlashOps: Backend {
    /// Returns the result `[B * T, H * K]`, and for backward the logarithm of each query's sum of exponentials, `[B * H * T]`
    /// in f32: binary on a GPU, natural on a CPU.
    #[fusion(meta = |qkv, _relative, _lengths, _documents, _random, spec| spec.output(qkv))]
    fn flash_self(
        qkv: FloatTensor<Self>,
        #[extension_type] relative: Maybe<Self>,
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
        #[extension_type] _relative: Maybe<Self>,
        #[extension_type] _lengths: MaybeInts<Self>,
        #[extension_type] _documents: MaybeInts<Self>,
        #[extension_type] _random: MaybeInts<Self>,
        _spec: FlashSpec,
    ) -> FloatTensor<Self> {
        out
    }

    /// Returns the gradients of `qkv` and `relative`; without the latter, an undefined tensor of one number.
    #[fusion(meta = |qkv, _out, _lse, _d_out, relative, _lengths, _documents, _random, spec| gradients(qkv, relative, spec))]
    fn flash_self_backward(
        qkv: FloatTensor<Self>,
        out: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        d_out: FloatTensor<Self>,
        #[extension_type] relative: Maybe<Self>,
        #[extension_type] lengths: MaybeInts<Self>,
        #[extension_type] documents: MaybeInts<Self>,
        #[extension_type] random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

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
