use burn::tensor::{DType, Tensor};

use super::ops::Gate;
use super::{geglu, reference, swiglu};
use crate::testing::{assert_close, devices, host, tensor, values};

type Operator = fn(Tensor<2>) -> Tensor<2>;

const ALL: [(&str, Gate, Operator); 2] = [("SwiGLU", Gate::Silu, swiglu), ("GEGLU", Gate::Gelu, geglu)];

/// Returns the activation of a gate and its slope, in f64.
fn activated(gate: Gate, x: f64) -> [f64; 2] {
    match gate {
        Gate::Silu => {
            let sigmoid = 1.0 / (1.0 + (-x).exp());
            [x * sigmoid, sigmoid * (1.0 + x * (1.0 - sigmoid))]
        }
        Gate::Gelu => {
            let root = (2.0 / std::f64::consts::PI).sqrt();
            let tanh = (root * (x + 0.044715 * x.powi(3))).tanh();
            let slope = root * (1.0 + 3.0 * 0.044715 * x * x);
            [0.5 * x * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope]
        }
    }
}

/// Returns `(y, dx)` by the formulas, in f64.
fn expected(by: Gate, x: &[f32], dy: &[f32], f: usize) -> [Vec<f32>; 2] {
    let (mut y, mut dx) = (vec![0f32; dy.len()], vec![0f32; x.len()]);
    for (i, dy) in dy.iter().enumerate() {
        let (row, j) = (i / f, i % f);
        let (gate, up) = (row * 2 * f + j, row * 2 * f + f + j);
        let (g, u, dy) = (f64::from(x[gate]), f64::from(x[up]), f64::from(*dy));
        let [value, slope] = activated(by, g);
        y[i] = (value * u) as f32;
        dx[gate] = (dy * u * slope) as f32;
        dx[up] = (dy * value) as f32;
    }
    [y, dx]
}

#[test]
fn values_and_gradients_equal_the_formulas() {
    for (name, device) in devices() {
        let device = device.autodiff();
        for ((what, gate, operator), (m, f)) in
            ALL.into_iter().flat_map(|it| [(1, 8), (5, 32), (33, 768), (64, 1376), (7, 11)].map(|shape| (it, shape)))
        {
            let (x, dy) = (values(m * 2 * f, 1), values(m * f, 2));
            let x: Vec<f32> = x.iter().map(|x| x * 8.0).collect();
            let [y, dx] = expected(gate, &x, &dy, f);
            for dtype in [DType::F32, DType::BF16] {
                let x = tensor(&x, [m, 2 * f], dtype, &device).require_grad();
                let found = operator(x.clone());
                let grads = (found.clone() * tensor(&dy, [m, f], dtype, &device)).sum().backward();
                assert_close(&format!("{what}, y of [{m}, {f}] on {name}"), dtype, &host(found), &y);
                let gradient = host(x.grad(&grads).expect("a gradient"));
                assert_close(&format!("{what}, dx of [{m}, {f}] on {name}"), dtype, &gradient, &dx);
            }
        }
    }
}

#[test]
fn kernel_and_reference_agree() {
    for (name, device) in devices() {
        for ((what, gate, operator), dtype) in ALL.into_iter().flat_map(|it| [DType::F32, DType::BF16].map(|d| (it, d)))
        {
            let x = tensor(&values(65 * 256, 1), [65, 256], dtype, &device);
            let plain = host(reference::gated(x.clone(), gate));
            assert_close(&format!("{what} against the reference on {name}"), dtype, &host(operator(x)), &plain);
        }
    }
}

#[test]
#[should_panic(expected = "7 columns do not split into gate and up")]
fn an_odd_number_of_columns_is_refused() {
    swiglu(tensor(&values(14, 1), [2, 7], DType::F32, &burn::tensor::Device::flex()));
}
