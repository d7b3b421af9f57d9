//! Activations on the CPU.

use burn_flex::FlexTensor;

use super::Activation;
use crate::host::vector::{gelu_argument, gelu_slope, normal, sigmoid, vectorized_fn};
use crate::host::{CHUNK, tensor, view, written};

/// Returns `activation(x)`.
pub(crate) fn activate(x: &FlexTensor, activation: Activation) -> FlexTensor {
    let values = view(x);
    let y = written(values.len(), CHUNK, |i, y| {
        y.copy_from_slice(&values[i * CHUNK..][..y.len()]);
        apply(y, activation);
    });
    tensor(y, x.layout().shape().clone(), x.dtype())
}

vectorized_fn! {
    /// Replaces numbers by `activation` of them.
    pub(crate) fn apply(values: &mut [f32], activation: Activation) {
        match activation {
            Activation::Relu => each(values, |x| if x <= 0.0 { 0.0 } else { x }),
            Activation::Gelu => each(values, |x| x * normal(x)[1]),
            Activation::GeluTanh => each(values, |x| x * sigmoid(gelu_argument(x))),
            Activation::Silu => each(values, |x| x * sigmoid(x)),
            Activation::ReluSquared => each(values, |x| if x <= 0.0 { 0.0 } else { x * x }),
        }
    }

    /// Replaces each gradient of a result by its argument's. `kept` is what [`Activation::keeps_result`] says.
    pub(crate) fn gradient(kept: &[f32], dy: &mut [f32], activation: Activation) {
        match activation {
            Activation::Relu => each_pair(dy, kept, |dy, y| if y > 0.0 { dy } else { 0.0 * dy }),
            Activation::Gelu => each_pair(dy, kept, |dy, x| {
                let [density, distribution] = normal(x);
                dy * (distribution + x * density)
            }),
            Activation::GeluTanh => each_pair(dy, kept, |dy, x| {
                let s = sigmoid(gelu_argument(x));
                dy * (s + x * s * (1.0 - s) * gelu_slope(x))
            }),
            Activation::Silu => each_pair(dy, kept, |dy, x| {
                let s = sigmoid(x);
                dy * (s * (1.0 + x * (1.0 - s)))
            }),
            Activation::ReluSquared => each_pair(dy, kept, |dy, x| if x > 0.0 { dy * (x + x) } else { 0.0 * dy }),
        }
    }
}

#[inline(always)]
fn each(values: &mut [f32], f: impl Fn(f32) -> f32) {
    values.iter_mut().for_each(|x| *x = f(*x));
}

#[inline(always)]
fn each_pair(values: &mut [f32], other: &[f32], f: impl Fn(f32, f32) -> f32) {
    values.iter_mut().zip(other).for_each(|(x, &y)| *x = f(*x, y));
}
