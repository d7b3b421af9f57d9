#[cfg(feature = "cuda")]
mod decoding_times;
mod epilogues;
mod f32;
mod fp8;
mod independent_rows;
mod times;

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Tensor};

use super::{
    LinearOps, batched_product, batched_product_transposed, linear, linear_transposed, linear_weight_gradient,
    linear_weight_gradient_accumulate,
};
use crate::testing::{assert_close, devices, host, tensor, values};

/// Returns the values and gradients of a product under the loss `sum(y * dy)`.
fn run(
    device: &Device,
    dtype: DType,
    transposed: bool,
    (m, n, k): (usize, usize, usize),
) -> (Vec<f32>, Vec<f32>, Vec<f32>, Option<Vec<f32>>) {
    let device = device.clone().autodiff();
    let x = tensor(&values(m * k, 1), [m, k], dtype, &device).require_grad();
    let weight_shape = if transposed { [n, k] } else { [k, n] };
    let w = tensor(&values(k * n, 2), weight_shape, dtype, &device).require_grad();
    let bias = tensor(&values(n, 3), [n], dtype, &device).require_grad();
    let dy = tensor(&values(m * n, 4), [m, n], dtype, &device);
    let y = match transposed {
        true => linear_transposed(x.clone(), w.clone(), Some(bias.clone())),
        false => linear(x.clone(), w.clone(), Some(bias.clone())),
    };
    let grads = (y.clone() * dy).sum().backward();
    let grad_bias = bias.grad(&grads).map(host);
    (host(y), host(x.grad(&grads).expect("a gradient of x")), host(w.grad(&grads).expect("a gradient of w")), grad_bias)
}

/// Returns `(y, dx, dw)` for a weight `[K, N]`, computed in f64 on the host.
fn expected((m, n, k): (usize, usize, usize), transposed: bool) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let (x, w, bias, dy) = (values(m * k, 1), values(k * n, 2), values(n, 3), values(m * n, 4));
    let weight = |l: usize, j: usize| f64::from(if transposed { w[j * k + l] } else { w[l * n + j] });
    let (mut y, mut dx, mut dw) = (vec![0f64; m * n], vec![0f64; m * k], vec![0f64; k * n]);
    for i in 0..m {
        for j in 0..n {
            let g = f64::from(dy[i * n + j]);
            let mut sum = f64::from(bias[j]);
            for l in 0..k {
                let xi = f64::from(x[i * k + l]);
                sum += xi * weight(l, j);
                dx[i * k + l] += g * weight(l, j);
                dw[if transposed { j * k + l } else { l * n + j }] += g * xi;
            }
            y[i * n + j] = sum;
        }
    }
    let f32s = |v: Vec<f64>| v.into_iter().map(|x| x as f32).collect();
    (f32s(y), f32s(dx), f32s(dw))
}

#[test]
fn the_gradient_of_a_weight_alone_equals_the_one_of_backward() {
    for (name, device) in devices() {
        for (m, n, k) in [(3, 5, 7), (64, 40, 24)] {
            let (x, dy) = (values(m * k, 1), values(m * n, 4));
            let (x, dy) = (tensor(&x, [m, k], DType::F32, &device), tensor(&dy, [m, n], DType::F32, &device));
            let (_, _, dw) = expected((m, n, k), false);
            assert_close(&format!("dw on {name}"), DType::F32, &host(linear_weight_gradient(x, dy)), &dw);
        }
    }
}

