//! Column sums on the CPU.

use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::host::vector::vectorized;
use crate::host::{tensor, view};

/// Rows that one thread sums. The number is fixed so that sums do not depend on the number of threads.
const BLOCK_ROWS: usize = 64;

/// Returns the sum of the rows of `x` (`[M, N]`), `[N]`.
pub(crate) fn column_sum(x: FlexTensor) -> FlexTensor {
    let (n, dtype) = (x.layout().shape()[1], x.dtype());
    let values = view(&x);
    let blocks: Vec<Vec<f32>> = values
        .par_chunks((BLOCK_ROWS * n).max(1))
        .map(|rows| {
            let mut sum = vec![0f32; n];
            vectorized(|| {
                for row in rows.chunks(n) {
                    sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
                }
            });
            sum
        })
        .collect();
    let mut total = vec![0f32; n];
    for block in blocks {
        total.iter_mut().zip(block).for_each(|(total, x)| *total += x);
    }
    tensor(total, [n], dtype)
}
