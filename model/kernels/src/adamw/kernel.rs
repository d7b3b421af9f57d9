//! The optimizer's kernels: every byte of parameters, moments and gradients is moved once.

use cubecl::prelude::*;

use super::flat::{ALIGNMENT, CHUNK};
use super::ops::PARTS;
use crate::device::{cube_sum, sum_of};

/// Units of a cube in all passes over flat tensors.
pub(super) const UNITS: u32 = 256;
/// Units of the one cube that adds up the sums of squares.
pub(super) const MEASURE_UNITS: u32 = 1024;

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

/// Lengths and offsets count vectors, `firsts` chunks of this launch; part `i` owns the chunks from `firsts[i]` to before
/// `firsts[i + 1]`. A cube takes one chunk.
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

/// One cube: norm, factor and finite flag from the sums of squares.
#[cube(launch_unchecked)]
pub(super) fn measure(squares: &[f32], divisor: &[f32], out: &mut [f32], n: u32, max_norm: f32) {
    let mut sum = 0.0f32;
    let mut at = UNIT_POS;
    while at < n {
        sum += squares[at as usize];
        at += MEASURE_UNITS;
    }
    let total = cube_sum(sum, MEASURE_UNITS);
    if UNIT_POS == 0 {
        let count = divisor[0];
        let share = 1.0f32 / select(count > 1.0f32, count, 1.0f32);
        let norm = f32::sqrt(total) * share;
        let clipped = max_norm / (norm + 1e-6f32);
        let clips = max_norm > 0.0f32 && clipped < 1.0f32;
        out[0] = norm;
        out[1] = share * select(clips, clipped, 1.0f32);
        // Infinities and NaN fail the comparison.
        out[2] = select(norm <= comptime![f32::MAX], 1.0f32, 0.0f32);
    }
}

/// A step over `vectors` vectors; see [`super::adamw_step`] for the formulas and [`super::AdamWHyper::schedule`] for
/// `schedule`.
#[cube(launch_unchecked)]
pub(super) fn step<W: Float, G: Float, N: Size>(
    master: &mut [Vector<f32, N>],
    m: &mut [Vector<f32, N>],
    v: &mut [Vector<f32, N>],
    weights: &mut [Vector<W, N>],
    gradient: &[Vector<G, N>],
    measured: &[f32],
    schedule: &[f32],
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
    if at < vectors as usize && measured[2] > 0.0f32 {
        let g = Vector::<f32, N>::cast_from(gradient[at]) * Vector::new(measured[1]);
        let first = m[at] * Vector::new(beta1) + g * Vector::new(rest1);
        let second = v[at] * Vector::new(beta2) + g * g * Vector::new(rest2);
        let decay = select(at < decayed as usize, 1.0f32 - schedule[2], 1.0f32);
        let denominator = Vector::<f32, N>::sqrt(second) * Vector::new(schedule[1]) + Vector::new(eps);
        let updated = master[at] * Vector::new(decay) - Vector::new(schedule[0]) * first / denominator;
        m[at] = first;
        v[at] = second;
        master[at] = updated;
        if writes_weights {
            weights[at] = Vector::cast_from(updated);
        }
    }
}
