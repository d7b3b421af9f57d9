//! The likeliest columns as a backend extension, and on the CPU.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn::tensor::DType;
#[cfg(feature = "cuda")]
use burn::tensor::Shape;
use burn_flex::{Flex, FlexTensor};
use rayon::prelude::*;

use super::WORD;
use crate::calls;
use crate::host::vector::{exponentials, max, vectorized};
use crate::host::{ints, tensor, view};

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait LikeliestOps: Backend {
    /// Returns `[2, M, k]`, f32: log-probabilities and columns of the likeliest of each row of `logits`, `[M, V]`, without the columns
    /// whose bits are set in `excluded`, `[ceil(V / 32)]`.
    #[fusion(dtype = DType::F32, shape = Shape::new([2, logits[0], *k]))]
    fn likeliest(logits: FloatTensor<Self>, excluded: IntTensor<Self>, k: usize) -> FloatTensor<Self>;
}

impl LikeliestOps for Flex {
    fn likeliest(logits: FlexTensor, excluded: FlexTensor, k: usize) -> FlexTensor {
        let _call = calls::begin(|| calls::of_passes("likeliest columns", &logits, 1));
        let [rows, columns] = [logits.layout().shape()[0], logits.layout().shape()[1]];
        let (logits, words) = (view(&logits), ints(excluded));
        let excluded: Vec<usize> = (0..columns).filter(|c| words[c / WORD] >> (c % WORD) & 1 == 1).collect();

        let of_row = |possible: &mut Vec<f32>, row: &[f32]| {
            possible.clear();
            possible.extend_from_slice(row);
            excluded.iter().for_each(|&column| possible[column] = f32::NEG_INFINITY);
            let mut best = select(possible, k);
            let largest = best[0].0;
            if largest == f32::NEG_INFINITY {
                return best;
            }
            let log_sum = exponentials(possible, largest).ln();
            best.iter_mut().for_each(|(value, _)| *value = *value - largest - log_sum);
            best
        };
        let found: Vec<Vec<(f32, usize)>> = logits.par_chunks(columns).map_init(Vec::new, of_row).collect();

        let mut result = Vec::with_capacity(2 * rows * k);
        result.extend(found.iter().flatten().map(|(log_prob, _)| *log_prob));
        result.extend(found.iter().flatten().map(|(_, column)| *column as f32));
        tensor(result, [2, rows, k], DType::F32)
    }
}

/// Returns the `k` largest numbers with their columns, the largest first and the lower column of equal ones first.
fn select(values: &[f32], k: usize) -> Vec<(f32, usize)> {
    /// Numbers that are passed over at once if none of them belongs to the largest so far.
    const BLOCK: usize = 128;
    let mut best = vec![(f32::NEG_INFINITY, 0); k];
    for (block, numbers) in values.chunks(BLOCK).enumerate() {
        if vectorized(|| max(numbers)) <= best[k - 1].0 {
            continue;
        }
        for (i, &value) in numbers.iter().enumerate() {
            if value > best[k - 1].0 {
                let place = best.partition_point(|(other, _)| *other >= value);
                best[place..].rotate_right(1);
                best[place] = (value, block * BLOCK + i);
            }
        }
    }
    best
}
