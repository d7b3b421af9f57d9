mod f32;
mod times;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::{AttentionConfig, AttentionMask, Projected, attention, reference};
use crate::DropoutStream;
use crate::testing::{assert_close, devices, host, part, tensor, values};

#[derive(Clone, Copy)]
struct Case {
    b: usize,
    h: usize,
    g: usize,
    t: usize,
    s: usize,
    k: usize,
    causal: bool,
    lengths: Option<&'static [i32]>,
    documents: Option<fn(usize) -> i32>,
    packed: bool,
    window: Option<usize>,
    scale: Option<f64>,
    softcap: Option<f64>,
}

impl Case {
    fn mask_and_config(&self, device: &Device) -> (AttentionMask, AttentionConfig) {
        let Case { b, h, g, t, causal, window, scale, softcap, .. } = *self;
        let ints = |values: Vec<i32>| {
            let n = values.len();
            Tensor::<1, Int>::from_data(TensorData::new(values, [n]), (device, DType::I32))
        };
        let mask = AttentionMask {
            key_lengths: self.lengths.map(|lengths| ints(lengths.to_vec())),
            documents: self.documents.map(|of| ints((0..b * t).map(|row| of(row % t)).collect())),
            bias: None,
        };
        (mask, AttentionConfig { batch_size: b, n_heads: h, n_kv_heads: g, causal, window, scale, softcap })
    }
}

/// Returns `(output, gradients of the inputs)` for the loss `sum(output * weights)`.
fn run(device: &Device, dtype: DType, case: &Case, inputs: &[Vec<f32>]) -> (Vec<f32>, Vec<Vec<f32>>) {
    run_with(attention, device, dtype, case, inputs, None)
}

type Attention = fn(Projected, &AttentionMask, Option<(f64, &DropoutStream)>, &AttentionConfig) -> Tensor<2>;

fn run_with(
    attention: Attention,
    device: &Device,
    dtype: DType,
    case: &Case,
    inputs: &[Vec<f32>],
    drop: Option<f64>,
) -> (Vec<f32>, Vec<Vec<f32>>) {
    let Case { b, h, g, t, s, k, .. } = *case;
    let device = device.clone().autodiff();
    let mut leaves: Vec<Tensor<2>> = Vec::new();
    let projected = if case.packed {
        leaves.push(tensor(&inputs[0], [b * t, (h + 2 * g) * k], dtype, &device).require_grad());
        Projected::SelfAttention { qkv: leaves[0].clone() }
    } else {
        leaves.push(tensor(&inputs[0], [b * t, h * k], dtype, &device).require_grad());
        leaves.push(tensor(&inputs[1], [b * s, 2 * g * k], dtype, &device).require_grad());
        Projected::Cross { query: leaves[0].clone(), key_value: leaves[1].clone() }
    };

    let (mask, config) = case.mask_and_config(&device.clone().inner());
    let stream = DropoutStream::new(3, 5, &device.clone().inner());
    let out = attention(projected, &mask, drop.map(|p| (p, &stream)), &config);
    let weights = tensor(&values(b * t * h * k, 9), [b * t, h * k], dtype, &device);
    let grads = (out.clone() * weights).sum().backward();
    (host(out), leaves.iter().map(|x| host(x.grad(&grads).expect("a gradient"))).collect())
}

