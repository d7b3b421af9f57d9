//! Activations in plain Burn operations.

use burn::tensor::{DType, Tensor, activation};

use super::Activation;

/// Returns `activation(x)`, computed in f32.
pub(crate) fn activate(x: Tensor<2>, by: Activation) -> Tensor<2> {
    let dtype = x.dtype();
    let x = x.cast(DType::F32);
    let y = match by {
        Activation::Relu => activation::relu(x),
        Activation::Gelu => activation::gelu(x),
        Activation::GeluTanh => {
            let argument = (x.clone() + x.clone().powi_scalar(3) * 0.044715) * (2.0 / std::f64::consts::PI).sqrt();
            x * 0.5 * (argument.tanh() + 1.0)
        }
        Activation::Silu => x.clone() * activation::sigmoid(x),
    };
    y.cast(dtype)
}
