//! The products as operations of the backend: on the kernel where it serves them, else on the backend's own product.

use burn::backend::DType;
use burn::backend::ops::{ActivationOps, FloatTensorOps};
use burn::tensor::FloatDType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::super::ops::record_product;
use super::super::{Layout, LinearOps, ProductKind};
use super::fallback::{backend_product, fallback};
use super::few_rows;
use super::fp8::{Operand, rounded};
use super::launch::EpilogueArguments;
use super::shared::plan::{Plan, has_kernel};
use crate::activation::Activation;
use crate::activation::gpu::activate;
use crate::dropout::Mask;
use crate::fp8::Fp8;
use crate::gpu::memory::{addressable, aligned, empty, empty_pitched};
use crate::gpu::mma_f32::Arithmetic;
use crate::maybe::Maybe;
use crate::reduce::columns::backward_and_sum;

impl LinearOps for CubeBackend {
    fn product(a: CubeTensor, b: CubeTensor, kind: ProductKind) -> CubeTensor {
        product(a, b, None, kind, None, Mask::None)
    }

    fn product_gradients(
        dy: CubeTensor,
        x: CubeTensor,
        weight: CubeTensor,
        kind: ProductKind,
    ) -> (CubeTensor, CubeTensor) {
        let (of_x, of_weight) = (kind.of_input_gradient(), kind.of_weight_gradient());
        let is_fp8 = |plan: &Plan| matches!(plan.arithmetic, Arithmetic::Eight(_));
        let plan = |a: &CubeTensor, b: &CubeTensor, kind: ProductKind| {
            let sizes = kind.layout.sizes(a.meta.shape(), b.meta.shape());
            (has_kernel(a) && sizes.0 * sizes.1 * sizes.2 > 0).then(|| Plan::new(a, kind, sizes)).filter(is_fp8)
        };
        let (a, b) = kind.layout.for_weight_gradient(x, dy.clone());
        let (Some(to_x), Some(to_weight)) = (plan(&dy, &weight, of_x), plan(&a, &b, of_weight)) else {
            return (Self::product(dy, weight, of_x), Self::product(a, b, of_weight));
        };

        // The gradient is rounded once for both products.
        let [dx, dweight] = [&to_x, &to_weight].map(|plan| empty_matrix(&dy, [plan.m, plan.n], dy.dtype));
        let narrow = Operand::Eight(rounded(&dy, Fp8::E5M2, [true, true]));
        let dx = {
            let _call = record_product(&dy, &weight, of_x, 0.0);
            to_x.launch_operands(narrow.clone(), Operand::Sixteen(weight), None, EpilogueArguments::Store, dx)
        };
        let _call = record_product(&a, &b, of_weight, 0.0);
        let (a, b) = match kind.layout {
            Layout::NT => (narrow, Operand::Sixteen(b)),
            _ => (Operand::Sixteen(a), narrow),
        };
        (dx, to_weight.launch_operands(a, b, None, EpilogueArguments::Store, dweight))
    }

    fn accumulate_product(a: CubeTensor, b: CubeTensor, sum: CubeTensor, kind: ProductKind) -> CubeTensor {
        let in_vectors = sum.meta.shape()[1].is_multiple_of(4);
        if sum.dtype != DType::F32 || !in_vectors {
            let product = CubeBackend::float_cast(Self::product(a, b, kind), sum.dtype.into());
            return CubeBackend::float_add(sum, product);
        }
        let sum = into_contiguous(sum);
        let sum = if sum.can_mut() { aligned(sum) } else { sum.copy() };
        product_in_f32(a, b, kind, sum, false)
    }

    fn fused_linear(
        x: CubeTensor,
        weight: CubeTensor,
        bias: Maybe<Self>,
        kind: ProductKind,
        activation: Option<Activation>,
        mask: Mask<Self>,
    ) -> CubeTensor {
        product(x, weight, bias.into_option(), kind, activation, mask)
    }

    fn fused_linear_both(
        x: CubeTensor,
        weight: CubeTensor,
        bias: Maybe<Self>,
        kind: ProductKind,
        activation: Activation,
        mask: Mask<Self>,
    ) -> (CubeTensor, CubeTensor) {
        let sizes = kind.layout.sizes(x.meta.shape(), weight.meta.shape());
        let before = empty_matrix(&x, [sizes.0, sizes.1], x.dtype);
        if let Some(plan) = Plan::with_epilogue_warps(&x, kind, sizes, &mask) {
            let y = empty_matrix(&x, [sizes.0, sizes.1], x.dtype);
            let epilogue = EpilogueArguments::Activation { activation, input: Some(before.clone()) };
            return (before, plan.launch(x, weight, bias.into_option(), epilogue, y));
        }
        let before = product_into(x, weight, bias.into_option(), kind, EpilogueArguments::Store, before);
        (before.clone(), activate(before, activation, mask))
    }

    fn linear_residual(
        x: CubeTensor,
        weight: CubeTensor,
        bias: Maybe<Self>,
        residual: CubeTensor,
        kind: ProductKind,
    ) -> CubeTensor {
        let out = empty_matrix(&x, [residual.meta.shape()[0], residual.meta.shape()[1]], x.dtype);
        product_into(x, weight, bias.into_option(), kind, EpilogueArguments::AddResidual(residual), out)
    }

    fn activate(x: CubeTensor, activation: Activation, mask: Mask<Self>) -> CubeTensor {
        activate(x, activation, mask)
    }

    fn activate_backward(
        kept: CubeTensor,
        dy: CubeTensor,
        activation: Activation,
        mask: Mask<Self>,
    ) -> (CubeTensor, CubeTensor) {
        backward_and_sum(Some((kept, activation)), dy, mask)
    }

