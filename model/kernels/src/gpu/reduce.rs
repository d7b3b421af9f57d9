//! Sums in a fixed order: over a vector, over partial results in memory, and over a block.

use cubecl::prelude::*;

/// Sum of the elements of a vector.
#[cube]
pub(crate) fn sum_of<N: Size>(v: Vector<f32, N>) -> f32 {
    let mut sum = 0.0f32;
    let width = N::value().comptime();
    #[unroll]
    for i in 0..width {
        sum += v.extract(i);
    }
    sum
}

/// A number where kernels work on vectors.
pub(crate) type One = Vector<f32, Const<1>>;

/// `sum`, and added to it one after the other `values[base + stride * i]` for `i` from `from` on in steps of `step`, those below `end`.
/// `at_once` loads are on their way before the first is needed; beyond the last number it is read once more.
#[cube]
pub(crate) fn add_up<N: Size>(
    sum: Vector<f32, N>,
    values: &[Vector<f32, N>],
    base: usize,
    stride: usize,
    from: u32,
    end: u32,
    #[comptime] step: u32,
    #[comptime] at_once: u32,
) -> Vector<f32, N> {
    let mut total = sum;
    let mut next = from;
    while next < end {
        let mut read = Array::<Vector<f32, N>>::new(comptime![at_once as usize]);
        #[unroll]
        for i in 0..at_once {
            let here = min(next + comptime![i * step], end - 1);
            read[comptime![i as usize]] = values[base + here as usize * stride];
        }
        #[unroll]
        for i in 0..at_once {
            if next + comptime![i * step] < end {
                total += read[comptime![i as usize]];
            }
        }
        next += comptime![at_once * step];
    }
    total
}

/// Sum over the `units` units of a cube, the same on each. In a loop, two sums must take turns: a unit may write for the
/// next turn while another still reads.
#[cube]
pub(crate) fn cube_sum(value: f32, #[comptime] units: u32) -> f32 {
    let planes = comptime![(units / 32) as usize];
    let mut shared = Shared::<[f32]>::new_slice(planes);
    let plane_total = plane_sum(value);
    if UNIT_POS_PLANE == 0 {
        shared[(UNIT_POS / 32) as usize] = plane_total;
    }
    sync_cube();
    let mut total = 0.0f32;
    #[unroll]
    for p in 0..planes {
        total += shared[p];
    }
    total
}
