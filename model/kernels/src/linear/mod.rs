//! Matrix products: the bulk of a Transformer's arithmetic.
//!
//! Products of any shape run on one kernel: see `gpu/hopper/mod.rs` for 16-bit floats on Hopper, and `gpu/ampere/mod.rs` for other GPUs since
//! Ampere and for f32. Both copy vectors of 16 bytes; where a row of a result is not a multiple of them, a gap follows it. All other
//! products run on the backend's own, with a strategy whose launches are known to succeed: the backend's autotune prefers a candidate
//! that computes nothing on tall matrices.

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
use burn::tensor::{Device, Tensor};
#[cfg(all(test, feature = "cuda"))]
pub(crate) use gpu::tests::offline_kernels;
pub(crate) use ops::{Layout, LinearOps, ProductKind};

use crate::activation::Activation;
use crate::dropout::{DropoutStream, Mask, dropout as drop_out};
#[cfg(feature = "cuda")]
use crate::gpu::hardware::kernel_set_of;
use crate::kernel_set::KernelSet;
use crate::maybe::Maybe;
use crate::retained;
use crate::settings::{has_kernels, runs_plain};

/// Returns the kernels that compute products of 16-bit tensors on `device`; `None` if the backend does.
pub fn product_kernels(device: &Device) -> Option<KernelSet> {
    #[cfg(feature = "cuda")]
    return kernel_set_of(device);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = device;
        None
    }
}

/// Returns `x · weight + bias`. The bias is added before the result leaves the registers. Its gradient is summed in a fixed
/// order.
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

/// Returns `dropout(activation(x · weight + bias))`. The argument of the activation is kept for backward, or its result where
/// that suffices. The pass that computes the gradient of the activation also computes the gradient of the bias.
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
    if runs_plain(&x.device()) {
        let y = activation.reference_in_f32(reference::linear(x, weight, bias));
        return match dropout {
            Some((p, stream)) => drop_out(y, p, stream),
            None => y,
        };
    }
    let mask = Mask::take(dropout, x.dims()[0] * weight.dims()[1]);
    activated(x, weight, bias, Layout::NN, Some(activation), mask)
}

/// Returns `residual + x · weight + bias`: the end of a branch of a residual network. On a GPU a sum of 16-bit tensors is rounded
/// only once, after all three have been added.
///
/// # Shapes
/// - `x`: `[M, K]`
/// - `weight`: `[K, N]`
/// - `bias`: `[N]`
/// - `residual`, result: `[M, N]`
///
/// # Panics
/// If the shapes or the dtypes do not match.
pub fn linear_residual(x: Tensor<2>, weight: Tensor<2>, bias: Option<Tensor<1>>, residual: Tensor<2>) -> Tensor<2> {
    let [m, n] = check_operands(&x, &weight, bias.as_ref(), Layout::NN);
    assert_eq!(residual.dims(), [m, n], "a residual with the shape of the product");
    assert_eq!(residual.dtype(), x.dtype(), "a residual in the dtype of the product");
    if runs_plain(&x.device()) {
        return residual + reference::linear(x, weight, bias);
    }
    let bias = Maybe::from(bias.map(Tensor::into_dispatch));
    Tensor::from_dispatch(Dispatch::linear_residual(
        x.into_dispatch(),
        weight.into_dispatch(),
        bias,
        residual.into_dispatch(),
        ProductKind::new(Layout::NN),
    ))
}

/// Checks the operands of a product, and returns M and N.
///
/// # Panics
/// If the inner dimensions, the dtypes or the length of the bias do not match.
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

/// Returns `drop(activation(product + bias))`.
fn activated(
    x: Tensor<2>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    layout: Layout,
    activation: Option<Activation>,
    mask: Mask<Dispatch>,
) -> Tensor<2> {
    check_operands(&x, &weight, bias.as_ref(), layout);
    if runs_plain(&x.device()) {
        let weight = if layout == Layout::NT { weight.transpose() } else { weight };
        return reference::linear(x, weight, bias);
    }
    let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
    let (bias, kind) = (Maybe::from(bias.map(Tensor::into_dispatch)), ProductKind::new(layout));

    if let Some([known]) = retained::reused() {
        return Tensor::from_dispatch(Dispatch::known_linear(x, weight, bias, known, kind, activation, mask));
    }
    let y = match activation {
        Some(activation) if retained::is_kept() && !activation.keeps_result() => {
            let (before, y) = Dispatch::fused_linear_both(x, weight, bias, kind, activation, mask);
            retained::keep([&before]);
            y
        }
        _ => {
            let y = Dispatch::fused_linear(x, weight, bias, kind, activation, mask);
            retained::keep([&y]);
            y
        }
    };
    Tensor::from_dispatch(y)
}

