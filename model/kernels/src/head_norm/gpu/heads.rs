//! Heads in registers: which thread holds which vectors, and sums over a head.

use cubecl::prelude::*;

use crate::gpu::reduce::sum_of;

/// What the kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct HeadsConfig {
    /// Vectors of a head.
    pub(super) vectors: u32,
    pub(super) n_query_heads: u32,
    pub(super) n_key_heads: u32,
    /// All heads of a row.
    pub(super) n_heads: u32,
}

impl HeadsConfig {
    /// Returns the lanes that share a head: a power of two, so that they exchange sums with each other only.
    pub(super) fn lanes(&self) -> u32 {
        self.vectors.next_power_of_two().min(32)
    }

    /// Returns the vectors of a head that a lane holds.
    pub(super) fn slots(&self) -> usize {
        self.vectors.div_ceil(self.lanes()) as usize
    }
}

/// A thread's place: the head that it works on, counted over all rows, and its lane there.
#[derive(CubeType)]
pub(super) struct Place {
    pub(super) head: u32,
    pub(super) lane: u32,
}

/// Returns the place of thread `unit` of all threads.
#[cube]
pub(super) fn place(unit: u32, #[comptime] config: HeadsConfig) -> Place {
    let lanes = comptime![config.lanes()];
    Place { head: unit / lanes, lane: unit % lanes }
}

/// Returns the sum over the lanes of a head, on each of them.
#[cube]
pub(super) fn sum_of_lanes(value: f32, #[comptime] config: HeadsConfig) -> f32 {
    let mut sum = value;
    #[unroll]
    for step in 0..comptime![config.lanes().ilog2()] {
        sum += plane_shuffle_xor(sum, comptime![1u32 << step].runtime());
    }
    sum
}

/// Loads the thread's vectors of a head, zeros beyond the last head.
#[cube]
pub(super) fn load<F: Float, N: Size>(
    x: &[Vector<F, N>],
    at: &Place,
    heads: u32,
    #[comptime] config: HeadsConfig,
) -> Array<Vector<f32, N>> {
    let mut held = Array::<Vector<f32, N>>::new(comptime![config.slots()]);
    #[unroll]
    for i in 0..comptime![config.slots()] {
        let vector = at.lane + comptime![i as u32 * config.lanes()];
        held[i] = Vector::<f32, N>::zeroed();
        if at.head < heads && vector < comptime![config.vectors] {
            held[i] = Vector::cast_from(x[(at.head * comptime![config.vectors] + vector) as usize]);
        }
    }
    held
}

/// Stores the thread's vectors of a head.
#[cube]
pub(super) fn store<F: Float, N: Size>(
    y: &mut [Vector<F, N>],
    held: &Array<Vector<f32, N>>,
    at: &Place,
    heads: u32,
    #[comptime] config: HeadsConfig,
) {
    #[unroll]
    for i in 0..comptime![config.slots()] {
        let vector = at.lane + comptime![i as u32 * config.lanes()];
        if at.head < heads && vector < comptime![config.vectors] {
            y[(at.head * comptime![config.vectors] + vector) as usize] = Vector::cast_from(held[i]);
        }
    }
}

/// The scales.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Scales<F: Float, N: Size> {
    pub(super) query: Box<[Vector<F, N>]>,
    pub(super) key: Box<[Vector<F, N>]>,
}

/// Returns vector `vector` of the scale of the queries, or else of the keys; zeros beyond the last vector.
#[cube]
pub(super) fn scale<F: Float, N: Size>(
    scales: &Scales<F, N>,
    is_query: bool,
    vector: u32,
    #[comptime] config: HeadsConfig,
) -> Vector<f32, N> {
    let mut found = Vector::<f32, N>::zeroed();
    if vector < comptime![config.vectors] {
        if is_query {
            found = Vector::cast_from(scales.query[vector as usize]);
        } else {
            found = Vector::cast_from(scales.key[vector as usize]);
        }
    }
    found
}

/// Returns the sum of the squares of a head, over all lanes.
#[cube]
pub(super) fn square_of<N: Size>(held: &Array<Vector<f32, N>>, #[comptime] config: HeadsConfig) -> f32 {
    let mut square = 0.0f32;
    #[unroll]
    for i in 0..held.len() {
        square += sum_of::<N>(held[i] * held[i]);
    }
    sum_of_lanes(square, config)
}
