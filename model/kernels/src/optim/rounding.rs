//! Stochastic rounding to bf16, with random bits from a counter.
//!
//! A number between two neighbours of bf16 becomes the upper one with the probability that its distance from the lower one says
//! (Gupta et al. 2015, "Deep learning with limited numerical precision"). The mean over many roundings is therefore the number itself, and
//! changes that are too small for bf16 are not lost.
//!
//! Bits come from Philox4x32-7 (Salmon et al. 2011) with key = seed and counter = (element / 8, tensor, updates made). Each element uses
//! sixteen bits, as many as bf16 lacks of f32. They do not depend on the order of the work or on the number of ranks.

use half::bf16;

use super::slots::step;
use crate::dropout::philox::philox_many;

/// Elements that share one Philox call.
pub(super) const OCTET: usize = 8;
/// Calls that the CPU computes together.
const CALLS: usize = 16;

/// What a state that is kept in bf16 is rounded by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounding {
    /// Chooses the random bits, as the seed of a run.
    pub seed: u64,
    /// The place of the state's first element among all parameters, a multiple of [`ALIGNMENT`](super::ALIGNMENT): a slice or a group of
    /// parameters gets the bits that it gets as a part of the whole.
    pub first: usize,
}

/// Tensors of an update. Dropout's sites count up from 0, so no tensor shares the random bits of a mask.
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub(crate) enum Rounded {
    Master = 0x8000_0000,
    FirstMoment = 0x8000_0001,
    SecondMoment = 0x8000_0002,
}

impl Rounding {
    /// Returns the words of the seed.
    pub(crate) fn key(self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32]
    }

    /// Returns the first eight elements' part of the counter.
    pub(crate) fn first_octet(self) -> u32 {
        u32::try_from(self.first / OCTET).expect("at most 2^35 parameters")
    }

    /// Rounds `values` to `rounded`. They begin `at` elements behind the state's first one, a multiple of 8. `numbers` are the step's.
    pub(super) fn round(self, values: &[f32], rounded: &mut [bf16], at: usize, which: Rounded, numbers: &[f32]) {
        let updates = [step::BLOCKS, step::UPDATES].map(|slot| [numbers[slot] as u32; CALLS]);
        let mut octet = self.first_octet() + (at / OCTET) as u32;
        for (values, rounded) in values.chunks(OCTET * CALLS).zip(rounded.chunks_mut(OCTET * CALLS)) {
            let octets = std::array::from_fn(|call| octet.wrapping_add(call as u32));
            let words = philox_many([octets, [which as u32; CALLS], updates[0], updates[1]], self.key());
            for (i, (value, rounded)) in values.iter().zip(rounded).enumerate() {
                let word = words[i % OCTET / 2][i / OCTET];
                *rounded = between_neighbours(*value, if i % 2 == 0 { word & 0xffff } else { word >> 16 });
            }
            octet = octet.wrapping_add(CALLS as u32);
        }
    }
}

