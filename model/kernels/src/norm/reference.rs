//! Normalization in plain Burn operations.

use burn::tensor::{DType, Tensor};

use super::{Branch, NormWeights};
use crate::dropout::{DropoutStream, dropout};
use crate::linear::reference::linear;

/// See [`super::add_norm`].
pub(crate) fn add_norm(
    x: Tensor<2>,
    branch: Option<Branch>,
    drop: Option<(f64, &DropoutStream)>,
    norm: NormWeights,
) -> (Tensor<2>, Tensor<2>) {
    let branch = branch.map(|Branch { x, weight, bias }| match (weight, bias) {
        (Some(weight), bias) => linear(x, weight, bias),
        (None, Some(bias)) => (x.clone().cast(DType::F32) + bias.cast(DType::F32).unsqueeze()).cast(x.dtype()),
        (None, None) => x,
    });

    let sum = match (branch, drop) {
        (Some(branch), Some((p, stream))) => x + dropout(branch, p, stream),
        (Some(branch), None) => x + branch,
        (None, _) => x,
    };

    let NormWeights { gamma, beta, eps } = norm;
    let normed = match beta {
        Some(beta) => layer_norm(sum.clone(), gamma, beta, eps),
        None => rms_norm(sum.clone(), gamma, eps),
    };
    (sum, normed)
}

/// See [`super::add_norm_again`]. The values of the branch and of its bias cancel; their gradients do not.
pub(crate) fn add_norm_again(
    sum: Tensor<2>,
    (branch, bias): (Tensor<2>, Option<Tensor<1>>),
    drop: Option<(f64, &DropoutStream)>,
    norm: NormWeights,
) -> (Tensor<2>, Tensor<2>) {
    let nothing = branch.clone() - branch.detach();
    let nothing = match bias {
        Some(bias) => nothing + (bias.clone() - bias.detach()).unsqueeze(),
        None => nothing,
    };
    let branch = Branch { x: nothing, weight: None, bias: None };
    add_norm(sum, Some(branch), drop, norm)
}

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
