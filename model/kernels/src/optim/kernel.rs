//! The optimizer's kernels: every byte of parameters, moments and gradients is moved once.

use cubecl::prelude::*;

use super::flat::{ALIGNMENT, CHUNK};
use super::ops::PARTS;
use super::slots::{BLOCK, COLUMNS};
use crate::gpu::reduce::{cube_sum, sum_of};

/// Units of a cube in all passes over flat tensors.
pub(super) const UNITS: u32 = 256;
/// Units of the one cube that adds up the sums of squares and prepares a step.
pub(super) const PREPARE_UNITS: u32 = 1024;

/// Chunk `chunk` of a part to its place in `values`; returns this unit's share of the sum of squares.
#[cube]
fn gather_chunk<F: Float, G: Float, N: Size>(
    part: &[Vector<F, N>],
    values: &mut [Vector<G, N>],
    offset: u32,
    len: u32,
    chunk: u32,
    #[comptime] accumulate: bool,
) -> f32 {
    let width = N::value().comptime();
    let turns = comptime![(CHUNK / width) as u32 / UNITS];
    let alignment = comptime![(ALIGNMENT / width) as u32];
    let end = (len + alignment - 1) / alignment * alignment;
    let mut square = 0.0f32;
    #[unroll]
    for turn in 0..turns {
        let at = chunk * comptime![(CHUNK / width) as u32] + turn * UNITS + UNIT_POS;
        if at < end {
            let mut value = Vector::<f32, N>::zeroed();
            if at < len {
                value = Vector::cast_from(part[at as usize]);
            }
            let to = (offset + at) as usize;
            if accumulate {
                value += Vector::<f32, N>::cast_from(values[to]);
            }
            values[to] = Vector::cast_from(value);
            square += sum_of::<N>(value * value);
        }
    }
    square
}

/// Lengths and offsets count vectors, `firsts` chunks of this launch; part `i` owns the chunks from `firsts[i]` to
/// before `firsts[i + 1]`. A cube takes one chunk.
#[cube(launch_unchecked)]
pub(super) fn gather<F: Float, G: Float, N: Size>(
    parts: Sequence<Box<[Vector<F, N>]>>,
    values: &mut [Vector<G, N>],
    squares: &mut [f32],
    firsts: Sequence<u32>,
    offsets: Sequence<u32>,
    lens: Sequence<u32>,
    first_slot: u32,
    #[comptime] accumulate: bool,
    #[define(F, G)] _dtypes: [ElemType; 2],
) {
    let at = CUBE_POS as u32;
    let mut square = 0.0f32;
    #[unroll]
    for i in 0..PARTS {
        let first = firsts[i];
        if at >= first && at < firsts[comptime![i + 1]] {
            square = gather_chunk::<F, G, N>(&parts[i], values, offsets[i], lens[i], at - first, accumulate);
        }
    }
    let total = cube_sum(square, UNITS);
    if UNIT_POS == 0 {
        squares[(first_slot + at) as usize] = total;
    }
}

/// One cube: the numbers of a step, and what it makes of `progress`; see [`super::prepare`]. `n` sums of squares,
/// `rows` rows of coefficients.
#[cube(launch_unchecked)]
pub(super) fn prepare(
    squares: &[f32],
    divisor: &[f32],
    loss: &[f32],
    coefficients: &[f32],
    progress: &mut [f32],
    out: &mut [f32],
    n: u32,
    rows: u32,
    max_norm: f32,
    unit: f32,
    growth_factor: f32,
    growth_interval: f32,
    backoff_factor: f32,
    floor: f32,
    #[comptime] is_scaled: bool,
    #[comptime] stops: bool,
) {
    let mut sum = 0.0f32;
    let mut at = UNIT_POS;
    while at < n {
        sum += squares[at as usize];
        at += PREPARE_UNITS;
    }
    let total = cube_sum(sum, PREPARE_UNITS);
    if UNIT_POS == 0 {
        let scale = progress[0];
        let good = progress[1];
        let block = progress[2];
        let row = progress[3];
        let had_stopped = progress[4];
        let count = divisor[0];
        let mut share = 1.0f32 / select(count > 1.0f32, count, 1.0f32);
        if is_scaled {
            share = share * unit / scale;
        }
        let norm = f32::sqrt(total) * share;
        let clipped = max_norm / (norm + 1e-6f32);
        let clips = max_norm > 0.0f32 && clipped < 1.0f32;
        // Infinities and NaN fail the comparisons.
        let finite = norm <= comptime![f32::MAX] && f32::abs(loss[0]) <= comptime![f32::MAX];
        let taken = finite && had_stopped == 0.0f32;
        let ahead = u32::cast_from(block - coefficients[0]) * comptime![BLOCK as u32] + u32::cast_from(row);
        let at = select(ahead < rows, ahead, rows - 1) * comptime![COLUMNS as u32] + 1;
        out[0] = norm;
        out[1] = share * select(clips, clipped, 1.0f32);
        out[2] = select(taken, 1.0f32, 0.0f32);
        #[unroll]
        for column in 0..COLUMNS {
            out[comptime![3 + column]] = coefficients[at as usize + column];
        }
        out[6] = scale;
        out[7] = block;
        out[8] = row;
        let next = row + select(taken, 1.0f32, 0.0f32);
        let wraps = next >= comptime![BLOCK as f32];
        progress[2] = block + select(wraps, 1.0f32, 0.0f32);
        progress[3] = select(wraps, 0.0f32, next);
        let mut stopped = had_stopped;
        if is_scaled {
            let run = select(finite, good + 1.0f32, 0.0f32);
            let grown = scale * growth_factor;
            let grows = run >= growth_interval;
            let lowered = scale * backoff_factor;
            let raised = select(grows && grown <= comptime![f32::MAX], grown, scale);
            stopped = select(!finite && lowered < floor, 1.0f32, had_stopped);
            let kept = stopped > 0.0f32;
            progress[0] = select(kept, scale, select(finite, raised, lowered));
            progress[1] = select(kept, good, select(grows, 0.0f32, run));
        }
        if comptime![stops && !is_scaled] {
            stopped = select(finite, had_stopped, 1.0f32);
        }
        progress[4] = stopped;
        out[9] = stopped;
    }
}

