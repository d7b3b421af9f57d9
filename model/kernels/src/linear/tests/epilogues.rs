//! Bias, activation, dropout and residual.

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Tensor, activation};

use crate::activation::Activation;
use crate::dropout::{DropoutStream, Mask, dropout};
use crate::linear::{Layout, LinearOps, ProductKind, linear, linear_activated, linear_residual};
use crate::maybe::Maybe;
use crate::testing::{assert_close, cuda, devices, host, tensor, values};

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
                Some(kind) => kind.reference(sum),
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
    let all: Vec<_> = [None].into_iter().chain(Activation::ALL.map(Some)).collect();
    let mut failures = Vec::new();

    // On the kernel and not, with tails, with split K, with more columns than one tile; odd sizes.
    for shape in
        [[5, 7, 3], [4, 768, 96], [128, 64, 256], [200, 72, 264], [40, 3072, 96], [513, 128, 320], [6000, 64, 576]]
    {
        for (activation, p) in all.iter().copied().flat_map(|activation| [(activation, 0.0), (activation, 0.3)]) {
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
                let passed =
                    Dispatch::fused_linear(x(), weight(), bias(), ProductKind::new(Layout::NN), None, Mask::None);
                let y = Dispatch::activate(passed.clone(), activation, mask.clone());
                let [passed, y] = [passed, y].map(|x| host(Tensor::<2>::from_dispatch(x)));

                let (kept, both) = Dispatch::fused_linear_both(
                    x(),
                    weight(),
                    bias(),
                    ProductKind::new(Layout::NN),
                    activation,
                    mask.clone(),
                );
                let alone =
                    Dispatch::fused_linear(x(), weight(), bias(), ProductKind::new(Layout::NN), Some(activation), mask);
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
                    let found =
                        Dispatch::fused_linear(a, b, bias.into(), ProductKind::new(layout), activation, Mask::None);
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
        for shape in [
            [3, 7, 5],
            [6, 768, 520],
            [40, 3072, 96],
            [129, 1100, 512],
            [300, 96, 264],
            [4200, 40, 1288],
            [4200, 192, 1288],
            // Tiles of 192 columns.
            [9000, 200, 576],
        ] {
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
