//! Activations on the CPU.

use burn::backend::Flex;
use burn::backend::ops::{ActivationOps, FloatTensorOps};
use burn::tensor::{DType, FloatDType};
use burn_flex::FlexTensor;

use super::Activation;
use crate::host::vector::sigmoid;
use crate::host::{floats, map, tensor, view, zip_map};

/// Returns `activation(x)`.
pub(crate) fn activate(x: FlexTensor, activation: Activation) -> FlexTensor {
    match activation {
        Activation::Relu => each(x, |x| if x <= 0.0 { 0.0 } else { x }),
        Activation::Gelu => in_f32(x, Flex::gelu),
        Activation::GeluTanh => each(x, |x| x * sigmoid(tanh_argument(x))),
        Activation::Silu => each(x, |x| x * sigmoid(x)),
    }
}

/// Returns the gradient of the activation's argument, given its result's. `kept` is what
/// [`Activation::keeps_result`] says.
pub(crate) fn gradient(kept: FlexTensor, dy: FlexTensor, activation: Activation) -> FlexTensor {
    match activation {
        Activation::Relu => each_pair(dy, &kept, |dy, y| if y > 0.0 { dy } else { 0.0 * dy }),
        Activation::Gelu => {
            let dtype = dy.dtype();
            let wide = |x| Flex::float_cast(x, FloatDType::F32);
            Flex::float_cast(Flex::gelu_backward(wide(kept), wide(dy)), dtype.into())
        }
        Activation::GeluTanh => each_pair(dy, &kept, |dy, x| {
            let s = sigmoid(tanh_argument(x));
            dy * (s + x * s * (1.0 - s) * tanh_slope(x))
        }),
        Activation::Silu => each_pair(dy, &kept, |dy, x| {
            let s = sigmoid(x);
            dy * (s * (1.0 + x * (1.0 - s)))
        }),
    }
}

/// GELU with tanh is `x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 x^3))`.
#[inline(always)]
fn tanh_argument(x: f32) -> f32 {
    1.595_769 * (x + 0.044_715 * x * x * x)
}

#[inline(always)]
fn tanh_slope(x: f32) -> f32 {
    1.595_769 * (1.0 + 3.0 * 0.044_715 * x * x)
}

fn each(x: FlexTensor, f: impl Fn(f32) -> f32 + Sync) -> FlexTensor {
    let (shape, dtype) = (x.layout().shape().to_vec(), x.dtype());
    let mut values = floats(x);
    map(&mut values, f);
    tensor(values, shape, dtype)
}

fn each_pair(x: FlexTensor, other: &FlexTensor, f: impl Fn(f32, f32) -> f32 + Sync) -> FlexTensor {
    let (shape, dtype) = (x.layout().shape().to_vec(), x.dtype());
    let mut values = floats(x);
    zip_map(&mut values, &view(other), f);
    tensor(values, shape, dtype)
}

fn in_f32(x: FlexTensor, f: impl Fn(FlexTensor) -> FlexTensor) -> FlexTensor {
    match x.dtype() {
        DType::F32 => f(x),
        dtype => Flex::float_cast(f(Flex::float_cast(x, FloatDType::F32)), dtype.into()),
    }
}