    fn column_sum(x: CubeTensor) -> CubeTensor {
        backward_and_sum(None, x, Mask::None).1
    }

    fn batched_product(a: CubeTensor, b: CubeTensor, kind: ProductKind) -> CubeTensor {
        let products = a.meta.shape()[0];
        let sizes = kind.layout.sizes(&a.meta.shape()[1..], &b.meta.shape()[1..]);
        let in_order = a.is_contiguous() && b.is_contiguous();
        if let Some(plan) = Plan::batched(&a, kind, products, sizes).filter(|_| in_order) {
            let [a, b] = [a, b].map(|operand| {
                let [_, rows, columns] = operand.meta.shape().dims();
                burn_cubecl::ops::reshape(operand, [products * rows, columns].into())
            });
            let out = empty(&a, [products * sizes.0, sizes.1], a.dtype);
            let out = plan.launch(a, b, None, EpilogueArguments::Store, out);
            return burn_cubecl::ops::reshape(out, [products, sizes.0, sizes.1].into());
        }

        let out = empty(&a, [products, sizes.0, sizes.1], a.dtype);
        let transposed = |x: CubeTensor| burn_cubecl::ops::permute(x, &[0, 2, 1]);
        match kind.layout {
            Layout::NN => backend_product(a, b, out),
            Layout::NT => backend_product(a, transposed(b), out),
            Layout::TN => backend_product(transposed(a), b, out),
        }
    }
}

fn product(
    a: CubeTensor,
    b: CubeTensor,
    bias: Option<CubeTensor>,
    kind: ProductKind,
    activation: Option<Activation>,
    mask: Mask<CubeBackend>,
) -> CubeTensor {
    let sizes = kind.layout.sizes(a.meta.shape(), b.meta.shape());
    let out = empty_matrix(&a, [sizes.0, sizes.1], a.dtype);
    let Some(activation) = activation else {
        return product_into(a, b, bias, kind, EpilogueArguments::Store, out);
    };
    let with_activation = EpilogueArguments::Activation { activation, input: None };
    if !mask.is_some() && few_rows::takes(&a, kind, sizes, bias.is_some(), &with_activation) {
        return few_rows::launch(a, b, bias, kind, with_activation, out);
    }
    if activation == Activation::Relu && !mask.is_some() && has_kernel(&a) {
        return product_into(a, b, bias, kind, EpilogueArguments::Relu, out);
    }
    match Plan::with_epilogue_warps(&a, kind, sizes, &mask) {
        Some(plan) => plan.launch(a, b, bias, with_activation, out),
        None => activate(product_into(a, b, bias, kind, EpilogueArguments::Store, out), activation, mask),
    }
}

/// Returns a matrix for the result of a product of tensors like `like`. Rows whose length is not a multiple of 16 bytes are
/// allocated with a gap behind each, so that TMA can address them.
pub(crate) fn empty_matrix(like: &CubeTensor, shape: [usize; 2], dtype: DType) -> CubeTensor {
    if has_kernel(like) { empty_pitched(like, shape, dtype) } else { empty(like, shape, dtype) }
}

/// Computes the product of `kind`, with bias and epilogue, in `out`, which is a result of [`empty_matrix`] or some of
/// its rows.
pub(crate) fn product_into(
    a: CubeTensor,
    b: CubeTensor,
    bias: Option<CubeTensor>,
    kind: ProductKind,
    epilogue: EpilogueArguments,
    out: CubeTensor,
) -> CubeTensor {
    let sizes = kind.layout.sizes(a.meta.shape(), b.meta.shape());
    if few_rows::takes(&a, kind, sizes, bias.is_some(), &epilogue) {
        return few_rows::launch(a, b, bias, kind, epilogue, out);
    }
    if has_kernel(&a) && sizes.0 * sizes.1 * sizes.2 > 0 {
        return Plan::new(&a, kind, sizes).launch(a, b, bias, epilogue, out);
    }

    let _call = record_product(&a, &b, kind, 0.0);
    let bias = bias.map(into_contiguous);
    let y = fallback(a, b, kind.layout, out);
    let y = match bias {
        Some(bias) => CubeBackend::float_add(y, CubeBackend::float_reshape(bias, [1, sizes.1].into())),
        None => y,
    };
    match epilogue {
        EpilogueArguments::Store => y,
        EpilogueArguments::Relu => CubeBackend::relu(y),
        EpilogueArguments::AddResidual(residual) => CubeBackend::float_add(residual, y),
        EpilogueArguments::Activation { .. } => unreachable!("only with a plan of the kernel"),
    }
}

/// Computes the product of `kind` in f32. If it is the `first`, writes it to `sum`, which is a result of
/// [`empty_matrix`] in f32; else adds it there.
pub(crate) fn product_in_f32(
    a: CubeTensor,
    b: CubeTensor,
    kind: ProductKind,
    sum: CubeTensor,
    first: bool,
) -> CubeTensor {
    let (m, n, k) = kind.layout.sizes(a.meta.shape(), b.meta.shape());
    if has_kernel(&a) && m * n * k > 0 {
        let plan = Plan::new(&a, kind, (m, n, k)).accumulating(!first);
        return plan.launch(a, b, None, EpilogueArguments::Store, sum);
    }
    let _call = record_product(&a, &b, kind, 0.0);
    let out = empty(&a, [m, n], a.dtype);
    let product = CubeBackend::float_cast(fallback(a, b, kind.layout, out), FloatDType::F32);
    if first { product } else { CubeBackend::float_add(sum, product) }
}

/// Returns `x` as the products take it. Where several products need it, copying once here saves copies there.
pub(crate) fn operand(x: CubeTensor) -> CubeTensor {
    if has_kernel(&x) { addressable(x) } else { into_contiguous(x) }
}
