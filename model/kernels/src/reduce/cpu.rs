//! Column sums on the CPU.

use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::host::vector::add;
use crate::host::{change, tensor, view};

/// Rows that one thread sums. The number is fixed so that sums do not depend on the number of threads.
const BLOCK_ROWS: usize = 64;

/// Returns the sum of the rows of `x` (`[M, N]`), `[N]`.
pub(crate) fn column_sum(x: FlexTensor) -> FlexTensor {
    let (n, dtype) = (x.layout().shape()[1], x.dtype());
    let blocks = view(&x).par_chunks((BLOCK_ROWS * n).max(1)).map(|rows| sum_of_rows(rows, n)).collect();
    tensor(total(blocks, n), [n], dtype)
}

/// Returns `x` (`[M, N]`) with changed rows, and their sum. `to_change` gets the index of a first number, and rows from there on.
pub(crate) fn changed_and_summed(
    x: FlexTensor,
    to_change: impl Fn(usize, &mut [f32]) + Sync,
) -> (FlexTensor, FlexTensor) {
    let (n, dtype) = (x.layout().shape()[1], x.dtype());
    let len = (BLOCK_ROWS * n).max(1);
    let mut blocks = Vec::new();

    let x = change(x, |values| {
        let changed = values.par_chunks_mut(len).enumerate().map(|(i, rows)| {
            to_change(i * len, rows);
            sum_of_rows(rows, n)
        });
        changed.collect_into_vec(&mut blocks);
    });
    (x, tensor(total(blocks, n), [n], dtype))
}

fn sum_of_rows(rows: &[f32], n: usize) -> Vec<f32> {
    let mut sum = vec![0f32; n];
    rows.chunks(n).for_each(|row| add(&mut sum, row));
    sum
}

fn total(blocks: Vec<Vec<f32>>, n: usize) -> Vec<f32> {
    let mut total = vec![0f32; n];
    for block in blocks {
        add(&mut total, &block);
    }
    total
}
