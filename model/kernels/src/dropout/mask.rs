//! Dropout inside other operators.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, ExtensionType};
use burn::tensor::{DType, Device, Tensor};
#[cfg(feature = "cuda")]
use burn_cubecl::{CubeBackend, kernel::into_contiguous, tensor::CubeTensor};

use super::DropoutStream;
use super::ops::DropoutOps;
#[cfg(feature = "cuda")]
use super::threshold_16;
use crate::settings::has_kernels;

/// Selects the dropped elements: the counter of [`DropoutStream`], site and probability. The counter of a device without kernels
/// lies on the CPU.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cuda"))]
pub(crate) enum Mask<B: Backend> {
    None,
    Some { state: IntTensor<B>, site: u32, p: f32 },
}

impl Mask<Dispatch> {
    /// Takes the next site's mask for a tensor of `n` elements. A site is taken even if the probability is 0.
    pub(crate) fn take(dropout: Option<(f64, &DropoutStream)>, n: usize) -> Self {
        let Some((p, stream)) = dropout else { return Mask::None };
        assert!((0.0..1.0).contains(&p), "a dropout probability of {p}");
        assert!(n <= 1 << 34, "too many elements for one random stream");
        let (site, state) = stream.take_for_numbers();
        if p > 0.0 { Mask::Some { state: state.clone().into_dispatch(), site, p: p as f32 } } else { Mask::None }
    }

    /// Drops elements of `x`. Without kernels the CPU makes the mask, so that it is the same.
    pub(crate) fn drop_out(self, x: Tensor<2>) -> Tensor<2> {
        if has_kernels(&x.device()) {
            return Tensor::from_dispatch(self.apply(x.into_dispatch()));
        }
        if matches!(self, Mask::None) {
            return x;
        }
        let (dims, dtype, device) = (x.dims(), x.dtype(), x.device().inner());
        let ones = Tensor::<2>::ones(dims, (&Device::flex(), DType::F32));
        let kept = Tensor::<2>::from_dispatch(self.apply(ones.into_dispatch())).into_data();
        let kept = Tensor::<2>::from_data(kept, (&device, DType::F32));
        let kept = if x.is_autodiff() { Tensor::from_inner(kept) } else { kept };
        (x.cast(DType::F32) * kept).cast(dtype)
    }
}

impl<B: Backend> Mask<B> {
    #[cfg(feature = "cuda")]
    pub(crate) fn is_some(&self) -> bool {
        matches!(self, Mask::Some { .. })
    }

    /// Returns the same mask for a backend that wraps this one or is wrapped by it. Integers carry no gradient.
    pub(crate) fn convert<C: Backend<IntTensorPrimitive = IntTensor<B>>>(self) -> Mask<C> {
        match self {
            Mask::Some { state, site, p } => Mask::Some { state, site, p },
            Mask::None => Mask::None,
        }
    }

    /// Drops elements of `x`.
    pub(crate) fn apply(&self, x: FloatTensor<B>) -> FloatTensor<B>
    where
        B: DropoutOps,
    {
        match self {
            Mask::Some { state, site, p } => B::dropout(x, state.clone(), *site, *p),
            Mask::None => x,
        }
    }
}

/// [`Mask`] as kernels take it.
#[cfg(feature = "cuda")]
pub(crate) struct Dropping {
    /// `None` if nothing is dropped. The other fields are unused then.
    pub(crate) state: Option<CubeTensor>,
    pub(crate) site: u32,
    pub(crate) limit: u32,
    pub(crate) scale: f32,
}

#[cfg(feature = "cuda")]
impl Dropping {
    pub(crate) fn new(mask: Mask<CubeBackend>) -> Self {
        match mask {
            Mask::Some { state, site, p } => {
                let state = Some(into_contiguous(state));
                Self { state, site, limit: threshold_16(p), scale: 1.0 / (1.0 - p) }
            }
            Mask::None => Self { state: None, site: 0, limit: 0, scale: 1.0 },
        }
    }
}
