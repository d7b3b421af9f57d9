//! The optimizer in plain Burn operations.

use burn::tensor::{Bool, DType, Tensor, TensorData};
use half::bf16;

use super::rounding::Rounded;
use super::slots::{BLOCK, COLUMNS, progress as at, step};
use super::{AdamWHyper, AdamWState, Coefficients, Flat, Progress, Rounding, StepNumbers, StepPolicy};

/// See [`super::prepare`]. Flags are 0 or 1.
pub(crate) fn prepare(
    gradient: &Flat,
    divisor: Tensor<1>,
    loss: Tensor<1>,
    progress: Progress,
    coefficients: &Coefficients,
    policy: &StepPolicy,
) -> (StepNumbers, Progress) {
    let [scale, good_steps, block, row, stopped] =
        [at::LOSS_SCALE, at::GOOD_STEPS, at::BLOCKS, at::UPDATES, at::STOPPED]
            .map(|slot| number(&progress.values, slot));

    // Norm and clipping of the divided gradient.
    let unscale = match policy.scaling {
        Some(scaling) => scale.clone().recip() * scaling.unit,
        None => scale.ones_like(),
    };
    let per_label = divisor.clamp_min(1.0).recip() * unscale;
    let values = gradient.values.clone().cast(DType::F32);
    let norm = (values.clone() * values).sum().sqrt() * per_label.clone();
    let clip = match policy.max_norm > 0.0 {
        true => ((norm.clone() + 1e-6).recip() * policy.max_norm).clamp_max(1.0),
        false => norm.ones_like(),
    };

    // Whether the update is made, and with which coefficients.
    let finite = is_finite(&norm) * is_finite(&loss);
    let taken = finite.clone() * not(&stopped);
    let rows = (coefficients.values.dims()[0] - 1) / COLUMNS;
    let table = coefficients.values.clone().narrow(0, 1, rows * COLUMNS).reshape([rows, COLUMNS]);
    let ahead = (block.clone() - number(&coefficients.values, 0)) * BLOCK as f32 + row.clone();
    let coefficients = table.select(0, ahead.clamp(0.0, (rows - 1) as f32).int()).reshape([COLUMNS]);

    // The counters after the step.
    let next = row.clone() + taken.clone();
    let wraps = flag(next.clone().greater_equal_elem(BLOCK as f32));
    let (next_block, next_row) = (block.clone() + wraps.clone(), next * not(&wraps));
    let [next_scale, next_good_steps, next_stopped] = rescaled([scale.clone(), good_steps, stopped], &finite, policy);

    // In the order of the slots.
    let numbers = vec![norm, clip * per_label, taken, coefficients, scale, block, row, next_stopped.clone()];
    let progress = vec![next_scale, next_good_steps, next_block, next_row, next_stopped];
    (StepNumbers { values: Tensor::cat(numbers, 0) }, Progress { values: Tensor::cat(progress, 0) })
}

/// Returns loss scale, good steps and the stop flag after a step.
fn rescaled([scale, good_steps, stopped]: [Tensor<1>; 3], finite: &Tensor<1>, policy: &StepPolicy) -> [Tensor<1>; 3] {
    let Some(scaling) = policy.scaling else {
        let stopped = if policy.stops { (stopped + not(finite)).clamp_max(1.0) } else { stopped };
        return [scale, good_steps, stopped];
    };

    let in_a_row = (good_steps.clone() + 1.0) * finite.clone();
    let (grown, lowered) = (scale.clone() * scaling.growth_factor, scale.clone() * scaling.backoff_factor);
    let grows = flag(in_a_row.clone().greater_equal_elem(scaling.growth_interval as f32));
    let raised = scale.clone().mask_where((grows.clone() * is_finite(&grown)).greater_elem(0.5), grown);

    let fails = flag(lowered.clone().lower_elem(scaling.floor)) * not(finite);
    let next_stopped = (stopped + fails).clamp_max(1.0);
    let kept = next_stopped.clone().greater_elem(0.5);
    let next_scale = lowered.mask_where(finite.clone().greater_elem(0.5), raised).mask_where(kept.clone(), scale);
    let next_good_steps = (in_a_row * not(&grows)).mask_where(kept, good_steps);
    [next_scale, next_good_steps, next_stopped]
}

