use burn::tensor::DType;

use super::{reference, swiglu};
use crate::testing::{assert_close, devices, host, tensor, values};

/// Returns `(y, dx)` by the formulas, in f64.
fn expected(x: &[f32], dy: &[f32], f: usize) -> [Vec<f32>; 2] {
    let (mut y, mut dx) = (vec![0f32; dy.len()], vec![0f32; x.len()]);
    for (i, dy) in dy.iter().enumerate() {
        let (row, j) = (i / f, i % f);
        let (gate, up) = (row * 2 * f + j, row * 2 * f + f + j);
        let (g, u, dy) = (f64::from(x[gate]), f64::from(x[up]), f64::from(*dy));
        let sigmoid = 1.0 / (1.0 + (-g).exp());
        y[i] = (g * sigmoid * u) as f32;
        dx[gate] = (dy * u * sigmoid * (1.0 + g * (1.0 - sigmoid))) as f32;
        dx[up] = (dy * g * sigmoid) as f32;
    }
    [y, dx]
}

#[test]
fn values_and_gradients_equal_the_formulas() {
    for (name, device) in devices() {
        let device = device.autodiff();
        for (m, f) in [(1, 8), (5, 32), (33, 768), (64, 1376), (7, 11)] {
            let (x, dy) = (values(m * 2 * f, 1), values(m * f, 2));
            let x: Vec<f32> = x.iter().map(|x| x * 8.0).collect();
            let [y, dx] = expected(&x, &dy, f);
            for dtype in [DType::F32, DType::BF16] {
                let x = tensor(&x, [m, 2 * f], dtype, &device).require_grad();
                let found = swiglu(x.clone());
                let grads = (found.clone() * tensor(&dy, [m, f], dtype, &device)).sum().backward();
                assert_close(&format!("y of [{m}, {f}] on {name}"), dtype, &host(found), &y);
                let gradient = host(x.grad(&grads).expect("a gradient"));
                assert_close(&format!("dx of [{m}, {f}] on {name}"), dtype, &gradient, &dx);
            }
        }
    }
}

#[test]
fn kernel_and_reference_agree() {
    for (name, device) in devices() {
        for dtype in [DType::F32, DType::BF16] {
            let x = tensor(&values(65 * 256, 1), [65, 256], dtype, &device);
            let plain = host(reference::swiglu(x.clone()));
            assert_close(&format!("against the reference on {name}"), dtype, &host(swiglu(x)), &plain);
        }
    }
}

#[test]
#[should_panic(expected = "7 columns do not split into gate and up")]
fn an_odd_number_of_columns_is_refused() {
    swiglu(tensor(&values(14, 1), [2, 7], DType::F32, &burn::tensor::Device::flex()));
}
