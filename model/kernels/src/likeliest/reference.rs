//! The likeliest columns by plain operations in f32.

use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, Int, Tensor, TensorData};

use super::WORD;

pub(super) fn likeliest(logits: Tensor<2>, excluded: Tensor<1, Int>, k: usize) -> Tensor<3> {
    let ([rows, columns], device) = (logits.dims(), logits.device());
    let words = excluded.into_data().convert::<i32>().try_into_vec::<i32>().expect("integers");
    let is_excluded = |column: usize| words[column / WORD] >> (column % WORD) & 1 == 1;
    let bias: Vec<f32> = (0..columns).map(|c| if is_excluded(c) { f32::NEG_INFINITY } else { 0.0 }).collect();
    let bias = Tensor::from_data(TensorData::new(bias, [1, columns]), (&device, DType::F32));

    let k_found = k.min(columns);
    let (log_probs, found) = log_softmax(logits.cast(DType::F32) + bias, 1).topk_with_indices(k_found, 1);
    let found = found.float().cast(DType::F32);
    let missing = |value: f32| Tensor::full([rows, k - k_found], value, (&device, DType::F32));
    let filled = |x: Tensor<2>, value| if k > k_found { Tensor::cat(vec![x, missing(value)], 1) } else { x };
    Tensor::stack(vec![filled(log_probs, f32::NEG_INFINITY), filled(found, 0.0)], 0)
}
