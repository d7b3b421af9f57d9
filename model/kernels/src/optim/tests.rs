use burn::tensor::{DType, Device, Tensor};

use super::slots::{BLOCK, step};
use super::{
    ALIGNMENT, AdamWHyper, AdamWState, CHUNK, Coefficients, Counters, Flat, LossScaling, Part, Place, Progress,
    StepNumbers, StepPolicy, StepReport, adamw_step, clipping_factor, gather, is_updated_in_place, overwrite, prepare,
    view,
};
use crate::testing::{assert_close, devices, distance, host, tensor, time, timing_device, values};

/// Returns places for tensors of these lengths, one behind the other, and the length of the whole.
fn places(lens: &[usize]) -> (Vec<Place>, usize) {
    let mut offset = 0;
    let places = lens
        .iter()
        .map(|&len| {
            let place = Place { offset, len };
            offset += place.padded_len();
            place
        })
        .collect();
    (places, offset)
}

fn flat(values: &[f32], dtype: DType, device: &Device) -> Flat {
    let (places, n) = places(&[values.len()]);
    gather(vec![tensor(values, [values.len()], dtype, device).into()], &places, n, dtype, device, None)
}

fn scalar(value: f32, device: &Device) -> Tensor<1> {
    tensor(&[value], [1], DType::F32, device)
}

const HYPER: AdamWHyper = AdamWHyper { beta1: 0.9, beta2: 0.98, eps: 1e-9, weight_decay: 0.1, n_decayed: 0 };
const UNSCALED: StepPolicy = StepPolicy { max_norm: 0.0, scaling: None, stops: false };

fn fresh(updates: u64, loss_scale: f32, device: &Device) -> Progress {
    Progress::new(Counters { updates, loss_scale, good_steps: 0 }, device)
}

/// Returns the numbers of a first step.
fn first(gradient: &Flat, divisor: f32, max_norm: f64, device: &Device) -> StepNumbers {
    let coefficients = Coefficients::new(&HYPER, |_| 0.1, 0, 1, device);
    let (divisor, loss) = (scalar(divisor, device), scalar(1.0, device));
    prepare(gradient, divisor, loss, fresh(0, 1.0, device), &coefficients, &StepPolicy { max_norm, ..UNSCALED }).0
}

/// Lengths that end on a vector, within a vector, on a chunk and beyond a chunk; more parts than one launch takes.
const LENS: [usize; 19] = [8, 1, 256, 4096, 4097, 12_288, 5, 768, 3, 2, 9000, 64, 100, 24, 1, 640, 7, 512, 33];

#[test]
fn an_overwritten_tensor_has_the_new_numbers_and_so_do_views_on_a_gpu() {
    for (name, device) in devices() {
        let n = 9 * CHUNK + 3 * ALIGNMENT;
        for dtype in [DType::F32, DType::BF16] {
            let (old, new) = (values(n, 1), values(n, 2));
            let target = tensor(&old, [n], dtype, &device) * 1.0;
            let seen: Tensor<1> = view(&target, ALIGNMENT, [CHUNK]);
            let found = overwrite(target, tensor(&new, [n], DType::F32, &device));

            let wanted = host(tensor(&new, [n], DType::F32, &device).cast(dtype));
            assert_eq!(found.dtype(), dtype);
            assert_eq!(host(found), wanted, "{name}, {dtype:?}");
            if is_updated_in_place(&device) {
                assert_eq!(host(seen), wanted[ALIGNMENT..ALIGNMENT + CHUNK], "{name}, {dtype:?}: a view");
            }
        }
    }
}

#[test]
fn parts_lie_at_their_places_with_zeros_between() {
    // The last part comes first in the flat tensor.
    let (mut places, n) = places(&LENS.into_iter().rev().collect::<Vec<_>>());
    places.reverse();

    for (name, device) in devices() {
        for (dtype, into) in [(DType::F32, DType::F32), (DType::BF16, DType::BF16), (DType::BF16, DType::F32)] {
            let parts = |seed: u64| -> Vec<Part> {
                let part = |(i, &len): (usize, &usize)| {
                    let values = values(len, seed + i as u64);
                    // Of different ranks, as a model's.
                    if i % 2 == 0 {
                        tensor(&values, [len], dtype, &device).into()
                    } else {
                        tensor(&values, [1, len], dtype, &device).into()
                    }
                };
                LENS.iter().enumerate().map(part).collect()
            };
            let mut expected = vec![0f32; n];
            for (i, place) in places.iter().enumerate() {
                expected[place.offset..][..place.len].copy_from_slice(&values(place.len, 1 + i as u64));
            }
            let once = gather(parts(1), &places, n, into, &device, None);
            assert_eq!(host(once.values.clone()), expected, "{dtype:?} into {into:?} on {name}");
            let twice = gather(parts(1), &places, n, into, &device, Some(once));
            let doubled: Vec<f32> = expected.iter().map(|x| 2.0 * x).collect();
            assert_eq!(host(twice.values.clone()), doubled, "added on {name}");
            let norm = doubled.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            let found = host(first(&twice, 1.0, 0.0, &device).norm());
            assert!(distance(&found, &[norm as f32]) < 1e-5, "norm {found:?} instead of {norm} on {name}");
        }
    }
}

