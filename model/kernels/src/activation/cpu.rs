//! Activations on the CPU.

use burn::backend::Flex;
use burn::backend::ops::{ActivationOps, FloatTensorOps};
use burn::tensor::{DType, FloatDType};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::Activation;
use crate::host::{floats, sigmoid, tensor};

/// Returns `activation(x)`.
pub(crate) fn activate(x: FlexTensor, activation: Activation) -> FlexTensor {
    match activation {
        Activation::Relu => Flex::relu(x),
        Activation::Gelu => in_f32(x, Flex::gelu),
        Activation::GeluTanh => map(x, |x| x * sigmoid(tanh_argument(x))),
        Activation::Silu => map(x, |x| x * sigmoid(x)),
    }
}

/// Returns the gradient of the activation's argument, given its result's. `kept` is what
/// [`Activation::keeps_result`] says.
pub(crate) fn gradient(kept: FlexTensor, dy: FlexTensor, activation: Activation) -> FlexTensor {
    let dtype = dy.dtype();
    let wide = |x| Flex::float_cast(x, FloatDType::F32);
    let slope = match activation {
        Activation::Relu => map(wide(kept), |y| if y > 0.0 { 1.0 } else { 0.0 }),
        Activation::Gelu => {
            let (x, ones) = (wide(kept), map(wide(dy.clone()), |_| 1.0));
            Flex::gelu_backward(x, ones)
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
    Flex::float_cast(Flex::float_mul(slope, wide(dy)), dtype.into())
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
