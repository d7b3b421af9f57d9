//! The same by plain operations in f32, on a copy of each row's keys and values.

use burn::tensor::activation::softmax;
use burn::tensor::{DType, Int, Tensor};

use super::StepSpec;

pub(super) fn step_attention(
    query: Tensor<2>,
    key_value: Tensor<3>,
    places: Tensor<2, Int>,
    lengths: Tensor<1, Int>,
    spec: StepSpec,
) -> Tensor<2> {
    let StepSpec { n_heads: h, n_kv_heads: g, head_dim: k, capacity: s, scale, .. } = spec;
    let ([rows, _], [n, _, width], dtype) = (query.dims(), key_value.dims(), query.dtype());
    let position = Tensor::<1, Int>::arange(0..s as i64, (&places.device(), places.dtype())).reshape([1, s]);
    let position = position.expand([rows, s]);

    // Copies for each row and for each query head.
    let at = places.expand([rows, s]) * s as i64 + position.clone();
    let own = key_value.cast(DType::F32).reshape([n * s, width]).select(0, at.reshape([-1]));
    let own = own.reshape([rows, s, 2, g, 1, k]).expand([rows, s, 2, g, h / g, k]).reshape([rows, s, 2, h, k]);
    let part = |i: usize| own.clone().narrow(2, i, 1).reshape([rows, s, h, k]).swap_dims(1, 2);

    let query = query.narrow(1, 0, h * k).cast(DType::F32).reshape([rows, h, 1, k]);
    let scores = query.matmul(part(0).swap_dims(2, 3)) * scale;
    let hidden = position.greater_equal(lengths.reshape([rows, 1]).expand([rows, s]));
    let scores = scores.mask_fill(hidden.reshape([rows, 1, 1, s]).expand([rows, h, 1, s]), f32::NEG_INFINITY);
    softmax(scores, 3).matmul(part(1)).reshape([rows, h * k]).cast(dtype)
}
