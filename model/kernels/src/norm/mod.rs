//! Normalization over features, fused with the residual sum before it.

mod autodiff;
mod cpu;
#[cfg(feature = "cuda")]
mod gpu;
mod ops;
pub(crate) mod reference;
#[cfg(test)]
mod tests;

use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::Tensor;
#[cfg(all(test, feature = "cuda"))]
pub(crate) use gpu::tests::offline_kernels;
#[cfg(feature = "cuda")]
pub(crate) use gpu::{REDUCE_COLUMNS, REDUCE_UNITS, reduce_partial};
use ops::{Addend, Kind, NormOps};

use crate::dropout::{DropoutStream, Mask};
use crate::linear::{Layout, ProductKind, check_operands};
use crate::maybe::Maybe;
use crate::retained;
use crate::settings::runs_plain;

/// Parameters of a normalization.
///
/// With `beta` it is layer normalization (Ba et al. 2016), `(x - mean) / sqrt(var + eps) * gamma + beta`, with the
/// biased variance. Without, it is root mean square normalization (Zhang and Sennrich 2019), `x / sqrt(mean(x^2) +
/// eps) * gamma`.
#[derive(Debug, Clone)]
pub struct NormWeights {
    /// Scale, `[D]`.
    pub gamma: Tensor<1>,
    /// Shift, `[D]`.
    pub beta: Option<Tensor<1>>,
    /// Added to the variance or mean square.
    pub eps: f64,
}

/// The addend of a residual sum: `x * weight + bias`, or `x + bias` without a weight.
///
/// A layer's last projection is passed unevaluated, so that [`add_norm`] can fuse it. Without dropout, the product adds
/// the residual stream in its epilogue. The kernel that computes the gradient of the branch also sums the gradient of
/// the bias.
#[derive(Debug, Clone)]
pub struct Branch {
    /// `[M, K]`; without a weight `[M, D]`
    pub x: Tensor<2>,
    /// `[K, D]`
    pub weight: Option<Tensor<2>>,
    /// `[D]`
    pub bias: Option<Tensor<1>>,
}

impl From<Tensor<2>> for Branch {
    fn from(x: Tensor<2>) -> Self {
        Self { x, weight: None, bias: None }
    }
}

/// Computes `sum = x + dropout(branch)` and `normed = norm(sum)` in one pass over memory (and the product of the
/// branch, if it has one). This is what stands between two parts of a Transformer layer. Without a branch, `sum` is
/// `x`. Returns `(sum, normed)`; either may go unused.
///
/// Backward is one pass too: it adds the gradient of `sum` (the residual stream) to the gradient through the norm, and
/// drops what forward dropped. It reads `sum` again; otherwise only two numbers per row are kept. Statistics and
/// parameter gradients are f32, and the parameter gradients are summed in a fixed order.
///
/// # Shapes
/// - `x`: `[M, D]`
/// - results: `[M, D]`, in the dtype of `x`
///
/// # Panics
/// If shapes or dtypes differ, or the dropout probability is not in [0, 1).
pub fn add_norm(
    x: Tensor<2>,
    branch: Option<Branch>,
    dropout: Option<(f64, &DropoutStream)>,
    norm: NormWeights,
) -> (Tensor<2>, Tensor<2>) {
    let (dims, dtype) = (x.dims(), x.dtype());
    let d = dims[1];
    let NormWeights { gamma, beta, eps } = norm;
    let bias = branch.as_ref().and_then(|branch| branch.bias.as_ref());
    let product = ProductKind::new(Layout::NN);
    let kind = Kind { eps: eps as f32, centered: beta.is_some(), bias: bias.is_some(), product };

    for parameter in [Some(&gamma), beta.as_ref(), bias].into_iter().flatten() {
        assert!(parameter.dims() == [d], "gamma, beta and bias must have {d} elements");
        assert!(parameter.dtype() == dtype, "gamma, beta and bias must be {dtype:?}");
    }
    if let Some(Branch { x, weight, .. }) = &branch {
        let shape = weight.as_ref().map_or(x.dims(), |weight| check_operands(x, weight, None, Layout::NN));
        assert!(shape == dims && x.dtype() == dtype, "a branch of {dims:?} in {dtype:?}");
    }

    if runs_plain(&x.device()) {
        return reference::add_norm(x, branch, dropout, NormWeights { gamma, beta, eps });
    }

    let drop = Mask::take(dropout.filter(|_| branch.is_some()), dims[0] * d);
    let (branch, bias) = match branch {
        Some(Branch { x, weight: Some(weight), bias }) => {
            let [x, weight] = [x, weight].map(Tensor::into_dispatch);
            let product = match retained::reused() {
                Some([sum]) => Addend::KnownSum { x, weight, sum },
                None => Addend::Product { x, weight },
            };
            (product, bias)
        }
        Some(Branch { x, weight: None, bias }) => (Addend::Branch(x.into_dispatch()), bias),
        None => (Addend::None, None),
    };
    let is_product = matches!(branch, Addend::Product { .. });
    let (sum, normed) = launch(x, branch, bias, drop, (gamma, beta), kind);
    if is_product {
        retained::keep([&sum]);
    }
    (Tensor::from_dispatch(sum), Tensor::from_dispatch(normed))
}

