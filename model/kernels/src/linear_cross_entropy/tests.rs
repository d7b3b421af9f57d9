use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::{Projection, linear_cross_entropy, row_losses};
use crate::cross_entropy::CrossEntropyConfig;
use crate::settings::Settings;
use crate::testing::{assert_close, devices, distance, host, tensor, time, timing_device, values};

const PAD: i64 = 3;

/// A head and the rows it projects.
#[derive(Debug, Clone, Copy)]
struct Case {
    rows: usize,
    d: usize,
    vocabulary: usize,
    transposed: bool,
    bias: bool,
    label_smoothing: f64,
    softcap: Option<f64>,
}

/// Returns `[loss, nll, dx, dweight, dbias]` for a gradient of 3 of the loss.
fn run(case: Case, chunk_rows: usize, dtype: DType, device: &Device) -> [Vec<f32>; 5] {
    let Case { rows, d, vocabulary, transposed, bias, label_smoothing, softcap } = case;
    let device = device.clone().autodiff();
    let scaled = |len: usize, seed: u64| values(len, seed).iter().map(|x| x * 0.5).collect::<Vec<_>>();
    let x = tensor(&scaled(rows * d, 1), [rows, d], dtype, &device).require_grad();
    let shape = if transposed { [vocabulary, d] } else { [d, vocabulary] };
    let weight = tensor(&scaled(d * vocabulary, 2), shape, dtype, &device).require_grad();
    let bias = bias.then(|| tensor(&scaled(vocabulary, 3), [vocabulary], dtype, &device).require_grad());
    let labels: Vec<i32> =
        (0..rows).map(|i| if i % 5 == 4 { PAD as i32 } else { (i * 37 % vocabulary) as i32 }).collect();
    let labels = Tensor::<1, Int>::from_data(TensorData::new(labels, [rows]), (&device, DType::I32));
    let config = CrossEntropyConfig { label_smoothing, ignore_index: PAD };
    let projection = Projection { weight: weight.clone(), transposed, bias: bias.clone(), softcap };
    let losses = linear_cross_entropy(x.clone(), projection, labels, &config, chunk_rows);
    let grads = (losses.loss_sum.clone() * 3.0).backward();
    [
        host(losses.loss_sum),
        host(losses.nll_sum),
        host(x.grad(&grads).expect("a gradient of x")),
        host(weight.grad(&grads).expect("a gradient of the weight")),
        bias.map_or_else(Vec::new, |bias| host(bias.grad(&grads).expect("a gradient of the bias"))),
    ]
}

/// Vocabularies that are multiples of 8 and that are not, incomplete last chunks, chunks larger than the batch, and
/// more rows in a chunk than a device has multiprocessors.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, d, vocabulary) in
        [(7, 8, 24), (70, 40, 101), (130, 72, 257), (200, 64, 1000), (33, 5, 13), (1100, 16, 267)]
    {
        for transposed in [false, true] {
            for bias in [false, true] {
                let label_smoothing = if bias { 0.1 } else { 0.0 };
                cases.push(Case { rows, d, vocabulary, transposed, bias, label_smoothing, softcap: None });
            }
            let softcap = Some(0.8);
            cases.push(Case { rows, d, vocabulary, transposed, bias: false, label_smoothing: 0.1, softcap });
        }
    }
    cases
}

