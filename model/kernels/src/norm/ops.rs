//! Normalization with what is added before it, as a backend extension.

#[cfg(feature = "cuda")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
#[cfg(feature = "cuda")]
use burn::tensor::{DType, Shape};

use crate::dropout::Mask;
#[cfg(feature = "cuda")]
use crate::dropout::MaskMetadata;
use crate::maybe::Maybe;
#[cfg(feature = "cuda")]
use crate::maybe::MaybeMetadata;

/// Which normalization, and of what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) eps: f32,
    /// Whether the mean is subtracted.
    pub(crate) centered: bool,
    /// Whether there is a branch, and it has a bias.
    pub(crate) bias: bool,
}

#[cfg(feature = "cuda")]
fn added(
    x: &TensorSpec,
    _branch: &MaybeMetadata,
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
    /// `(sum, normed)`: `sum = x + drop(branch + bias)`, `normed = norm(sum)`. Without a branch, `sum` is `x` itself.
    #[fusion(default)]
    fn add_norm(
        x: FloatTensor<Self>,
        #[extension_type] branch: Maybe<Self>,
        #[extension_type] bias: Maybe<Self>,
        #[extension_type] drop: Mask<Self>,
        gamma: FloatTensor<Self>,
        #[extension_type] beta: Maybe<Self>,
        kind: Kind,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (sum, normed, _) = Self::add_norm_with_statistics(x, branch, bias, drop, gamma, beta, kind);
        (sum, normed)
    }

    /// [`Self::add_norm`], and for backward the statistics: `[M, 2]`, f32, each row's mean (0 if none is subtracted) and one
    /// over its root mean square.
    #[fusion(meta = added)]
    fn add_norm_with_statistics(
        x: FloatTensor<Self>,
        #[extension_type] branch: Maybe<Self>,
        #[extension_type] bias: Maybe<Self>,
        #[extension_type] drop: Mask<Self>,
        gamma: FloatTensor<Self>,
        #[extension_type] beta: Maybe<Self>,
        kind: Kind,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// `(dx, dbranch, dgamma, dbeta, dbias)` from the sum and statistics that forward returned and the gradients of sum and
    /// norm. `dbranch` is `dx` itself where nothing is dropped; `dbeta` means nothing where there is no mean, `dbias` where
    /// there is no bias.
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