/// Rounds `value` by sixteen random `bits`: adds them below the last digit of bf16, and cuts off. Numbers that bf16 has, infinities and NaN
/// stay.
fn between_neighbours(value: f32, bits: u32) -> bf16 {
    let digits = value.to_bits();
    let is_nan = digits & 0x7fff_ffff > 0x7f80_0000;
    let cut_off = if is_nan { digits | 0x0040_0000 } else { digits + bits };
    bf16::from_bits((cut_off >> 16) as u16)
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device, Tensor};

    use super::*;
    use crate::optim::{
        ALIGNMENT, AdamWHyper, AdamWState, CHUNK, Flat, StepNumbers, adamw_step_rounded, gather, is_updated_in_place,
    };
    use crate::optim::{Place, reference};
    use crate::testing::{devices, host, precise_values, tensor, values};

    const ROUNDING: Rounding = Rounding { seed: 0x1234_5678_9abc_def0, first: 0 };

    /// The numbers of the step after `updates`, on the host.
    fn numbers_after(updates: usize) -> [f32; step::LEN] {
        let mut numbers = [0f32; step::LEN];
        (numbers[step::BLOCKS], numbers[step::UPDATES]) = ((updates / 1024) as f32, (updates % 1024) as f32);
        numbers
    }

    fn rounded(values: &[f32], at: usize, updates: usize) -> Vec<f32> {
        let mut rounded = vec![bf16::ZERO; values.len()];
        ROUNDING.round(values, &mut rounded, at, Rounded::Master, &numbers_after(updates));
        rounded.into_iter().map(bf16::to_f32).collect()
    }

    /// The distance between the neighbours of `value` in bf16.
    fn unit_in_the_last_place(value: f32) -> f64 {
        2f64.powi(value.abs().log2().floor() as i32 - 7)
    }

    #[test]
    fn the_mean_of_many_roundings_is_the_number_itself() {
        for value in [1.000_1f32, -3.3, 0.1, 1e-20, -65_504.7, 1.999_9, 3e-5] {
            let (copies, updates) = (vec![value; CHUNK], 256);
            let unit = unit_in_the_last_place(value);
            let mut sum = 0.0;
            for update in 0..updates {
                for found in rounded(&copies, 0, 1000 + update) {
                    let distance = f64::from(found) - f64::from(value);
                    assert!(distance.abs() < unit, "{found} is further than one unit from {value}");
                    sum += distance;
                }
            }
            // Of a million roundings, the mean has a standard deviation of at most 0.0005 units.
            let mean = sum / (updates * CHUNK) as f64;
            assert!(mean.abs() < 0.0025 * unit, "{value}: off by {} units", mean / unit);
        }
    }

    #[test]
    fn numbers_that_bf16_has_stay_and_so_do_infinities_and_nan() {
        let mut exact = values(1024, 1);
        exact[..6].copy_from_slice(&[0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, 3.389_531_4e38, 1e-40_f32]);
        exact[5] = bf16::from_f32(exact[5]).to_f32();
        for updates in 0..32 {
            let found = rounded(&exact, 0, updates);
            assert!(found.iter().zip(&exact).all(|(found, exact)| found.to_bits() == exact.to_bits()));
            let nan =
                rounded(&[f32::NAN, -f32::NAN, f32::from_bits(0x7fff_ffff), f32::from_bits(0x7f80_0001)], 0, updates);
            assert!(nan.iter().all(|x| x.is_nan()), "{nan:?}");
        }
    }

    #[test]
    fn bits_depend_on_seed_update_place_and_tensor() {
        let values = precise_values(1024, 1);
        let all = rounded(&values, 0, 5);
        assert_eq!(rounded(&values[256..], 256, 5), all[256..], "the place counts, not the call");
        assert_ne!(rounded(&values, 0, 6), all);
        assert_ne!(rounded(&values, 0, 5 + 1024), all);
        assert_ne!(rounded(&values, 1024, 5), all);
        let with = |rounding: Rounding, which| {
            let mut rounded = vec![bf16::ZERO; values.len()];
            rounding.round(&values, &mut rounded, 0, which, &numbers_after(5));
            rounded.into_iter().map(bf16::to_f32).collect::<Vec<_>>()
        };
        assert_ne!(with(ROUNDING, Rounded::FirstMoment), all);
        assert_ne!(with(Rounding { seed: 7, ..ROUNDING }, Rounded::Master), all);
        assert_eq!(with(Rounding { first: 1024, ..ROUNDING }, Rounded::Master), rounded(&values, 1024, 5));
    }

    const HYPER: AdamWHyper =
        AdamWHyper { beta1: 0.9, beta2: 0.98, eps: 1e-8, weight_decay: 0.1, n_decayed: 2 * ALIGNMENT };
    /// Ends within a chunk.
    const N: usize = 2 * CHUNK + 3 * ALIGNMENT;

    /// The numbers of step `updates + 1` at a learning rate.
    fn step_numbers(updates: usize, lr: f64, device: &Device) -> StepNumbers {
        let coefficients = HYPER.coefficients(lr, updates as u64 + 1);
        let mut numbers = numbers_after(updates);
        (numbers[step::GRADIENT_FACTOR], numbers[step::TAKEN]) = (0.5, 1.0);
        numbers[step::COEFFICIENTS..][..3].copy_from_slice(&coefficients);
        StepNumbers { values: tensor(&numbers, [step::LEN], DType::F32, device) }
    }

    fn gradient(values: &[f32], dtype: DType, device: &Device) -> Flat {
        let n = values.len();
        let part = tensor(values, [n], dtype, device).into();
        gather(vec![part], &[Place { offset: 0, len: n }], n, dtype, device, None)
    }

    fn start(n: usize, device: &Device) -> AdamWState {
        AdamWState::new(tensor(&values(n, 1), [n], DType::BF16, device) * 1.0, DType::BF16)
    }

    fn parts(state: &AdamWState) -> [Vec<f32>; 3] {
        [&state.master, &state.m, &state.v].map(|part| host(part.clone()))
    }

    /// On the CPU with equal bits. A GPU fuses multiplications with additions, so that some numbers are rounded to the other neighbour.
    #[test]
    fn kernels_and_references_agree() {
        for (name, device) in devices() {
            for dtype in [DType::BF16, DType::F32] {
                let (mut fused, mut plain) = (start(N, &device), parts(&start(N, &device)));
                for updates in 1022..1027 {
                    let (flat, numbers) = (
                        gradient(&values(N, 10 + updates as u64), dtype, &device),
                        step_numbers(updates, 1e-2, &device),
                    );
                    let before = plain.each_ref().map(|part| tensor(part, [N], DType::BF16, &device));
                    let after = reference::adamw_step_rounded(before, flat.clone(), &numbers, &HYPER, ROUNDING);
                    plain = after.map(host);
                    fused = adamw_step_rounded(fused, flat, &numbers, &HYPER, ROUNDING);

                    for (found, wanted) in parts(&fused).iter().zip(&plain) {
                        let differ = found.iter().zip(wanted).filter(|(found, wanted)| found != wanted);
                        let most = if name == "cpu" { 0 } else { N / 100 };
                        assert!(differ.count() <= most, "update {updates}, gradients in {dtype:?} on {name}");
                    }
                    // Each step of a GPU is compared from the same numbers.
                    let [master, m, v] = plain.each_ref().map(|part| tensor(part, [N], DType::BF16, &device) * 1.0);
                    fused = AdamWState { master, m, v, weights: None };
                }
            }
        }
    }

    #[test]
    fn slices_have_the_bits_of_the_whole() {
        for (name, device) in devices() {
            let (flat, numbers) = (gradient(&values(N, 2), DType::BF16, &device), step_numbers(3, 1e-2, &device));
            let whole = parts(&adamw_step_rounded(start(N, &device), flat.clone(), &numbers, &HYPER, ROUNDING));
            let bounds = [0, ALIGNMENT, CHUNK + ALIGNMENT, N];
            for bounds in bounds.windows(2) {
                let (first, len) = (bounds[0], bounds[1] - bounds[0]);
                let part = |of: Tensor<1>| of.narrow(0, first, len) * 1.0;
                let AdamWState { master, m, v, .. } = start(N, &device);
                let slice = AdamWState { master: part(master), m: part(m), v: part(v), weights: None };
                let n_decayed = HYPER.n_decayed.clamp(first, first + len) - first;
                let (hyper, rounding) = (AdamWHyper { n_decayed, ..HYPER }, Rounding { first, ..ROUNDING });
                let after = adamw_step_rounded(slice, flat.part(first, len), &numbers, &hyper, rounding);
                let wanted = whole.each_ref().map(|part| part[first..first + len].to_vec());
                assert_eq!(parts(&after), wanted, "{len} numbers at {first} on {name}");
            }
        }
    }

    /// The nearest number of bf16 would stay 1 forever: the next one below is 1 - 1/256.
    #[test]
    fn changes_that_are_too_small_for_bf16_add_up() {
        let hyper = AdamWHyper { n_decayed: 0, ..HYPER };
        for (name, device) in devices() {
            let ones = Tensor::<1>::ones([CHUNK], (&device, DType::BF16)) * 1.0;
            let mut state = AdamWState::new(ones, DType::F32);
            assert_eq!(state.compute_weights().dtype(), DType::F32, "a model in f32 has weights of its own");
            for updates in 0..100 {
                let numbers = step_numbers(updates, 1e-4, &device);
                state =
                    adamw_step_rounded(state, gradient(&[2.0; CHUNK], DType::F32, &device), &numbers, &hyper, ROUNDING);
            }
            let (master, weights) = (host(state.master.clone()), host(state.compute_weights().clone()));
            assert_eq!(master, weights, "on {name}");
            let mean = master.iter().map(|x| f64::from(*x)).sum::<f64>() / CHUNK as f64;
            assert!((mean - 0.99).abs() < 5e-4, "{mean} on {name}");
            assert!(is_updated_in_place(&device) == (name == "cuda"));
        }
    }

    #[test]
    fn a_step_that_is_not_taken_changes_nothing() {
        for (name, device) in devices() {
            let before = parts(&start(N, &device));
            let mut numbers = host(step_numbers(3, 1e-2, &device).values);
            numbers[step::TAKEN] = 0.0;
            let numbers = StepNumbers { values: tensor(&numbers, [step::LEN], DType::F32, &device) };
            let flat = gradient(&vec![f32::NAN; N], DType::BF16, &device);
            let after = adamw_step_rounded(start(N, &device), flat, &numbers, &HYPER, ROUNDING);
            assert_eq!(parts(&after), before, "on {name}");
        }
    }

    #[test]
    #[should_panic(expected = "weights and moments that are rounded to bf16")]
    fn a_state_in_f32_is_refused() {
        let device = Device::flex();
        let state = AdamWState::new(Tensor::ones([ALIGNMENT], (&device, DType::F32)), DType::F32);
        let flat = gradient(&[1.0; ALIGNMENT], DType::F32, &device);
        adamw_step_rounded(state, flat, &step_numbers(0, 1e-2, &device), &HYPER, ROUNDING);
    }
}