/// Computes the definition in f64 loops.
fn expected(case: &Case, inputs: &[Vec<f32>]) -> Vec<f32> {
    let Case { b, h, g, t, s, k, causal, lengths, documents, packed, window, scale, softcap } = *case;
    let d = h * k;

    let read = |part: usize, row: usize, column: usize| -> f64 {
        f64::from(match (packed, part) {
            (true, 0) => inputs[0][row * (h + 2 * g) * k + column],
            (true, _) => inputs[0][(row * (h + 2 * g) + h + (part - 1) * g) * k + column],
            (false, 0) => inputs[0][row * d + column],
            (false, _) => inputs[1][(row * 2 * g + (part - 1) * g) * k + column],
        })
    };

    let mut out = vec![0f32; b * t * d];
    for (batch, head, i) in (0..b).flat_map(|x| (0..h).flat_map(move |y| (0..t).map(move |z| (x, y, z)))) {
        // One more than the last key that the query sees.
        let end = |i: usize| {
            let own = if causal { i + s - t + 1 } else { s };
            lengths.map_or(own, |lengths| own.min(lengths[batch] as usize))
        };
        let visible = |j: usize| {
            lengths.is_none_or(|l| j < l[batch] as usize)
                && (!causal || j <= i + s - t)
                && documents.is_none_or(|of| of(i) == of(j))
                && window.is_none_or(|window| j + window >= end(i))
        };

        let group = head * g / h;
        let score = |j: usize| -> f64 {
            let dot: f64 =
                (0..k).map(|c| read(0, batch * t + i, head * k + c) * read(1, batch * s + j, group * k + c)).sum();
            let score = dot * scale.unwrap_or(1.0 / (k as f64).sqrt());
            softcap.map_or(score, |cap| cap * (score / cap).tanh())
        };
        let weights: Vec<f64> = (0..s).map(|j| if visible(j) { score(j).exp() } else { 0.0 }).collect();
        let total: f64 = weights.iter().sum();
        for c in 0..k {
            let sum: f64 = (0..s).map(|j| weights[j] * read(2, batch * s + j, group * k + c)).sum();
            out[(batch * t + i) * d + head * k + c] = (sum / total) as f32;
        }
    }
    out
}

fn cases() -> Vec<Case> {
    let mut cases = without_windows();
    cases.extend(with_windows());
    cases.extend(with_scores_of_their_own());
    cases
}

/// A small case and one of a whole tile.
fn bases() -> [Case; 2] {
    let base = Case {
        b: 2,
        h: 3,
        g: 3,
        t: 5,
        s: 5,
        k: 8,
        causal: false,
        lengths: None,
        documents: None,
        packed: true,
        window: None,
        scale: None,
        softcap: None,
    };
    let wide = Case { b: 2, h: 4, g: 4, t: 128, s: 128, k: 64, ..base };
    [base, wide]
}

