//! The optimizer on the CPU: chunks in parallel, sums in a fixed order.

use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape, Slice};
use burn_flex::{Flex, FlexTensor};
use half::bf16;
use rayon::prelude::*;

use super::flat::{ALIGNMENT, CHUNK};
use super::ops::{AdamWOps, Factors, Parts, Segment, record_gather, record_update};
use super::rounding::Rounded;
use super::slots::{BLOCK, COLUMNS, progress, step};
use super::{Rounding, StepPolicy};
use crate::calls;
use crate::host::vector::{dot, vectorized_fn};
use crate::host::{change, floats, owned, tensor, view};

impl AdamWOps for Flex {
    fn flat_gather(
        parts: Parts<Self>,
        values: FlexTensor,
        squares: FlexTensor,
        segments: Vec<Segment>,
        accumulate: bool,
    ) -> (FlexTensor, FlexTensor) {
        let _call = record_gather(&values, &segments, accumulate);
        let parts = parts.into_vec();
        let mut sums = floats(squares);

        let values = change(values, |values| {
            let targets = slices(values, segments.iter().map(|s| (s.offset, s.len.next_multiple_of(ALIGNMENT))));
            let of_chunks = |s: &Segment| (s.first_chunk, s.len.next_multiple_of(ALIGNMENT).div_ceil(CHUNK));
            let sums = slices(&mut sums, segments.iter().map(of_chunks));
            let targets = targets.into_par_iter().zip(sums);

            targets.zip(&parts).for_each(|((target, sums), part)| {
                let part = view(part);
                target.par_chunks_mut(CHUNK).zip(sums).enumerate().for_each(|(i, (chunk, sum))| {
                    // Behind the part come zeros, up to the alignment.
                    let part = &part[(i * CHUNK).min(part.len())..];
                    *sum = gather(chunk, part, accumulate);
                });
            });
        });
        (values, flat(sums, DType::F32))
    }

    fn flat_view(flat: FlexTensor, offset: usize, shape: Vec<usize>) -> FlexTensor {
        let len: usize = shape.iter().product();
        Self::float_reshape(Self::float_slice(flat, &[Slice::from(offset..offset + len)]), Shape::from(shape))
    }

    fn adamw_prepare(
        squares: FlexTensor,
        divisor: FlexTensor,
        loss: FlexTensor,
        coefficients: FlexTensor,
        progress: FlexTensor,
        policy: StepPolicy,
    ) -> (FlexTensor, FlexTensor) {
        let _call = calls::begin(|| calls::of_passes("norm of the gradient", &squares, 1));
        let before = floats(progress);
        let coefficients = floats(coefficients);
        assert_eq!(before.len(), progress::LEN, "the counters of a run: {before:?}");

        // Norm and clipping of the divided gradient.
        let scale = before[progress::LOSS_SCALE];
        let unscale = policy.scaling.map_or(1.0, |scaling| f64::from(scaling.unit) / f64::from(scale));
        let per_label = unscale / f64::from(floats(divisor)[0].max(1.0));
        let norm = floats(squares).into_iter().map(f64::from).sum::<f64>().sqrt() * per_label;
        let clip = if policy.max_norm > 0.0 { (policy.max_norm / (norm + 1e-6)).min(1.0) } else { 1.0 };

        // Whether the update is made, and with which coefficients.
        let is_finite = (norm as f32).is_finite() && floats(loss)[0].is_finite();
        let is_taken = is_finite && before[progress::STOPPED] == 0.0;
        let (first_block, rows) = (coefficients[0], &coefficients[1..]);
        let ahead = (before[progress::BLOCKS] - first_block).max(0.0) as usize * BLOCK;
        let row = (ahead + before[progress::UPDATES] as usize).min(rows.len() / COLUMNS - 1);

        let after = advance(&before, is_finite, is_taken, policy);

        let mut numbers = vec![0f32; step::LEN];
        numbers[step::NORM] = norm as f32;
        numbers[step::GRADIENT_FACTOR] = (clip * per_label) as f32;
        numbers[step::TAKEN] = f32::from(u8::from(is_taken));
        numbers[step::COEFFICIENTS..][..COLUMNS].copy_from_slice(&rows[COLUMNS * row..][..COLUMNS]);
        numbers[step::LOSS_SCALE] = scale;
        numbers[step::BLOCKS] = before[progress::BLOCKS];
        numbers[step::UPDATES] = before[progress::UPDATES];
        numbers[step::STOPPED] = after[progress::STOPPED];
        (flat(numbers, DType::F32), flat(after, DType::F32))
    }

