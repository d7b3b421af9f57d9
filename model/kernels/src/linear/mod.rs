//! Matrix products: the bulk of a Transformer's arithmetic.
//!
//! On CUDA, products of 16-bit floats run on a CubeCL kernel (wgmma fed by TMA), of any shape: where rows are no multiple of
//! 16 bytes long, as TMA wants them, the result has a gap behind each row. Everything else runs on the backend's product with
//! a strategy whose launches are known to succeed: the backend's autotune prefers a candidate that computes nothing on tall
//! matrices.

mod autodiff;
mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod gpu;
mod ops;
pub(crate) mod reference;

#[cfg(test)]
mod tests;

pub(crate) use autodiff::register_products;
use burn::backend::Dispatch;
use burn::tensor::Tensor;
#[cfg(all(test, feature = "cuda"))]
pub(crate) use gpu::tests::offline_kernels;
pub(crate) use ops::{Layout, LinearOps};

use crate::activation::{self, Activation};
use crate::dropout::{DropoutStream, Mask, dropout as drop_out};
use crate::maybe::Maybe;
use crate::settings::reference_operators;

/// `x · weight + bias`. The bias is added before the result leaves the registers, its gradient summed in a fixed order.
///
/// # Shapes
/// - `x`: `[M, K]`
/// - `weight`: `[K, N]`
/// - `bias`: `[N]`
/// - result: `[M, N]`, in the dtype of `x`
///
/// # Panics
/// If the inner dimensions or the dtypes differ.
pub fn linear(x: Tensor<2>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
    activated(x, weight, bias, Layout::NN, None, Mask::None)
}

/// `dropout(activation(x · weight + bias))`. For backward the argument of the activation is kept, or, where that suffices,
/// the result; the gradient of the bias comes from the pass that computes the activation's.
///
/// # Shapes
/// As [`linear`].
///
/// # Panics
/// If the inner dimensions or the dtypes differ, or the dropout probability is not in [0, 1).
pub fn linear_activated(
    x: Tensor<2>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    activation: Activation,
    dropout: Option<(f64, &DropoutStream)>,
) -> Tensor<2> {
    if reference_operators() {
        let y = activation::reference::activate(reference::linear(x, weight, bias), activation);
        return match dropout {
            Some((p, stream)) => drop_out(y, p, stream),
            None => y,
        };
    }
    let mask = Mask::take(dropout, x.dims()[0] * weight.dims()[1]);
    activated(x, weight, bias, Layout::NN, Some(activation), mask)
}

/// `residual + x · weight + bias`: the end of a branch of a residual network. On a GPU the sum of 16-bit tensors is rounded
/// once, when all three are added.
///
/// # Shapes
/// - `x`: `[M, K]`
/// - `weight`: `[K, N]`
/// - `bias`: `[N]`
/// - `residual`, result: `[M, N]`
///
/// # Panics
/// If the shapes or the dtypes do not fit.
pub fn linear_residual(x: Tensor<2>, weight: Tensor<2>, bias: Option<Tensor<1>>, residual: Tensor<2>) -> Tensor<2> {
    let [m, n] = check_operands(&x, &weight, bias.as_ref(), Layout::NN);
    assert_eq!(residual.dims(), [m, n], "a residual with the shape of the product");
    assert_eq!(residual.dtype(), x.dtype(), "a residual in the dtype of the product");
    if reference_operators() {
        return residual + reference::linear(x, weight, bias);
    }
    let bias = Maybe::from(bias.map(Tensor::into_dispatch));
    Tensor::from_dispatch(Dispatch::linear_residual(
        x.into_dispatch(),
        weight.into_dispatch(),
        bias,
        residual.into_dispatch(),
    ))
}