fn without_windows() -> Vec<Case> {
    let [base, wide] = bases();

    vec![
        base,
        Case { causal: true, ..base },
        Case { lengths: Some(&[5, 2]), ..base },
        Case { lengths: Some(&[1, 4]), causal: true, ..base },
        Case { packed: false, s: 9, ..base },
        Case { packed: false, s: 9, lengths: Some(&[9, 3]), ..base },
        Case { packed: false, t: 2, s: 6, causal: true, ..base },
        Case { packed: false, t: 1, s: 7, causal: true, ..base },
        Case { h: 4, g: 2, causal: true, ..base },
        Case { h: 6, g: 1, packed: false, s: 7, lengths: Some(&[7, 2]), ..base },
        Case { documents: Some(|i| (i as i32) / 2), ..base },
        Case { documents: Some(|i| i32::from(i > 2)), causal: true, lengths: Some(&[5, 5]), ..base },
        Case { b: 3, h: 8, g: 8, t: 64, s: 64, k: 64, causal: true, lengths: Some(&[64, 33, 1]), ..base },
        Case { b: 3, h: 8, g: 8, t: 40, s: 72, k: 64, lengths: Some(&[72, 33, 1]), packed: false, ..base },
        // One tile, full and partial, self-attention and cross-attention, in both head dimensions.
        Case { t: 33, s: 33, documents: Some(|i| (i / 9) as i32), causal: true, ..wide },
        Case { t: 40, s: 57, packed: false, lengths: Some(&[57, 20]), ..wide },
        Case { t: 20, s: 60, packed: false, causal: true, ..wide },
        Case { h: 2, g: 2, t: 50, s: 50, k: 128, causal: true, ..wide },
        Case { h: 2, g: 2, t: 64, s: 9, k: 128, packed: false, lengths: Some(&[9, 1]), ..wide },
        wide,
        Case { causal: true, ..wide },
        Case { causal: true, t: 200, s: 200, g: 2, ..wide },
        Case { t: 72, s: 200, packed: false, lengths: Some(&[200, 65]), ..wide },
        Case { t: 72, s: 136, causal: true, packed: false, ..wide },
        Case { t: 200, s: 200, documents: Some(|i| [0, 1, 1, 4][i / 50]), causal: true, ..wide },
        Case { t: 200, s: 200, documents: Some(|i| i32::from(i >= 70)), lengths: Some(&[200, 130]), ..wide },
        // Many turns of the pipeline, odd and even.
        Case { b: 1, h: 2, g: 1, t: 520, s: 520, causal: true, ..wide },
        Case { h: 1, g: 1, t: 500, s: 500, causal: true, lengths: Some(&[500, 130]), ..wide },
        Case { b: 1, h: 1, g: 1, t: 500, s: 500, documents: Some(|i| (i / 170) as i32), causal: true, ..wide },
        Case { h: 2, g: 1, t: 130, s: 130, k: 128, causal: true, ..wide },
        Case { h: 2, g: 2, t: 70, s: 130, k: 128, packed: false, lengths: Some(&[129, 64]), ..wide },
        // Heads of other sizes: multiples of 16 and 8, more and less than a tile's 64 columns.
        Case { t: 150, s: 150, k: 96, causal: true, ..wide },
        Case { h: 2, g: 1, t: 130, s: 130, k: 80, documents: Some(|i| (i / 47) as i32), ..wide },
        Case { h: 2, g: 2, t: 65, s: 200, k: 32, packed: false, lengths: Some(&[150, 64]), ..wide },
        Case { h: 2, g: 2, t: 40, s: 40, k: 72, causal: true, ..wide },
        Case { h: 2, g: 1, t: 100, s: 100, k: 24, causal: true, lengths: Some(&[100, 3]), ..wide },
        Case { h: 1, g: 1, t: 70, s: 70, k: 120, causal: true, ..wide },
        Case { h: 2, g: 2, t: 50, s: 50, k: 96, causal: true, ..wide },
        Case { h: 2, g: 2, t: 40, s: 57, k: 48, packed: false, lengths: Some(&[57, 20]), ..wide },
        Case { h: 1, g: 1, t: 140, s: 140, k: 112, causal: true, ..wide },
        // Wide heads: whole and partial tiles of 64 and of 32 rows, all masks, grouped queries, several turns.
        Case { h: 2, g: 1, t: 150, s: 150, k: 192, causal: true, ..wide },
        Case { h: 2, g: 1, t: 130, s: 130, k: 256, causal: true, ..wide },
        Case { h: 2, g: 2, t: 65, s: 200, k: 192, packed: false, lengths: Some(&[150, 64]), ..wide },
        Case { h: 2, g: 1, t: 70, s: 100, k: 256, packed: false, lengths: Some(&[100, 33]), ..wide },
        Case { h: 2, g: 2, t: 24, s: 40, k: 256, causal: true, packed: false, ..wide },
        Case { h: 1, g: 1, t: 300, s: 300, k: 256, documents: Some(|i| (i / 110) as i32), causal: true, ..wide },
        Case { h: 1, g: 1, t: 200, s: 200, k: 192, documents: Some(|i| (i / 47) as i32), ..wide },
        Case { t: 99, s: 99, k: 136, documents: Some(|i| (i / 47) as i32), lengths: Some(&[99, 95]), ..wide },
        Case { h: 1, g: 1, t: 70, s: 70, k: 160, causal: true, lengths: Some(&[70, 3]), ..wide },
        Case { h: 2, g: 2, t: 97, s: 97, k: 200, causal: true, ..wide },
        Case { h: 2, g: 1, t: 130, s: 130, k: 240, causal: true, ..wide },
        Case { h: 1, g: 1, t: 40, s: 33, k: 248, packed: false, ..wide },
    ]
}