    fn adamw(
        master: FlexTensor,
        m: FlexTensor,
        v: FlexTensor,
        gradient: FlexTensor,
        numbers: FlexTensor,
        factors: Factors,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let _call = record_update(&master, &gradient, None);
        let numbers = floats(numbers);
        if numbers[step::TAKEN] == 0.0 {
            return (master, m, v);
        }

        let mut state = [master, m, v].map(owned);
        by_chunks(state.each_mut().map(|part| part.storage_mut::<f32>()), &view(&gradient), |i, state, gradient| {
            update_chunk(i, state, gradient, &numbers, factors);
        });
        state.into()
    }

    fn adamw_mixed(
        master: FlexTensor,
        m: FlexTensor,
        v: FlexTensor,
        weights: FlexTensor,
        gradient: FlexTensor,
        numbers: FlexTensor,
        factors: Factors,
    ) -> (FlexTensor, FlexTensor, FlexTensor, FlexTensor) {
        let _call = calls::begin(|| calls::of_passes("round weights", &weights, 1));
        let dtype = weights.dtype();
        let (master, m, v) = Self::adamw(master, m, v, gradient, numbers, factors);
        let weights = flat(floats(master.clone()), dtype);
        (master, m, v, weights)
    }

    fn adamw_rounded(
        master: FlexTensor,
        m: FlexTensor,
        v: FlexTensor,
        gradient: FlexTensor,
        numbers: FlexTensor,
        (factors, rounding): (Factors, Rounding),
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let _call = record_update(&master, &gradient, None);
        let numbers = floats(numbers);
        if numbers[step::TAKEN] == 0.0 {
            return (master, m, v);
        }

        let mut state = [master, m, v].map(owned_bf16);
        by_chunks(
            state.each_mut().map(|part| part.storage_mut::<bf16>()),
            &view(&gradient),
            |i, mut rounded, gradient| {
                let mut exact = rounded.each_ref().map(|part| part.iter().map(|x| x.to_f32()).collect::<Vec<f32>>());
                update_chunk(i, exact.each_mut().map(Vec::as_mut_slice), gradient, &numbers, factors);

                let tensors = [Rounded::Master, Rounded::FirstMoment, Rounded::SecondMoment];
                for ((exact, rounded), which) in exact.iter().zip(&mut rounded).zip(tensors) {
                    rounding.round(exact, rounded, i * CHUNK, which, &numbers);
                }
            },
        );
        state.into()
    }
}

/// Gives each chunk of weights and moments to `update`, with its number and its gradient, on all threads.
fn by_chunks<E: Send>(state: [&mut [E]; 3], gradient: &[f32], update: impl Fn(usize, [&mut [E]; 3], &[f32]) + Sync) {
    let [master, m, v] = state.map(|part| part.par_chunks_mut(CHUNK));
    let chunks = master.zip(m.zip(v)).zip(gradient.par_chunks(CHUNK));
    chunks.enumerate().for_each(|(i, ((master, (m, v)), gradient))| update(i, [master, m, v], gradient));
}

/// Updates chunk number `i` of weights and moments, of which the first numbers have weight decay.
fn update_chunk(i: usize, state: [&mut [f32]; 3], gradient: &[f32], numbers: &[f32], factors: Factors) {
    let n_decayed = factors.n_decayed.saturating_sub(i * CHUNK).min(gradient.len());
    let [(master, other_master), (m, other_m), (v, other_v)] = state.map(|part| part.split_at_mut(n_decayed));
    let (gradient, other) = gradient.split_at(n_decayed);
    update([master, m, v], gradient, 1.0 - numbers[step::DECAY], numbers, factors);
    update([other_master, other_m, other_v], other, 1.0, numbers, factors);
}