/// Returns `x · weightᵀ + bias`, for a weight that is stored by output row, such as a tied embedding.
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

/// Returns `xᵀ · dy`, the gradient of the weight of [`linear`].
///
/// # Shapes
/// - `x`: `[M, K]`
/// - `dy`: `[M, N]`
/// - result: `[K, N]`
///
/// # Panics
/// If the rows or the dtypes differ, or `x` or `dy` requires a gradient.
pub fn linear_weight_gradient(x: Tensor<2>, dy: Tensor<2>) -> Tensor<2> {
    Layout::TN.check(&x.dims(), &dy.dims());
    assert_eq!(x.dtype(), dy.dtype(), "a product of two dtypes");
    if runs_plain(&x.device()) {
        return reference::linear(x.transpose(), dy, None);
    }
    Tensor::from_dispatch(Dispatch::product(
        x.into_dispatch(),
        dy.into_dispatch(),
        ProductKind::new(Layout::TN).without_fp8(),
    ))
}

/// Returns `sum + xᵀ · dy` in the dtype of `sum`: [`linear_weight_gradient`] accumulated over batches. On a GPU, a product of
/// 16-bit tensors is added to a `sum` in f32 without being rounded first, and in place if there is no other reference to `sum`.
///
/// # Shapes
/// - `x`: `[M, K]`
/// - `dy`: `[M, N]`
/// - `sum`, result: `[K, N]`
///
/// # Panics
/// If the shapes, or the dtypes of `x` and `dy`, do not match, or a tensor requires a gradient.
pub fn linear_weight_gradient_accumulate(x: Tensor<2>, dy: Tensor<2>, sum: Tensor<2>) -> Tensor<2> {
    Layout::TN.check(&x.dims(), &dy.dims());
    assert_eq!(x.dtype(), dy.dtype(), "a product of two dtypes");
    assert_eq!(sum.dims(), [x.dims()[1], dy.dims()[1]], "a sum with the shape of the weight");
    if runs_plain(&x.device()) {
        let dtype = sum.dtype();
        return sum + reference::linear(x.transpose(), dy, None).cast(dtype);
    }
    Tensor::from_dispatch(Dispatch::accumulate_product(
        x.into_dispatch(),
        dy.into_dispatch(),
        sum.into_dispatch(),
        ProductKind::new(Layout::TN).without_fp8(),
    ))
}

/// Returns a product per leading index. Its bits do not depend on the other products.
///
/// # Shapes
/// - `a`: `[G, M, K]`
/// - `b`: `[G, K, N]`, which may be a transposed view
/// - result: `[G, M, N]`
///
/// # Panics
/// If the shapes do not fit or the dtypes differ.
pub fn batched_product(a: Tensor<3>, b: Tensor<3>) -> Tensor<3> {
    batched(a, b, Layout::NN)
}

/// Returns the product of each `a` and the transpose of each `b`, as [`batched_product`].
///
/// # Shapes
/// - `a`: `[G, M, K]`
/// - `b`: `[G, N, K]`
/// - result: `[G, M, N]`
///
/// # Panics
/// If the shapes do not fit or the dtypes differ.
pub fn batched_product_transposed(a: Tensor<3>, b: Tensor<3>) -> Tensor<3> {
    batched(a, b, Layout::NT)
}

fn batched(a: Tensor<3>, b: Tensor<3>, layout: Layout) -> Tensor<3> {
    let ([g, ..], [h, ..]) = (a.dims(), b.dims());
    assert_eq!(g, h, "an operand on each side for each product");
    layout.check(&a.dims()[1..], &b.dims()[1..]);
    assert_eq!(a.dtype(), b.dtype(), "a product of two dtypes");
    if !has_kernels(&a.device()) {
        return a.matmul(if layout == Layout::NT { b.swap_dims(1, 2) } else { b });
    }
    let kind = ProductKind::new(layout).without_fp8();
    Tensor::from_dispatch(Dispatch::batched_product(a.into_dispatch(), b.into_dispatch(), kind))
}