fn with_windows() -> Vec<Case> {
    let [base, wide] = bases();

    vec![
        // Windows: smaller and larger than the keys, with padding, documents, and in a step of decoding.
        Case { causal: true, window: Some(1), ..base },
        Case { causal: true, window: Some(3), ..base },
        Case { causal: true, window: Some(5), ..base },
        Case { lengths: Some(&[5, 2]), causal: true, window: Some(2), ..base },
        Case { documents: Some(|i| i32::from(i > 2)), causal: true, window: Some(2), ..base },
        Case { packed: false, t: 1, s: 7, lengths: Some(&[7, 2]), window: Some(3), ..base },
        Case { packed: false, t: 2, s: 6, causal: true, window: Some(2), ..base },
        Case { packed: false, s: 9, window: Some(4), ..base },
        Case { t: 200, s: 200, g: 2, causal: true, window: Some(70), ..wide },
        Case { t: 200, s: 200, documents: Some(|i| [0, 1, 1, 4][i / 50]), causal: true, window: Some(65), ..wide },
        // Some tiles of keys are hidden from all queries of a block, and some of queries from all keys.
        Case { b: 1, h: 2, g: 1, t: 330, s: 330, causal: true, window: Some(64), ..wide },
        Case { h: 2, g: 1, t: 260, s: 260, k: 128, causal: true, lengths: Some(&[260, 70]), window: Some(33), ..wide },
        Case { h: 1, g: 1, t: 72, s: 200, packed: false, lengths: Some(&[200, 65]), window: Some(50), ..wide },
        Case { h: 1, g: 1, t: 72, s: 264, packed: false, causal: true, window: Some(90), ..wide },
        Case { t: 50, s: 50, causal: true, window: Some(7), ..wide },
        Case { b: 1, h: 2, g: 1, t: 270, s: 270, k: 96, causal: true, window: Some(40), ..wide },
        Case { b: 1, h: 2, g: 1, t: 280, s: 280, k: 192, causal: true, window: Some(70), ..wide },
        Case { h: 1, g: 1, t: 200, s: 200, k: 256, causal: true, lengths: Some(&[200, 90]), window: Some(30), ..wide },
        Case { b: 1, h: 1, g: 1, t: 200, s: 200, k: 136, causal: true, window: Some(65), ..wide },
    ]
}

fn with_scores_of_their_own() -> Vec<Case> {
    let [base, wide] = bases();

    vec![
        Case { scale: Some(1.0), ..base },
        Case { causal: true, scale: Some(0.1), lengths: Some(&[5, 2]), ..base },
        // Scores far below and far above the bound.
        Case { softcap: Some(50.0), causal: true, ..base },
        Case { softcap: Some(0.3), scale: Some(1.0), h: 4, g: 2, causal: true, ..base },
        Case { softcap: Some(0.5), packed: false, s: 9, lengths: Some(&[9, 3]), ..base },
        Case { softcap: Some(0.5), packed: false, t: 1, s: 7, lengths: Some(&[7, 2]), window: Some(3), ..base },
        Case { softcap: Some(2.0), scale: Some(0.3), t: 200, s: 200, g: 2, causal: true, window: Some(70), ..wide },
        Case { softcap: Some(0.5), t: 50, s: 50, causal: true, ..wide },
        Case { softcap: Some(0.5), h: 2, g: 1, t: 140, s: 140, k: 128, documents: Some(|i| (i / 47) as i32), ..wide },
        Case { softcap: Some(0.5), scale: Some(0.2), h: 2, g: 1, t: 150, s: 150, k: 256, causal: true, ..wide },
        Case { softcap: Some(0.5), b: 1, h: 2, g: 2, t: 140, s: 140, k: 96, causal: true, window: Some(60), ..wide },
    ]
}

fn inputs(case: &Case) -> Vec<Vec<f32>> {
    inputs_of(case, values)
}

/// Returns the numbers of the case's matrices, which `values` makes from a length and a seed.
fn inputs_of(case: &Case, values: fn(usize, u64) -> Vec<f32>) -> Vec<Vec<f32>> {
    let Case { b, h, g, t, s, k, packed, .. } = *case;
    match packed {
        true => vec![values(b * t * (h + 2 * g) * k, 1)],
        false => vec![values(b * t * h * k, 1), values(b * s * 2 * g * k, 2)],
    }
}

