//! The residual sum and its normalization as a backend extension.

#[cfg(feature = "cuda")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, TensorMetadata, backend_extension};
#[cfg(feature = "cuda")]
use burn::tensor::{DType, Shape};

use crate::calls::{self, Running};
use crate::dropout::Mask;
#[cfg(feature = "cuda")]
use crate::dropout::MaskMetadata;
use crate::linear::{LinearOps, ProductKind};
use crate::maybe::Maybe;
#[cfg(feature = "cuda")]
use crate::maybe::MaybeMetadata;

/// The normalization, and whether the branch has a bias.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) eps: f32,
    /// Whether the mean is subtracted.
    pub(crate) centered: bool,
    /// Whether there is a branch with a bias.
    pub(crate) bias: bool,
    /// Of the branch, if it is a product.
    pub(crate) product: ProductKind,
}

/// The addend of the residual sum.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cuda"))]
pub(crate) enum Addend<B: Backend> {
    None,
    Branch(FloatTensor<B>),
    /// `x * weight`, not yet computed.
    Product {
        x: FloatTensor<B>,
        weight: FloatTensor<B>,
    },
    /// The branch has been added before. The tensor stands for it in the graph; its values have no meaning.
    Added(FloatTensor<B>),
    /// `x * weight`, where the sum is known.
    KnownSum {
        x: FloatTensor<B>,
        weight: FloatTensor<B>,
        sum: FloatTensor<B>,
    },
}

impl<B: Backend + LinearOps> Addend<B> {
    /// Computes the product of the branch, if it has one. Returns the sum so far, and the branch and bias that still
    /// have to be added to it. Without dropout, the product adds the residual stream in its epilogue, so nothing is
    /// left to add.
    pub(crate) fn multiplied(
        self,
        sum: FloatTensor<B>,
        bias: Maybe<B>,
        drop: &Mask<B>,
        product: ProductKind,
    ) -> Remainder<B> {
        match (self, drop) {
            (Addend::Product { x, weight }, Mask::None) => {
                Remainder { sum: B::linear_residual(x, weight, bias, sum, product), branch: None, bias: None }
            }
            (Addend::Product { x, weight }, Mask::Some { .. }) => {
                Remainder { sum, branch: Some(B::product(x, weight, product)), bias: bias.into_option() }
            }
            (Addend::Branch(branch), _) => Remainder { sum, branch: Some(branch), bias: bias.into_option() },
            (Addend::KnownSum { sum, .. }, _) => Remainder { sum, branch: None, bias: None },
            (Addend::None | Addend::Added(_), _) => Remainder { sum, branch: None, bias: None },
        }
    }
}

/// The rest of a residual sum, see [`Addend::multiplied`].
pub(crate) struct Remainder<B: Backend> {
    pub(crate) sum: FloatTensor<B>,
    pub(crate) branch: Option<FloatTensor<B>>,
    pub(crate) bias: Option<FloatTensor<B>>,
}

/// Records a norm of `x`, with the sum of a branch before it if it `adds`.
pub(crate) fn record_forward(x: &impl TensorMetadata, adds: bool) -> Option<Running> {
    calls::begin(|| calls::of_passes("norm forward", x, if adds { 4 } else { 2 }))
}

/// Records the gradient of a norm of `x`, with the gradient of its sum if there is one, and of a branch if it was dropped.
pub(crate) fn record_backward(x: &impl TensorMetadata, has_sum: bool, is_dropped: bool) -> Option<Running> {
    let passes = 3 + usize::from(has_sum) + usize::from(is_dropped);
    calls::begin(|| calls::of_passes("norm backward", x, passes))
}

#[cfg(feature = "cuda")]
fn added(
    x: &TensorSpec,
    _branch: &AddendMetadata,
    _bias: &MaybeMetadata,
    _drop: &MaskMetadata,
    _gamma: &TensorSpec,
    _beta: &MaybeMetadata,
    _kind: &Kind,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    (x.clone(), x.clone(), TensorSpec::new(Shape::new([x.shape[0], 2]), DType::F32))
}

#[cfg(feature = "cuda")]
fn gradients(
    sum: &TensorSpec,
    _statistics: &TensorSpec,
    gamma: &TensorSpec,
    _dy: &TensorSpec,
    _dsum: &MaybeMetadata,
    _drop: &MaskMetadata,
    _kind: &Kind,
) -> (TensorSpec, TensorSpec, TensorSpec, TensorSpec, TensorSpec) {
    (sum.clone(), sum.clone(), gamma.clone(), gamma.clone(), gamma.clone())
}

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait NormOps: Backend {
    /// Returns `(sum, normed)`: `sum = x + drop(branch + bias)`, `normed = norm(sum)`. Without a branch, `sum` is `x`
    /// itself.
    #[fusion(default)]
    fn add_norm(
        x: FloatTensor<Self>,
        #[extension_type] branch: Addend<Self>,
        #[extension_type] bias: Maybe<Self>,
        #[extension_type] drop: Mask<Self>,
        gamma: FloatTensor<Self>,
        #[extension_type] beta: Maybe<Self>,
        kind: Kind,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (sum, normed, _) = Self::add_norm_with_statistics(x, branch, bias, drop, gamma, beta, kind);
        (sum, normed)
    }

    /// Returns [`Self::add_norm`] and the row statistics for backward, `[M, 2]`, f32: each row's mean (0 without
    /// centering) and the inverse of its root mean square.
    #[fusion(meta = added)]
    fn add_norm_with_statistics(
        x: FloatTensor<Self>,
        #[extension_type] branch: Addend<Self>,
        #[extension_type] bias: Maybe<Self>,
        #[extension_type] drop: Mask<Self>,
        gamma: FloatTensor<Self>,
        #[extension_type] beta: Maybe<Self>,
        kind: Kind,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Returns `(dx, dbranch, dgamma, dbeta, dbias)` from the sum and statistics of forward and the gradients of sum
    /// and norm. Without dropout `dbranch` is `dx` itself. `dbeta` is undefined without centering, `dbias` without a
    /// bias.
    #[allow(clippy::type_complexity, reason = "the extension wants the tuple spelled out")]
    #[fusion(meta = gradients)]
    fn add_norm_backward(
        sum: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        #[extension_type] dsum: Maybe<Self>,
        #[extension_type] drop: Mask<Self>,
        kind: Kind,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}
