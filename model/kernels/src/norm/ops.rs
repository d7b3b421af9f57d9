//! Normalization with what is added before it, as a backend extension.

#[cfg(feature = "cuda")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, ExtensionType, backend_extension};

use crate::maybe::Maybe;
#[cfg(feature = "cuda")]
use crate::maybe::MaybeMetadata;

/// What is dropped: the counter of [`crate::DropoutStream`], site and probability.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cuda"))]
pub(crate) enum Mask<B: Backend> {
    None,
    Some { state: IntTensor<B>, site: u32, p: f32 },
}

/// Which normalization.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) eps: f32,
    /// Whether the mean is subtracted.
    pub(crate) centered: bool,
}

#[cfg(feature = "cuda")]
fn added(
    x: &TensorSpec,
    _branch: &MaybeMetadata,
    _drop: &MaskMetadata,
    _gamma: &TensorSpec,
    _beta: &MaybeMetadata,
    _kind: &Kind,
) -> (TensorSpec, TensorSpec) {
    (x.clone(), x.clone())
}

#[cfg(feature = "cuda")]
fn gradients(
    sum: &TensorSpec,
    gamma: &TensorSpec,
    _dy: &TensorSpec,
    _dsum: &MaybeMetadata,
    _drop: &MaskMetadata,
    _kind: &Kind,
) -> (TensorSpec, TensorSpec, TensorSpec, TensorSpec) {
    (sum.clone(), sum.clone(), gamma.clone(), gamma.clone())
}

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait NormOps: Backend {
    /// `(sum, normed)`: `sum = x + drop(branch)`, `normed = norm(sum)`. Without a branch, `sum` is `x` itself.
    #[fusion(meta = added)]
    fn add_norm(
        x: FloatTensor<Self>,
        #[extension_type] branch: Maybe<Self>,
        #[extension_type] drop: Mask<Self>,
        gamma: FloatTensor<Self>,
        #[extension_type] beta: Maybe<Self>,
        kind: Kind,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// `(dx, dbranch, dgamma, dbeta)` from the sum that forward returned and the gradients of its two results. `dbranch` is
    /// `dx` itself where nothing is dropped; `dbeta` means nothing where there is no mean.
    #[fusion(meta = gradients)]
    fn add_norm_backward(
        sum: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        #[extension_type] dsum: Maybe<Self>,
        #[extension_type] drop: Mask<Self>,
        kind: Kind,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}
