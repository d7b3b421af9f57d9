//! Products on the CPU: the backend's own, and loops for what follows them.

use burn::backend::Flex;
use burn::backend::ops::{ActivationOps, FloatTensorOps};
use burn::tensor::{DType, FloatDType, Shape};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::ops::{Activation, Layout, LinearOps};
use crate::dropout::Mask;
use crate::host::{floats, sigmoid, tensor};
use crate::maybe::Maybe;

/// Rows summed by one thread; fixed, so that sums do not depend on the number of threads.
const BLOCK_ROWS: usize = 64;

impl LinearOps for Flex {
    fn product(a: FlexTensor, b: FlexTensor, layout: Layout) -> FlexTensor {
        match layout {
            Layout::NN => Self::float_matmul(a, b),
            Layout::NT => Self::float_matmul(a, Self::float_swap_dims(b, 0, 1)),
            Layout::TN => Self::float_matmul(Self::float_swap_dims(a, 0, 1), b),
        }
    }

    fn product_onto(a: FlexTensor, b: FlexTensor, sum: FlexTensor, layout: Layout) -> FlexTensor {
        let dtype: FloatDType = sum.dtype().into();
        Self::float_add(sum, Self::float_cast(Self::product(a, b, layout), dtype))
    }

    fn fused_linear(
        x: FlexTensor,
        weight: FlexTensor,
        bias: Maybe<Self>,
        layout: Layout,
        activation: Option<Activation>,
        mask: Mask<Self>,
    ) -> FlexTensor {
        let mut y = Self::product(x, weight, layout);
        if let Maybe::Some(bias) = bias {
            let n = bias.layout().shape()[0];
            y = Self::float_add(y, Self::float_reshape(bias, Shape::new([1, n])));
        }
        match activation {
            Some(activation) => Self::activate(y, activation, mask),
            None => y,
        }
    }

    fn fused_linear_both(
        x: FlexTensor,
        weight: FlexTensor,
        bias: Maybe<Self>,
        layout: Layout,
        activation: Activation,
        mask: Mask<Self>,
    ) -> (FlexTensor, FlexTensor) {
        let before = Self::fused_linear(x, weight, bias, layout, None, Mask::None);
        (before.clone(), Self::activate(before, activation, mask))
    }

    fn linear_residual(x: FlexTensor, weight: FlexTensor, bias: Maybe<Self>, residual: FlexTensor) -> FlexTensor {
        Self::float_add(residual, Self::fused_linear(x, weight, bias, Layout::NN, None, Mask::None))
    }

    fn activate(x: FlexTensor, activation: Activation, mask: Mask<Self>) -> FlexTensor {
        let y = match activation {
            Activation::Relu => Self::relu(x),
            Activation::Gelu => in_f32(x, Self::gelu),
            Activation::GeluTanh => map(x, |x| x * sigmoid(tanh_argument(x))),
            Activation::Silu => map(x, |x| x * sigmoid(x)),
        };
        mask.apply(y)
    }

    fn activate_backward(
        kept: FlexTensor,
        dy: FlexTensor,
        activation: Activation,
        mask: Mask<Self>,
    ) -> (FlexTensor, FlexTensor) {
        let dtype = dy.dtype();
        let dy = mask.apply(dy);
        let wide = |x| Self::float_cast(x, FloatDType::F32);
        let slope = match activation {
            Activation::Relu => map(wide(kept), |y| if y > 0.0 { 1.0 } else { 0.0 }),
            Activation::Gelu => {
                let (x, ones) = (wide(kept), map(wide(dy.clone()), |_| 1.0));
                Self::gelu_backward(x, ones)
            }
            Activation::GeluTanh => map(wide(kept), |x| {
                let s = sigmoid(tanh_argument(x));
                s + x * s * (1.0 - s) * tanh_slope(x)
            }),
            Activation::Silu => map(wide(kept), |x| {
                let s = sigmoid(x);
                s * (1.0 + x * (1.0 - s))
            }),
        };
        let dx = Self::float_cast(Self::float_mul(slope, wide(dy)), dtype.into());
        (dx.clone(), Self::column_sum(dx))
    }

    fn column_sum(x: FlexTensor) -> FlexTensor {
        let (n, dtype) = (x.layout().shape()[1], x.dtype());
        let values = floats(x);
        let blocks: Vec<Vec<f32>> = values
            .par_chunks((BLOCK_ROWS * n).max(1))
            .map(|rows| {
                let mut sum = vec![0f32; n];
                for row in rows.chunks(n) {
                    sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
                }
                sum
            })
            .collect();
        let mut total = vec![0f32; n];
        for block in blocks {
            total.iter_mut().zip(block).for_each(|(total, x)| *total += x);
        }
        tensor(total, [n], dtype)
    }

    fn batched_product(a: FlexTensor, b: FlexTensor) -> FlexTensor {
        Self::float_matmul(a, b)
    }
}

/// GELU with tanh is `x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 x^3))`.
fn tanh_argument(x: f32) -> f32 {
    1.595_769 * (x + 0.044_715 * x * x * x)
}

fn tanh_slope(x: f32) -> f32 {
    1.595_769 * (1.0 + 3.0 * 0.044_715 * x * x)
}

fn map(x: FlexTensor, f: impl Fn(f32) -> f32 + Sync) -> FlexTensor {
    let (shape, dtype) = (x.layout().shape().to_vec(), x.dtype());
    let mut values = floats(x);
    values.par_iter_mut().for_each(|x| *x = f(*x));
    tensor(values, shape, dtype)
}

fn in_f32(x: FlexTensor, f: impl Fn(FlexTensor) -> FlexTensor) -> FlexTensor {
    match x.dtype() {
        DType::F32 => f(x),
        dtype => Flex::float_cast(f(Flex::float_cast(x, FloatDType::F32)), dtype.into()),
    }
}