/// Panics unless the operands of a product fit, and a bias its columns; gives M and N.
pub(crate) fn check_operands(
    x: &Tensor<2>,
    weight: &Tensor<2>,
    bias: Option<&Tensor<1>>,
    layout: Layout,
) -> [usize; 2] {
    layout.check(&x.dims(), &weight.dims());
    assert_eq!(x.dtype(), weight.dtype(), "a product of two dtypes");
    let (m, n, _) = layout.sizes(&x.dims(), &weight.dims());
    if let Some(bias) = bias {
        assert_eq!(bias.dims(), [n], "a bias for each column");
        assert_eq!(bias.dtype(), x.dtype(), "a bias in the dtype of the product");
    }
    [m, n]
}

fn activated(
    x: Tensor<2>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    layout: Layout,
    activation: Option<Activation>,
    mask: Mask<Dispatch>,
) -> Tensor<2> {
    check_operands(&x, &weight, bias.as_ref(), layout);
    if reference_operators() {
        let weight = if layout == Layout::NT { weight.transpose() } else { weight };
        return reference::linear(x, weight, bias);
    }
    let bias = Maybe::from(bias.map(Tensor::into_dispatch));
    Tensor::from_dispatch(Dispatch::fused_linear(
        x.into_dispatch(),
        weight.into_dispatch(),
        bias,
        layout,
        activation,
        mask,
    ))
}

/// `x · weightᵀ + bias`, for a weight that is stored by output row: a tied embedding.
///
/// # Shapes
/// - `x`: `[M, K]`
/// - `weight`: `[N, K]`
/// - `bias`: `[N]`
/// - result: `[M, N]`
///
/// # Panics
/// If the inner dimensions or the dtypes differ.
pub fn linear_transposed(x: Tensor<2>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
    activated(x, weight, bias, Layout::NT, None, Mask::None)
}

/// `xᵀ · dy`: the gradient of the weight of [`linear`], alone.
///
/// # Shapes
/// - `x`: `[M, K]`
/// - `dy`: `[M, N]`
/// - result: `[K, N]`
///
/// # Panics
/// If the rows or the dtypes differ, or `x` or `dy` wants a gradient.
pub fn linear_weight_gradient(x: Tensor<2>, dy: Tensor<2>) -> Tensor<2> {
    Layout::TN.check(&x.dims(), &dy.dims());
    assert_eq!(x.dtype(), dy.dtype(), "a product of two dtypes");
    if reference_operators() {
        return reference::linear(x.transpose(), dy, None);
    }
    Tensor::from_dispatch(Dispatch::product(x.into_dispatch(), dy.into_dispatch(), Layout::TN))
}

/// `sum + xᵀ · dy`: [`linear_weight_gradient`] added to that of the batches before, in the dtype of `sum`. On a GPU the
/// product of 16-bit tensors is not rounded before it is added to a `sum` in f32, and is written over it where nobody else
/// holds it.
///
/// # Shapes
/// - `x`: `[M, K]`
/// - `dy`: `[M, N]`
/// - `sum`, result: `[K, N]`
///
/// # Panics
/// If the shapes, or the dtypes of `x` and `dy`, do not fit, or a tensor wants a gradient.
pub fn linear_weight_gradient_onto(x: Tensor<2>, dy: Tensor<2>, sum: Tensor<2>) -> Tensor<2> {
    Layout::TN.check(&x.dims(), &dy.dims());
    assert_eq!(x.dtype(), dy.dtype(), "a product of two dtypes");
    assert_eq!(sum.dims(), [x.dims()[1], dy.dims()[1]], "a sum with the shape of the weight");
    if reference_operators() {
        let dtype = sum.dtype();
        return sum + reference::linear(x.transpose(), dy, None).cast(dtype);
    }
    Tensor::from_dispatch(Dispatch::product_onto(
        x.into_dispatch(),
        dy.into_dispatch(),
        sum.into_dispatch(),
        Layout::TN,
    ))
}

/// A product per leading index.
///
/// # Shapes
/// - `a`: `[G, M, K]`
/// - `b`: `[G, K, N]`, transposed views welcome
/// - result: `[G, M, N]`
pub(crate) fn batched_product(a: Tensor<3>, b: Tensor<3>) -> Tensor<3> {
    Tensor::from_dispatch(Dispatch::batched_product(a.into_dispatch(), b.into_dispatch()))
}