#[test]
fn values_equal_the_definition() {
    for (name, device) in devices() {
        for (at, ref case) in part(cases()) {
            let inputs = inputs(case);
            let expected = expected(case, &inputs);
            for dtype in [DType::F32, DType::BF16] {
                let (out, _) = run(&device, dtype, case, &inputs);
                assert_close(&format!("case {at} on {name}"), dtype, &out, &expected);
            }
        }
    }
}

#[test]
fn gradients_equal_central_differences() {
    for (name, device) in devices() {
        for (at, ref case) in part(cases()).filter(|(_, case)| case.k == 8) {
            let inputs = inputs(case);
            let (_, grads) = run(&device, DType::F32, case, &inputs);
            let weights = values(case.b * case.t * case.h * case.k, 9);
            let loss = |inputs: &[Vec<f32>]| -> f64 {
                expected(case, inputs).iter().zip(&weights).map(|(&o, &w)| f64::from(o) * f64::from(w)).sum()
            };

            for (part, grad) in grads.iter().enumerate() {
                // Every seventh element covers each of q, k and v in each head.
                let picked: Vec<usize> = (0..grad.len()).step_by(7).collect();
                let step = 1.0 / 64.0;
                let numeric: Vec<f32> = picked
                    .iter()
                    .map(|&i| {
                        let (mut up, mut down) = (inputs.clone(), inputs.clone());
                        up[part][i] += step;
                        down[part][i] -= step;
                        ((loss(&up) - loss(&down)) / (2.0 * f64::from(step))) as f32
                    })
                    .collect();
                let analytic: Vec<f32> = picked.iter().map(|&i| grad[i]).collect();
                let found = crate::testing::distance(&analytic, &numeric);
                assert!(found < 1e-3, "gradient {part} of case {at} on {name}: relative distance {found:.1e}");
            }
        }
    }
}

#[test]
fn bf16_gradients_follow_f32() {
    for (name, device) in devices() {
        for (at, ref case) in part(cases()) {
            let inputs = inputs(case);
            let (_, f32) = run(&Device::flex(), DType::F32, case, &inputs);
            let (_, bf16) = run(&device, DType::BF16, case, &inputs);
            for (part, (a, b)) in bf16.iter().zip(&f32).enumerate() {
                let found = crate::testing::distance(a, b);
                assert!(found < 1.5e-2, "gradient {part} of case {at} on {name}: relative distance {found:.1e}");
            }
        }
    }
}

/// Every device drops the probabilities that the reference on the CPU drops.
#[test]
fn dropped_probabilities_are_the_same_everywhere() {
    for (name, device) in devices() {
        for (at, ref case) in part(cases()).filter(|(_, case)| case.documents.is_none()) {
            let inputs = inputs(case);
            let plain = run_with(reference::attention, &Device::flex(), DType::F32, case, &inputs, Some(0.3));
            for dtype in [DType::F32, DType::BF16] {
                let found = run_with(attention, &device, dtype, case, &inputs, Some(0.3));
                assert_close(&format!("case {at} on {name}"), dtype, &found.0, &plain.0);
                for (part, (a, b)) in found.1.iter().zip(&plain.1).enumerate() {
                    let distance = crate::testing::distance(a, b);
                    assert!(distance < 1.5e-2, "gradient {part} of case {at} on {name}: {distance:.1e}");
                }
            }
            let (without, _) = run(&Device::flex(), DType::F32, case, &inputs);
            assert!(crate::testing::distance(&plain.0, &without) > 0.1, "nothing was dropped");
        }
    }
}

#[test]
#[should_panic(expected = "4 heads in 3 groups")]
fn heads_that_do_not_group_are_refused() {
    let case = Case { h: 4, g: 3, ..cases()[0] };
    run(&Device::flex(), DType::F32, &case, &inputs(&case));
}