#[test]
fn a_view_shows_its_part() {
    for (name, device) in devices() {
        let (places, n) = places(&[300, 24]);
        let parts = vec![
            tensor(&values(300, 1), [300], DType::BF16, &device).into(),
            tensor(&values(24, 2), [24], DType::BF16, &device).into(),
        ];
        let flat = gather(parts, &places, n, DType::BF16, &device, None).values;
        let seen = view(&flat, places[1].offset, [4, 6]);
        assert_eq!(host(seen.clone()), values(24, 2), "on {name}");
        // Through a kernel of the backend too.
        assert_eq!(host(seen * 2.0), values(24, 2).iter().map(|x| x * 2.0).collect::<Vec<_>>(), "doubled on {name}");
    }
}

/// Compares ten steps with PyTorch's update, one scalar at a time in f64.
#[test]
fn ten_steps_equal_the_scalar_recurrence() {
    let (n, n_decayed) = (5000, 2 * ALIGNMENT);
    let (lr, divisor) = (1e-2, 2.0f32);
    let hyper = AdamWHyper { beta1: 0.9, beta2: 0.98, eps: 1e-9, weight_decay: 0.1, n_decayed };
    for (name, device) in devices() {
        for (gradient_dtype, weight_dtype) in
            [(DType::F32, DType::F32), (DType::F32, DType::BF16), (DType::BF16, DType::BF16)]
        {
            let start = values(n, 1);
            let mut state = AdamWState::new(flat(&start, DType::F32, &device).values, weight_dtype);
            // A view taken before the first step.
            let seen = view(state.compute_weights(), ALIGNMENT, [2, 24]);
            let mut p: Vec<f64> = start.iter().map(|&x| f64::from(x)).collect();
            let (mut m, mut v) = (vec![0f64; n], vec![0f64; n]);
            let coefficients = Coefficients::new(&hyper, |_| lr, 0, 10, &device);
            let mut progress = fresh(0, 1.0, &device);
            for step in 1..=10u64 {
                let grad = values(n, 100 + step);
                let gradient = flat(&grad, gradient_dtype, &device);
                let (labels, loss) = (scalar(divisor, &device), scalar(1.0, &device));
                let (numbers, after) = prepare(&gradient, labels, loss, progress, &coefficients, &UNSCALED);
                progress = after;
                state = adamw_step(state, gradient, &numbers, &hyper);
                for i in 0..n {
                    let g = f64::from(grad[i]) / f64::from(divisor);
                    m[i] = hyper.beta1 * m[i] + (1.0 - hyper.beta1) * g;
                    v[i] = hyper.beta2 * v[i] + (1.0 - hyper.beta2) * g * g;
                    let m_hat = m[i] / (1.0 - hyper.beta1.powi(step as i32));
                    let v_hat = v[i] / (1.0 - hyper.beta2.powi(step as i32));
                    let decay = if i < n_decayed { 1.0 - lr * hyper.weight_decay } else { 1.0 };
                    p[i] = p[i] * decay - lr * m_hat / (v_hat.sqrt() + hyper.eps);
                }
            }
            let f32s = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<_>>();
            let found = |x: &Tensor<1>| host(x.clone())[..n].to_vec();
            let what = |part: &str| format!("{part} ({gradient_dtype:?} gradient, {weight_dtype:?} weights) on {name}");
            assert_close(&what("masters"), DType::F32, &found(&state.master), &f32s(&p));
            assert_close(&what("first moments"), DType::F32, &found(&state.m), &f32s(&m));
            assert_close(&what("second moments"), DType::F32, &found(&state.v), &f32s(&v));
            assert_close(&what("weights"), weight_dtype, &found(state.compute_weights()), &f32s(&p));
            if is_updated_in_place(&device) {
                device.flush().expect("a flush");
                let expected = &found(state.compute_weights())[ALIGNMENT..ALIGNMENT + 48];
                assert_eq!(host(seen), expected, "the view on {name}");
            }
        }
    }
}

