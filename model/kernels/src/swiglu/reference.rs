//! SwiGLU and GEGLU in plain Burn operations.

use burn::tensor::{DType, Tensor, activation};

use super::ops::Gate;

pub(crate) fn gated(gate_up: Tensor<2>, by: Gate) -> Tensor<2> {
    let (dtype, f) = (gate_up.dtype(), gate_up.dims()[1] / 2);
    let gate_up = gate_up.cast(DType::F32);
    let (gate, up) = (gate_up.clone().narrow(1, 0, f), gate_up.narrow(1, f, f));
    let gate = match by {
        Gate::Silu => gate.clone() * activation::sigmoid(gate),
        Gate::Gelu => activation::gelu_approximate(gate),
    };
    (gate * up).cast(dtype)
}
