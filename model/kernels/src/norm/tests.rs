use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Tensor};

use super::ops::{Addend, Kind, NormOps};
use super::{Branch, NormWeights, add_norm, layer_norm, reference, rms_norm};
use crate::dropout::{DropoutStream, Mask, dropout};
use crate::linear::{Layout, ProductKind};
use crate::maybe::Maybe;
use crate::testing::{assert_close, devices, host, tensor, time, timing_device, values};

const EPS: f64 = 1e-5;

/// Returns `(y, dx, dgamma, dbeta)` by the formulas, in f64.
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
                &format!("against the reference on {name}"),
                dtype,
                &host(layer_norm(x, gamma, beta, EPS)),
                &plain,
            );
        }
    }
}

/// Returns `(y, dx, dgamma)` by the formulas, in f64.
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

#[derive(Debug, Clone, Copy)]
struct Case {
    branch: bool,
    /// The branch is a product of `K` columns.
    product: Option<usize>,
    bias: bool,
    p: f64,
    rms: bool,
    uses_sum: bool,
    uses_normed: bool,
}

/// Returns `(sum, normed, dx, dbranch, dweight, dbias, dgamma, dbeta)`, fused or by the reference. Entries that a case
/// lacks are empty.
fn run(case: Case, fused: bool, [m, d]: [usize; 2], dtype: DType, device: &Device) -> [Vec<f32>; 8] {
    let device = device.clone().autodiff();
    let matrix = |seed: u64| tensor(&values(m * d, seed), [m, d], dtype, &device);
    let vector = |seed: u64| tensor(&values(d, seed), [d], dtype, &device).require_grad();
    let k = case.product.unwrap_or(d);
    let x = matrix(1).require_grad();
    let branch = tensor(&values(m * k, 2), [m, k], dtype, &device).require_grad();
    let weight = tensor(&values(k * d, 10), [k, d], dtype, &device).require_grad();
    let (gamma, beta, bias) = (vector(3), vector(4), vector(5));
    let stream = DropoutStream::new(5, 6, &device);
    let norm = NormWeights { gamma: gamma.clone(), beta: (!case.rms).then(|| beta.clone()), eps: EPS };
    let (sum, normed) = if fused {
        let with_bias = || Branch {
            x: branch.clone(),
            weight: case.product.map(|_| weight.clone()),
            bias: case.bias.then(|| bias.clone()),
        };
        add_norm(x.clone(), case.branch.then(with_bias), Some((case.p, &stream)), norm)
    } else {
        let branch = if case.product.is_some() { branch.clone().matmul(weight.clone()) } else { branch.clone() };
        let with_bias = if case.bias { branch + bias.clone().unsqueeze() } else { branch };
        let sum = if case.branch { x.clone() + dropout(with_bias, case.p, &stream) } else { x.clone() };
        let normed = match norm.beta {
            Some(beta) => reference::layer_norm(sum.clone(), norm.gamma, beta, EPS),
            None => reference::rms_norm(sum.clone(), norm.gamma, EPS),
        };
        (sum, normed)
    };
    let mut loss = Tensor::<1>::zeros([1], (&device, dtype));
    if case.uses_sum {
        // Use the sum twice, like the residual stream of a layer.
        loss = loss + (sum.clone() * matrix(7)).sum() + (sum.clone() * matrix(8)).sum();
    }
    if case.uses_normed {
        loss = loss + (normed.clone() * matrix(9)).sum();
    }
    let grads = loss.backward();
    let gradient = |t: &Tensor<2>| t.grad(&grads).map(host).unwrap_or_default();
    let of_parameter = |t: &Tensor<1>| t.grad(&grads).map(host).unwrap_or_default();
    let (dgamma, dbeta) =
        if case.uses_normed { (of_parameter(&gamma), of_parameter(&beta)) } else { Default::default() };
    let (dx, dbranch, dweight) = (gradient(&x), gradient(&branch), gradient(&weight));
    [host(sum), host(normed), dx, dbranch, dweight, of_parameter(&bias), dgamma, dbeta]
}