#[test]
fn the_norm_is_divided_and_clipped() {
    for (name, device) in devices() {
        let x = values(100_000, 1);
        let gradient = flat(&x, DType::F32, &device);
        let norm = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        for (divisor, max_norm) in [(1.0, 0.0), (1.0, 1.0), (1.0, 1e6), (640.0, 0.1), (0.0, 2.0)] {
            let divided = norm / f64::max(divisor, 1.0);
            let clip = if max_norm > 0.0 { (max_norm / (divided + 1e-6)).min(1.0) } else { 1.0 };
            let expected = [divided, clip / f64::max(divisor, 1.0), 1.0].map(|x| x as f32);
            let found = host(first(&gradient, divisor as f32, max_norm, &device).values);
            for (found, expected) in found.iter().zip(expected) {
                assert!((found / expected - 1.0).abs() < 1e-5, "{found} instead of {expected} on {name}");
            }
        }
    }
}

#[test]
fn a_gradient_is_clipped_by_the_factor_of_a_step() {
    for (name, device) in devices() {
        let gradient = flat(&values(5000, 3), DType::F32, &device);
        for max_norm in [0.5, 1e6] {
            let (found, wanted) = (clipping_factor(&gradient, max_norm), first(&gradient, 1.0, max_norm, &device));
            assert_eq!(host(found), host(wanted.gradient_factor()), "{name}, at most {max_norm}");
        }
        let broken = flat(&[1.0, f32::INFINITY], DType::F32, &device);
        assert_eq!(host(clipping_factor(&broken, 1.0)), [0.0], "{name}");
    }
}

#[test]
fn an_unconditional_step_is_the_step_with_its_coefficients() {
    for (name, device) in devices() {
        let (weights, gradient) = (values(5000, 1), flat(&values(5000, 2), DType::F32, &device));
        let stepped = |numbers: StepNumbers| {
            let padded = flat(&weights, DType::F32, &device).values;
            let state = adamw_step(AdamWState::new(padded, DType::F32), gradient.clone(), &numbers, &HYPER);
            [state.master, state.m, state.v].map(host)
        };
        let numbers = StepNumbers::unconditional(HYPER.coefficients(0.1, 1), &device);
        assert_eq!(stepped(numbers), stepped(first(&gradient, 1.0, 0.0, &device)), "{name}");
    }
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    for (name, device) in devices() {
        for bad in [f32::NAN, f32::INFINITY] {
            let start = values(1000, 1);
            let state = AdamWState::new(flat(&start, DType::F32, &device).values, DType::BF16);
            let mut grad = values(1000, 2);
            grad[777] = bad;
            let gradient = flat(&grad, DType::F32, &device);
            let numbers = first(&gradient, 1.0, 1.0, &device);
            let state = adamw_step(state, gradient, &numbers, &HYPER);
            assert_eq!(host(state.master)[..1000], start, "masters after {bad} on {name}");
            assert!(host(state.m).iter().chain(&host(state.v)).all(|&x| x == 0.0), "moments after {bad} on {name}");
            assert!(!host(numbers.norm())[0].is_finite(), "the norm of {bad} on {name}");
        }
    }
}

/// Prepares a step for each `(gradient, loss)` and returns its report, the counters after it and its coefficients.
fn reports(
    steps: &[(f32, f32)],
    mut progress: Progress,
    coefficients: &Coefficients,
    policy: &StepPolicy,
    device: &Device,
) -> Vec<(StepReport, Counters, [f32; 3])> {
    let report = |&(gradient, loss): &(f32, f32)| {
        let gradient = flat(&[gradient], DType::F32, device);
        let (one, loss) = (scalar(1.0, device), scalar(loss, device));
        let (numbers, after) = prepare(&gradient, one, loss, progress.clone(), coefficients, policy);
        progress = after;
        let numbers = host(numbers.values().clone());
        let coefficients = [step::LEARNING_RATE, step::SECOND_MOMENT, step::DECAY].map(|slot| numbers[slot]);
        let counters = Progress::counters(&progress.values().clone().into_data());
        (StepNumbers::report(&numbers), counters, coefficients)
    };
    steps.iter().map(report).collect()
}

