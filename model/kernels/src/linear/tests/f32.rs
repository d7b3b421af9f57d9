//! Products of f32 numbers that use all their bits, compared with f64.

use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor};

use crate::F32Products;
use crate::activation::Activation;
use crate::dropout::Mask;
use crate::linear::{Layout, LinearOps, ProductKind};
use crate::maybe::Maybe;
use crate::testing::{assert_close, cuda, devices, distance, host, precise_values, seconds, tensor, timing_device};

const LAYOUTS: [Layout; 3] = [Layout::NN, Layout::NT, Layout::TN];

/// Returns the shapes of the operands of a product of M x N x K.
fn shapes(layout: Layout, [m, n, k]: [usize; 3]) -> ([usize; 2], [usize; 2]) {
    match layout {
        Layout::NN => ([m, k], [k, n]),
        Layout::NT => ([m, k], [n, k]),
        Layout::TN => ([k, m], [k, n]),
    }
}

/// Computes a product in f64.
fn expected(a: &[f32], b: &[f32], layout: Layout, [m, n, k]: [usize; 3]) -> Vec<f32> {
    let left = |i: usize, l: usize| if layout == Layout::TN { a[l * m + i] } else { a[i * k + l] };
    let right = |l: usize, j: usize| if layout == Layout::NT { b[j * k + l] } else { b[l * n + j] };
    let mut product = vec![0f32; m * n];
    for (i, row) in product.chunks_mut(n).enumerate() {
        let mut sums = vec![0f64; n];
        for l in 0..k {
            let x = f64::from(left(i, l));
            sums.iter_mut().enumerate().for_each(|(j, sum)| *sum += x * f64::from(right(l, j)));
        }
        row.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum as f32);
    }
    product
}

/// Tails in every dimension; narrow and wide tiles; a K that is split, and a long one that is not.
#[test]
fn products_of_f32_are_as_accurate_as_chosen() {
    for (name, device) in devices() {
        for sizes in [[1, 4, 8], [3, 5, 7], [129, 264, 72], [200, 130, 66], [72, 96, 9000], [1100, 520, 100]] {
            for layout in LAYOUTS {
                let (of_a, of_b) = shapes(layout, sizes);
                let (a, b) = (precise_values(of_a[0] * of_a[1], 1), precise_values(of_b[0] * of_b[1], 2));
                let expected = expected(&a, &b, layout, sizes);
                for f32_products in [F32Products::F32, F32Products::Tf32] {
                    let on = |x: &[f32], shape| tensor::<2>(x, shape, DType::F32, &device).into_dispatch();
                    let kind = ProductKind { f32_products, ..ProductKind::new(layout) };
                    let found = Dispatch::product(on(&a, of_a), on(&b, of_b), kind);
                    let found = distance(&host(Tensor::<2>::from_dispatch(found)), &expected);
                    let rounds = name == "cuda" && f32_products == F32Products::Tf32;
                    // TF32 keeps 10 bits of each operand; a small product has few sums to average the errors.
                    let allowed = if rounds { 1e-5..2e-3 } else { 0.0..1e-6 };
                    assert!(
                        allowed.contains(&found),
                        "{layout:?} of {sizes:?}, {f32_products:?} on {name}: {found:.1e}"
                    );
                }
            }
        }
    }
}

/// The NaN of GPUs has bits that are all ones, which rounding must not carry into the sign.
#[test]
fn a_product_with_nan_is_nan() {
    for (name, device) in devices() {
        for sizes in [[65, 72, 40], [1100, 520, 4100]] {
            for (layout, f32_products) in
                LAYOUTS.into_iter().flat_map(|l| [(l, F32Products::F32), (l, F32Products::Tf32)])
            {
                let (of_a, of_b) = shapes(layout, sizes);
                let mut a = precise_values(of_a[0] * of_a[1], 1);
                a[0] = f32::from_bits(u32::MAX >> 1);
                let b = precise_values(of_b[0] * of_b[1], 2);
                let on = |x: &[f32], shape| tensor::<2>(x, shape, DType::F32, &device).into_dispatch();
                let kind = ProductKind { f32_products, ..ProductKind::new(layout) };
                let found = host(Tensor::<2>::from_dispatch(Dispatch::product(on(&a, of_a), on(&b, of_b), kind)));
                let n = sizes[1];
                let nans = |row: &[f32]| row.iter().filter(|x| x.is_nan()).count();
                assert_eq!(
                    (nans(&found[..n]), nans(&found[n..])),
                    (n, 0),
                    "{layout:?} of {sizes:?}, {f32_products:?} on {name}"
                );
            }
        }
    }
}

/// Sums over as many numbers as the gradient of a weight of a real step, which the tensor cores alone would truncate.
#[test]
fn long_sums_are_as_accurate_as_f32() {
    let device = match cuda() {
        Ok(device) => device,
        Err(reason) => return eprintln!("skipped on CUDA: {reason}"),
    };
    let sizes = [1536, 1536, 16_384];
    let layout = Layout::TN;
    let (of_a, of_b) = shapes(layout, sizes);
    // All of one sign: errors of one sign add up.
    let positive = |len, seed| precise_values(len, seed).into_iter().map(f32::abs).collect::<Vec<_>>();
    let (a, b) = (positive(of_a[0] * of_a[1], 1), positive(of_b[0] * of_b[1], 2));
    let on = |x: &[f32], shape| tensor::<2>(x, shape, DType::F32, &device).into_dispatch();
    let kind = ProductKind { f32_products: F32Products::F32, ..ProductKind::new(layout) };
    let found = host(Tensor::<2>::from_dispatch(Dispatch::product(on(&a, of_a), on(&b, of_b), kind)));

    let [m, n, k] = sizes;
    for (i, j) in [(0, 0), (1, 700), (800, 3), (m - 1, n - 1)] {
        let expected: f64 = (0..k).map(|l| f64::from(a[l * m + i]) * f64::from(b[l * n + j])).sum();
        let error = (f64::from(found[i * n + j]) - expected).abs() / expected;
        assert!(error < 1e-5, "({i}, {j}): {error:.1e}");
    }
}

