use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Tensor, activation};

use super::{
    Layout, LinearOps, batched_product, linear, linear_activated, linear_residual, linear_transposed,
    linear_weight_gradient, linear_weight_gradient_accumulate,
};
use crate::activation::Activation;
use crate::dropout::{DropoutStream, Mask, dropout};
use crate::maybe::Maybe;
use crate::testing::{assert_close, cuda, devices, host, tensor, time, timing_device, values};

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
const SHAPES: [(usize, usize, usize); 15] = [
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
    for shape in [(25_600, 1536, 512), (25_600, 512, 2048), (9000, 2304, 768), (8192, 16_000, 512), (4096, 4096, 4096)]
    {
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
fn batched_products_take_transposed_views() {
    for (name, device) in devices() {
        for (g, m, n, k) in [(3, 5, 7, 9), (6, 64, 64, 64), (16, 24, 40, 64), (2, 1, 33, 32)] {
            let (a, b) = (values(g * m * k, 5), values(g * n * k, 6));
            let mut expected = vec![0f32; g * m * n];
            for (at, value) in expected.iter_mut().enumerate() {
                let (batch, i, j) = (at / (m * n), at / n % m, at % n);
                *value = (0..k).map(|l| a[(batch * m + i) * k + l] * b[(batch * n + j) * k + l]).sum();
            }
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let a = tensor(&a, [g, m, k], dtype, &device);
                let b: Tensor<3> = tensor(&b, [g, n, k], dtype, &device);
                let got = host(batched_product(a, b.swap_dims(1, 2)));
                assert_close(&format!("{g} products {m}x{n}x{k} on {name}"), dtype, &got, &expected);
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

/// Returns `(y, dx, dweight, dbias)`, fused or by plain operations.
fn run_linear(
    kind: Option<Activation>,
    p: f64,
    fused: bool,
    [m, k, n]: [usize; 3],
    dtype: DType,
    device: &Device,
) -> [Vec<f32>; 4] {
    let device = device.clone().autodiff();
    // Scaled so that the arguments of the activation have the usual size.
    let scaled = |len: usize, seed: u64, by: f32| values(len, seed).into_iter().map(|x| x * by).collect::<Vec<_>>();
    let weight_scale = 2f32.powi(-((k as f32).sqrt().log2() as i32));
    let x = tensor(&scaled(m * k, 1, 2.0), [m, k], dtype, &device).require_grad();
    let weight = tensor(&scaled(k * n, 2, weight_scale), [k, n], dtype, &device).require_grad();
    let bias = tensor(&values(n, 3), [n], dtype, &device).require_grad();
    let stream = DropoutStream::new(5, 6, &device);
    let y = match (fused, kind) {
        (true, Some(kind)) => linear_activated(x.clone(), weight.clone(), Some(bias.clone()), kind, Some((p, &stream))),
        (true, None) => linear(x.clone(), weight.clone(), Some(bias.clone())),
        (false, _) => {
            let sum = x.clone().matmul(weight.clone()) + bias.clone().unsqueeze();
            let y = match kind {
                None => sum,
                Some(Activation::Relu) => activation::relu(sum),
                Some(Activation::Gelu) => activation::gelu(sum),
                Some(Activation::GeluTanh) => activation::gelu_approximate(sum),
                Some(Activation::Silu) => activation::silu(sum),
            };
            if kind.is_some() { dropout(y, p, &stream) } else { y }
        }
    };
    let grads = (y.clone() * tensor(&values(m * n, 4), [m, n], dtype, &device)).sum().backward();
    let gradient = |found: Option<Tensor<2>>| host(found.expect("a gradient"));
    let dbias = host(bias.grad(&grads).expect("a gradient of the bias"));
    [host(y), gradient(x.grad(&grads)), gradient(weight.grad(&grads)), dbias]
}

#[test]
fn bias_and_activation_equal_plain_operations() {
    let all =
        [None, Some(Activation::Relu), Some(Activation::Gelu), Some(Activation::GeluTanh), Some(Activation::Silu)];
    let mut failures = Vec::new();
    // On the kernel and not, with tails, with split K, with more columns than one tile; odd sizes.
    for shape in [[5, 7, 3], [128, 64, 256], [200, 72, 264], [40, 3072, 96], [513, 128, 320]] {
        for (activation, p) in all.into_iter().flat_map(|activation| [(activation, 0.0), (activation, 0.3)]) {
            let expected = run_linear(activation, p, false, shape, DType::F32, &Device::flex());
            for (name, device) in devices() {
                for dtype in [DType::F32, DType::BF16, DType::F16] {
                    let found = run_linear(activation, p, true, shape, dtype, &device);
                    for (part, (found, expected)) in
                        ["y", "dx", "dweight", "dbias"].iter().zip(found.iter().zip(&expected))
                    {
                        let distance = crate::testing::distance(found, expected);
                        // The slope of ReLU jumps: rounding may move an argument near 0 to the other side.
                        let allowed = match (dtype, activation) {
                            (DType::F32, _) => 1e-5,
                            (_, Some(Activation::Relu)) => 8e-2,
                            _ => 2e-2,
                        };
                        if distance >= allowed || distance.is_nan() {
                            let case = format!("{part} of {shape:?} {activation:?} {p} {dtype:?} on {name}");
                            failures.push(format!("{case}: {distance:.1e}"));
                        }
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// More tiles than multiprocessors: the epilogue warps work while the next tile is multiplied. The same elements are dropped.
#[test]
fn an_epilogue_equals_the_product_and_a_pass_over_it() {
    for (name, device) in devices() {
        for (m, k, n) in [(4200, 40, 1288), (300, 96, 264), (129, 1100, 512)] {
            let x = || tensor(&values(m * k, 1), [m, k], DType::BF16, &device).into_dispatch();
            let weight = || tensor(&values(k * n, 2), [k, n], DType::BF16, &device).into_dispatch();
            let bias = || Maybe::Some(tensor(&values(n, 3), [n], DType::BF16, &device).into_dispatch());
            let stream = DropoutStream::new(5, 6, &device);
            for (activation, p) in [(Activation::GeluTanh, 0.0), (Activation::Gelu, 0.3), (Activation::Relu, 0.1)] {
                let mask = Mask::take(Some((p, &stream)), m * n);
                let passed = Dispatch::fused_linear(x(), weight(), bias(), Layout::NN, None, Mask::None);
                let y = Dispatch::activate(passed.clone(), activation, mask.clone());
                let [passed, y] = [passed, y].map(|x| host(Tensor::<2>::from_dispatch(x)));
                let (kept, both) =
                    Dispatch::fused_linear_both(x(), weight(), bias(), Layout::NN, activation, mask.clone());
                let alone = Dispatch::fused_linear(x(), weight(), bias(), Layout::NN, Some(activation), mask);
                let [kept, both, alone] = [kept, both, alone].map(|x| host(Tensor::<2>::from_dispatch(x)));
                let case = format!("{activation:?} {p} of {m} x {k} x {n} on {name}");
                assert_eq!(kept, passed, "the arguments: {case}");
                for found in [both, alone] {
                    assert_close(&case, DType::BF16, &found, &y);
                    assert!(found.iter().zip(&y).all(|(a, b)| (*a == 0.0) == (*b == 0.0)), "dropped others: {case}");
                }
            }
        }
    }
}

/// A few tiles more than multiprocessors: the last wave computes half tiles. In the last case the last half has no columns.
#[test]
fn products_of_a_tile_too_many_equal_the_host() {
    let device = match cuda() {
        Ok(device) => device,
        Err(reason) => return eprintln!("skipped on CUDA: {reason}"),
    };
    for (m, k, n) in [(2200, 40, 2000), (2200, 200, 2000), (1100, 1100, 3900), (2200, 72, 1900)] {
        let (a, b, bias) = (values(m * k, 1), values(k * n, 2), values(n, 3));
        let on = |values: &[f32], shape: [usize; 2], dtype| tensor(values, shape, dtype, &device).into_dispatch();
        let reference = |values: &[f32], shape: [usize; 2]| tensor::<2>(values, shape, DType::F32, &Device::flex());
        for (layout, of_a, of_b) in
            [(Layout::NN, [m, k], [k, n]), (Layout::NT, [m, k], [n, k]), (Layout::TN, [k, m], [k, n])]
        {
            let (left, right) = (reference(&a, of_a), reference(&b, of_b));
            let product = match layout {
                Layout::NN => left.matmul(right),
                Layout::NT => left.matmul(right.transpose()),
                Layout::TN => left.transpose().matmul(right),
            };
            let bias_row = tensor::<1>(&bias, [n], DType::F32, &Device::flex()).unsqueeze();
            let positive = activation::relu(product.clone() + bias_row);
            for (activation, expected) in [(None, host(product)), (Some(Activation::Relu), host(positive))] {
                for dtype in [DType::BF16, DType::F16] {
                    let bias = activation.map(|_| tensor::<1>(&bias, [n], dtype, &device).into_dispatch());
                    let (a, b) = (on(&a, of_a, dtype), on(&b, of_b, dtype));
                    let found = Dispatch::fused_linear(a, b, bias.into(), layout, activation, Mask::None);
                    let found = host(Tensor::<2>::from_dispatch(found));
                    let case = format!("{layout:?} {m} x {k} x {n} {activation:?}");
                    assert_close(&case, dtype, &found, &expected);
                    assert_eq!(found.iter().zip(&expected).position(is_far), None, "{case}");
                }
            }
        }
    }
}

/// Whether two elements differ by more than a rounding. A distance over all elements would hide a misplaced tile.
fn is_far((a, b): (&f32, &f32)) -> bool {
    (a - b).abs() > 0.02 * b.abs() + 0.1
}

/// Returns `(y, dx, dweight, dresidual, dbias)` of `residual + x · weight + bias`. If `sliced`, the residual consists of columns
/// of a wider matrix.
fn run_residual(
    fused: bool,
    with_bias: bool,
    sliced: bool,
    [m, k, n]: [usize; 3],
    dtype: DType,
    device: &Device,
) -> [Vec<f32>; 5] {
    let device = device.clone().autodiff();
    let x = tensor(&values(m * k, 1), [m, k], dtype, &device).require_grad();
    let weight = tensor(&values(k * n, 2), [k, n], dtype, &device).require_grad();
    let bias = tensor(&values(n, 3), [n], dtype, &device).require_grad();
    let residual = match sliced {
        true => tensor(&values(m * (n + 8), 5), [m, n + 8], dtype, &device).narrow(1, 8, n).detach(),
        false => tensor(&values(m * n, 5), [m, n], dtype, &device),
    };
    let residual = residual.require_grad();
    let y = if fused {
        linear_residual(x.clone(), weight.clone(), with_bias.then(|| bias.clone()), residual.clone())
    } else {
        let product = x.clone().matmul(weight.clone()) + residual.clone();
        if with_bias { product + bias.clone().unsqueeze() } else { product }
    };
    let grads = (y.clone() * tensor(&values(m * n, 4), [m, n], dtype, &device)).sum().backward();
    let gradient = |of: &Tensor<2>| host(of.grad(&grads).expect("a gradient"));
    let of_bias = bias.grad(&grads).map(host).unwrap_or_default();
    [host(y), gradient(&x), gradient(&weight), gradient(&residual), of_bias]
}

/// Tails, split K, and more tiles than multiprocessors: the residual of a tile is loaded while the tile before it is
/// multiplied.
#[test]
fn a_residual_is_added_to_the_product() {
    for (name, device) in devices() {
        for shape in [[3, 7, 5], [40, 3072, 96], [129, 1100, 512], [300, 96, 264], [4200, 40, 1288], [4200, 192, 1288]]
        {
            for with_bias in [true, false] {
                let sliced = with_bias && shape[0] < 1000;
                let expected = run_residual(false, with_bias, sliced, shape, DType::F32, &Device::flex());
                for dtype in [DType::F32, DType::BF16, DType::F16] {
                    let found = run_residual(true, with_bias, sliced, shape, dtype, &device);
                    let case = format!("{shape:?}, bias {with_bias}, {dtype:?}, on {name}");
                    for (part, (found, expected)) in
                        ["y", "dx", "dweight", "dresidual", "dbias"].iter().zip(found.iter().zip(&expected))
                    {
                        assert_close(&format!("{part} of {case}"), dtype, found, expected);
                    }
                    assert_eq!(found[0].iter().zip(&expected[0]).position(is_far), None, "y of {case}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "a residual with the shape of the product")]
fn a_residual_has_the_shape_of_the_product() {
    let matrix = |rows, columns| tensor(&values(rows * columns, 1), [rows, columns], DType::F32, &Device::flex());
    linear_residual(matrix(2, 3), matrix(3, 4), None, matrix(2, 3));
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

/// The linear layers of GPT-2 124M at 16 x 1024.
#[test]
fn times() {
    let Some(device) = timing_device() else { return };
    let m = 16_384;
    let matrix = |m, n| (Tensor::<2>::ones([m, n], (&device, DType::BF16)) * 1e-2).into_dispatch();
    for (k, n) in [(768, 2304), (768, 768), (768, 3072), (3072, 768), (512, 2048), (2048, 512)] {
        let (x, weight) = (matrix(m, k), matrix(k, n));
        let bias = Maybe::Some(Tensor::<1>::ones([n], (&device, DType::BF16)).into_dispatch());
        let epilogue_bias = bias.clone();
        let bytes = 2 * (m * k + k * n + m * n);
        for (what, bias, activation) in [
            ("product", Maybe::None, None),
            ("product + bias", bias.clone(), None),
            ("relu(product + bias)", bias, Some(Activation::Relu)),
        ] {
            time(&format!("{what} {m} x {k} x {n}, {:.0} GFLOP", 2e-9 * (m * k * n) as f64), bytes, &device, || {
                Dispatch::fused_linear(x.clone(), weight.clone(), bias.clone(), Layout::NN, activation, Mask::None)
            });
        }
        let residual = matrix(m, n);
        time(&format!("residual + product + bias {m} x {k} x {n}"), bytes + 2 * m * n, &device, || {
            let (x, weight, bias) = (x.clone(), weight.clone(), epilogue_bias.clone());
            Dispatch::linear_residual(x, weight, bias, residual.clone())
        });
        time(&format!("gelu_tanh(product + bias), both kept, {m} x {k} x {n}"), bytes + 2 * m * n, &device, || {
            let (x, weight, bias) = (x.clone(), weight.clone(), epilogue_bias.clone());
            Dispatch::fused_linear_both(x, weight, bias, Layout::NN, Activation::GeluTanh, Mask::None)
        });
        let stream = DropoutStream::new(5, 6, &device);
        time(&format!("dropout(relu(product + bias)) {m} x {k} x {n}"), bytes, &device, || {
            let (x, weight, bias) = (x.clone(), weight.clone(), epilogue_bias.clone());
            let mask = Mask::take(Some((0.1, &stream)), m * n);
            Dispatch::fused_linear(x, weight, bias, Layout::NN, Some(Activation::Relu), mask)
        });
        let dy = matrix(m, n);
        time(
            &format!("weight gradient {m} x {k} x {n}, {:.0} GFLOP", 2e-9 * (m * k * n) as f64),
            bytes,
            &device,
            || Dispatch::product(x.clone(), dy.clone(), Layout::TN),
        );
        let (x, dy): (Tensor<2>, Tensor<2>) = (Tensor::from_dispatch(x), Tensor::from_dispatch(dy.clone()));
        let mut sum = Some(Tensor::<2>::zeros([k, n], (&device, DType::F32)));
        time(&format!("weight gradient accumulated in f32 {m} x {k} x {n}"), bytes + 6 * k * n, &device, || {
            sum = sum.take().map(|sum| linear_weight_gradient_accumulate(x.clone(), dy.clone(), sum));
        });
        let dy = dy.into_dispatch();
        time(&format!("bias gradient {m} x {n}"), 2 * m * n, &device, || Dispatch::column_sum(dy.clone()));
    }
    for n in [2048, 3072] {
        let (x, dy) = (matrix(m, n), matrix(m, n));
        for (activation, p) in
            [(Activation::Relu, 0.0), (Activation::Relu, 0.1), (Activation::Gelu, 0.1), (Activation::GeluTanh, 0.0)]
        {
            let stream = DropoutStream::new(5, 6, &device);
            let mask = || Mask::take(Some((p, &stream)), m * n);
            time(&format!("{activation:?}, dropout {p}, {m} x {n}"), 4 * m * n, &device, || {
                Dispatch::activate(x.clone(), activation, mask())
            });
            time(&format!("its backward with the bias {m} x {n}"), 6 * m * n, &device, || {
                Dispatch::activate_backward(x.clone(), dy.clone(), activation, mask())
            });
        }
    }
}
