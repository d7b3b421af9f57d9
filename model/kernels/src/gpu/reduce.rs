//! Sums in a fixed order: over a vector, over partial sums in memory, and over a block.

use cubecl::prelude::*;

/// Returns the sum of the elements of a vector.
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

/// A number, for kernels that work on vectors.
pub(crate) type One = Vector<f32, Const<1>>;

/// Returns `sum` plus `values[base + stride * i]` for `i = from, from + step, ...` below `end`, added one after the other.
///
/// `in_flight` loads are issued before the first is needed. Beyond the last number, that number is read again and not added.
#[cube]
pub(crate) fn add_up<N: Size>(
    sum: Vector<f32, N>,
    values: &[Vector<f32, N>],
    base: usize,
    stride: usize,
    from: u32,
    end: u32,
    #[comptime] step: u32,
    #[comptime] in_flight: u32,
) -> Vector<f32, N> {
    let mut total = sum;
    let mut next = from;
    while next < end {
        let mut read = Array::<Vector<f32, N>>::new(comptime![in_flight as usize]);
        #[unroll]
        for i in 0..in_flight {
            let here = min(next + comptime![i * step], end - 1);
            read[comptime![i as usize]] = values[base + here as usize * stride];
        }

        #[unroll]
        for i in 0..in_flight {
            if next + comptime![i * step] < end {
                total += read[comptime![i as usize]];
            }
        }
        next += comptime![in_flight * step];
    }
    total
}

/// Returns the sum over the `threads` threads of a block, on each of them. A loop must alternate between two such sums: a thread
/// may write for the next turn while another still reads.
#[cube]
pub(crate) fn cube_sum(value: f32, #[comptime] threads: u32) -> f32 {
    let warps = comptime![(threads / 32) as usize];
    let mut shared = Shared::<[f32]>::new_slice(warps);
    let warp_total = plane_sum(value);
    if UNIT_POS_PLANE == 0 {
        shared[(UNIT_POS / 32) as usize] = warp_total;
    }
    sync_cube();

    let mut total = 0.0f32;
    #[unroll]
    for warp in 0..warps {
        total += shared[warp];
    }
    total
}