#[test]
fn chunks_equal_the_whole() {
    for (name, device) in devices() {
        for case in cases() {
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let whole = run(case, 0, DType::F32, &device);
                for chunk_rows in [1, 64, 1000] {
                    let chunked = run(case, chunk_rows, dtype, &device);
                    let parts = ["loss", "nll", "dx", "dweight", "dbias"];
                    for (part, (got, expected)) in parts.into_iter().zip(chunked.iter().zip(&whole)) {
                        let what = format!("{part} of {case:?} by {chunk_rows} on {name}");
                        // The logits are rounded, and probabilities inherit their error.
                        let allowed = if dtype == DType::F32 { 2e-6 } else { 1e-2 };
                        let found = distance(got, expected);
                        assert!(found <= allowed, "{what} in {dtype:?}: {found:.1e}, allowed {allowed:.0e}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_whole_equals_the_definition_where_rows_have_gaps() {
    for (name, device) in devices() {
        for case in cases() {
            let expected = run(case, 0, DType::F32, &Device::flex());
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let got = run(case, 0, dtype, &device);
                for (got, expected) in got.iter().zip(&expected) {
                    let allowed = if dtype == DType::F32 { 2e-6 } else { 1e-2 };
                    let found = distance(got, expected);
                    assert!(found <= allowed, "{case:?} on {name} in {dtype:?}: {found:.1e}, allowed {allowed:.0e}");
                }
            }
        }
    }
}

/// Gradients that are not requested do not exist, and the others do not change.
#[test]
fn frozen_weights_get_nothing() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let x = tensor(&values(12 * 8, 1), [12, 8], DType::F32, &device).require_grad();
        let weight = tensor(&values(8 * 20, 2), [20, 8], DType::F32, &device);
        let bias = tensor(&values(20, 3), [20], DType::F32, &device);
        let labels = Tensor::<1, Int>::from_data(TensorData::new(vec![1i32; 12], [12]), (&device, DType::I32));
        let config = CrossEntropyConfig { label_smoothing: 0.0, ignore_index: PAD };
        let gradient = |chunk_rows: usize| {
            let projection =
                Projection { weight: weight.clone(), transposed: true, bias: Some(bias.clone()), softcap: None };
            let losses = linear_cross_entropy(x.clone(), projection, labels.clone(), &config, chunk_rows);
            let grads = losses.loss_sum.backward();
            assert!(weight.grad(&grads).is_none() && bias.grad(&grads).is_none());
            host(x.grad(&grads).expect("a gradient of x"))
        };
        assert_close(name, DType::F32, &gradient(5), &gradient(0));
    }
}

#[test]
#[should_panic(expected = "12 rows of hidden states, but 11 labels")]
fn a_label_for_each_row() {
    let device = Device::flex();
    let x = tensor(&values(12 * 8, 1), [12, 8], DType::F32, &device);
    let weight = tensor(&values(8 * 20, 2), [20, 8], DType::F32, &device);
    let labels = Tensor::<1, Int>::from_data(TensorData::new(vec![1i32; 11], [11]), (&device, DType::I32));
    let config = CrossEntropyConfig { label_smoothing: 0.0, ignore_index: PAD };
    linear_cross_entropy(x, Projection { weight, transposed: true, bias: None, softcap: None }, labels, &config, 4);
}

/// The heads of GPT-2 124M at 16 x 1024, padded vocabulary and not, and of the translator, forward and backward.
#[test]
fn times() {
    let Some(device) = timing_device() else { return };
    let device = device.autodiff();
    for (rows, d, vocabulary) in [(16_384, 768, 50_304), (16_384, 768, 50_257), (25_600, 512, 32_000)] {
        let matrix = |m, n| (Tensor::<2>::ones([m, n], (&device, DType::BF16)) * 1e-2).require_grad();
        let (x, weight) = (matrix(rows, d), matrix(vocabulary, d));
        let labels = Tensor::<1, Int>::ones([rows], (&device, DType::I32));
        let config = CrossEntropyConfig { label_smoothing: 0.1, ignore_index: 0 };
        for chunk_rows in [0, 2048, 4096, 8192] {
            let what = format!(
                "head {rows} x {d} x {vocabulary} by {chunk_rows}, {} GFLOP",
                6 * rows * d * vocabulary / 1_000_000_000
            );
            time(&what, 6 * rows * vocabulary, &device, || {
                let projection = Projection { weight: weight.clone(), transposed: true, bias: None, softcap: None };
                let losses = linear_cross_entropy(x.clone(), projection, labels.clone(), &config, chunk_rows);
                let grads = losses.loss_sum.backward();
                (x.grad(&grads), weight.grad(&grads))
            });
        }
    }
}

/// Returns the losses of the rows, and the gradients of `x` and of the weight for a loss that weighs each row differently.
fn weighed(case: Case, chunk_rows: usize, dtype: DType, device: &Device, trains_weight: bool) -> [Vec<f32>; 3] {
    let Case { rows, d, vocabulary, transposed, softcap, .. } = case;
    let device = device.clone().autodiff();
    let x = tensor(&values(rows * d, 1), [rows, d], dtype, &device).require_grad();
    let shape = if transposed { [vocabulary, d] } else { [d, vocabulary] };
    let weight = tensor(&values(d * vocabulary, 2), shape, dtype, &device).set_require_grad(trains_weight);
    let labels: Vec<i32> = (0..rows).map(|i| if i % 5 == 4 { -1 } else { (i * 37 % vocabulary) as i32 }).collect();
    let labels = Tensor::<1, Int>::from_data(TensorData::new(labels, [rows]), (&device, DType::I32));
    let projection = Projection { weight: weight.clone(), transposed, bias: None, softcap };

    let losses = row_losses(x.clone(), projection, labels, -1, chunk_rows);
    let by: Tensor<1> = tensor(&values(rows, 7), [rows], DType::F32, &device);
    let grads = (losses.clone() * by).sum().backward();
    let of_weight = weight.grad(&grads).map(host).unwrap_or_default();
    [host(losses), host(x.grad(&grads).expect("a gradient of x")), of_weight]
}

#[test]
fn rows_have_gradients_of_their_own() {
    let reference = |case, dtype| {
        let _reference = Settings { reference_operators: true, ..Settings::current() }.install();
        weighed(case, 0, dtype, &Device::flex(), true)
    };
    for (name, device) in devices() {
        for case in cases().into_iter().filter(|case| !case.bias) {
            let expected = reference(case, DType::F32);
            for (chunk_rows, dtype) in [(0, DType::F32), (32, DType::F32), (1000, DType::F32), (32, DType::BF16)] {
                let found = weighed(case, chunk_rows, dtype, &device, true);
                let context = format!("{case:?} in chunks of {chunk_rows} on {name}, {dtype:?}");
                let allowed = if dtype == DType::F32 { 1e-5 } else { 2e-2 };
                for (part, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let distance = distance(found, expected);
                    assert!(distance < allowed, "part {part} of {context}: {distance:.1e}");
                }
            }
            let frozen = weighed(case, 32, DType::F32, &device, false);
            assert!(frozen[2].is_empty() && distance(&frozen[1], &expected[1]) < 1e-5, "{case:?} on {name}");
        }
    }
}
