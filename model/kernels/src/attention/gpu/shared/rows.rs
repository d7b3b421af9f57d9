//! Rows of a head in the registers of a product: they are stored, and multiplied with others, without shared memory.

use cubecl::prelude::*;

use super::Pair;
use super::position::{Patch, place};
use super::softmax::quad_sum;
use crate::gpu::mma::quad_transpose;
use crate::gpu::mma_f32::eight_of_row;

/// Columns whose results four adjacent lanes exchange.
const GROUP: usize = 32;

/// Returns `values[at]` and `values[at + 1]`.
#[cube]
pub(crate) fn pair(values: &Array<f32>, #[comptime] at: usize) -> Pair<f32> {
    let mut pair = Pair::<f32>::empty();
    pair.insert(0usize, values[at]);
    pair.insert(1usize, values[comptime![at + 1]]);
    pair
}

/// Stores a 64 x head_dim accumulator at `patch` of a matrix of `columns` columns, of which thread `unit` of 128 holds its part.
/// Multiplies a thread's first row by `scale0` and its second by `scale1`. A thread stores eight neighbours; of 16 bits, four adjacent
/// lanes exchange their results for that.
#[cube]
pub(crate) fn store_rows<E: Float, N: Size>(
    values: &Array<f32>,
    scale0: f32,
    scale1: f32,
    out: &mut [Vector<E, N>],
    patch: &Patch,
    unit: u32,
    #[comptime] columns: usize,
    #[comptime] head_dim: usize,
) {
    let vector = N::value().comptime();
    let per_lane = comptime![8 / vector];
    let lane = unit % 32;

    #[unroll]
    for row in 0..2usize {
        let scale = if comptime![row == 0] { scale0 } else { scale1 };
        let row0 = patch.row0 + place(unit).row + comptime![8 * row as u32];
        #[unroll]
        for group in 0..comptime![head_dim.div_ceil(GROUP)] {
            let eight = eight_neighbours::<E, N>(values, scale, row, group, head_dim);

            #[unroll]
            for nth in 0..per_lane {
                let at = comptime![(group * 4 * per_lane) as u32] + lane % 4 * comptime![per_lane as u32];
                let at = at + comptime![nth as u32];
                if row0 < patch.rows && at < comptime![(head_dim / vector) as u32] {
                    let line = (patch.first + row0) as usize * comptime![columns / vector];
                    out[line + (patch.column / comptime![vector as u32] + at) as usize] = eight[nth];
                }
            }
        }
    }
}

/// Returns a thread's eight neighbours of group `group` of row `row` of its two, multiplied by `scale`.
#[cube]
fn eight_neighbours<E: Float, N: Size>(
    values: &Array<f32>,
    scale: f32,
    #[comptime] row: usize,
    #[comptime] group: usize,
    #[comptime] head_dim: usize,
) -> Array<Vector<E, N>> {
    let words_each = N::value().comptime() == 4;
    let mut eight = Array::<Vector<E, N>>::new(comptime![if words_each { 2usize } else { 1usize }]);

    if comptime![words_each] {
        let mut pairs = Array::<Pair<f32>>::new(4usize);
        #[unroll]
        for i in 0..4usize {
            pairs[i] = scaled_pair(values, scale, comptime![4 * (group * 4 + i) + 2 * row]);
        }
        let both = eight_of_row::<N>(&pairs, true);
        eight[0] = Vector::<E, N>::cast_from(both[0]);
        eight[1] = Vector::<E, N>::cast_from(both[1]);
    } else {
        let mut words = Array::<u32>::new(4usize);
        #[unroll]
        for i in 0..4usize {
            words[i] = 0u32;
            let part = comptime![group * 4 + i];
            if comptime![8 * part < head_dim] {
                let scaled = scaled_pair(values, scale, comptime![4 * part + 2 * row]);
                words[i] = u32::reinterpret(Pair::<E>::cast_from(scaled));
            }
        }

        quad_transpose(&mut words);
        let mut four = Vector::<u32, Const<4>>::empty();
        #[unroll]
        for i in 0..4usize {
            four.insert(i, words[i]);
        }
        eight[0] = Vector::<E, N>::reinterpret(four);
    }
    eight
}

/// Returns [`pair`] times `scale`.
#[cube]
fn scaled_pair(values: &Array<f32>, scale: f32, #[comptime] at: usize) -> Pair<f32> {
    let mut scaled = pair(values, at);
    scaled.insert(0usize, scaled.extract(0usize) * scale);
    scaled.insert(1usize, scaled.extract(1usize) * scale);
    scaled
}

/// Returns the sums of `a * b` over the columns of a head, for the two rows of `patch` of thread `unit` of 128. Rows beyond the batch
/// row's last repeat it.
#[cube]
pub(crate) fn row_products<E: Float, N: Size>(
    a: &[Vector<E, N>],
    b: &[Vector<E, N>],
    patch: &Patch,
    unit: u32,
    #[comptime] columns: usize,
    #[comptime] head_dim: usize,
) -> (f32, f32) {
    let vector = N::value().comptime();
    let mut sums = Array::<f32>::new(2usize);
    #[unroll]
    for row in 0..2usize {
        let row0 = min(patch.row0 + place(unit).row + comptime![8 * row as u32], patch.rows - 1);
        let from = (patch.first + row0) as usize * comptime![columns / vector];
        let from = from + (patch.column / comptime![vector as u32]) as usize;

        let mut sum = 0.0f32;
        #[unroll]
        for turn in 0..comptime![(head_dim / vector).div_ceil(4)] {
            let at = comptime![turn as u32 * 4] + unit % 4;
            if at < comptime![(head_dim / vector) as u32] {
                let (left, right) = (a[from + at as usize], b[from + at as usize]);
                #[unroll]
                for i in 0..vector {
                    sum += f32::cast_from(left.extract(i)) * f32::cast_from(right.extract(i));
                }
            }
        }
        sums[row] = quad_sum(sum);
    }
    (sums[0], sums[1])
}
