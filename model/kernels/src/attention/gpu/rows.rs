//! Rows of a head in the registers of a product: they are stored, and multiplied with others, without shared memory.

use cubecl::prelude::*;

use super::position::{Patch, place};
use super::softmax::quad_sum;
use super::{Oct, Pair};
use crate::gpu::mma::quad_transpose;

/// Columns whose results four adjacent lanes exchange.
const GROUP: usize = 32;

/// Returns `values[at]` and `values[at + 1]`.
#[cube]
pub(super) fn pair(values: &Array<f32>, #[comptime] at: usize) -> Pair<f32> {
    let mut pair = Pair::<f32>::empty();
    pair.insert(0usize, values[at]);
    pair.insert(1usize, values[comptime![at + 1]]);
    pair
}

/// Stores a 64 x head_dim accumulator at `patch` of a matrix of `columns` columns, of which thread `unit` of 128 holds its part.
/// Multiplies a thread's first row by `scale0` and its second by `scale1`. Four adjacent lanes exchange their results, so that each
/// stores eight neighbours at once.
#[cube]
pub(super) fn store_rows<E: Float>(
    values: &Array<f32>,
    scale0: f32,
    scale1: f32,
    out: &mut [Oct<E>],
    patch: &Patch,
    unit: u32,
    #[comptime] columns: usize,
    #[comptime] head_dim: usize,
) {
    let lane = unit % 32;
    #[unroll]
    for row in 0..2usize {
        let scale = if comptime![row == 0] { scale0 } else { scale1 };
        let row0 = patch.row0 + place(unit).row + comptime![8 * row as u32];
        #[unroll]
        for group in 0..comptime![head_dim.div_ceil(GROUP)] {
            let mut words = Array::<u32>::new(4usize);
            #[unroll]
            for i in 0..4usize {
                words[i] = 0u32;
                let part = comptime![group * 4 + i];
                if comptime![8 * part < head_dim] {
                    let mut scaled = pair(values, comptime![4 * part + 2 * row]);
                    scaled.insert(0usize, scaled.extract(0usize) * scale);
                    scaled.insert(1usize, scaled.extract(1usize) * scale);
                    words[i] = u32::reinterpret(Pair::<E>::cast_from(scaled));
                }
            }

            quad_transpose(&mut words);
            let mut four = Vector::<u32, Const<4>>::empty();
            #[unroll]
            for i in 0..4usize {
                four.insert(i, words[i]);
            }
            let oct = comptime![group as u32 * 4] + lane % 4;
            if row0 < patch.rows && oct < comptime![head_dim as u32 / 8] {
                let to = (patch.first + row0) as usize * comptime![columns / 8] + (patch.column / 8 + oct) as usize;
                out[to] = Oct::<E>::reinterpret(four);
            }
        }
    }
}

/// Returns the sums of `a * b` over the columns of a head, for the two rows of `patch` of thread `unit` of 128. Rows beyond the batch
/// row's last repeat it.
#[cube]
pub(super) fn row_products<E: Float>(
    a: &[Oct<E>],
    b: &[Oct<E>],
    patch: &Patch,
    unit: u32,
    #[comptime] columns: usize,
    #[comptime] head_dim: usize,
) -> (f32, f32) {
    let mut sums = Array::<f32>::new(2usize);
    #[unroll]
    for row in 0..2usize {
        let row0 = min(patch.row0 + place(unit).row + comptime![8 * row as u32], patch.rows - 1);
        let from = (patch.first + row0) as usize * comptime![columns / 8] + (patch.column / 8) as usize;

        let mut sum = 0.0f32;
        #[unroll]
        for turn in 0..comptime![head_dim.div_ceil(GROUP)] {
            let oct = comptime![turn as u32 * 4] + unit % 4;
            if oct < comptime![head_dim as u32 / 8] {
                let (left, right) = (a[from + oct as usize], b[from + oct as usize]);
                #[unroll]
                for i in 0..8usize {
                    sum += f32::cast_from(left.extract(i)) * f32::cast_from(right.extract(i));
                }
            }
        }
        sums[row] = quad_sum(sum);
    }
    (sums[0], sums[1])
}