#[test]
fn a_skipped_update_advances_neither_schedule_nor_bias_corrections() {
    let lr = |update: u64| update as f64 / 1000.0;
    for (name, device) in devices() {
        // Across the end of a block, in a table that begins a block earlier.
        let before = 2 * BLOCK as u64 - 2;
        let coefficients = Coefficients::new(&HYPER, lr, before, before + 5, &device);
        assert!(coefficients.last() >= before + 5);
        let steps = [(1.0, 1.0), (f32::NAN, 1.0), (2.0, 1.0), (1.0, f32::INFINITY), (3.0, -1.0), (1.0, 1.0)];
        let found = reports(&steps, fresh(before, 1.0, &device), &coefficients, &UNSCALED, &device);
        let mut updates = before;
        for ((report, counters, columns), taken) in found.into_iter().zip([true, false, true, false, true, true]) {
            assert_eq!((report.taken, report.update, report.stopped), (taken, updates + 1, false), "on {name}");
            let wanted = HYPER.coefficients(lr(report.update), report.update);
            assert_eq!(columns, wanted, "update {} on {name}", report.update);
            updates += u64::from(taken);
            assert_eq!(counters, Counters { updates, loss_scale: 1.0, good_steps: 0 }, "on {name}");
        }
        let policy = StepPolicy { stops: true, ..UNSCALED };
        let found = reports(
            &steps[..3],
            fresh(0, 1.0, &device),
            &Coefficients::new(&HYPER, lr, 0, 0, &device),
            &policy,
            &device,
        );
        let taken: Vec<_> = found.iter().map(|(report, ..)| (report.taken, report.stopped)).collect();
        assert_eq!(taken, [(true, false), (false, true), (false, true)], "none after a failed one on {name}");
    }
}

#[test]
fn the_loss_scale_grows_backs_off_and_stops_the_run_at_its_floor() {
    let scaling = LossScaling { unit: 4.0, growth_factor: 2.0, growth_interval: 3, backoff_factor: 0.5, floor: 2.0 };
    let policy = StepPolicy { max_norm: 0.25, scaling: Some(scaling), stops: true };
    for (name, device) in devices() {
        let coefficients = Coefficients::new(&HYPER, |_| 0.1, 0, 20, &device);
        let (good, bad) = ((8.0, 1.0), (f32::INFINITY, 1.0));
        let steps = [good, good, bad, good, good, good, good, bad, bad, bad, bad, good];
        let found = reports(&steps, fresh(0, 8.0, &device), &coefficients, &policy, &device);
        let counts: Vec<_> =
            found.iter().map(|(report, after, _)| (report.loss_scale, after.good_steps, after.updates)).collect();
        let wanted = [
            (8.0, 1, 1),
            (8.0, 2, 2),
            (8.0, 0, 2),
            (4.0, 1, 3),
            (4.0, 2, 4),
            (4.0, 0, 5), // three in a row
            (8.0, 1, 6),
            (8.0, 0, 6),
            (4.0, 0, 6),
            (2.0, 0, 6), // at the floor
            (2.0, 0, 6),
            (2.0, 0, 6),
        ];
        assert_eq!(counts, wanted, "on {name}");
        let stopped: Vec<_> = found.iter().map(|(report, ..)| report.stopped).collect();
        assert_eq!(stopped.iter().position(|stopped| *stopped), Some(9), "on {name}");
        assert!(stopped[9..].iter().all(|stopped| *stopped) && !found[11].0.taken, "for good on {name}");
        // A gradient of 8, scaled by 8 / 4.
        assert_eq!(found[0].0.norm, 4.0, "on {name}");
    }
}

/// GPT-2 124M.
#[test]
fn times() {
    let Some(device) = timing_device() else { return };
    let mut lens = vec![50304 * 768, 1024 * 768];
    for _ in 0..12 {
        lens.extend([768, 768, 768 * 2304, 2304, 768 * 768, 768, 768, 768, 768 * 3072, 3072, 3072 * 768, 768]);
    }
    lens.extend([768, 768]);
    let (places, n) = places(&lens);
    let hyper = AdamWHyper { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, n_decayed: n };
    let grads: Vec<Tensor<1>> = lens.iter().map(|&len| Tensor::ones([len], (&device, DType::BF16)) * 1e-3).collect();
    for into in [DType::BF16, DType::F32] {
        let parts = || grads.iter().map(|g| g.clone().into()).collect::<Vec<Part>>();
        let once = || gather(parts(), &places, n, into, &device, None);
        time(&format!("gather {n} bf16 into {into:?}"), n * (2 + into.size()), &device, once);
        let mut sum = once();
        time(&format!("gather {n} bf16 onto {into:?}"), n * (2 + 2 * into.size()), &device, || {
            sum = gather(parts(), &places, n, into, &device, Some(sum.clone()));
        });
        let numbers = first(&sum, 1.0, 1.0, &device);
        time("numbers of a step", 0, &device, || first(&sum, 1.0, 1.0, &device));
        let mut state = AdamWState::new(Tensor::ones([n], (&device, DType::F32)), DType::BF16);
        time(&format!("step of {n}, {into:?} gradient"), n * (26 + into.size()), &device, || {
            state = adamw_step(state.clone(), sum.clone(), &numbers, &hyper);
        });
        assert!(host(state.master.narrow(0, 0, 8)).iter().all(|x| x.is_finite() && *x < 1.0), "it was computed");
    }
}
