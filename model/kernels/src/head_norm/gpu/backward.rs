//! Backward: the gradients of the heads, and each block's sums of the gradients of the scales.

use cubecl::prelude::*;

use super::UNITS;
use super::heads::{HeadsConfig, Place, Scales, load, place, scale, square_of, store, sum_of_lanes};
use crate::gpu::occupancy::cubes_at_once;
use crate::gpu::reduce::sum_of;

/// Blocks on a multiprocessor, whose threads then have registers for all that they hold.
pub(super) const CUBES: u32 = 2;
/// Heads that a thread has in flight.
const IN_FLIGHT: u32 = 2;

/// Computes the gradient of the heads, and each block's sums of the gradients of both scales: `[blocks, 2, K]`.
#[cube(launch_unchecked)]
pub(super) fn norm_heads_backward<F: Float, N: Size>(
    x: &[Vector<F, N>],
    scales: &Scales<F, N>,
    dy: &[Vector<F, N>],
    dx: &mut [Vector<F, N>],
    partial: &mut [Vector<f32, N>],
    heads: u32,
    eps: f32,
    #[comptime] config: HeadsConfig,
    #[define(F)] _dtype: ElemType,
) {
    cubes_at_once(comptime![CUBES as usize]);
    let slots = comptime![config.slots()];
    let mut of_queries = Array::<Vector<f32, N>>::new(slots);
    let mut of_keys = Array::<Vector<f32, N>>::new(slots);
    #[unroll]
    for i in 0..slots {
        of_queries[i] = Vector::<f32, N>::zeroed();
        of_keys[i] = Vector::<f32, N>::zeroed();
    }

    let first = place(CUBE_POS as u32 * UNITS + UNIT_POS, config);
    let step = CUBE_COUNT as u32 * comptime![UNITS / config.lanes()];
    let mut head = first.head;
    // All lanes of a warp take as many turns: sums are exchanged.
    let turns = heads.div_ceil(step * IN_FLIGHT);
    for _ in 0..turns {
        let mut inputs = Sequence::<Array<Vector<f32, N>>>::new();
        let mut gradients = Sequence::<Array<Vector<f32, N>>>::new();
        #[unroll]
        for i in 0..IN_FLIGHT {
            let at = Place { head: head + i * step, lane: first.lane };
            inputs.push(load::<F, N>(x, &at, heads, config));
            gradients.push(load::<F, N>(dy, &at, heads, config));
        }
        #[unroll]
        for i in 0..IN_FLIGHT {
            let at = Place { head: head + i * step, lane: first.lane };
            let nth = comptime![i as usize];
            let result = head_gradient::<F, N>(
                inputs.index(nth),
                gradients.index(nth),
                scales,
                &at,
                &mut of_queries,
                &mut of_keys,
                eps,
                config,
            );
            store::<F, N>(dx, &result, &at, heads, config);
        }
        head += step * IN_FLIGHT;
    }
    store_sums::<N>(&of_queries, partial, 0u32, first.lane, config);
    store_sums::<N>(&of_keys, partial, 1u32, first.lane, config);
}

/// Returns the gradient of a head with input `x`, and adds its part to the sums of its scale's gradient.
#[cube]
fn head_gradient<F: Float, N: Size>(
    x: &Array<Vector<f32, N>>,
    dy: &Array<Vector<f32, N>>,
    scales: &Scales<F, N>,
    at: &Place,
    of_queries: &mut Array<Vector<f32, N>>,
    of_keys: &mut Array<Vector<f32, N>>,
    eps: f32,
    #[comptime] config: HeadsConfig,
) -> Array<Vector<f32, N>> {
    let slots = comptime![config.slots()];
    let width = N::value().comptime();
    let n = comptime![(config.vectors as usize * width) as f32].runtime();
    let of_row = at.head % comptime![config.n_heads];
    let is_query = of_row < comptime![config.n_query_heads];
    let mut scaled = Array::<Vector<f32, N>>::new(slots);
    let mut product = 0.0f32;
    #[unroll]
    for i in 0..slots {
        let vector = at.lane + comptime![i as u32 * config.lanes()];
        scaled[i] = dy[i] * scale::<F, N>(scales, is_query, vector, config);
        product += sum_of::<N>(scaled[i] * x[i]);
    }
    let inverse = f32::inverse_sqrt(square_of::<N>(x, config) / n + eps);
    let shared = sum_of_lanes(product, config) * inverse * inverse / n;

    let mut result = Array::<Vector<f32, N>>::new(slots);
    #[unroll]
    for i in 0..slots {
        result[i] = dy[i];
        if of_row < comptime![config.n_query_heads + config.n_key_heads] {
            result[i] = Vector::new(inverse) * (scaled[i] - x[i] * Vector::new(shared));
            let of_scale = dy[i] * x[i] * Vector::new(inverse);
            if is_query {
                of_queries[i] += of_scale;
            } else {
                of_keys[i] += of_scale;
            }
        }
    }
    result
}

/// Adds up a block's sums of a scale's gradient in the order of its threads, and writes them to `partial`.
#[cube]
fn store_sums<N: Size>(
    sums: &Array<Vector<f32, N>>,
    partial: &mut [Vector<f32, N>],
    nth: u32,
    lane: u32,
    #[comptime] config: HeadsConfig,
) {
    let (vectors, lanes) = comptime![(config.vectors, config.lanes())];
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(comptime![UNITS as usize]);
    #[unroll]
    for i in 0..comptime![config.slots()] {
        sync_cube();
        shared[UNIT_POS as usize] = sums[i];
        sync_cube();
        let vector = lane + comptime![i as u32 * lanes];
        if UNIT_POS < lanes && vector < vectors {
            let mut total = shared[UNIT_POS as usize];
            #[unroll]
            for group in 1..comptime![UNITS / lanes] {
                total += shared[(comptime![group * lanes] + UNIT_POS) as usize];
            }
            partial[((CUBE_POS as u32 * 2 + nth) * vectors + vector) as usize] = total;
        }
    }
}
