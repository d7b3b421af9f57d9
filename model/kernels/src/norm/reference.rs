//! Normalization in plain Burn operations.

use burn::tensor::{DType, Tensor};

pub(crate) fn layer_norm(x: Tensor<2>, gamma: Tensor<1>, beta: Tensor<1>, eps: f64) -> Tensor<2> {
    let dtype = x.dtype();
    let x = x.cast(DType::F32);
    let centered = x.clone() - x.mean_dim(1);
    let variance = (centered.clone() * centered.clone()).mean_dim(1);
    let normalized = centered / (variance + eps).sqrt();
    let gamma = gamma.cast(DType::F32).unsqueeze();
    let beta = beta.cast(DType::F32).unsqueeze();
    (normalized * gamma + beta).cast(dtype)
}

pub(crate) fn rms_norm(x: Tensor<2>, gamma: Tensor<1>, eps: f64) -> Tensor<2> {
    let dtype = x.dtype();
    let x = x.cast(DType::F32);
    let mean_square = (x.clone() * x.clone()).mean_dim(1);
    (x / (mean_square + eps).sqrt() * gamma.cast(DType::F32).unsqueeze()).cast(dtype)
}
