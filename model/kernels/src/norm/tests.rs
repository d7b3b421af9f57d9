use burn::tensor::DType;

use super::{layer_norm, reference, rms_norm};
use crate::testing::{assert_close, devices, host, tensor, values};

const EPS: f64 = 1e-5;

/// `(y, dx, dgamma, dbeta)` by the formulas, in f64.
fn expected(m: usize, d: usize) -> [Vec<f32>; 4] {
    let [x, gamma, beta, dy] = inputs(m, d).map(|v| v.into_iter().map(f64::from).collect::<Vec<_>>());
    let (mut y, mut dx, mut dgamma, mut dbeta) = (vec![0.0; m * d], vec![0.0; m * d], vec![0.0; d], vec![0.0; d]);
    for row in 0..m {
        let at = |j: usize| row * d + j;
        let n = d as f64;
        let mean = (0..d).map(|j| x[at(j)]).sum::<f64>() / n;
        let variance = (0..d).map(|j| (x[at(j)] - mean).powi(2)).sum::<f64>() / n;
        let inverse = (variance + EPS).powf(-0.5);
        let normalized: Vec<f64> = (0..d).map(|j| (x[at(j)] - mean) * inverse).collect();
        let scaled: Vec<f64> = (0..d).map(|j| dy[at(j)] * gamma[j]).collect();
        let mean_scaled = scaled.iter().sum::<f64>() / n;
        let mean_product = scaled.iter().zip(&normalized).map(|(a, b)| a * b).sum::<f64>() / n;
        for j in 0..d {
            y[at(j)] = normalized[j] * gamma[j] + beta[j];
            dx[at(j)] = inverse * (scaled[j] - mean_scaled - normalized[j] * mean_product);
            dgamma[j] += dy[at(j)] * normalized[j];
            dbeta[j] += dy[at(j)];
        }
    }
    [y, dx, dgamma, dbeta].map(|v| v.into_iter().map(|x| x as f32).collect())
}

fn inputs(m: usize, d: usize) -> [Vec<f32>; 4] {
    [values(m * d, 1), values(d, 2), values(d, 3), values(m * d, 4)]
}

#[test]
fn values_and_gradients_equal_the_formulas() {
    for (name, device) in devices() {
        let device = device.autodiff();
        for (m, d) in [(1, 8), (5, 32), (64, 512), (333, 768), (7, 100)] {
            let expected = expected(m, d);
            for dtype in [DType::F32, DType::BF16] {
                let [x, gamma, beta, dy] = inputs(m, d);
                let x = tensor(&x, [m, d], dtype, &device).require_grad();
                let gamma = tensor(&gamma, [d], dtype, &device).require_grad();
                let beta = tensor(&beta, [d], dtype, &device).require_grad();
                let y = layer_norm(x.clone(), gamma.clone(), beta.clone(), EPS);
                let grads = (y.clone() * tensor(&dy, [m, d], dtype, &device)).sum().backward();
                let got = [
                    host(y),
                    host(x.grad(&grads).expect("a gradient of x")),
                    host(gamma.grad(&grads).expect("a gradient of gamma")),
                    host(beta.grad(&grads).expect("a gradient of beta")),
                ];
                for (part, (got, expected)) in ["y", "dx", "dgamma", "dbeta"].iter().zip(got.iter().zip(&expected)) {
                    assert_close(&format!("{part} of [{m}, {d}] on {name}"), dtype, got, expected);
                }
            }
        }
    }
}

#[test]
fn kernel_and_reference_agree() {
    for (name, device) in devices() {
        let (m, d) = (65, 256);
        for dtype in [DType::F32, DType::BF16] {
            let [x, gamma, beta, _] = inputs(m, d);
            let x = tensor(&x, [m, d], dtype, &device);
            let gamma = tensor(&gamma, [d], dtype, &device);
            let beta = tensor(&beta, [d], dtype, &device);
            let plain = host(reference::layer_norm(x.clone(), gamma.clone(), beta.clone(), EPS));
            assert_close(
                &format!("against plain operations on {name}"),
                dtype,
                &host(layer_norm(x, gamma, beta, EPS)),
                &plain,
            );
        }
    }
}

/// `(y, dx, dgamma)` by the formulas, in f64.
fn expected_rms(m: usize, d: usize) -> [Vec<f32>; 3] {
    let [x, gamma, _, dy] = inputs(m, d).map(|v| v.into_iter().map(f64::from).collect::<Vec<_>>());
    let (mut y, mut dx, mut dgamma) = (vec![0.0; m * d], vec![0.0; m * d], vec![0.0; d]);
    for row in 0..m {
        let at = |j: usize| row * d + j;
        let n = d as f64;
        let inverse = ((0..d).map(|j| x[at(j)].powi(2)).sum::<f64>() / n + EPS).powf(-0.5);
        let mean_product = (0..d).map(|j| dy[at(j)] * gamma[j] * x[at(j)] * inverse).sum::<f64>() / n;
        for j in 0..d {
            let normalized = x[at(j)] * inverse;
            y[at(j)] = normalized * gamma[j];
            dx[at(j)] = inverse * (dy[at(j)] * gamma[j] - normalized * mean_product);
            dgamma[j] += dy[at(j)] * normalized;
        }
    }
    [y, dx, dgamma].map(|v| v.into_iter().map(|x| x as f32).collect())
}

#[test]
fn rms_values_and_gradients_equal_the_formulas() {
    for (name, device) in devices() {
        let device = device.autodiff();
        for (m, d) in [(1, 8), (5, 32), (64, 512), (333, 768), (7, 100)] {
            let expected = expected_rms(m, d);
            for dtype in [DType::F32, DType::BF16] {
                let [x, gamma, _, dy] = inputs(m, d);
                let x = tensor(&x, [m, d], dtype, &device).require_grad();
                let gamma = tensor(&gamma, [d], dtype, &device).require_grad();
                let y = rms_norm(x.clone(), gamma.clone(), EPS);
                let grads = (y.clone() * tensor(&dy, [m, d], dtype, &device)).sum().backward();
                let got = [
                    host(y),
                    host(x.grad(&grads).expect("a gradient of x")),
                    host(gamma.grad(&grads).expect("a gradient of gamma")),
                ];
                for (part, (got, expected)) in ["y", "dx", "dgamma"].iter().zip(got.iter().zip(&expected)) {
                    assert_close(&format!("rms {part} of [{m}, {d}] on {name}"), dtype, got, expected);
                }
            }
        }
    }
}
