//! Normalization over features.

mod reference;
#[cfg(test)]
mod tests;

use burn::tensor::Tensor;

/// Layer normalization (Ba et al. 2016): `(x - mean) / sqrt(var + eps) * gamma + beta` over the last dimension, with the
/// biased variance. Statistics are computed in f32 whatever the dtype of `x`; the result has the dtype of `x`.
///
/// # Shapes
/// - `x`: `[M, D]`
/// - `gamma`, `beta`: `[D]`
/// - result: `[M, D]`
pub fn layer_norm(x: Tensor<2>, gamma: Tensor<1>, beta: Tensor<1>, eps: f64) -> Tensor<2> {
    reference::layer_norm(x, gamma, beta, eps)
}