fn number(of: &Tensor<1>, slot: usize) -> Tensor<1> {
    of.clone().narrow(0, slot, 1)
}

fn not(flag: &Tensor<1>) -> Tensor<1> {
    -flag.clone() + 1.0
}

fn flag(of: Tensor<1, Bool>) -> Tensor<1> {
    of.float().cast(DType::F32)
}

/// Returns 1 if `x` is finite: otherwise `0 * x` is NaN, which does not equal itself.
fn is_finite(x: &Tensor<1>) -> Tensor<1> {
    let zero = x.clone() * 0.0;
    flag(zero.clone().equal(zero))
}

/// See [`super::adamw_step`]. Every tensor of the result is a new one.
pub(crate) fn adamw_step(state: AdamWState, gradient: Flat, numbers: &StepNumbers, hyper: &AdamWHyper) -> AdamWState {
    let AdamWState { master, m, v, weights } = state;
    let next = updated([&master, &m, &v], gradient, numbers, hyper);
    let [master, m, v] = unless_skipped(next, [master, m, v], numbers);
    let weights = weights.map(|weights| master.clone().cast(weights.dtype()));
    AdamWState { m, v, master, weights }
}

/// See [`super::adamw_step_rounded`]. Every tensor of the result is a new one. The host reads the tensors to round them.
pub(crate) fn adamw_step_rounded(
    state: [Tensor<1>; 3],
    gradient: Flat,
    numbers: &StepNumbers,
    hyper: &AdamWHyper,
    rounding: Rounding,
) -> [Tensor<1>; 3] {
    let exact = state.each_ref().map(|part| part.clone().cast(DType::F32));
    let next = updated(exact.each_ref(), gradient, numbers, hyper);

    let read = |tensor: &Tensor<1>| tensor.to_data().try_into_vec::<f32>().expect("f32");
    let of_step = read(&numbers.values);
    let [master, m, v] = next;
    let parts = [(master, Rounded::Master), (m, Rounded::FirstMoment), (v, Rounded::SecondMoment)];
    let rounded = parts.map(|(part, which)| {
        let mut rounded = vec![bf16::ZERO; part.dims()[0]];
        rounding.round(&read(&part), &mut rounded, 0, which, &of_step);
        Tensor::from_data(TensorData::new(rounded, part.shape()), (&part.device(), DType::BF16))
    });
    unless_skipped(rounded, state, numbers)
}

/// Returns weights and moments after a step, f32, from those before it, f32.
fn updated(
    [master, m, v]: [&Tensor<1>; 3],
    gradient: Flat,
    numbers: &StepNumbers,
    hyper: &AdamWHyper,
) -> [Tensor<1>; 3] {
    let number = |slot: usize| number(&numbers.values, slot);

    // Not a comparison with an `arange`: Burn counts by a running sum, which takes a GPU 20 s for 14 million elements.
    let mut decay = master.ones_like();
    if hyper.n_decayed > 0 {
        let decayed = (-number(step::DECAY) + 1.0).expand([hyper.n_decayed]);
        decay = decay.slice_assign(0..hyper.n_decayed, decayed);
    }

    let g = gradient.values.cast(DType::F32) * number(step::GRADIENT_FACTOR);
    let next_m = m.clone() * hyper.beta1 + g.clone() * (1.0 - hyper.beta1);
    let next_v = v.clone() * hyper.beta2 + g.clone() * (1.0 - hyper.beta2) * g;
    let denominator = next_v.clone().sqrt() * number(step::SECOND_MOMENT) + hyper.eps;
    let update = next_m.clone() * number(step::LEARNING_RATE) / denominator;
    [master.clone() * decay - update, next_m, next_v]
}

