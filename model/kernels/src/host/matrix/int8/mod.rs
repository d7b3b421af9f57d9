//! Weights in int8: whole numbers of eight bits, with a scale for each column.
//!
//! The largest magnitude of a column becomes 127, and its other numbers the nearest multiples of a 127th of it, ties to even (symmetric
//! quantization, Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference"). A
//! product either takes its left operand as it is, or rounds each row of it in the same way. Sums of whole numbers are exact, so that
//! their order changes nothing.

mod dot;
mod product;

use std::ops::Range;

use rayon::prelude::*;

pub(super) use self::product::Rounded;
use super::kernel::Block;
use super::{Matrix, copy};
use crate::host::vector::vectorized_fn;

/// Terms of a sum, at most: the sums of their products have 32 bits.
const MOST_TERMS: usize = 1 << 16;
/// The largest whole number.
const LARGEST: f32 = 127.0;
/// What is added to a weight, so that it is not negative.
const SHIFT: u8 = 128;
/// Terms that an instruction multiplies and adds up.
const GROUP: usize = 4;

/// What is rounded to int8 in a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Int8 {
    /// The weights. They are read as int8 and multiplied in f32.
    Weights,
    /// The weights, and each row that they are multiplied by: products of whole numbers.
    Both,
}

/// A right operand in int8, in panels of columns.
#[derive(Debug)]
pub(crate) struct Int8Matrix {
    kind: Int8,
    shape: [usize; 2],
    /// Columns of a panel.
    width: usize,
    /// Of [`Int8::Weights`]: each panel row by row. Of [`Int8::Both`]: the four numbers of a group side by side, [`SHIFT`] added.
    numbers: Vec<u8>,
    /// For each column of the panels, what a whole number stands for.
    scales: Vec<f32>,
}

impl Int8Matrix {
    /// Rounds `b`. Products of more than 65,536 terms could exceed 32 bits: there the weights alone are rounded.
    pub(crate) fn new(b: Matrix<'_>, kind: Int8) -> Self {
        let [k, n] = b.shape;
        let kind = if k > MOST_TERMS { Int8::Weights } else { kind };
        let (width, depth) = match kind {
            Int8::Weights => (Block::of_this_machine().columns, k),
            Int8::Both => (dot::Instructions::of_this_machine().columns(), k.next_multiple_of(GROUP)),
        };
        let panels = n.div_ceil(width);
        let (mut numbers, mut scales) = (vec![0; panels * width * depth], vec![0.0; panels * width]);
        let parts = numbers.par_chunks_mut((width * depth).max(1)).zip(scales.par_chunks_mut(width)).enumerate();
        parts.for_each_init(Vec::new, |values, (panel, (numbers, scales))| {
            values.resize(width * k, 0.0);
            copy::panel(b, [0..k, panel * width..n.min((panel + 1) * width)], width, values);
            let mut inverses = vec![0.0; width];
            column_scales(values, scales, &mut inverses);
            match kind {
                Int8::Weights => rows(values, &inverses, numbers),
                Int8::Both => groups(values, &inverses, numbers),
            }
        });
        Self { kind, shape: [k, n], width, numbers, scales }
    }

    pub(crate) fn shape(&self) -> [usize; 2] {
        self.shape
    }

    pub(super) fn kind(&self) -> Int8 {
        self.kind
    }

    /// Writes some rows of the panel that begins at a column, multiplied by their scales.
    pub(super) fn unrounded(&self, rows: Range<usize>, column: usize, into: &mut [f32]) {
        let (width, [k, _]) = (self.width, self.shape);
        assert_eq!((self.kind, column % width), (Int8::Weights, 0), "a panel of rows");
        let first = column * k;
        unrounded(
            &self.numbers[first + rows.start * width..first + rows.end * width],
            &self.scales[column..][..width],
            into,
        );
    }
}

/// Returns what a whole number stands for if the largest magnitude is `largest`, and the inverse. Where that is not finite, all becomes
/// NaN; where the inverse is not, all becomes 0.
#[inline(always)]
fn scale(largest: f32) -> (f32, f32) {
    let inverse = LARGEST / largest;
    if !largest.is_finite() {
        (f32::NAN, 0.0)
    } else if inverse.is_finite() {
        (largest / LARGEST, inverse)
    } else {
        (0.0, 0.0)
    }
}

/// Returns the nearest whole number, ties to even, of a number of at most 127.
#[inline(always)]
fn nearest(x: f32) -> i8 {
    // Adding 1.5 * 2^23 rounds to a whole number, which then stands in the last bits.
    (x + 12_582_912.0).to_bits() as i8
}

/// The larger magnitude; NaN is larger than all others. Bits of magnitudes are ordered as magnitudes.
#[inline(always)]
fn larger(largest: u32, x: f32) -> u32 {
    largest.max(x.abs().to_bits())
}

vectorized_fn! {
    /// Finds the scales of columns, and their inverses.
    fn column_scales(values: &[f32], scales: &mut [f32], inverses: &mut [f32]) {
        let mut largest = vec![0; scales.len()];
        for row in values.chunks_exact(scales.len()) {
            largest.iter_mut().zip(row).for_each(|(largest, x)| *largest = larger(*largest, *x));
        }
        for ((bits, to), inverse) in largest.into_iter().zip(scales).zip(inverses) {
            (*to, *inverse) = scale(f32::from_bits(bits));
        }
    }

    /// Rounds a panel row by row.
    fn rows(values: &[f32], inverses: &[f32], into: &mut [u8]) {
        for (row, into) in values.chunks_exact(inverses.len()).zip(into.chunks_exact_mut(inverses.len())) {
            into.iter_mut().zip(row).zip(inverses).for_each(|((to, x), inverse)| *to = nearest(x * inverse).cast_unsigned());
        }
    }

    /// Rounds a panel, four rows side by side. Rows that are missing become 0.
    fn groups(values: &[f32], inverses: &[f32], into: &mut [u8]) {
        let width = inverses.len();
        for (rows, into) in values.chunks(GROUP * width).zip(into.chunks_exact_mut(GROUP * width)) {
            into.fill(SHIFT);
            for (l, row) in rows.chunks_exact(width).enumerate() {
                let to = into[l..].iter_mut().step_by(GROUP);
                to.zip(row).zip(inverses).for_each(|((to, x), inverse)| *to = nearest(x * inverse).cast_unsigned() ^ SHIFT);
            }
        }
    }

    /// Multiplies whole numbers by the scales of their columns.
    fn unrounded(numbers: &[u8], scales: &[f32], into: &mut [f32]) {
        for (row, into) in numbers.chunks_exact(scales.len()).zip(into.chunks_exact_mut(scales.len())) {
            for ((to, x), scale) in into.iter_mut().zip(row).zip(scales) {
                *to = f32::from(x.cast_signed()) * scale;
            }
        }
    }

    /// Rounds a row, and returns what a whole number stands for and the sum of the whole numbers.
    fn row(values: &[f32], into: &mut [i8]) -> (f32, i32) {
        let largest = values.iter().fold(0, |largest, x| larger(largest, *x));
        let (stands_for, inverse) = scale(f32::from_bits(largest));
        let mut sum = 0;
        for (to, x) in into.iter_mut().zip(values) {
            *to = nearest(x * inverse);
            sum += i32::from(*to);
        }
        (stands_for, sum)
    }
}

#[cfg(test)]
mod tests;
