//! Collects gradients into one flat tensor and sums their squares.

use cubecl::prelude::*;

use super::UNITS;
use crate::gpu::reduce::{cube_sum, sum_of};
use crate::optim::flat::{ALIGNMENT, CHUNK};
use crate::optim::ops::PARTS;

/// Copies or adds chunk `chunk` of a part to its place in `values`. Returns this thread's part of the sum of squares.
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
            // Zeros in the gap behind the part.
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

/// The chunks of a launch. Lengths and offsets count vectors.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Chunks {
    /// Part `i` has the chunks `firsts[i]..firsts[i + 1]`.
    pub(super) firsts: Sequence<u32>,
    pub(super) offsets: Sequence<u32>,
    pub(super) lens: Sequence<u32>,
    /// The slot of chunk 0 in the squares.
    pub(super) first_slot: u32,
}

/// Gathers parts into `values`, one chunk per block, and sums the squares of each chunk.
#[cube(launch_unchecked)]
pub(super) fn gather<F: Float, G: Float, N: Size>(
    parts: Sequence<Box<[Vector<F, N>]>>,
    values: &mut [Vector<G, N>],
    squares: &mut [f32],
    chunks: Chunks,
    #[comptime] accumulate: bool,
    #[define(F, G)] _dtypes: [ElemType; 2],
) {
    let cube_chunk = CUBE_POS as u32;

    let mut square = 0.0f32;
    #[unroll]
    for i in 0..PARTS {
        let first = chunks.firsts[i];
        if cube_chunk >= first && cube_chunk < chunks.firsts[comptime![i + 1]] {
            let (offset, len) = (chunks.offsets[i], chunks.lens[i]);
            square = gather_chunk::<F, G, N>(&parts[i], values, offset, len, cube_chunk - first, accumulate);
        }
    }

    let total = cube_sum(square, UNITS);
    if UNIT_POS == 0 {
        squares[(chunks.first_slot + cube_chunk) as usize] = total;
    }
}