/// Returns `before` in place of `next` if the step is not taken.
fn unless_skipped(next: [Tensor<1>; 3], before: [Tensor<1>; 3], numbers: &StepNumbers) -> [Tensor<1>; 3] {
    let skipped = number(&numbers.values, step::TAKEN).equal_elem(0.0).expand(before[0].dims());
    let mut before = before.into_iter();
    next.map(|next| next.mask_where(skipped.clone(), before.next().expect("as many tensors")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::{ALIGNMENT, Counters, LossScaling, Place, gather};
    use crate::testing::{assert_close, devices, host, tensor, values};

    /// Makes four steps over two tensors, the first of them decayed, and returns master, moments, weights, norms and
    /// all counters. The gradient of the second step is not finite.
    fn run(device: &burn::tensor::Device, policy: StepPolicy, plain: bool) -> [Vec<f32>; 6] {
        let n = 2 * ALIGNMENT;
        let hyper = AdamWHyper { beta1: 0.9, beta2: 0.98, eps: 1e-8, weight_decay: 0.1, n_decayed: ALIGNMENT };
        let places = [Place { offset: 0, len: 200 }, Place { offset: ALIGNMENT, len: ALIGNMENT }];
        let mut state = AdamWState::new(tensor(&values(n, 1), [n], DType::F32, device), DType::BF16);
        let counters = Counters { updates: BLOCK as u64 - 2, loss_scale: 4.0, good_steps: 1 };
        let mut progress = Progress::new(counters, device);
        let coefficients = Coefficients::new(&hyper, |update| 1e-2 / update as f64, counters.updates, 2000, device);
        let mut counted = Vec::new();
        let mut norms = Vec::new();
        for step in 1..=4 {
            let scale = if step == 2 { f32::INFINITY } else { 3.0 };
            let part = |len: usize, seed: u64| {
                tensor(&values(len, seed).iter().map(|x| x * scale).collect::<Vec<_>>(), [len], DType::BF16, device)
            };
            let parts = vec![part(200, 10 + step).into(), part(ALIGNMENT, 20 + step).into()];
            let flat = gather(parts, &places, n, DType::BF16, device, None);
            let divisor = Tensor::from_data([4.0f32], (device, DType::F32));
            let loss = Tensor::ones([1], (device, DType::F32));
            let prepare = if plain { prepare } else { crate::optim::prepare };
            let (numbers, after) = prepare(&flat, divisor, loss, progress, &coefficients, &policy);
            progress = after;
            norms.push(host(numbers.norm())[0]);
            counted.extend(host(numbers.values().clone().narrow(0, step::TAKEN, step::LEN - step::TAKEN)));
            counted.extend(host(progress.values().clone()));
            let take = if plain { adamw_step } else { crate::optim::adamw_step };
            state = take(state, flat, &numbers, &hyper);
        }
        let AdamWState { master, m, v, weights } = state;
        [host(master), host(m), host(v), host(weights.expect("bf16 weights")), norms, counted]
    }

    #[test]
    fn kernels_and_references_agree() {
        let scaling =
            |floor| LossScaling { unit: 2.0, growth_factor: 2.0, growth_interval: 2, backoff_factor: 0.5, floor };
        for (name, device) in devices() {
            for (scaling, stops) in
                [(None, false), (None, true), (Some(scaling(1.0)), true), (Some(scaling(5.0)), false)]
            {
                let policy = StepPolicy { max_norm: 1.0, scaling, stops };
                let (plain, fused) = (run(&device, policy, true), run(&device, policy, false));
                for (part, i) in [("master", 0), ("m", 1), ("v", 2), ("weights", 3)] {
                    let dtype = if i == 3 { DType::BF16 } else { DType::F32 };
                    assert_close(&format!("{part} on {name}, {policy:?}"), dtype, &plain[i], &fused[i]);
                }
                assert!(!plain[4][1].is_finite() && !fused[4][1].is_finite(), "{:?} {:?}", plain[4], fused[4]);
                assert!((plain[4][2] / fused[4][2] - 1.0).abs() < 1e-5, "{:?} {:?}", plain[4], fused[4]);
                assert_eq!(plain[5], fused[5], "{policy:?} on {name}");
            }
        }
    }
}
