//! What a warp has of a head's softmax, and how the parts of warps and lanes become one.

use cubecl::prelude::*;

use super::sizes::{Sizes, WARP};
use crate::gpu::instruction::exp2_approx;

/// Below every score, and finite, so that differences of it are not NaN.
pub(super) const LOWEST: f32 = -1e30;

/// The softmax of the positions that were read so far, and the values by its weights.
#[derive(CubeType)]
pub(super) struct Sums<N: Size> {
    pub(super) top: f32,
    pub(super) total: f32,
    pub(super) values: Array<Vector<f32, N>>,
}

/// Returns the sum over the lanes of a group, on each of them.
#[cube]
pub(super) fn group_sum(x: f32, #[comptime] lanes: u32) -> f32 {
    let mut sum = x;
    let steps = comptime![lanes.ilog2()];
    #[unroll]
    for step in 0..steps {
        sum += plane_shuffle_xor(sum, comptime![1u32 << step]);
    }
    sum
}

/// Adds what the groups of a warp have, so that each of them has all.
#[cube]
pub(super) fn add_groups<N: Size>(sums: &mut Sums<N>, #[comptime] sizes: Sizes) {
    let steps = comptime![sizes.groups().ilog2()];
    #[unroll]
    for step in 0..steps {
        let far = comptime![sizes.lanes << step];
        let other = plane_shuffle_xor(sums.top, far);
        let highest = max(sums.top, other);
        let factor = exp2_approx(sums.top - highest);
        sums.top = highest;
        sums.total *= factor;
        sums.total += plane_shuffle_xor(sums.total, far);
        #[unroll]
        for j in 0..sizes.vectors {
            let mut own = sums.values[comptime![j as usize]] * Vector::new(factor);
            #[unroll]
            for i in 0..N::value() {
                let x = own.extract(i);
                own.insert(i, x + plane_shuffle_xor(x, far));
            }
            sums.values[comptime![j as usize]] = own;
        }
    }
}

/// Writes what a warp has of a head at `place` of `out`.
#[cube]
pub(super) fn write<F: Float, N: Size>(
    sums: &Sums<N>,
    out: &mut [Vector<F, N>],
    place: usize,
    #[comptime] sizes: Sizes,
) {
    let lane = UNIT_POS % WARP;
    if lane < sizes.lanes {
        #[unroll]
        for j in 0..sizes.vectors {
            let values = sums.values[comptime![j as usize]] * Vector::new(1.0f32 / sums.total);
            out[place + (lane + comptime![j * sizes.lanes]) as usize] = Vector::cast_from(values);
        }
    }
}

/// Adds up what the warps of a block have of one head, in their order, and writes it at `place` of `out`.
#[cube]
pub(super) fn write_parts<F: Float, N: Size>(
    sums: &Sums<N>,
    out: &mut [Vector<F, N>],
    place: usize,
    #[comptime] sizes: Sizes,
) {
    let (warp, lane) = (UNIT_POS / WARP, UNIT_POS % WARP);
    let head = comptime![sizes.head()];
    let mut tops = Shared::<[f32]>::new_slice(comptime![sizes.parts as usize]);
    let mut totals = Shared::<[f32]>::new_slice(comptime![sizes.parts as usize]);
    let mut values = Shared::<[Vector<f32, N>]>::new_slice(comptime![(sizes.parts * sizes.head()) as usize]);
    if lane == 0 {
        tops[warp as usize] = sums.top;
        totals[warp as usize] = sums.total;
    }
    if lane < sizes.lanes {
        #[unroll]
        for j in 0..sizes.vectors {
            values[(warp * head + lane + comptime![j * sizes.lanes]) as usize] = sums.values[comptime![j as usize]];
        }
    }
    sync_cube();

    if UNIT_POS < head {
        let mut highest = tops[0];
        #[unroll]
        for part in 1..sizes.parts {
            highest = max(highest, tops[part as usize]);
        }
        let mut all = 0.0f32;
        let mut whole = Vector::<f32, N>::zeroed();
        #[unroll]
        for part in 0..sizes.parts {
            let factor = exp2_approx(tops[part as usize] - highest);
            all += totals[part as usize] * factor;
            whole += values[(part * head + UNIT_POS) as usize] * Vector::new(factor);
        }
        out[place + UNIT_POS as usize] = Vector::cast_from(whole * Vector::new(1.0f32 / all));
    }
}