#[test]
fn a_sum_and_its_norm_equal_the_reference() {
    // Rows that take a warp and rows that take a block; several vectors and odd widths; more rows than backward has
    // blocks.
    let shapes = [[1, 8], [5, 6], [70, 100], [33, 768], [19, 2048], [3, 4104], [2500, 64]];
    for (name, device) in devices() {
        for (i, shape) in shapes.into_iter().enumerate() {
            for (p, rms, product) in [
                (0.0, false, None),
                (0.3, false, None),
                (0.3, true, None),
                (0.0, false, Some(40)),
                (0.0, true, Some(67)),
                (0.3, false, Some(40)),
            ] {
                for (branch, bias, uses_sum, uses_normed) in [
                    (true, true, true, true),
                    (true, false, true, true),
                    (true, true, false, true),
                    (false, false, true, true),
                    (true, true, true, false),
                ] {
                    if i > 3 && !(uses_sum && uses_normed) || product.is_some() && !branch {
                        continue;
                    }
                    let case = Case { branch, product, bias, p, rms, uses_sum, uses_normed };
                    let expected = run(case, false, shape, DType::F32, &Device::flex());
                    for dtype in [DType::F32, DType::BF16] {
                        let found = run(case, true, shape, dtype, &device);
                        let parts = ["sum", "normed", "dx", "dbranch", "dweight", "dbias", "dgamma", "dbeta"];
                        for (part, (found, expected)) in parts.iter().zip(found.iter().zip(&expected)) {
                            let what = format!("{part} of {shape:?} {case:?} on {name}");
                            assert_close(&what, dtype, found, expected);
                        }
                    }
                }
            }
        }
    }
}

/// Times a step with 16 x 1024 tokens of 768 features, with 8 x 2048 of 2048, and with 400 x 64 tokens of 512.
#[test]
fn times() {
    let Some(device) = timing_device() else { return };
    for ([m, d], p) in [([16_384, 768], 0.0), ([16_384, 768], 0.1), ([16_384, 2048], 0.0), ([25_600, 512], 0.1)] {
        let matrix = || Tensor::<2>::ones([m, d], (&device, DType::BF16));
        let [x, branch, dy, dsum] = [matrix(), matrix(), matrix(), matrix()].map(|t| t.into_dispatch());
        let vector = || Tensor::<1>::ones([d], (&device, DType::BF16)).into_dispatch();
        let (gamma, beta, bias) = (vector(), vector(), vector());
        let stream = DropoutStream::new(5, 6, &device);
        let mask = || {
            let (site, state) = stream.take();
            let state = state.clone().into_dispatch();
            if p > 0.0 { Mask::Some { state, site, p } } else { Mask::None }
        };
        let kind = Kind { eps: 1e-5, centered: true, bias: false, product: ProductKind::new(Layout::NN) };
        let with_bias = Kind { bias: true, ..kind };
        let bytes = 2 * m * d;
        time(&format!("norm [{m}, {d}]"), 2 * bytes, &device, || {
            let beta = Maybe::Some(beta.clone());
            Dispatch::add_norm(x.clone(), Addend::None, Maybe::None, Mask::None, gamma.clone(), beta, kind)
        });
        time(&format!("residual + dropout {p} + norm [{m}, {d}]"), 4 * bytes, &device, || {
            let branch = Addend::Branch(branch.clone());
            let [bias, beta] = [&bias, &beta].map(|tensor| Maybe::Some(tensor.clone()));
            Dispatch::add_norm(x.clone(), branch, bias, mask(), gamma.clone(), beta, with_bias)
        });
        let statistics = Tensor::<2>::ones([m, 2], (&device, DType::F32)).into_dispatch();
        let moved = if p > 0.0 { 5 } else { 4 } * bytes;
        for kind in [kind, with_bias] {
            time(&format!("its backward, with bias {} [{m}, {d}]", kind.bias), moved, &device, || {
                let dsum = Maybe::Some(dsum.clone());
                let (x, statistics, gamma, dy) = (x.clone(), statistics.clone(), gamma.clone(), dy.clone());
                Dispatch::add_norm_backward(x, statistics, gamma, dy, dsum, mask(), kind)
            });
        }
    }
}
