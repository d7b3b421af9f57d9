mod cases;
mod f32;
pub(super) mod long_rows;
mod times;

use burn::tensor::{DType, Device, Tensor};
use cases::{Case, cases, inputs};

use super::{AttentionConfig, AttentionMask, Projected, attention, reference};
use crate::DropoutStream;
use crate::testing::{assert_close, devices, host, part, tensor, values};

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

    let (mut mask, config) = case.mask_and_config(&device.clone().inner());
    if case.relative {
        leaves.push(tensor(&inputs[1], [h, 2 * t - 1], dtype, &device).require_grad());
        mask.relative = leaves.last().cloned();
    }
    let stream = DropoutStream::new(3, 5, &device.clone().inner());
    let out = attention(projected, &mask, drop.map(|p| (p, &stream)), &config);
    let weights = tensor(&values(b * t * h * k, 9), [b * t, h * k], dtype, &device);
    let grads = (out.clone() * weights).sum().backward();
    (host(out), leaves.iter().map(|x| host(x.grad(&grads).expect("a gradient"))).collect())
}

/// Computes the definition in f64 loops.
fn expected(case: &Case, inputs: &[Vec<f32>]) -> Vec<f32> {
    let Case { b, h, g, t, s, k, causal, lengths, documents, packed, window, scale, softcap, relative } = *case;
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
            let score = softcap.map_or(score, |cap| cap * (score / cap).tanh());
            score + if relative { f64::from(inputs[1][head * (2 * t - 1) + j + t - 1 - i]) } else { 0.0 }
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
