//! SwiGLU in plain Burn operations.

use burn::tensor::{DType, Tensor, activation};

pub(crate) fn swiglu(gate_up: Tensor<2>) -> Tensor<2> {
    let (dtype, f) = (gate_up.dtype(), gate_up.dims()[1] / 2);
    let gate_up = gate_up.cast(DType::F32);
    let (gate, up) = (gate_up.clone().narrow(1, 0, f), gate_up.narrow(1, f, f));
    (gate.clone() * activation::sigmoid(gate) * up).cast(dtype)
}