/// Bias, activation and residual in the epilogue of both kinds of products, with more tiles than multiprocessors and fewer.
#[test]
fn epilogues_in_f32_equal_passes_over_the_product() {
    for (name, device) in devices() {
        for [m, n, k] in [[4200, 1288, 40], [300, 264, 96], [129, 516, 1100], [33, 70, 24]] {
            for f32_products in [F32Products::F32, F32Products::Tf32] {
                let on = |len: usize, seed, shape| {
                    tensor::<2>(&precise_values(len, seed), shape, DType::F32, &device).into_dispatch()
                };
                let (x, weight, residual) = (on(m * k, 1, [m, k]), on(k * n, 2, [k, n]), on(m * n, 3, [m, n]));
                let bias = tensor::<1>(&precise_values(n, 4), [n], DType::F32, &device);
                let given = || Maybe::Some(bias.clone().into_dispatch());
                let kind = ProductKind { f32_products, ..ProductKind::new(Layout::NN) };
                let case = format!("{m} x {n} x {k}, {f32_products:?} on {name}");
                let host = |x| host(Tensor::<2>::from_dispatch(x));

                let product = Tensor::<2>::from_dispatch(Dispatch::product(x.clone(), weight.clone(), kind));
                let sum = product + bias.clone().unsqueeze();
                let wanted = sum.clone() + Tensor::from_dispatch(residual.clone());
                let found = Dispatch::linear_residual(x.clone(), weight.clone(), given(), residual, kind);
                assert_close(&format!("residual, {case}"), DType::F32, &host(found), &host(wanted.into_dispatch()));
                for activation in [Activation::Relu, Activation::GeluTanh] {
                    let wanted = host(Dispatch::activate(sum.clone().into_dispatch(), activation, Mask::None));
                    let (x, weight) = (x.clone(), weight.clone());
                    let (kept, y) =
                        Dispatch::fused_linear_both(x.clone(), weight.clone(), given(), kind, activation, Mask::None);
                    let alone = Dispatch::fused_linear(x, weight, given(), kind, Some(activation), Mask::None);
                    assert_close(&format!("kept, {case}"), DType::F32, &host(kept), &host(sum.clone().into_dispatch()));
                    for found in [y, alone] {
                        assert_close(&format!("{activation:?}, {case}"), DType::F32, &host(found), &wanted);
                    }
                }
            }
        }
    }
}

/// A product is added to f32 numbers in both modes, in place, with few tiles and with many.
#[test]
fn accumulation_in_f32_equals_an_addition() {
    for (name, device) in devices() {
        for [m, n, k] in [[136, 72, 4200], [1100, 2048, 72]] {
            for f32_products in [F32Products::F32, F32Products::Tf32] {
                let on = |len: usize, seed, shape| tensor::<2>(&precise_values(len, seed), shape, DType::F32, &device);
                let (a, b, sum) = (on(k * m, 1, [k, m]), on(k * n, 2, [k, n]), on(m * n, 3, [m, n]));
                let kind = ProductKind { f32_products, ..ProductKind::new(Layout::TN) };
                let (a, b) = (a.into_dispatch(), b.into_dispatch());
                let product = Tensor::<2>::from_dispatch(Dispatch::product(a.clone(), b.clone(), kind));
                let wanted = host(product + sum.clone());
                let found = Dispatch::accumulate_product(a, b, sum.into_dispatch(), kind);
                let case = format!("{m} x {n} x {k}, {f32_products:?} on {name}");
                assert_close(&case, DType::F32, &host(Tensor::<2>::from_dispatch(found)), &wanted);
            }
        }
    }
}

/// The rates of f32 products in the three layouts of training: `KILN_TIMES=f32`.
#[test]
fn f32_rates() {
    let Some(device) = timing_device() else { return };
    let matrix = |[m, n]: [usize; 2]| (Tensor::<2>::ones([m, n], (&device, DType::F32)) * 1e-2).into_dispatch();
    for sizes in [[8192, 8192, 8192], [16_384, 2304, 768], [16_384, 768, 3072], [16_384, 50_304, 768]] {
        for layout in LAYOUTS {
            let (of_a, of_b) = shapes(layout, sizes);
            let (a, b) = (matrix(of_a), matrix(of_b));
            for f32_products in [F32Products::Tf32, F32Products::F32] {
                let kind = ProductKind { f32_products, ..ProductKind::new(layout) };
                let secs = seconds(&device, || Dispatch::product(a.clone(), b.clone(), kind));
                let rate = 2e-12 * sizes.iter().product::<usize>() as f64 / secs;
                println!("{f32_products:?} {layout:?} of {sizes:?}: {:.4} ms, {rate:.0} TFLOP/s", 1e3 * secs);
            }
        }
    }
}
