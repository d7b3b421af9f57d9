//! SwiGLU and GEGLU as a backend extension, with their CPU loops.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, backend_extension};
#[cfg(feature = "cuda")]
use burn::tensor::Shape;
use burn_flex::{Flex, FlexTensor};

use crate::calls::{self, Running, Work};
use crate::host::vector::{gelu_argument, gelu_slope, sigmoid, vectorized_fn};
use crate::host::{tensor, view, written};

/// The activation of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Gate {
    Silu,
    /// GELU with tanh.
    Gelu,
}

impl Gate {
    /// The names of forward and backward.
    pub(crate) fn operators(self) -> [&'static str; 2] {
        match self {
            Self::Silu => ["swiglu forward", "swiglu backward"],
            Self::Gelu => ["geglu forward", "geglu backward"],
        }
    }
}

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait SwigluOps: Backend {
    /// Returns `[M, F]` from `gate | up`, `[M, 2 * F]`.
    #[fusion(dtype = gate_up, shape = Shape::new([gate_up[0], gate_up[1] / 2]))]
    fn fused_swiglu(gate_up: FloatTensor<Self>, gate: Gate) -> FloatTensor<Self>;

    /// Returns the gradient of `gate_up`.
    #[fusion(dtype = gate_up, shape = gate_up)]
    fn fused_swiglu_backward(gate_up: FloatTensor<Self>, dy: FloatTensor<Self>, gate: Gate) -> FloatTensor<Self>;
}

/// Records a call that moves `passes` times the bytes of `gate_up`.
pub(crate) fn record(operator: &'static str, gate_up: &impl TensorMetadata, passes: f64) -> Option<Running> {
    calls::begin(|| (operator, calls::sizes(gate_up), Work::moved(passes * calls::bytes(gate_up))))
}

vectorized_fn! {
    fn swiglu(y: &mut [f32], gate: &[f32], up: &[f32]) {
        for (y, (&gate, &up)) in y.iter_mut().zip(gate.iter().zip(up)) {
            *y = gate * sigmoid(gate) * up;
        }
    }

    fn geglu(y: &mut [f32], gate: &[f32], up: &[f32]) {
        for (y, (&gate, &up)) in y.iter_mut().zip(gate.iter().zip(up)) {
            *y = gate * sigmoid(gelu_argument(gate)) * up;
        }
    }

    /// Writes the gradients of gate and up of SwiGLU.
    fn swiglu_gradients(into: [&mut [f32]; 2], gate: &[f32], up: &[f32], dy: &[f32]) {
        let [dgate, dup] = into;
        let operands = dy.iter().zip(gate.iter().zip(up));
        for ((dgate, dup), (&dy, (&gate, &up))) in dgate.iter_mut().zip(dup).zip(operands) {
            let s = sigmoid(gate);
            *dgate = dy * up * s * (1.0 + gate * (1.0 - s));
            *dup = dy * gate * s;
        }
    }

    /// Writes the gradients of gate and up of GEGLU.
    fn geglu_gradients(into: [&mut [f32]; 2], gate: &[f32], up: &[f32], dy: &[f32]) {
        let [dgate, dup] = into;
        let operands = dy.iter().zip(gate.iter().zip(up));
        for ((dgate, dup), (&dy, (&gate, &up))) in dgate.iter_mut().zip(dup).zip(operands) {
            let s = sigmoid(gelu_argument(gate));
            *dgate = dy * up * (s + gate * s * (1.0 - s) * gelu_slope(gate));
            *dup = dy * gate * s;
        }
    }
}

impl SwigluOps for Flex {
    fn fused_swiglu(gate_up: FlexTensor, by: Gate) -> FlexTensor {
        let _call = record(by.operators()[0], &gate_up, 1.5);
        let [m, columns] = [gate_up.layout().shape()[0], gate_up.layout().shape()[1]];
        let (f, dtype) = (columns / 2, gate_up.dtype());
        let x = view(&gate_up);
        let y = written(m * f, f, |row, y| {
            let (gate, up) = x[row * columns..][..columns].split_at(f);
            match by {
                Gate::Silu => swiglu(y, gate, up),
                Gate::Gelu => geglu(y, gate, up),
            }
        });
        tensor(y, [m, f], dtype)
    }

    fn fused_swiglu_backward(gate_up: FlexTensor, dy: FlexTensor, by: Gate) -> FlexTensor {
        let _call = record(by.operators()[1], &gate_up, 2.5);
        let [m, columns] = [gate_up.layout().shape()[0], gate_up.layout().shape()[1]];
        let (f, dtype) = (columns / 2, gate_up.dtype());
        let (x, dy) = (view(&gate_up), view(&dy));
        let dx = written(m * columns, columns, |row, dx| {
            let (gate, up) = x[row * columns..][..columns].split_at(f);
            let (dgate, dup) = dx.split_at_mut(f);
            let dy = &dy[row * f..][..f];
            match by {
                Gate::Silu => swiglu_gradients([dgate, dup], gate, up, dy),
                Gate::Gelu => geglu_gradients([dgate, dup], gate, up, dy),
            }
        });
        tensor(dx, [m, columns], dtype)
    }
}