/// Two batches, accumulated in f32 and in the dtype of the operands. Shapes with few tiles and many rows, whose K is split; with
/// many tiles; and with rows that are not whole vectors. The sum from before stays as it is for those who hold it.
#[test]
fn gradients_of_a_weight_add_up() {
    for (name, device) in devices() {
        for (m, n, k) in [(3, 5, 7), (64, 40, 24), (4200, 136, 72), (72, 384, 640), (4100, 66, 130)] {
            let (x, dy, before) = (values(m * k, 1), values(m * n, 4), values(k * n, 9));
            let (_, _, dw) = expected((m, n, k), false);
            for (dtype, kept) in [(DType::F32, DType::F32), (DType::BF16, DType::F32), (DType::F16, DType::F16)] {
                let (x, dy) = (tensor(&x, [m, k], dtype, &device), tensor(&dy, [m, n], dtype, &device));
                let held = tensor(&before, [k, n], kept, &device);
                let once = linear_weight_gradient_accumulate(x.clone(), dy.clone(), held.clone());
                let twice = linear_weight_gradient_accumulate(x, dy, once.clone());
                let what = |turn: &str| format!("{turn} of {:?} on {name}", (m, n, k));
                for (turn, found, times) in [("none", held, 0.0), ("one", once, 1.0), ("two", twice, 2.0)] {
                    let wanted: Vec<f32> = before.iter().zip(&dw).map(|(sum, dw)| sum + times * dw).collect();
                    // All other products are rounded before they are added.
                    let exact = if name == "cuda" && n % 4 == 0 { kept } else { dtype };
                    assert_close(&what(turn), exact, &host(found), &wanted);
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "the gradient of a weight has no gradient of its own")]
fn the_gradient_of_a_weight_is_not_differentiated() {
    let x = tensor(&values(6, 1), [2, 3], DType::F32, &Device::flex().autodiff()).require_grad();
    linear_weight_gradient(x.clone(), x);
}

/// Tails in every dimension, fewer K tiles than stages, many tiles, split K, and rows that TMA cannot address.
const SHAPES: [(usize, usize, usize); 18] = [
    (1, 8, 8),
    (3, 5, 7),
    (17, 24, 40),
    (64, 64, 64),
    (100, 72, 136),
    (128, 256, 64),
    (129, 264, 72),
    (200, 130, 66),
    (256, 128, 512),
    (384, 640, 96),
    (1032, 200, 72),
    (2056, 64, 48),
    (130, 257, 64),
    (72, 96, 2091),
    (1, 99, 33),
    (8, 264, 768),
    (5, 40, 1304),
    (2, 1003, 72),
];

#[test]
fn products_and_gradients_equal_the_host() {
    for (name, device) in devices() {
        for shape in SHAPES {
            for transposed in [false, true] {
                let (y, dx, dw) = expected(shape, transposed);
                for dtype in [DType::F32, DType::BF16, DType::F16] {
                    let got = run(&device, dtype, transposed, shape);
                    let what = |part: &str| format!("{part} of {shape:?} (transposed {transposed}) on {name}");
                    assert_close(&what("y"), dtype, &got.0, &y);
                    assert_close(&what("dx"), dtype, &got.1, &dx);
                    assert_close(&what("dw"), dtype, &got.2, &dw);
                }
            }
        }
    }
}

/// As decoding has them: the rows of a batch do not depend on their number.
#[test]
fn a_few_rows_have_the_same_bits_alone_and_together() {
    // Loops on the CPU divide the columns of `[N, K]` weights by the number of rows.
    for (name, device) in devices().into_iter().filter(|(name, _)| *name != "cpu") {
        for (transposed, n, k) in [(false, 264, 768), (false, 48, 2056), (true, 1003, 768)] {
            let x = tensor(&values(8 * k, 1), [8, k], DType::BF16, &device);
            let weight = tensor(&values(k * n, 2), if transposed { [n, k] } else { [k, n] }, DType::BF16, &device);
            let product = |x: Tensor<2>| match transposed {
                true => host(linear_transposed(x, weight.clone(), None)),
                false => host(linear(x, weight.clone(), None)),
            };
            let all = product(x.clone());
            for row in 0..8 {
                let alone = product(x.clone().narrow(0, row, 1));
                assert_eq!(alone, all[row * n..(row + 1) * n], "row {row} of {n} x {k} on {name}");
            }
        }
    }
}

#[test]
fn bias_gradient_is_the_column_sum() {
    for (name, device) in devices() {
        let (m, n, k) = (136, 72, 64);
        let dy = values(m * n, 4);
        let sums: Vec<f32> = (0..n).map(|j| (0..m).map(|i| dy[i * n + j]).sum()).collect();
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let got = run(&device, dtype, false, (m, n, k)).3.expect("a gradient of the bias");
            assert_close(&format!("bias gradient on {name}"), dtype, &got, &sums);
        }
    }
}

/// Compares products of the sizes of a real step with the same products in f32 on the same device.
#[test]
fn large_products_equal_f32() {
    let Ok(device) = crate::testing::cuda() else {
        return eprintln!("skipped: no CUDA device");
    };
    for shape in [
        (25_600, 1536, 512),
        (25_600, 512, 2048),
        (9000, 2304, 768),
        (8192, 16_000, 512),
        (4096, 4096, 4096),
        // Tiles of 192 columns.
        (9000, 576, 1152),
    ] {
        for transposed in [false, true] {
            let bf16 = run(&device, DType::BF16, transposed, shape);
            let f32 = run(&device, DType::F32, transposed, shape);
            let what = |part: &str| format!("{part} of {shape:?} (transposed {transposed})");
            assert_close(&what("y"), DType::BF16, &bf16.0, &f32.0);
            assert_close(&what("dx"), DType::BF16, &bf16.1, &f32.1);
            assert_close(&what("dw"), DType::BF16, &bf16.2, &f32.2);
        }
    }
}

#[test]
fn batched_products_take_both_layouts_and_transposed_views() {
    for (name, device) in devices() {
        // The last three are computed by the kernel for Hopper, in 16 bits.
        let sizes = [(3, 5, 7, 9), (6, 64, 64, 64), (16, 24, 40, 64), (2, 1, 33, 32)];
        for (g, m, n, k) in sizes.into_iter().chain([(3, 128, 200, 128), (2, 256, 384, 320), (5, 384, 384, 192)]) {
            let (a, b) = (values(g * m * k, 5), values(g * n * k, 6));
            let mut expected = vec![0f32; g * m * n];
            for (at, value) in expected.iter_mut().enumerate() {
                let (batch, i, j) = (at / (m * n), at / n % m, at % n);
                *value = (0..k).map(|l| a[(batch * m + i) * k + l] * b[(batch * n + j) * k + l]).sum();
            }

            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let a: Tensor<3> = tensor(&a, [g, m, k], dtype, &device);
                let b: Tensor<3> = tensor(&b, [g, n, k], dtype, &device);
                let view = b.clone().swap_dims(1, 2);
                let parts = [0..1, 1..k].map(|rows| view.clone().slice([0..g, rows, 0..n]));
                let found = [
                    ("view", batched_product(a.clone(), view)),
                    ("rows", batched_product(a.clone(), Tensor::cat(parts.to_vec(), 1))),
                    ("transposed", batched_product_transposed(a, b)),
                ];
                for (case, found) in found {
                    assert_close(
                        &format!("{g} products {m}x{n}x{k}, {case}, on {name}"),
                        dtype,
                        &host(found),
                        &expected,
                    );
                }
            }
        }
    }
}

/// One product has few tiles, eight have many: K must not be split for the one alone.
#[test]
fn a_product_has_the_same_bits_in_any_batch() {
    for (name, device) in devices() {
        for (m, k) in [(256, 1024), (768, 768), (384, 3072)] {
            let values = |n: usize, seed: u64| -> Tensor<3> {
                tensor(&values(8 * m * n, seed), [8, m, n], DType::BF16, &device)
            };
            let (wide, square) = (values(k, 1), values(m, 2));
            let of = |first: usize, n: usize| {
                let [wide, square] = [&wide, &square].map(|x| x.clone().narrow(0, first, n));
                host(Tensor::cat(
                    vec![batched_product_transposed(wide.clone(), wide.clone()), batched_product(square, wide)],
                    2,
                ))
            };
            let together = of(0, 8);
            for (first, n) in [(0, 1), (3, 2), (7, 1)] {
                let some = of(first, n);
                assert!(some == together[first * m * (m + k)..][..some.len()], "{n} of 8, {m} x {k}, on {name}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "inner dimensions differ")]
fn inner_dimensions_must_agree() {
    let device = Device::flex();
    linear(
        tensor(&values(6, 1), [2, 3], DType::F32, &device),
        tensor(&values(8, 2), [4, 2], DType::F32, &device),
        None,
    );
}

/// The sums would depend on the number of threads or blocks if their order did.
#[test]
fn column_sums_do_not_change_from_run_to_run() {
    for (name, device) in devices() {
        for (m, n) in [(1, 8), (1000, 100), (16_384, 768), (33, 5)] {
            let x = tensor(&values(m * n, 1), [m, n], DType::BF16, &device);
            let sum = || host(Tensor::<1>::from_dispatch(Dispatch::column_sum(x.clone().into_dispatch())));
            let mut expected = vec![0f64; n];
            for row in values(m * n, 1).chunks(n) {
                expected.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
            }
            let expected: Vec<f32> = expected.into_iter().map(|x| x as f32).collect();
            assert_close(&format!("[{m}, {n}] on {name}"), DType::BF16, &sum(), &expected);
            assert_eq!(sum(), sum(), "[{m}, {n}] again on {name}");
        }
    }
}