/// A step over `vectors` vectors; see [`super::adamw_step`] for the formulas and [`super::prepare`] for
/// `numbers`.
#[cube(launch_unchecked)]
pub(super) fn step<W: Float, G: Float, N: Size>(
    master: &mut [Vector<f32, N>],
    m: &mut [Vector<f32, N>],
    v: &mut [Vector<f32, N>],
    weights: &mut [Vector<W, N>],
    gradient: &[Vector<G, N>],
    numbers: &[f32],
    vectors: u32,
    decayed: u32,
    beta1: f32,
    beta2: f32,
    rest1: f32,
    rest2: f32,
    eps: f32,
    #[comptime] writes_weights: bool,
    #[define(W, G)] _dtypes: [ElemType; 2],
) {
    let at = ABSOLUTE_POS;
    if at < vectors as usize && numbers[2] > 0.0f32 {
        let g = Vector::<f32, N>::cast_from(gradient[at]) * Vector::new(numbers[1]);
        let first = m[at] * Vector::new(beta1) + g * Vector::new(rest1);
        let second = v[at] * Vector::new(beta2) + g * g * Vector::new(rest2);
        let decay = select(at < decayed as usize, 1.0f32 - numbers[5], 1.0f32);
        let denominator = Vector::<f32, N>::sqrt(second) * Vector::new(numbers[4]) + Vector::new(eps);
        let updated = master[at] * Vector::new(decay) - Vector::new(numbers[3]) * first / denominator;
        m[at] = first;
        v[at] = second;
        master[at] = updated;
        if writes_weights {
            weights[at] = Vector::cast_from(updated);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::OnceLock;

    use burn::backend::cubecl::dtype_to_storage_type;
    use burn::tensor::DType;

    use super::*;
    use crate::gpu::offline::{Compiled, buffer, settings};

    pub(crate) fn offline_kernels() -> &'static [Compiled] {
        static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
        KERNELS.get_or_init(|| {
            let b = buffer;
            let dtypes = [DType::BF16, DType::F32].map(dtype_to_storage_type);
            let mut kernels = Vec::new();

            for (name, is_scaled, stops) in [("plain", false, false), ("stops", false, true), ("scaled", true, false)] {
                let (launch, properties, target) = settings(PREPARE_UNITS);
                #[rustfmt::skip]
                let prepare = prepare::Prepare::new(
                    launch, properties, target, b(), b(), b(), b(), b(), b(), (), (), (), (), (), (), (), (), is_scaled, stops,
                );
                kernels.push(Compiled::new(format!("adamw/prepare/{name}"), prepare));
            }
            for (name, writes_weights) in [("weights-bf16", true), ("moments", false)] {
                let (launch, properties, target) = settings(UNITS);
                #[rustfmt::skip]
                let step = step::Step::new(
                    launch, properties, target, b(), b(), b(), b(), b(), b(), (), (), (), (), (), (), (), 4, writes_weights, dtypes,
                );
                kernels.push(Compiled::new(format!("adamw/step/{name}"), step));
            }
            kernels
        })
    }

    #[test]
    fn kernels_compile_without_a_device() {
        for kernel in offline_kernels() {
            assert!(kernel.ptx.is_some(), "{}", kernel.label);
        }
    }
}
