//! Products of operands that are rounded to FP8.

use burn::tensor::{DType, Device, Tensor};

use crate::activation::Activation;
use crate::fp8::Fp8;
use crate::linear::{linear, linear_activated, linear_residual, linear_transposed};
use crate::settings::Settings;
use crate::testing::{devices, distance, host, tensor, values};

/// Relative error of bf16 results of sums of eight bits; on the CPU, of f32.
fn allowed(device: &str) -> f64 {
    if device == "cpu" { 2e-6 } else { 4e-3 }
}

fn dtype_on(device: &str) -> DType {
    if device == "cpu" { DType::F32 } else { DType::BF16 }
}

fn in_fp8<T>(work: impl FnOnce() -> T) -> T {
    let _fp8 = Settings { fp8_products: true, ..Settings::current() }.install();
    work()
}

/// Returns `y`, `dx` and `dw` of a product under the loss `sum(y * dy)`.
fn run(device: &Device, dtype: DType, transposed: bool, (m, n, k): (usize, usize, usize)) -> [Vec<f32>; 3] {
    let device = device.clone().autodiff();
    let x = tensor(&values(m * k, 1), [m, k], dtype, &device).require_grad();
    let weight_shape = if transposed { [n, k] } else { [k, n] };
    let w = tensor(&values(k * n, 2), weight_shape, dtype, &device).require_grad();
    let y = in_fp8(|| match transposed {
        true => linear_transposed(x.clone(), w.clone(), None),
        false => linear(x.clone(), w.clone(), None),
    });
    // Backward multiplies as forward did, whatever the settings are by then.
    let grads = (y.clone() * tensor(&values(m * n, 4), [m, n], dtype, &device)).sum().backward();
    [host(y), host(x.grad(&grads).expect("a gradient of x")), host(w.grad(&grads).expect("a gradient of w"))]
}

/// Returns the same from operands that the host rounds, in f64.
fn expected((m, n, k): (usize, usize, usize), transposed: bool) -> [Vec<f32>; 3] {
    let (x, w, dy) = (
        Fp8::E4M3.rounded(&values(m * k, 1)),
        Fp8::E4M3.rounded(&values(k * n, 2)),
        Fp8::E5M2.rounded(&values(m * n, 4)),
    );
    let weight = |l: usize, j: usize| if transposed { j * k + l } else { l * n + j };
    let (mut y, mut dx, mut dw) = (vec![0f64; m * n], vec![0f64; m * k], vec![0f64; k * n]);
    for i in 0..m {
        for j in 0..n {
            let g = f64::from(dy[i * n + j]);
            for l in 0..k {
                let (x, w) = (f64::from(x[i * k + l]), f64::from(w[weight(l, j)]));
                y[i * n + j] += x * w;
                dx[i * k + l] += g * w;
                dw[weight(l, j)] += g * x;
            }
        }
    }
    [y, dx, dw].map(|v| v.into_iter().map(|x| x as f32).collect())
}

/// Tails of tiles, few and many tiles, an odd number of tokens, and more K tiles than stages.
const SHAPES: [(usize, usize, usize); 7] =
    [(16, 16, 16), (64, 64, 64), (101, 80, 144), (130, 272, 128), (257, 144, 1104), (1031, 96, 48), (2064, 160, 272)];

#[test]
fn products_and_gradients_are_those_of_rounded_operands() {
    for (name, device) in devices() {
        for shape in SHAPES {
            for transposed in [false, true] {
                let found = run(&device, dtype_on(name), transposed, shape);
                let wanted = expected(shape, transposed);
                for (part, (found, wanted)) in ["y", "dx", "dw"].iter().zip(found.iter().zip(&wanted)) {
                    let distance = distance(found, wanted);
                    let case = format!("{part} of {shape:?} (transposed {transposed}) on {name}");
                    assert!(distance < allowed(name), "{case}: {distance:.1e}");
                }
                let again = run(&device, dtype_on(name), transposed, shape);
                assert_eq!(found, again, "{shape:?} on {name} repeats its bits");
            }
        }
    }
}

