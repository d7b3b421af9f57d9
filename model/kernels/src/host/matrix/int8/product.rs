//! Products of rows and weights that are both in int8.

use std::ops::Range;

use rayon::prelude::*;

use super::dot::{Instructions, Operands, ROWS};
use super::{GROUP, Int8Matrix, SHIFT, row};
use crate::host::matrix::tile::blocks;
use crate::host::matrix::{Matrix, MatrixMut};
use crate::host::vector::vectorized_fn;

/// Rows that a thread rounds at a time.
const ROWS_AT_ONCE: usize = 16;

/// The rows of a left operand, rounded, and the weights.
pub(crate) struct Rounded<'a> {
    numbers: Vec<i8>,
    /// From row to row.
    stride: usize,
    /// For each row, what a whole number stands for, and [`SHIFT`] times the sum of the whole numbers.
    scales: Vec<(f32, i32)>,
    b: &'a Int8Matrix,
    instructions: Instructions,
}

impl<'a> Rounded<'a> {
    /// Rounds `a`, which lies row by row.
    pub(crate) fn new(a: Matrix<'_>, b: &'a Int8Matrix) -> Self {
        let [m, k] = a.shape;
        let stride = k.next_multiple_of(GROUP).max(GROUP);
        let (mut numbers, mut scales) = (vec![0; m * stride], vec![(0.0, 0); m]);
        let parts = numbers.par_chunks_mut(ROWS_AT_ONCE * stride).zip(scales.par_chunks_mut(ROWS_AT_ONCE)).enumerate();
        parts.for_each(|(part, (numbers, scales))| {
            for (i, (into, scale)) in numbers.chunks_exact_mut(stride).zip(scales).enumerate() {
                let values = if k == 0 { &[] } else { &a.from(part * ROWS_AT_ONCE + i, 0)[..k] };
                let (stands_for, sum) = row(values, &mut into[..k]);
                *scale = (stands_for, i32::from(SHIFT) * sum);
            }
        });
        Self { numbers, stride, scales, b, instructions: Instructions::of_this_machine() }
    }

    /// Writes some rows and columns of the product. The first column is a panel's.
    pub(crate) fn write(&self, into: &mut MatrixMut<'_>, [rows, columns]: [Range<usize>; 2]) {
        let (width, [k, _]) = (self.b.width, self.b.shape);
        let depth = k.next_multiple_of(GROUP);
        let mut sums = vec![0; ROWS * width];
        for panel in columns.clone().step_by(width) {
            let b = &self.b.numbers[panel * depth..][..width * depth];
            let n = width.min(columns.end - panel);
            for block in blocks(rows.clone(), self.instructions.rows()) {
                let a = &self.numbers[block.start * self.stride..block.end * self.stride];
                let sums = &mut sums[..block.len() * width];
                let operands =
                    Operands { rows: block.len(), groups: depth / GROUP, a: (a.as_ptr(), self.stride), b: b.as_ptr() };
                #[expect(unsafe_code, reason = "the loop takes pointers")]
                // SAFETY: the slices hold the rows of the block and the panel, and the machine has the instructions.
                unsafe {
                    self.instructions.sums(&operands, sums);
                }
                let (rows_of, scales) = (&self.scales[block.clone()], &self.b.scales[panel..][..n]);
                scaled(sums, rows_of, scales, into, [block.start - rows.start, panel - columns.start]);
            }
        }
    }
}

vectorized_fn! {
    /// Writes the numbers that the sums of a block stand for, from a row and a column on.
    fn scaled(sums: &[i32], rows: &[(f32, i32)], scales: &[f32], into: &mut MatrixMut<'_>, place: [usize; 2]) {
        let ([first, column], width) = (place, sums.len() / rows.len());
        for (i, (sums, (stands_for, shift))) in sums.chunks_exact(width).zip(rows).enumerate() {
            let into = into.row(first + i, column..column + scales.len());
            for ((to, sum), scale) in into.iter_mut().zip(sums).zip(scales) {
                *to = (sum - shift) as f32 * (stands_for * scale);
            }
        }
    }
}
