//! The optimizer in plain Burn operations.

use burn::tensor::{DType, Int, Tensor};

use super::{AdamWHyper, AdamWState, Flat, Measured};

/// See [`super::measure`].
pub(crate) fn measure(gradient: &Flat, divisor: Tensor<1>, max_norm: f64) -> Measured {
    let values = gradient.values.clone().cast(DType::F32);
    let share = divisor.clamp_min(1.0).recip();
    let norm = (values.clone() * values).sum().sqrt() * share.clone();
    let clip = match max_norm > 0.0 {
        true => ((norm.clone() + 1e-6).recip() * max_norm).clamp_max(1.0),
        false => norm.ones_like(),
    };
    // What is not finite is no number once multiplied by zero, and not equal to itself then.
    let zero = norm.clone() * 0.0;
    let finite = zero.clone().equal(zero).float().cast(DType::F32);
    Measured { values: Tensor::cat(vec![norm, clip * share, finite], 0) }
}

/// See [`super::adamw_step`]. Every tensor of the result is a new one.
pub(crate) fn adamw_step(
    state: AdamWState,
    gradient: Flat,
    measured: &Measured,
    schedule: Tensor<1>,
    hyper: &AdamWHyper,
) -> AdamWState {
    let AdamWState { master, m, v, weights } = state;
    let number = |of: &Tensor<1>, at: usize| of.clone().narrow(0, at, 1);
    let (n, device) = (master.dims()[0], master.device());
    let decayed = Tensor::<1, Int>::arange(0..n as i64, &device).lower_elem(hyper.n_decayed as i64).float();
    let decay = -(decayed.cast(DType::F32) * number(&schedule, 2)) + 1.0;
    let g = gradient.values.cast(DType::F32) * number(&measured.values, 1);
    let next_m = m.clone() * hyper.beta1 + g.clone() * (1.0 - hyper.beta1);
    let next_v = v.clone() * hyper.beta2 + g.clone() * g * (1.0 - hyper.beta2);
    let update = next_m.clone() * number(&schedule, 0) / (next_v.clone().sqrt() * number(&schedule, 1) + hyper.eps);
    let next_master = master.clone() * decay - update;
    let skipped = number(&measured.values, 2).equal_elem(0.0).expand([n]);
    let or_before = |next: Tensor<1>, before: Tensor<1>| next.mask_where(skipped.clone(), before);
    let master = or_before(next_master, master);
    let weights = weights.map(|weights| master.clone().cast(weights.dtype()));
    AdamWState { m: or_before(next_m, m), v: or_before(next_v, v), master, weights }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adamw::{ALIGNMENT, Place, gather};
    use crate::testing::{assert_close, devices, host, tensor, values};

    /// Three steps over two tensors, the first of them decayed, the second step with a gradient that is not finite:
    /// master, moments, weights, norms.
    fn run(device: &burn::tensor::Device, plain: bool) -> [Vec<f32>; 5] {
        let n = 2 * ALIGNMENT;
        let hyper = AdamWHyper { beta1: 0.9, beta2: 0.98, eps: 1e-8, weight_decay: 0.1, n_decayed: ALIGNMENT };
        let places = [Place { offset: 0, len: 200 }, Place { offset: ALIGNMENT, len: ALIGNMENT }];
        let mut state = AdamWState::new(tensor(&values(n, 1), [n], DType::F32, device), DType::BF16);
        let mut norms = Vec::new();
        for step in 1..=3 {
            let scale = if step == 2 { f32::INFINITY } else { 3.0 };
            let part = |len: usize, seed: u64| {
                tensor(&values(len, seed).iter().map(|x| x * scale).collect::<Vec<_>>(), [len], DType::BF16, device)
            };
            let parts = vec![part(200, 10 + step).into(), part(ALIGNMENT, 20 + step).into()];
            let flat = gather(parts, &places, n, DType::BF16, device, None);
            let divisor = Tensor::from_data([4.0f32], (device, DType::F32));
            let schedule = hyper.schedule(1e-2, step, device);
            let measured = match plain {
                true => measure(&flat, divisor, 1.0),
                false => crate::measure(&flat, divisor, 1.0),
            };
            norms.push(host(measured.norm())[0]);
            let take = if plain { adamw_step } else { crate::adamw_step };
            state = take(state, flat, &measured, schedule, &hyper);
        }
        let AdamWState { master, m, v, weights } = state;
        [host(master), host(m), host(v), host(weights.expect("bf16 weights")), norms]
    }

    #[test]
    fn kernels_and_plain_operations_agree() {
        for (name, device) in devices() {
            let (plain, fused) = (run(&device, true), run(&device, false));
            for (part, i) in [("master", 0), ("m", 1), ("v", 2), ("weights", 3)] {
                let dtype = if i == 3 { DType::BF16 } else { DType::F32 };
                assert_close(&format!("{part} on {name}"), dtype, &plain[i], &fused[i]);
            }
            assert!(!plain[4][1].is_finite() && !fused[4][1].is_finite(), "{:?} {:?}", plain[4], fused[4]);
            assert!((plain[4][2] / fused[4][2] - 1.0).abs() < 1e-5, "{:?} {:?}", plain[4], fused[4]);
        }
    }
}
