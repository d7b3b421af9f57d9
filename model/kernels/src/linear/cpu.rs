//! Products on the CPU: tiles in parallel, each followed by bias, activation or residual while it is in the cache.

use std::borrow::Cow;
use std::ops::Range;

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, FloatDType};
use burn_flex::FlexTensor;

use super::ops::{Layout, LinearOps, ProductKind, record_product};
use crate::activation::{self, Activation};
use crate::calls;
use crate::dropout::Mask;
use crate::host::matrix::{self, Matrix};
use crate::host::vector::add;
use crate::host::{tensor, view};
use crate::int8;
use crate::maybe::Maybe;
use crate::reduce;

/// Returns the product in the dtype of `a`. `finish` changes it before it is rounded, see [`matrix::product`]. Operands in FP8 are
/// rounded to it, and multiplied in f32. A weight that is installed in int8 is taken so.
fn finished(
    a: &FlexTensor,
    b: &FlexTensor,
    kind: ProductKind,
    finish: impl Fn(usize, Range<usize>, &mut [f32]) + Sync,
) -> FlexTensor {
    let (layout, shapes) = (kind.layout, [a, b].map(|x| [x.layout().shape()[0], x.layout().shape()[1]]));
    layout.check(&shapes[0], &shapes[1]);
    let (m, n, k) = layout.sizes(&shapes[0], &shapes[1]);

    let dtype = a.dtype();
    let weights = int8::installed().filter(|_| layout != Layout::TN);
    if let Some(weight) = weights.as_ref().and_then(|weights| weights.find(b, layout == Layout::NT)) {
        let x = view(a);
        return tensor(matrix::int8_product(Matrix::new(&x, [m, k], k), weight, finish), [m, n], dtype);
    }

    let mut values = [view(a), view(b)];
    if let Some(formats) = kind.fp8((m, n, k)) {
        for (values, format) in values.iter_mut().zip(formats) {
            *values = Cow::Owned(format.rounded(values));
        }
    }
    let [a, b] = [0, 1].map(|i| Matrix::new(&values[i], shapes[i], shapes[i][1]));
    let (a, b) = match layout {
        Layout::NN => (a, b),
        Layout::NT => (a, b.transposed()),
        Layout::TN => (a.transposed(), b),
    };
    tensor(matrix::product(a, b, finish), [m, n], dtype)
}

fn values(bias: &Maybe<Flex>) -> Option<Cow<'_, [f32]>> {
    match bias {
        Maybe::Some(bias) => Some(view(bias)),
        Maybe::None => None,
    }
}

impl LinearOps for Flex {
    fn product(a: FlexTensor, b: FlexTensor, kind: ProductKind) -> FlexTensor {
        let _call = record_product(&a, &b, kind, 0.0);
        finished(&a, &b, kind, |_, _, _| ())
    }

    fn product_gradients(
        dy: FlexTensor,
        x: FlexTensor,
        weight: FlexTensor,
        kind: ProductKind,
    ) -> (FlexTensor, FlexTensor) {
        let dx = Self::product(dy.clone(), weight, kind.of_input_gradient());
        let (a, b) = kind.layout.for_weight_gradient(x, dy);
        (dx, Self::product(a, b, kind.of_weight_gradient()))
    }

    fn accumulate_product(a: FlexTensor, b: FlexTensor, sum: FlexTensor, kind: ProductKind) -> FlexTensor {
        let _call = calls::begin(|| calls::of_passes("accumulate a product", &sum, 3));
        let dtype: FloatDType = sum.dtype().into();
        Self::float_add(sum, Self::float_cast(Self::product(a, b, kind), dtype))
    }

    fn fused_linear(
        x: FlexTensor,
        weight: FlexTensor,
        bias: Maybe<Self>,
        kind: ProductKind,
        activation: Option<Activation>,
        mask: Mask<Self>,
    ) -> FlexTensor {
        // An activation takes its argument as backward will read it: rounded.
        if let Some(activation) = activation.filter(|_| x.dtype() != DType::F32) {
            return Self::fused_linear_both(x, weight, bias, kind, activation, mask).1;
        }
        let _call = record_product(&x, &weight, kind, 0.0);
        let bias = values(&bias);
        let y = finished(&x, &weight, kind, |_, columns, row| {
            if let Some(bias) = &bias {
                add(row, &bias[columns]);
            }
            if let Some(activation) = activation {
                activation::cpu::apply(row, activation);
            }
        });
        if activation.is_some() { mask.apply(y) } else { y }
    }

    fn fused_linear_both(
        x: FlexTensor,
        weight: FlexTensor,
        bias: Maybe<Self>,
        kind: ProductKind,
        activation: Activation,
        mask: Mask<Self>,
    ) -> (FlexTensor, FlexTensor) {
        let before = Self::fused_linear(x, weight, bias, kind, None, Mask::None);
        (before.clone(), Self::activate(before, activation, mask))
    }

    fn linear_residual(
        x: FlexTensor,
        weight: FlexTensor,
        bias: Maybe<Self>,
        residual: FlexTensor,
        kind: ProductKind,
    ) -> FlexTensor {
        let _call = record_product(&x, &weight, kind, calls::bytes(&residual));
        let (bias, dtype, n) = (values(&bias), residual.dtype(), residual.layout().shape()[1]);
        let residual = view(&residual);
        let y = finished(&x, &weight, kind, |i, columns, row| {
            if let Some(bias) = &bias {
                add(row, &bias[columns.clone()]);
            }
            add(row, &residual[i * n..][columns]);
        });
        Self::float_cast(y, dtype.into())
    }

    fn activate(x: FlexTensor, activation: Activation, mask: Mask<Self>) -> FlexTensor {
        let _call = calls::begin(|| calls::of_passes("activation forward", &x, 2));
        mask.apply(activation::cpu::activate(&x, activation))
    }

    fn activate_backward(
        kept: FlexTensor,
        dy: FlexTensor,
        activation: Activation,
        mask: Mask<Self>,
    ) -> (FlexTensor, FlexTensor) {
        let _call = calls::begin(|| calls::of_passes("activation backward", &dy, 3));
        let kept = view(&kept);
        reduce::cpu::changed_and_summed(mask.apply(dy), |first, dy| {
            activation::cpu::gradient(&kept[first..], dy, activation);
        })
    }

    fn column_sum(x: FlexTensor) -> FlexTensor {
        let _call = calls::begin(|| calls::of_passes("column sum", &x, 1));
        reduce::cpu::column_sum(x)
    }

    fn batched_product(a: FlexTensor, b: FlexTensor, kind: ProductKind) -> FlexTensor {
        match kind.layout {
            Layout::NN => Self::float_matmul(a, b),
            Layout::NT => Self::float_matmul(a, Self::float_swap_dims(b, 1, 2)),
            Layout::TN => Self::float_matmul(Self::float_swap_dims(a, 1, 2), b),
        }
    }
}