/// [`add_norm`] where `sum` is known from an earlier call: only the norm is computed. `branch` stands for the branch in the graph and
/// gets its gradient; its values have no meaning. `bias` is the bias of the branch. `dropout` must take the same site as before.
///
/// # Shapes
/// - `sum`, `branch`: `[M, D]`
/// - results: `[M, D]`, as [`add_norm`] returns them
///
/// # Panics
/// If a parameter has another size or dtype.
pub fn add_norm_again(
    sum: Tensor<2>,
    branch: Tensor<2>,
    bias: Option<Tensor<1>>,
    dropout: Option<(f64, &DropoutStream)>,
    norm: NormWeights,
) -> (Tensor<2>, Tensor<2>) {
    if runs_plain(&sum.device()) {
        return reference::add_norm_again(sum, (branch, bias), dropout, norm);
    }
    let NormWeights { gamma, beta, eps } = norm;
    let product = ProductKind::new(Layout::NN);
    let kind = Kind { eps: eps as f32, centered: beta.is_some(), bias: bias.is_some(), product };
    let drop = Mask::take(dropout, sum.shape().num_elements());
    let (sum, normed) = launch(sum, Addend::Added(branch.into_dispatch()), bias, drop, (gamma, beta), kind);
    (Tensor::from_dispatch(sum), Tensor::from_dispatch(normed))
}

fn launch(
    x: Tensor<2>,
    branch: Addend<Dispatch>,
    bias: Option<Tensor<1>>,
    drop: Mask<Dispatch>,
    (gamma, beta): (Tensor<1>, Option<Tensor<1>>),
    kind: Kind,
) -> (DispatchTensor, DispatchTensor) {
    let [bias, beta] = [bias, beta].map(|parameter| Maybe::from(parameter.map(Tensor::into_dispatch)));
    Dispatch::add_norm(x.into_dispatch(), branch, bias, drop, gamma.into_dispatch(), beta, kind)
}

/// Computes the layer normalization of `x`, see [`NormWeights`].
///
/// # Shapes
/// - `x`: `[M, D]`
/// - `gamma`, `beta`: `[D]`
/// - result: `[M, D]`
///
/// # Panics
/// If `gamma` or `beta` differs from a row of `x` in size or dtype.
pub fn layer_norm(x: Tensor<2>, gamma: Tensor<1>, beta: Tensor<1>, eps: f64) -> Tensor<2> {
    add_norm(x, None, None, NormWeights { gamma, beta: Some(beta), eps }).1
}

/// Computes the root mean square normalization of `x`, see [`NormWeights`].
///
/// # Shapes
/// - `x`: `[M, D]`
/// - `gamma`: `[D]`
/// - result: `[M, D]`
///
/// # Panics
/// If `gamma` differs from a row of `x` in size or dtype.
pub fn rms_norm(x: Tensor<2>, gamma: Tensor<1>, eps: f64) -> Tensor<2> {
    add_norm(x, None, None, NormWeights { gamma, beta: None, eps }).1
}
