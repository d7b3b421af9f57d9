//! Normalization over features.

mod autodiff;
mod cpu;
#[cfg(feature = "cuda")]
mod kernel;
mod ops;
mod reference;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::Tensor;
use ops::NormOps;

/// Layer normalization (Ba et al. 2016): `(x - mean) / sqrt(var + eps) * gamma + beta` over the last dimension, with the
/// biased variance. Statistics are computed in f32 whatever the dtype of `x`; the result has the dtype of `x`. Backward
/// reads `x` again and recomputes them, so nothing but `x` is kept for it.
///
/// # Shapes
/// - `x`: `[M, D]`
/// - `gamma`, `beta`: `[D]`
/// - result: `[M, D]`
///
/// # Panics
/// If the sizes or dtypes of `gamma` and `beta` are not those of a row of `x`.
pub fn layer_norm(x: Tensor<2>, gamma: Tensor<1>, beta: Tensor<1>, eps: f64) -> Tensor<2> {
    let d = x.dims()[1];
    assert!(gamma.dims() == [d] && beta.dims() == [d], "gamma and beta must have {d} elements");
    assert!(gamma.dtype() == x.dtype() && beta.dtype() == x.dtype(), "gamma and beta must be {:?}", x.dtype());
    let (gamma, beta) = (gamma.into_dispatch(), beta.into_dispatch());
    Tensor::from_dispatch(Dispatch::fused_layer_norm(x.into_dispatch(), gamma, beta, eps as f32))
}

/// Root mean square normalization (Zhang and Sennrich 2019): `x / sqrt(mean(x^2) + eps) * gamma` over the last dimension.
/// The mean is computed in f32 whatever the dtype of `x`; the result has the dtype of `x`.
///
/// # Shapes
/// - `x`: `[M, D]`
/// - `gamma`: `[D]`
/// - result: `[M, D]`
///
/// # Panics
/// If the size or dtype of `gamma` is not that of a row of `x`.
pub fn rms_norm(x: Tensor<2>, gamma: Tensor<1>, eps: f64) -> Tensor<2> {
    let d = x.dims()[1];
    assert!(gamma.dims() == [d], "gamma must have {d} elements");
    assert!(gamma.dtype() == x.dtype(), "gamma must be {:?}", x.dtype());
    reference::rms_norm(x, gamma, eps)
}
