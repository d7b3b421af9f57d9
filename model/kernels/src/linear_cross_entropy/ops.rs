//! The fused output projection and loss as a backend extension.

#[cfg(feature = "cuda")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::DType;
#[cfg(feature = "cuda")]
use burn::tensor::Shape;

use crate::calls::{self, Running, Work};
use crate::cross_entropy::RowLoss;
use crate::linear::{Layout, ProductKind};
use crate::maybe::Maybe;
#[cfg(feature = "cuda")]
use crate::maybe::MaybeMetadata;

/// The arguments of a call that are not tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Head {
    /// In layout NN for a weight `[D, V]`, NT for a weight `[V, D]`.
    pub(crate) product: ProductKind,
    pub(crate) loss: RowLoss,
    /// Rows of a chunk.
    pub(crate) chunk_rows: usize,
}

/// Which gradients to compute. A gradient that is not wanted is an undefined tensor of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) x: bool,
    pub(crate) weight: bool,
    pub(crate) bias: bool,
}

impl Head {
    /// Returns the number of columns of the logits.
    pub(crate) fn vocabulary(&self, weight: &[usize]) -> usize {
        if self.product.layout == Layout::NT { weight[0] } else { weight[1] }
    }

    /// Returns the first row and the number of rows of each chunk.
    pub(crate) fn chunks(&self, rows: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let size = self.chunk_rows;
        (0..rows).step_by(size).map(move |first| (first, size.min(rows - first)))
    }
}

/// Returns the factor of the gradients before they are rounded to `dtype`. Forward does not know the loss scale of fp16
/// training; without a factor, probabilities below 2^-14 would lose digits. Dividing by a power of two is exact.
pub(crate) fn gradient_scale(dtype: DType) -> f32 {
    if dtype == DType::F16 { 256.0 } else { 1.0 }
}

/// Records the chunks, whose products and losses record their own work.
pub(crate) fn record(x: &impl TensorMetadata, weight: &impl TensorMetadata, head: Head) -> Option<Running> {
    calls::begin(|| {
        let vocabulary = head.vocabulary(&calls::sizes(weight));
        ("output projection by chunks", vec![x.shape()[0], x.shape()[1], vocabulary], Work::default())
    })
}

#[cfg(feature = "cuda")]
fn with_gradients(
    x: &TensorSpec,
    weight: &TensorSpec,
    _bias: &MaybeMetadata,
    _labels: &TensorSpec,
    head: &Head,
    wanted: &Wanted,
) -> (TensorSpec, TensorSpec, TensorSpec, TensorSpec) {
    let or_one = |wanted: bool, shape: Shape, dtype| match wanted {
        true => TensorSpec::new(shape, dtype),
        false => TensorSpec::new(Shape::new([1]), DType::F32),
    };
    let vocabulary = head.vocabulary(&[weight.shape[0], weight.shape[1]]);
    (
        TensorSpec::new(Shape::new([3, x.shape[0]]), DType::F32),
        or_one(wanted.x, x.shape.clone(), x.dtype),
        or_one(wanted.weight, weight.shape.clone(), DType::F32),
        or_one(wanted.bias, Shape::new([vocabulary]), DType::F32),
    )
}

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait LinearCrossEntropyOps: Backend {
    /// Returns [`CrossEntropyOps::cross_entropy_rows`](crate::cross_entropy::CrossEntropyOps::cross_entropy_rows) of
    /// the logits of `x`. Its gradient is correct if all rows' losses have the same gradient.
    #[fusion(dtype = DType::F32, shape = Shape::new([3, x[0]]))]
    fn linear_cross_entropy(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Maybe<Self>,
        labels: IntTensor<Self>,
        head: Head,
    ) -> FloatTensor<Self>;

    /// Returns the same losses, and [`gradient_scale`] times the gradients of their sum: of `x` in its dtype, of weight
    /// and bias in f32.
    #[fusion(meta = with_gradients)]
    fn linear_cross_entropy_with_gradients(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Maybe<Self>,
        labels: IntTensor<Self>,
        head: Head,
        wanted: Wanted,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}