/// Returns the bf16 tensor in memory that only this reference sees, if it is not a part of a larger one.
fn owned_bf16(tensor: FlexTensor) -> FlexTensor {
    let n_bytes = 2 * tensor.layout().num_elements();
    let is_whole = tensor.is_contiguous() && tensor.layout().start_offset() == 0 && tensor.bytes().len() == n_bytes;
    if is_whole { tensor } else { FlexTensor::from_data(tensor.into_data()) }
}

/// Returns slices that do not overlap, each given by its first number and its length.
fn slices(mut values: &mut [f32], places: impl Iterator<Item = (usize, usize)>) -> Vec<&mut [f32]> {
    let mut places: Vec<_> = places.enumerate().collect();
    places.sort_unstable_by_key(|(_, (first, _))| *first);

    let mut start = 0;
    let mut slices: Vec<_> = places.iter().map(|_| <&mut [f32]>::default()).collect();
    for (i, (first, len)) in places {
        let (slice, rest) = std::mem::take(&mut values)[first - start..].split_at_mut(len);
        slices[i] = slice;
        (values, start) = (rest, first + len);
    }
    slices
}

vectorized_fn! {
    /// Writes or adds the first numbers of `part`, with zeros behind them. Returns the sum of squares of the chunk.
    fn gather(chunk: &mut [f32], part: &[f32], accumulate: bool) -> f32 {
        let (added, rest) = chunk.split_at_mut(part.len().min(chunk.len()));
        if accumulate {
            added.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
        } else {
            added.copy_from_slice(&part[..added.len()]);
            rest.fill(0.0);
        }
        dot(chunk, chunk)
    }

    /// Updates weights and moments by a gradient that is not yet divided and clipped. `decay` is a factor of the weights.
    fn update(state: [&mut [f32]; 3], gradient: &[f32], decay: f32, numbers: &[f32], factors: Factors) {
        let [master, m, v] = state;
        let [scale, second, rate] =
            [step::GRADIENT_FACTOR, step::SECOND_MOMENT, step::LEARNING_RATE].map(|slot| numbers[slot]);
        for ((master, (m, v)), g) in master.iter_mut().zip(m.iter_mut().zip(v)).zip(gradient) {
            let g = g * scale;
            *m = factors.beta1 * *m + factors.rest1 * g;
            *v = factors.beta2 * *v + factors.rest2 * g * g;

            let denominator = v.sqrt() * second + factors.eps;
            *master = *master * decay - rate * *m / denominator;
        }
    }
}

/// Returns the counters after a step: updates, loss scale and the stop flag.
fn advance(before: &[f32], is_finite: bool, is_taken: bool, policy: StepPolicy) -> Vec<f32> {
    let mut after = before.to_vec();
    if is_taken {
        after[progress::UPDATES] += 1.0;
        if after[progress::UPDATES] == BLOCK as f32 {
            after[progress::BLOCKS] += 1.0;
            after[progress::UPDATES] = 0.0;
        }
    }

    match policy.scaling {
        Some(scaling) if before[progress::STOPPED] == 0.0 => {
            let scale = before[progress::LOSS_SCALE];
            let good_steps = if is_finite { before[progress::GOOD_STEPS] + 1.0 } else { 0.0 };
            after[progress::GOOD_STEPS] = good_steps;
            if good_steps >= scaling.growth_interval as f32 {
                let grown = scale * scaling.growth_factor;
                after[progress::LOSS_SCALE] = if grown.is_finite() { grown } else { scale };
                after[progress::GOOD_STEPS] = 0.0;
            }

            let lowered = after[progress::LOSS_SCALE] * scaling.backoff_factor;
            if !is_finite && lowered < scaling.floor {
                after[progress::STOPPED] = 1.0;
            } else if !is_finite {
                after[progress::LOSS_SCALE] = lowered;
            }
        }
        None if policy.stops && !is_finite => after[progress::STOPPED] = 1.0,
        _ => {}
    }
    after
}

fn flat(values: Vec<f32>, dtype: DType) -> FlexTensor {
    let n = values.len();
    tensor(values, [n], dtype)
}
