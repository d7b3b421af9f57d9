//! The losses of rows.

use cubecl::prelude::*;

use super::Loss;
use super::row::{Row, RowSums, bounded, row_sums};

/// Writes loss, negative log-likelihood and log of the sum of exponentials of the row at `base` to column `at` of `out`
/// (`[3, rows]`).
#[cube]
pub(super) fn write_losses<F: Float, N: Size>(
    logits: &[Vector<F, N>],
    base: usize,
    sums: &RowSums,
    label: i32,
    out: &mut [f32],
    at: u32,
    of: &Loss,
    #[comptime] row: Row,
) {
    let width = N::value().comptime();
    let mut loss = 0.0f32;
    let mut nll = 0.0f32;
    if label != of.ignored {
        let index = label as usize;
        let z = bounded::<N>(Vector::cast_from(logits[base + index / width]), row).extract_dynamic(index % width);
        let mean = sums.total / comptime![row.vocabulary(width)];
        loss = sums.log_sum - (1.0f32 - of.smoothing) * z - of.smoothing * mean;
        nll = sums.log_sum - z;
    }

    out[at as usize] = loss;
    out[(of.rows + at) as usize] = nll;
    out[(2 * of.rows + at) as usize] = sums.log_sum;
}

/// Computes the losses of rows `first..`, whose logits these are. `labels` and `out` have all rows.
#[cube(launch_unchecked)]
pub(super) fn cross_entropy_forward<F: Float, N: Size>(
    logits: &[Vector<F, N>],
    labels: &[i32],
    out: &mut [f32],
    first: u32,
    loss: Loss,
    #[comptime] row: Row,
    #[define(F)] _dtype: ElemType,
) {
    let at = first + CUBE_POS as u32;
    let base = CUBE_POS * comptime![row.pitch as usize];
    let sums = row_sums::<F, N>(logits, base, row);
    if UNIT_POS == 0 {
        write_losses::<F, N>(logits, base, &sums, labels[at as usize], out, at, &loss, row);
    }
}