#[test]
fn epilogues_follow_products_in_fp8() {
    let (m, n, k) = (300, 272, 128);
    for (name, device) in devices() {
        let dtype = dtype_on(name);
        let x = tensor(&values(m * k, 1), [m, k], dtype, &device);
        let w = tensor(&values(k * n, 2), [k, n], dtype, &device);
        let bias = tensor(&values(n, 3), [n], dtype, &device);
        let residual = tensor(&values(m * n, 5), [m, n], dtype, &device);
        let [product, ..] = expected((m, n, k), false);
        let product: Tensor<2> =
            tensor(&product, [m, n], DType::F32, &device) + bias.clone().cast(DType::F32).unsqueeze();

        let check = |case: &str, found: Tensor<2>, wanted: Tensor<2>| {
            let distance = distance(&host(found), &host(wanted));
            assert!(distance < allowed(name), "{case} on {name}: {distance:.1e}");
        };
        let sum = in_fp8(|| linear_residual(x.clone(), w.clone(), Some(bias.clone()), residual.clone()));
        check("a residual", sum, product.clone() + residual.cast(DType::F32));
        for by in [Activation::Relu, Activation::GeluTanh, Activation::Silu] {
            let y = in_fp8(|| linear_activated(x.clone(), w.clone(), Some(bias.clone()), by, None));
            check(&format!("{by:?}"), y, by.reference_in_f32(product.clone()));
        }
    }
}

/// With what an activation keeps for backward. Operands have three or four significant bits, so results are a few percent away.
#[test]
fn activations_have_gradients_in_fp8() {
    let (m, n, k) = (300, 272, 128);
    for (name, device) in devices() {
        let device = device.autodiff();
        for by in [Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
            let run = |dtype: DType, fp8_products: bool| {
                let _chosen = Settings { fp8_products, ..Settings::current() }.install();
                let x = tensor(&values(m * k, 1), [m, k], dtype, &device).require_grad();
                let w = tensor(&values(k * n, 2), [k, n], dtype, &device).require_grad();
                let bias = tensor(&values(n, 3), [n], dtype, &device).require_grad();

                let y = linear_activated(x.clone(), w.clone(), Some(bias.clone()), by, None);
                let grads = (y.clone() * tensor(&values(m * n, 4), [m, n], dtype, &device)).sum().backward();
                let gradient = |t: Option<Tensor<2>>| host(t.expect("a gradient"));
                [
                    host(y),
                    gradient(x.grad(&grads)),
                    gradient(w.grad(&grads)),
                    host(bias.grad(&grads).expect("a gradient")),
                ]
            };

            // The slope of ReLU jumps: rounding moves arguments near 0 to the other side.
            let allowed = if by == Activation::Relu { 0.3 } else { 0.1 };
            let (found, wanted) = (run(dtype_on(name), true), run(DType::F32, false));
            for (part, (found, wanted)) in ["y", "dx", "dw", "db"].iter().zip(found.iter().zip(&wanted)) {
                let distance = distance(found, wanted);
                assert!((1e-4..allowed).contains(&distance), "{part} of {by:?} on {name}: {distance:.1e}");
            }
        }
    }
}

/// Few tokens, and widths of part of a vector.
#[test]
fn other_products_stay_as_they_are() {
    for (name, device) in devices() {
        let dtype = dtype_on(name);
        for (m, n, k) in [(15, 64, 64), (64, 40, 64), (64, 64, 24)] {
            let x = tensor(&values(m * k, 1), [m, k], dtype, &device);
            let w = tensor(&values(k * n, 2), [k, n], dtype, &device);
            let wanted = host(linear(x.clone(), w.clone(), None));
            assert_eq!(host(in_fp8(|| linear(x, w, None))), wanted, "{m} x {k} x {n} on {name}");
        }
    }
}

#[test]
fn a_number_that_is_not_finite_makes_all_results_nan() {
    for (name, device) in devices() {
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = values(64 * 64, 1);
            x[777] = broken;
            let x = tensor(&x, [64, 64], dtype_on(name), &device);
            let w = tensor(&values(64 * 64, 2), [64, 64], dtype_on(name), &device);
            let y = host(in_fp8(|| linear(x, w, None)));
            assert!(y.iter().all(|y| y.is_nan()), "{broken} on {name}");
        }
    }
}

/// Zeros, tiny and huge numbers: scales at the ends of their range.
#[test]
fn scales_reach_from_tiny_to_huge_matrices() {
    for (name, device) in devices() {
        for scale in [0.0, 2f32.powi(-90), 2f32.powi(90)] {
            let x: Vec<f32> = values(64 * 64, 1).into_iter().map(|x| x * scale).collect();
            let x = tensor(&x, [64, 64], dtype_on(name), &device);
            let w = tensor(&values(64 * 64, 2), [64, 64], dtype_on(name), &device);
            let y = host(in_fp8(|| linear(x, w, None)));
            let [wanted, ..] = expected((64, 64, 64), false);
            let found: Vec<f32> = y.into_iter().map(|y| if scale == 0.0 { y } else { y / scale }).collect();
            let wanted = if scale == 0.0 { vec![0.0; wanted.len()] } else { wanted };
            let distance = distance(&found, &wanted);
            assert!(distance < allowed(name), "{scale} on {name}: {distance:.1e}");
        }
    }
}
